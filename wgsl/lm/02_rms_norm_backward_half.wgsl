// rms_norm_backward_half: the gradients of rms_norm as 02_rms_norm_backward.wgsl computes them, and
// the gradient of its input in half precision, too.
//
//   with d = sum over the row of grad_out * weight * x:
//   grad_x += r * (grad_out * weight - x * r^2 * d / C),  rounded = grad_x
//   grad_weight += sum over all rows of grad_out * x * r
//
// The rounding here saves a pass over grad_x. Four columns are one element.
//
// binding 0  x            read        (N, C), four per element; C is a multiple of 4
// binding 1  weight       read        (C,), four per element
// binding 2  inverse_rms  read        (N,) r, as rms_norm stores it
// binding 3  grad_out     read        (N, C), four per element
// binding 4  grad_x       read_write  (N, C), four per element, added to
// binding 5  partials     read_write  (P, C), four per element, a workgroup's part of grad_weight
// binding 6  dims         uniform     N, C / 4, rows of a workgroup
// binding 7  rounded      read_write  (N, C), half precision, four per element
// dispatch: P workgroups
//!include common/reduce.wgsl
//!include lm/half_bits.wgsl

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> inverse_rms: array<f32>;
@group(0) @binding(3) var<storage, read> grad_out: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> grad_x: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> partials: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> dims: vec4<u32>;
@group(0) @binding(7) var<storage, read_write> rounded: array<vec2<u32>>;
//!let numbers = 4
//!let number = vec4<f32>
//!include lm/rms_norm_backward.wgsl

fn dot_of(place: u32, c: u32) -> f32 {
    return dot(grad_out[place] * weight[c], x[place]);
}

fn add_gradient(place: u32, gradient: vec4<f32>) {
    let sum = grad_x[place] + gradient;
    grad_x[place] = sum;
    rounded[place] = four_halves(sum);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_backward_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    norm_backward(flat_group(workgroup, workgroups), local_index);
}
