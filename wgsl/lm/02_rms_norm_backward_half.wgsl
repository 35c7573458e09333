// rms_norm_backward_half: computes the gradients of rms_norm like 02_rms_norm_backward.wgsl, and
// also stores the gradient of the input rounded to half precision.
//
//   with d = sum over the row of grad_out * weight * x:
//   grad_x += r * (grad_out * weight - x * r^2 * d / C),  rounded = grad_x
//   grad_weight += sum over all rows of grad_out * x * r
//
// A kernel that only rounds would have to read grad_x once more. An element holds four columns.
//
// ROW_THREADS threads share a row. Each of them keeps `vectors` vectors of the row in registers, so
// that the row is read once. The threads process one row after the other, and each thread keeps the
// sums of grad_weight for its columns. At the end, the workgroup adds up the sums of the threads
// that have the same columns.
//
// binding 0  x            read        (N, C), four per element; C is a multiple of 4
// binding 1  weight       read        (C,), four per element
// binding 2  inverse_rms  read        (N,) r, as rms_norm stores it
// binding 3  grad_out     read        (N, C), four per element, in half precision if
//   `half_gradient` is set
// binding 4  grad_x       read_write  (N, C), four per element, added to
// binding 5  partials     read_write  rows of C, four per element; each of the P workgroups writes
//   one row, the sum of grad_weight over its rows of x
// binding 6  dims         uniform     N, C / 4, rows of x per workgroup, row of partials of
//   workgroup 0
// binding 7  rounded      read_write  (N, C), half precision, four per element
// dispatch: P workgroups
// limits: ROW_THREADS is a power of two, and ROW_THREADS * vectors at least C / 4; the rows of a
// workgroup are a multiple of WORKGROUP_SIZE / ROW_THREADS
//!include common/reduce.wgsl
//!include lm/four_halves.wgsl
//!override vectors = 8
// 1 if grad_out is in half precision.
//!override half_gradient = 0
//!let element = vec4<f32>
//!let element = vec2<u32> if half_gradient

override ROW_THREADS: u32 = 32u;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> inverse_rms: array<f32>;
@group(0) @binding(3) var<storage, read> grad_out: array<{element}>;
@group(0) @binding(4) var<storage, read_write> grad_x: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> partials: array<vec4<f32>>;
@group(0) @binding(6) var<uniform> dims: vec4<u32>;
@group(0) @binding(7) var<storage, read_write> rounded: array<vec2<u32>>;

var<workgroup> sh_sums: array<vec4<f32>, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn rms_norm_backward_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let thread = local_index % ROW_THREADS;
    let together = WORKGROUP_SIZE / ROW_THREADS; // rows that the workgroup processes at a time
    //!for k in 0..vectors
    let weight_{k} = weight[min(thread + {k}u * ROW_THREADS, dims.y - 1u)];
    var sum_{k} = vec4<f32>();
    //!end

    for (var step = 0u; step < dims.z; step += together) {
        let row = group * dims.z + step + local_index / ROW_THREADS;
        let width = select(0u, dims.y, row < dims.x); // threads without a row must reach the barriers
        let base = row * dims.y + thread;
        let r = inverse_rms[min(row, dims.x - 1u)];
        var products = 0.0;
        //!for k in 0..vectors
        let is_live_{k} = thread + {k}u * ROW_THREADS < width;
        let x_{k} = select(vec4<f32>(), x[base + {k}u * ROW_THREADS], is_live_{k});
        //!let loaded = grad_out[base + {k}u * ROW_THREADS]
        //!let loaded = four_singles({loaded}) if half_gradient
        let gradient_{k} = select(vec4<f32>(), {loaded}, is_live_{k});
        let before_{k} = grad_x[base + {k}u * ROW_THREADS];
        //!end
        //!for k in 0..vectors
        products += dot(gradient_{k} * weight_{k}, x_{k});
        //!end
        let pull = r * r * r * run_sum(products, local_index, ROW_THREADS) / f32(4u * dims.y);
        //!for k in 0..vectors
        sum_{k} += gradient_{k} * r * x_{k};
        if (is_live_{k}) {
            let after = before_{k} + (gradient_{k} * r * weight_{k} - x_{k} * pull);
            grad_x[base + {k}u * ROW_THREADS] = after;
            rounded[base + {k}u * ROW_THREADS] = four_halves(after);
        }
        //!end
    }

    // Add up the sums of the threads that have the same columns, in the order of the threads.
    //!for k in 0..vectors
    sh_sums[local_index] = sum_{k};
    workgroupBarrier();
    if (local_index < ROW_THREADS && thread + {k}u * ROW_THREADS < dims.y) {
        var total = vec4<f32>();
        for (var i = thread; i < WORKGROUP_SIZE; i += ROW_THREADS) {
            total += sh_sums[i];
        }
        partials[(dims.w + group) * dims.y + thread + {k}u * ROW_THREADS] = total;
    }
    workgroupBarrier();
    //!end
}
