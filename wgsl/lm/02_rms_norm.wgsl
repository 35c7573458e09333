// rms_norm: root-mean-square normalisation of rows.
//
//   r = 1 / sqrt(mean(x^2) + epsilon),  out = x * r * weight
//
// Sums are f32; squares of elements beyond 1e19 overflow. Memory-bound: a row comes from memory once,
// and again from the caches.
//
// binding 0  x            read        (N, C)
// binding 1  weight       read        (C,)
// binding 2  out          read_write  (N, C)
// binding 3  inverse_rms  read_write  (N,)
// binding 4  dims         uniform     N, C
// binding 5  params       uniform     epsilon
// dispatch: one workgroup for WORKGROUP_SIZE / ROW_THREADS rows, each of which has ROW_THREADS
// threads, a power of two
//!include common/reduce.wgsl

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read_write> inverse_rms: array<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;
@group(0) @binding(5) var<uniform> params: vec4<f32>;

override ROW_THREADS: u32 = 256u;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let first_row = flat_group(workgroup, workgroups) * (WORKGROUP_SIZE / ROW_THREADS);
    let row = first_row + local_index / ROW_THREADS;
    let thread = local_index % ROW_THREADS;
    let width = select(0u, dims.y, row < dims.x);  // threads without a row must reach the barriers
    let base = row * dims.y;
    var squares = 0.0;
    for (var c = thread; c < width; c += ROW_THREADS) {
        squares += x[base + c] * x[base + c];
    }
    let mean = run_sum(squares, local_index, ROW_THREADS) / f32(dims.y);
    let r = 1.0 / sqrt(mean + params.x);
    for (var c = thread; c < width; c += ROW_THREADS) {
        out[base + c] = x[base + c] * r * weight[c];
    }
    if (row < dims.x && thread == 0u) {
        inverse_rms[row] = r;
    }
}
