// The addend of a product: another matrix, the old value of the product, or nothing.
const ADD_RESIDUAL: u32 = 1u;
const ADD_TO_PRODUCT: u32 = 2u;
