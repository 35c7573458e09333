// The norm of all gradients, what follows from it, and AdamW.
//
//   norm = sqrt(sum over all gradients of g^2)
//   clip_scale = min(1, max_norm / (norm + 1e-6)), 0 from the first bad step on
//   AdamW: see adamw.wgsl
//
// A step is bad when its norm or its loss is not finite. All steps after a bad one are bad, too,
// until the host clears the mark, and none changes anything.
//
// stats = (clip_scale, norm, bad, loss).
//!include lm/half.wgsl
//!include common/reduce.wgsl
//!include lm/adamw.wgsl
//!include lm/elements.wgsl

override NORM_PARTIALS: u32 = 128u;

const CLIP_EPSILON: f32 = 1e-6;

// reduce_norm_sq
// binding 0  grad      read        any shape, taken as one list of elements
// binding 1  partials  read_write  (tensors, NORM_PARTIALS)
// binding 2  dims      uniform     elements, row of partials
// dispatch: NORM_PARTIALS workgroups; each takes every NORM_PARTIALS-th run of 4 WORKGROUP_SIZE
//           elements and writes the sum of their squares
@group(0) @binding(0) var<storage, read> grad: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> partials: array<f32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn reduce_norm_sq(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    var sums = vec4<f32>();
    let stride = NORM_PARTIALS * WORKGROUP_SIZE;
    let vectors = (dims.x + 3u) / 4u;
    for (var i = workgroup.x * WORKGROUP_SIZE + local_index; i < vectors; i += stride) {
        let g = select(vec4<f32>(), grad[i], live_elements(i, dims.x));
        sums += g * g;
    }
    let total = workgroup_sum(sums.x + sums.y + sums.z + sums.w, local_index);
    if (local_index == 0u) {
        partials[dims.y * NORM_PARTIALS + workgroup.x] = total;
    }
}

// finalize_grad_stats
// binding 0  all_partials  read        (tensors, NORM_PARTIALS)
// binding 1  loss_sums     read        (A,)
// binding 2  grad_stats    read_write  (4,) clip_scale, norm, bad, loss
// binding 3  history       read_write  (S, 4) loss, norm, clip_scale, bad of step `slot`
// binding 4  hyper         uniform     Hyper
// binding 5  stats_dims    uniform     partials, A
// dispatch: one workgroup
@group(0) @binding(0) var<storage, read> all_partials: array<f32>;
@group(0) @binding(1) var<storage, read> loss_sums: array<f32>;
@group(0) @binding(2) var<storage, read_write> grad_stats: vec4<f32>;
@group(0) @binding(3) var<storage, read_write> history: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> hyper: Hyper;
@group(0) @binding(5) var<uniform> stats_dims: vec4<u32>;

// By the exponent's bits: compilers may take it that comparisons never see NaN or infinity.
fn is_finite(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7f800000u) != 0x7f800000u;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn finalize_grad_stats(@builtin(local_invocation_index) local_index: u32) {
    var squares = 0.0;
    for (var i = local_index; i < stats_dims.x; i += WORKGROUP_SIZE) {
        squares += all_partials[i];
    }
    var losses = 0.0;
    for (var i = local_index; i < stats_dims.y; i += WORKGROUP_SIZE) {
        losses += loss_sums[i];
    }
    let norm = sqrt(workgroup_sum(squares, local_index));
    let loss = workgroup_sum(losses, local_index) * hyper.inverse_count;
    if (local_index == 0u) {
        let is_bad = grad_stats.z != 0.0 || !is_finite(norm) || !is_finite(loss);
        let clips = hyper.max_norm > 0.0;
        let wanted_scale = select(1.0, min(1.0, hyper.max_norm / (norm + CLIP_EPSILON)), clips);
        let clip_scale = select(wanted_scale, 0.0, is_bad);
        let bad = select(0.0, 1.0, is_bad);
        grad_stats = vec4<f32>(clip_scale, norm, bad, loss);
        history[hyper.slot] = vec4<f32>(loss, norm, clip_scale, bad);
    }
}

// adamw_update
// binding 0  parameter  read_write  any shape, taken as one list of elements
// binding 1  gradient   read        as parameter
// binding 2  first      read_write  as parameter
// binding 3  second     read_write  as parameter
// binding 4  hyper      uniform     Hyper
// binding 5  stats      read        (4,)
// binding 6  adamw_dims uniform     elements, 1 if the tensor decays
// dispatch: one thread four elements
@group(0) @binding(0) var<storage, read_write> parameter: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gradient: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> first: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> second: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> stats: vec4<f32>;
@group(0) @binding(6) var<uniform> adamw_dims: vec4<u32>;

// Update vector `i`; elements behind the tensor's end, which may be another tensor's, stay.
fn update_vector(i: u32) -> vec4<f32> {
    let before = Adamw(parameter[i], first[i], second[i]);
    let after = adamw(before, stats.x * gradient[i], hyper, adamw_dims.y != 0u);
    let live = live_elements(i, adamw_dims.x);
    let updated = select(before.parameter, after.parameter, live);
    parameter[i] = updated;
    first[i] = select(before.first, after.first, live);
    second[i] = select(before.second, after.second, live);
    return updated;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_update(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (4u * i < adamw_dims.x && stats.z == 0.0) {
        update_vector(i);
    }
}

// adamw_update_f16
// binding 0  parameter  read_write  any shape, taken as one list of elements
// binding 1  gradient   read        as parameter
// binding 2  first      read_write  as parameter
// binding 3  second     read_write  as parameter
// binding 4  hyper      uniform     Hyper
// binding 5  stats      read        (4,)
// binding 6  adamw_dims uniform     elements, 1 if the tensor decays
// binding 7  mirror     read_write  as parameter, f16
// dispatch: one thread four elements
@group(0) @binding(7) var<storage, read_write> mirror: array<vec4<f16>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_update_f16(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (4u * i < adamw_dims.x && stats.z == 0.0) {
        let halves = saturate_to_halves(update_vector(i));
        mirror[i] = select(mirror[i], halves, live_elements(i, adamw_dims.x));
    }
}
