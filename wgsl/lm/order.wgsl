// Whole numbers that compare like the floats that they stand for.
//!include common/workgroup.wgsl

// A whole number for each f32, in the order of the numbers; NaN after all of them,
// -0 as 0; 0 is below all.
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
