// Declares the weights, four per element, and four_weights(i), which returns element i in single
// precision. `weight_binding` is the number of the binding of the weights.
//!override half = 0
//!if half
@group(0) @binding({weight_binding}) var<storage, read> weight: array<vec2<u32>>;

fn four_weights(i: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(weight[i].x), unpack2x16float(weight[i].y));
}
//!else
@group(0) @binding({weight_binding}) var<storage, read> weight: array<vec4<f32>>;

fn four_weights(i: u32) -> vec4<f32> {
    return weight[i];
}
//!end
