// rms_norm_half: rms_norm of 02_rms_norm.wgsl, rounded to half precision.
//
//   r = 1 / sqrt(mean(x^2) + epsilon),  out = x * r * weight
//
// binding 0  x            read        (N, C), four per element; C is a multiple of 4
// binding 1  weight       read        (C,), four per element
// binding 2  out          read_write  (N, C), half precision, four per element
// binding 3  inverse_rms  read_write  (N,)
// binding 4  dims         uniform     N, C / 4
// binding 5  params       uniform     epsilon
// dispatch: one workgroup for WORKGROUP_SIZE / ROW_THREADS rows, each of which has ROW_THREADS
// threads, a power of two
//!include lm/rms_norm.wgsl
//!include lm/half_bits.wgsl

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<u32>>;

fn square(i: u32) -> f32 {
    return dot(x[i], x[i]);
}

fn store(i: u32, column: u32, r: f32) {
    out[i] = four_halves(x[i] * r * weight[column]);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    normalise_rows(flat_group(workgroup, workgroups), 4u, local_index);
}
