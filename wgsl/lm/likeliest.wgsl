// Finds the most probable of some ids by a reduction in workgroup memory. A pair stands for an id:
// (order of its logit, id), see order.wgsl.
//
// Of equal logits the logit with the smallest id wins, and NaN wins over all numbers, as in NumPy's
// argmax.
//!include lm/order.wgsl

var<workgroup> sh_likeliest: array<vec2<u32>, WORKGROUP_SIZE>;

// Returns the pair of the more probable id.
fn likelier(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

// Returns the pair of the most probable id among the pairs `own` of all threads. All threads of the
// workgroup must call this function, and all get the result.
fn likeliest_of_workgroup(own: vec2<u32>, local_index: u32) -> vec2<u32> {
    sh_likeliest[local_index] = own;
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half >>= 1u) {
        if (local_index < half) {
            sh_likeliest[local_index] =
                likelier(sh_likeliest[local_index], sh_likeliest[local_index + half]);
        }
        workgroupBarrier();
    }
    return sh_likeliest[0];
}
