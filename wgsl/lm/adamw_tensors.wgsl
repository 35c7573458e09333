// Computes a step of AdamW on a parameter and its moments, four elements at a time.
//!include lm/adamw.wgsl
//!include lm/live_elements.wgsl

@group(0) @binding(0) var<storage, read_write> parameter: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gradient: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> first: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> second: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> hyper: Hyper;
@group(0) @binding(5) var<storage, read> stats: vec4<f32>;
@group(0) @binding(6) var<uniform> dims: vec4<u32>;

// Updates vector `i`, and returns the updated parameter. Elements after the tensor's end do not
// change, because they may belong to another tensor.
fn update_vector(i: u32) -> vec4<f32> {
    let before = Adamw(parameter[i], first[i], second[i]);
    let after = adamw(before, stats.x * gradient[i], hyper, dims.y != 0u);
    let live = live_elements(i, dims.x);
    let updated = select(before.parameter, after.parameter, live);
    parameter[i] = updated;
    first[i] = select(before.first, after.first, live);
    second[i] = select(before.second, after.second, live);
    return updated;
}
