// Bytes of a text that is stored in u32s, four bytes each, the first one lowest. Expects `text`
// among the declarations.

// The four bytes from a position on.
fn four_bytes(position: u32) -> u32 {
    let shift = (position & 3u) * 8u;
    let low = text[position >> 2u];
    if (shift == 0u) { return low; }
    return (low >> shift) | (text[(position >> 2u) + 1u] << (32u - shift));
}

// The first n of four bytes, n from 1 on.
fn first_bytes(value: u32, n: u32) -> u32 {
    return value & (0xFFFFFFFFu >> (32u - 8u * min(n, 4u)));
}
