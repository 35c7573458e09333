// Computes a linear layer for an input of few rows, for example when one token at a time is
// generated. Such a layer spends most of its time on loading weights. One workgroup computes one
// element of `out`, and neighbouring threads load neighbouring weights. The kernel includes
// lm/element_type.wgsl before this file.
//!include common/reduce.wgsl
//!include lm/addend.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<Element>;
@group(0) @binding(2) var<storage, read> residual: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;

// Computes element i of `out`. A workgroup beyond the last element adds no terms and stores
// nothing.
fn linear_element(i: u32, local_index: u32) {
    let inside = i < dims.x * dims.y;
    let start = vec2<u32>(i / dims.y, i % dims.y) * dims.z; // starts of the rows of x and weight
    let terms = select(0u, dims.z, inside);
    var sum = 0.0;
    for (var k = local_index; k < terms; k += WORKGROUP_SIZE) {
        sum = fma(x[start.x + k], f32(weight[start.y + k]), sum);
    }
    var total = workgroup_sum(sum, local_index);
    if (local_index == 0u && inside) {
        if (dims.w == ADD_RESIDUAL) {
            total += residual[i];
        }
        if (dims.w == ADD_TO_PRODUCT) {
            total += out[i];
        }
        out[i] = total;
    }
}
