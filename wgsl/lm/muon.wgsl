// Computes Muon's step on four elements, along a direction that Newton-Schulz iterations have made
// orthogonal.
//
//   parameter *= 1 - learning_rate weight_decay                     (if the tensor has weight decay)
//   parameter -= learning_rate UPDATE_RMS sqrt(max(rows, columns)) direction
//
// The elements of an orthogonal matrix have a root mean square of 1 / sqrt(max(rows, columns)), and
// the elements of AdamW's steps have one of about UPDATE_RMS. With the scale above, one learning
// rate suits both optimizers (J. Liu et al., arXiv 2502.16982).
//!include lm/hyper.wgsl
//!include lm/live_elements.wgsl

const UPDATE_RMS: f32 = 0.2;

@group(0) @binding(0) var<storage, read_write> parameter: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> direction: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> hyper: Hyper;
@group(0) @binding(3) var<storage, read> stats: vec4<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;

// Updates vector `i`, and returns it. Elements after the tensor's end do not change, because they
// may belong to another tensor.
fn update_vector(i: u32) -> vec4<f32> {
    let kept = select(1.0, 1.0 - hyper.learning_rate * hyper.weight_decay, dims.y != 0u);
    let step_size = hyper.learning_rate * (UPDATE_RMS * sqrt(f32(dims.z)));
    let before = parameter[i];
    let after = kept * before - step_size * direction[i];
    let updated = select(before, after, live_elements(i, dims.x));
    parameter[i] = updated;
    return updated;
}
