// reduce_norms: sums of the squares of up to seven gradients, from which the norm of all gradients
// is computed.
//
// NORM_PARTIALS workgroups per gradient write one sum each. With one dispatch per gradient, each
// dispatch would wait for the one before, because both write to the same tensor.
//
// binding 0  grad_0    read        any shape, taken as one list of elements
// binding 1  grad_1    read        the same, and so on
// binding 2  grad_2    read
// binding 3  grad_3    read
// binding 4  grad_4    read
// binding 5  grad_5    read
// binding 6  grad_6    read
// binding 7  partials  read_write  (tensors, NORM_PARTIALS)
// binding 8  dims      uniform     elements of each gradient, first row of partials
// dispatch: NORM_PARTIALS workgroups per gradient, of which there may be fewer than seven
//!include common/reduce.wgsl
//!include lm/squares.wgsl

@group(0) @binding(0) var<storage, read> grad_0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> grad_1: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> grad_2: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> grad_3: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> grad_4: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> grad_5: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> grad_6: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> partials: array<f32>;
@group(0) @binding(8) var<uniform> dims: array<vec4<u32>, 2>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn reduce_norms(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let group = flat_group(workgroup, workgroups);
    let tensor = min(group / NORM_PARTIALS, 6u);
    let place = group % NORM_PARTIALS;
    let elements = dims[tensor / 4u][tensor % 4u];
    let squares = thread_squares(tensor, elements, place, local_index);
    let total = workgroup_sum(squares, local_index);
    // Bindings without a gradient have no elements.
    if (local_index == 0u && elements != 0u) {
        partials[(dims[1].w + tensor) * NORM_PARTIALS + place] = total;
    }
}

fn four_of(tensor: u32, i: u32) -> vec4<f32> {
    switch tensor {
        case 0u: { return grad_0[i]; }
        case 1u: { return grad_1[i]; }
        case 2u: { return grad_2[i]; }
        case 3u: { return grad_3[i]; }
        case 4u: { return grad_4[i]; }
        case 5u: { return grad_5[i]; }
        default: { return grad_6[i]; }
    }
}
