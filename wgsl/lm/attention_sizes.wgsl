// Sizes for all attention kernels, with and without matrix units.

struct AttentionParams {
    seq: u32, // T, or rows of the cache
    heads: u32,
    kv_heads: u32,
    workgroups: u32,
    scale: f32, // 1 / sqrt(D)
    log2_scale: f32, // the same for exponents of 2
    starts: u32, // where `delta` has the first key that each row sees
}

@group(0) @binding(0) var<uniform> params: AttentionParams;
