// muon_momentum: the momentum of a matrix, and the direction of its step before it is orthogonal.
//
//   momentum += (1 - MOMENTUM) (g - momentum),  g = clip_scale gradient
//   direction = g + MOMENTUM (momentum - g)                                              (Nesterov)
//
// A bad step changes nothing.
//
// binding 0  gradient   read        any shape, taken as one list of elements
// binding 1  momentum   read_write  as gradient
// binding 2  direction  read_write  as gradient
// binding 3  stats      read        (4,)
// binding 4  dims       uniform     elements
// dispatch: one thread per four elements
//!include lm/live_elements.wgsl

const MOMENTUM: f32 = 0.95;

@group(0) @binding(0) var<storage, read> gradient: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> momentum: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> direction: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> stats: vec4<f32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn muon_momentum(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (4u * i < dims.x && stats.z == 0.0) {
        let live = live_elements(i, dims.x);
        let g = stats.x * gradient[i];
        let mean = momentum[i] + (1.0 - MOMENTUM) * (g - momentum[i]);
        momentum[i] = select(momentum[i], mean, live);
        direction[i] = select(direction[i], g + MOMENTUM * (mean - g), live);
    }
}
