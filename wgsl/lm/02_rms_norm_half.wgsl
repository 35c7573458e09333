// rms_norm_half: computes rms_norm like 02_rms_norm.wgsl, and rounds the output to half precision.
//
//   r = 1 / sqrt(mean(x^2) + epsilon),  out = x * r * weight
//
// ROW_THREADS threads share a row. Each of them keeps `vectors` vectors of the row in registers, so
// that the row is read once.
//
// binding 0  x            read        (N, C), four per element; C is a multiple of 4
// binding 1  weight       read        (C,), four per element
// binding 2  out          read_write  (N, C), half precision, four per element
// binding 3  inverse_rms  read_write  (N,) r of each row
// binding 4  dims         uniform     N, C / 4
// binding 5  params       uniform     epsilon
// dispatch: one workgroup for WORKGROUP_SIZE / ROW_THREADS rows
// limits: ROW_THREADS is a power of two, and ROW_THREADS * vectors at least C / 4
//!include common/reduce.wgsl
//!include lm/four_halves.wgsl
//!override vectors = 8

override ROW_THREADS: u32 = 32u;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> inverse_rms: array<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;
@group(0) @binding(5) var<uniform> params: vec4<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let row = group * (WORKGROUP_SIZE / ROW_THREADS) + local_index / ROW_THREADS;
    let width = select(0u, dims.y, row < dims.x); // threads without a row must reach the barriers
    let thread = local_index % ROW_THREADS;
    let base = row * dims.y + thread;

    var squares = 0.0;
    //!for k in 0..vectors
    let is_live_{k} = thread + {k}u * ROW_THREADS < width;
    let x_{k} = select(vec4<f32>(), x[base + {k}u * ROW_THREADS], is_live_{k});
    //!end
    //!for k in 0..vectors
    squares += dot(x_{k}, x_{k});
    //!end
    let mean = run_sum(squares, local_index, ROW_THREADS) / f32(4u * dims.y);
    let r = 1.0 / sqrt(mean + params.x);

    //!for k in 0..vectors
    if (is_live_{k}) {
        out[base + {k}u * ROW_THREADS] = four_halves(x_{k} * r * weight[thread + {k}u * ROW_THREADS]);
    }
    //!end
    if (width != 0u && thread == 0u) {
        inverse_rms[row] = r;
    }
}
