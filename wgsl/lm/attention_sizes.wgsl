// Sizes for all attention kernels, with and without matrix units.

struct AttentionParams {
    seq: u32, // T, or rows of the cache
    heads: u32,
    kv_heads: u32,
    workgroups: u32,
    scale: f32, // 1 / sqrt(D)
    log2_scale: f32, // scale * log2(e), for exp2
    starts: u32, // index in `delta` from which it holds the first key that each row sees
}

@group(0) @binding(0) var<uniform> params: AttentionParams;
