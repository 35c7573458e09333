// rms_norm_backward: computes the gradient of the input of rms_norm, and partial sums of the
// gradient of its weight.
//
//   with d = sum over the row of grad_out * weight * x:
//   grad_x += r * (grad_out * weight - x * r^2 * d / C)
//   grad_weight += sum over all rows of grad_out * x * r
//
// binding 0  x            read        (N, C)
// binding 1  weight       read        (C,)
// binding 2  inverse_rms  read        (N,) r, as rms_norm stores it
// binding 3  grad_out     read        (N, C)
// binding 4  grad_x       read_write  (N, C), added to
// binding 5  partials     read_write  rows of C; each of the P workgroups writes one row, the sum
//   of grad_weight over its rows of x
// binding 6  dims         uniform     N, C, rows of x per workgroup, row of partials of workgroup 0
// dispatch: P workgroups
//!include common/reduce.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> inverse_rms: array<f32>;
@group(0) @binding(3) var<storage, read> grad_out: array<f32>;
@group(0) @binding(4) var<storage, read_write> grad_x: array<f32>;
@group(0) @binding(5) var<storage, read_write> partials: array<f32>;
@group(0) @binding(6) var<uniform> dims: vec4<u32>;
//!let numbers = 1
//!let number = f32
//!include lm/rms_norm_backward.wgsl

fn dot_of(place: u32, c: u32) -> f32 {
    return grad_out[place] * weight[c] * x[place];
}

fn add_gradient(place: u32, gradient: f32) {
    grad_x[place] += gradient;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    norm_backward(flat_group(workgroup, workgroups), local_index);
}
