// fill_zero: writes zeros into memory of any type.
//
// binding 0  words  read_write  the tensor as 4-byte words, four per element
// binding 1  dims   uniform     number of words, mask of the bits that stay in the last word
// dispatch: one thread per four words
//
// A tensor of 1-byte or 2-byte elements can end inside a word. The rest of that word is not part of
// the tensor, so its bits do not change.
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read_write> words: array<vec4<u32>>;
@group(0) @binding(1) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn fill_zero(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (4u * i + 4u < dims.x) {
        words[i] = vec4<u32>();
        return;
    }
    for (var word = 4u * i; word < dims.x; word++) {
        if (word + 1u == dims.x) {
            words[i][word % 4u] &= dims.y;
        } else {
            words[i][word % 4u] = 0u;
        }
    }
}
