// Reads bytes of `text`, which the kernel that includes this file binds. A u32 of `text` holds four
// bytes, the first in its lowest bits.

// Returns the four bytes from a position on.
fn four_bytes(position: u32) -> u32 {
    let shift = (position & 3u) * 8u;
    let low = text[position >> 2u];
    if (shift == 0u) { return low; }
    return (low >> shift) | (text[(position >> 2u) + 1u] << (32u - shift));
}

// Returns the first n of four bytes, and 0 in place of the other bytes. n is 1 or more; above 4 it
// counts as 4.
fn first_bytes(value: u32, n: u32) -> u32 {
    return value & (0xFFFFFFFFu >> (32u - 8u * min(n, 4u)));
}
