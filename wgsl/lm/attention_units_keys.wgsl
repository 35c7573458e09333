// The columns of the gradients of keys and values that a workgroup computes on matrix units, and the
// end of its work. Included after attention_units_outputs.wgsl.

//!let width = {head_dim / column_sets}
//!let gap = {(head_dim - width) / 2}
//!let first_vector =
//!let first_quad =
//!if column_sets > 1
  //!let first_vector = column0 / 8u +
  //!let first_quad = column0 / 4u +
//!end
//!let stride = key_stride

// Stores the sums `grad_k` and `grad_v`.
//!block store_both_gradients
  //!let sums = grad_k
  //!let grads = grad_keys
  //!let is_turned = 1
  //!let factor = params.scale *
  //!include store_gradient
  //!let sums = grad_v
  //!let grads = grad_values
  //!let is_turned = 0
  //!let factor =
  //!include store_gradient
//!end
