// Hashes for tables, with a key. Expects the uniform hash_key among the globals.
//
// The key is four random numbers of the process; the last one is odd. Every round takes in a part of
// the key, so numbers that collide under one key collide under another only by chance. A difference
// of two numbers becomes a difference that depends on the key: nobody who does not know the key can
// choose a second difference that cancels the first.

// One round: where one half of two numbers differs, the products of their halves differ by a multiple
// of the other half, which is secret.
fn keyed(number: u32, key: u32) -> u32 {
    let secret = number ^ key;
    return secret + (secret & 0xFFFFu) * (secret >> 16u);
}

// Spreads a hash to its lowest bits, which choose a slot.
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

// The product of two numbers in 64 bits: the lower half, then the higher half.
fn whole_product(a: u32, b: u32) -> vec2<u32> {
    let a_low = a & 0xFFFFu;
    let a_high = a >> 16u;
    let b_low = b & 0xFFFFu;
    let b_high = b >> 16u;
    let first = a_high * b_low + ((a_low * b_low) >> 16u);
    let second = a_low * b_high + (first & 0xFFFFu);
    return vec2<u32>(a * b, a_high * b_high + (first >> 16u) + (second >> 16u));
}

// One round for a text: both halves of its hash take in four bytes and the key, and are multiplied.
fn keyed_product(hash: vec2<u32>, bytes: vec2<u32>) -> vec2<u32> {
    let secret = hash ^ bytes ^ hash_key.xy;
    return whole_product(secret.x, secret.y);
}
