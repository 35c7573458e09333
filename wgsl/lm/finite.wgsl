// Returns whether a number is neither infinite nor NaN. The function tests the exponent of the
// number, because compilers may replace x == x by true.

fn is_finite(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7f800000u) != 0x7f800000u;
}
