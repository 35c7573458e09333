// Sizes for all attention kernels, with and without matrix units.

struct AttentionParams {
    seq: u32, // T, or rows of the cache
    heads: u32,
    kv_heads: u32,
    workgroups: u32,
    scale: f32, // 1 / sqrt(D)
    log2_scale: f32, // scale * log2(e), for exp2
    starts: u32, // without units: index in `delta` of the first key that the first row sees
    // The other fields are only set for kernels on matrix units.
    queries: u32, // index in `heads` of the first query, in elements; the same below
    keys: u32,
    values: u32,
    grad_queries: u32, // index in `gradients` of the first gradient of a query
    grad_keys: u32,
    grad_values: u32,
    query_stride: u32, // elements from a row of gradients of queries to the next
    key_stride: u32, // the same for keys and values
    sines: u32, // index in `tables` of the first sine
}

@group(0) @binding(0) var<uniform> params: AttentionParams;
