// The likeliest of some ids: (order of its logit, id), reduced in workgroup memory.
//
// Of equal logits the smallest id is taken, and a NaN before all numbers, as NumPy's argmax does.
//!include common/workgroup.wgsl

var<workgroup> sh_likeliest: array<vec2<u32>, WORKGROUP_SIZE>;

// A whole number for each f32, in the order of the numbers; 0 is below all of them.
fn order_of(logit: f32) -> u32 {
    let bits = bitcast<u32>(logit);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0xffffffffu;
    }
    if (bits == 0x80000000u) {
        return bits; // -0 is 0
    }
    return bits ^ select(0x80000000u, 0xffffffffu, (bits >> 31u) == 1u);
}

fn likelier(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

// Of one pair a thread; all threads of the workgroup call it and get the result.
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
