// Computes keyed hashes for hash tables. Uses the uniform hash_key, which the kernel that includes
// this file binds.
//
// hash_key is four random numbers, drawn once per process; the last number is odd. Every round uses
// a number of the key, so inputs that collide under one key collide under another key only by
// chance. If two inputs differ, the difference of their hashes after a round depends on the key. An
// attacker who does not know the key can't choose further input that cancels this difference, and
// so can't make inputs collide.

// One round: combines a number and the key by XOR, and adds the product of the result's 16-bit
// halves. If two results differ in one half only, their products differ by a multiple of the other
// half, which is secret.
fn keyed(number: u32, key: u32) -> u32 {
    let secret = number ^ key;
    return secret + (secret & 0xFFFFu) * (secret >> 16u);
}

// Mixes the high bits of a hash into the lowest bits, which select a slot.
fn spread(hash: u32) -> u32 {
    let product = (hash ^ (hash >> 15u)) * hash_key.w;
    return product ^ (product >> 16u);
}

fn hash_number(number: u32) -> u32 {
    return spread(keyed(number, hash_key.x));
}

fn hash_pair(left: u32, right: u32) -> u32 {
    return spread(keyed(keyed(left, hash_key.x) ^ right, hash_key.y));
}

fn hash_triple(numbers: vec3<u32>) -> u32 {
    let pair = keyed(keyed(numbers.x, hash_key.x) ^ numbers.y, hash_key.y);
    return spread(keyed(pair ^ numbers.z, hash_key.z));
}

// Returns the 64-bit product of two numbers: x has the low 32 bits, y the high 32 bits.
fn whole_product(a: u32, b: u32) -> vec2<u32> {
    let a_low = a & 0xFFFFu;
    let a_high = a >> 16u;
    let b_low = b & 0xFFFFu;
    let b_high = b >> 16u;
    let first = a_high * b_low + ((a_low * b_low) >> 16u);
    let second = a_low * b_high + (first & 0xFFFFu);
    return vec2<u32>(a * b, a_high * b_high + (first >> 16u) + (second >> 16u));
}

// One round of the 64-bit hash of a text: each half is combined with four bytes of the text and a
// number of the key by XOR, and the hash becomes the product of the halves.
fn keyed_product(hash: vec2<u32>, bytes: vec2<u32>) -> vec2<u32> {
    let secret = hash ^ bytes ^ hash_key.xy;
    return whole_product(secret.x, secret.y);
}
