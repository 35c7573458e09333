// Whether a number is neither infinite nor NaN, by its exponent: compilers may take x == x for true.

fn is_finite(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7f800000u) != 0x7f800000u;
}
