// finalize_grad_stats: computes the norm of all gradients and the clip scale, and checks whether
// the step is bad.
//
//   norm = inverse_scale sqrt(sum over all gradients of g^2)
//   clip_scale = min(1, max_norm / (norm + 1e-6)), 0 from the first bad step on
//
// A step is bad if its norm or a term of its loss is not finite. After a bad step, all steps count
// as bad and change nothing, until the host sets stats.z to 0.
//
// binding 0  partials   read        (tensors, NORM_PARTIALS)
// binding 1  loss_sums  read        (3, A) partial sums of losses, of label smoothing, of z-losses
// binding 2  stats      read_write  (4,) clip_scale times inverse_scale, norm, bad, loss
// binding 3  history    read_write  (S, 8) of step `slot`: loss, norm, clip_scale, bad; smoothing, z-loss
// binding 4  hyper      uniform     Hyper
// binding 5  dims       uniform     number of partials, A
// dispatch: one workgroup
//!include common/reduce.wgsl
//!include lm/finite.wgsl
//!include lm/hyper.wgsl

const CLIP_EPSILON: f32 = 1e-6;

@group(0) @binding(0) var<storage, read> partials: array<f32>;
@group(0) @binding(1) var<storage, read> loss_sums: array<f32>;
@group(0) @binding(2) var<storage, read_write> stats: vec4<f32>;
@group(0) @binding(3) var<storage, read_write> history: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> hyper: Hyper;
@group(0) @binding(5) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn finalize_grad_stats(@builtin(local_invocation_index) local_index: u32) {
    var squares = 0.0;
    for (var i = local_index; i < dims.x; i += WORKGROUP_SIZE) {
        squares += partials[i];
    }
    let norm = sqrt(workgroup_sum(squares, local_index)) * hyper.inverse_scale;
    let loss = mean_of_part(0u, local_index);
    let smoothing = mean_of_part(1u, local_index);
    let z_loss = mean_of_part(2u, local_index);
    if (local_index == 0u) {
        let is_known = is_finite(loss) && is_finite(smoothing) && is_finite(z_loss);
        let is_bad = stats.z != 0.0 || !is_finite(norm) || !is_known;
        let clips = hyper.max_norm > 0.0;
        let wanted_scale = select(1.0, min(1.0, hyper.max_norm / (norm + CLIP_EPSILON)), clips);
        let clip_scale = select(wanted_scale, 0.0, is_bad);
        let bad = select(0.0, 1.0, is_bad);
        stats = vec4<f32>(clip_scale * hyper.inverse_scale, norm, bad, loss);
        history[2u * hyper.slot] = vec4<f32>(loss, norm, clip_scale, bad);
        history[2u * hyper.slot + 1u] = vec4<f32>(smoothing, z_loss, 0.0, 0.0);
    }
}

// Returns one term of the loss, averaged over all targets.
fn mean_of_part(part: u32, local_index: u32) -> f32 {
    var sum = 0.0;
    for (var i = local_index; i < dims.y; i += WORKGROUP_SIZE) {
        sum += loss_sums[part * dims.y + i];
    }
    return workgroup_sum(sum, local_index) * hyper.inverse_count;
}
