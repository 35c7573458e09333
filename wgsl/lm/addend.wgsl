// Codes of the matrix that is added to a product: `residual`, or the old value of the product. With
// any other code nothing is added.
const ADD_RESIDUAL: u32 = 1u;
const ADD_TO_PRODUCT: u32 = 2u;
