// rms_norm_half: rms_norm of 02_rms_norm.wgsl, rounded to half precision.
//
//   r = 1 / sqrt(mean(x^2) + epsilon),  out = x * r * weight
//
// binding 0  x            read        (N, C), four an element; C is a multiple of 4
// binding 1  weight       read        (C,), four an element
// binding 2  out          read_write  (N, C), half precision, four an element
// binding 3  inverse_rms  read_write  (N,)
// binding 4  dims         uniform     N, C / 4
// binding 5  params       uniform     epsilon
// dispatch: one workgroup for WORKGROUP_SIZE / ROW_THREADS rows, each of which has ROW_THREADS
// threads, a power of two
//!include common/reduce.wgsl
//!include lm/half_bits.wgsl

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> inverse_rms: array<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;
@group(0) @binding(5) var<uniform> params: vec4<f32>;

override ROW_THREADS: u32 = 256u;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_half(
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
        squares += dot(x[base + c], x[base + c]);
    }
    let mean = run_sum(squares, local_index, ROW_THREADS) / f32(4u * dims.y);
    let r = 1.0 / sqrt(mean + params.x);
    for (var c = thread; c < width; c += ROW_THREADS) {
        out[base + c] = four_halves(x[base + c] * r * weight[c]);
    }
    if (row < dims.x && thread == 0u) {
        inverse_rms[row] = r;
    }
}
