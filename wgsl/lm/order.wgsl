// Maps f32 numbers to u32 numbers that compare in the same way.
//!include common/workgroup.wgsl

// Returns the order of a logit, a u32: of two logits, the larger one has the larger order. -0
// counts as 0, and NaN as larger than all numbers. The order is never 0.
fn order_of(logit: f32) -> u32 {
    let bits = bitcast<u32>(logit);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0xffffffffu;
    }
    if (bits == 0x80000000u) {
        return bits; // the order of 0
    }
    return bits ^ select(0x80000000u, 0xffffffffu, (bits >> 31u) == 1u);
}
