// Bytes of a text that is stored in u32s, four bytes each, the first one lowest. Expects `text` and
// WordState among the declarations.

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

// A word's key. Of a hashed one the second part is the length.
fn key_of(start: u32, length: u32) -> vec3<u32> {
    if (length <= EXACT_BYTES) {
        var key = vec3<u32>(first_bytes(four_bytes(start), length), 0u, length << 24u);
        if (length > 4u) {
            key.y = first_bytes(four_bytes(start + 4u), length - 4u);
        }
        if (length > 8u) {
            key.z |= first_bytes(four_bytes(start + 8u), length - 8u);
        }
        return key;
    }
    var a = 0x9E3779B1u ^ length;
    var b = 0x85EBCA77u;
    for (var done = 0u; done < length; done += 4u) {
        let four = first_bytes(four_bytes(start + done), length - done);
        a = (a ^ four) * 0xCC9E2D51u;
        a ^= a >> 15u;
        b = (b + four) * 0x1B873593u;
        b ^= b >> 13u;
    }
    return vec3<u32>(a & HASH_MASK, length, HASHED | (b & HASH_MASK & 0xFFFFFFu));
}
