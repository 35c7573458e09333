// reduce_norms: computes sums of the squares of many gradients, from which finalize_grad_stats
// computes the norm of all gradients.
//
// NORM_PARTIALS workgroups per gradient write one sum each. With one dispatch per gradient, each
// dispatch would wait for the one before, because both write to the same tensor. Gradients that are
// adjacent in memory share a binding.
//
// binding 0  grads_0    read        gradients one after the other, each with a multiple of 4 elements
// binding 1  grads_1    read        the same, and so on
// binding 2  grads_2    read
// binding 3  grads_3    read
// binding 4  grads_4    read
// binding 5  grads_5    read
// binding 6  grads_6    read
// binding 7  partials   read_write  (tensors, NORM_PARTIALS)
// binding 8  gradients  uniform     (GRADIENTS,) binding, first vector, elements, row of partials
// dispatch: NORM_PARTIALS workgroups per gradient, of which there may be fewer than GRADIENTS
// limits: the last gradient of a binding may have any number of elements
//!include common/reduce.wgsl
//!include lm/squares.wgsl
//!let bindings = 7

const GRADIENTS: u32 = 128u;

@group(0) @binding(0) var<storage, read> grads_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> grads_1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> grads_2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> grads_3: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> grads_4: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> grads_5: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> grads_6: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> partials: array<f32>;
@group(0) @binding(8) var<uniform> gradients: array<vec4<u32>, GRADIENTS>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn reduce_norms(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let number = min(group / NORM_PARTIALS, GRADIENTS - 1u);
    let place = group % NORM_PARTIALS;
    let gradient = gradients[number];
    // A workgroup chooses its binding before the loop over vectors, so that no branch separates the
    // loads of a thread.
    var squares = 0.0;
    switch gradient.x {
        //!for k in 0..bindings
        case {k}u: {
            squares = squares_of_grads_{k}(gradient.y, gradient.z, place, local_index);
        }
        //!end
        default: {}
    }
    let total = workgroup_sum(squares, local_index);
    // Entries after the last gradient have no elements.
    if (local_index == 0u && gradient.z != 0u) {
        partials[gradient.w * NORM_PARTIALS + place] = total;
    }
}

//!for k in 0..bindings
//!let binding = grads_{k}
//!include squares
//!end
