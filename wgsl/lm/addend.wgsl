// What is added to a product: another matrix, what is there already, or nothing.
const ADD_RESIDUAL: u32 = 1u;
const ADD_TO_PRODUCT: u32 = 2u;
