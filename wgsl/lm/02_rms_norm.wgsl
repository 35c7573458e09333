// rms_norm: divides each row by its root mean square, and multiplies it by a weight per column.
//
//   r = 1 / sqrt(mean(x^2) + epsilon),  out = x * r * weight
//
// Sums are f32, so the squares of elements beyond 1e19 overflow. The kernel is memory-bound. It
// reads a row from memory once, and a second time from the caches.
//
// binding 0  x            read        (N, C)
// binding 1  weight       read        (C,)
// binding 2  out          read_write  (N, C)
// binding 3  inverse_rms  read_write  (N,) r of each row
// binding 4  dims         uniform     N, C
// binding 5  params       uniform     epsilon
// dispatch: one workgroup for WORKGROUP_SIZE / ROW_THREADS rows, each of which has ROW_THREADS
// threads, a power of two
//!include lm/rms_norm.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

fn square(i: u32) -> f32 {
    return x[i] * x[i];
}

fn store(i: u32, column: u32, r: f32) {
    out[i] = x[i] * r * weight[column];
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    normalise_rows(flat_group(workgroup, workgroups), 1u, local_index);
}
