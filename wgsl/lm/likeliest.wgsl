// The most probable of some ids, as (order of its logit, id), found by a reduction in workgroup
// memory.
//
// Of equal logits the one with the smallest id wins, and NaN wins over all numbers, as in NumPy's
// argmax.
//!include lm/order.wgsl

var<workgroup> sh_likeliest: array<vec2<u32>, WORKGROUP_SIZE>;

fn likelier(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

// Reduces one pair a thread; all threads of the workgroup call it and get the result.
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
