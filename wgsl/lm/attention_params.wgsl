// What all attention kernels read: sizes, queries, keys and values.
//!include common/workgroup.wgsl

override HEAD_QUADS: u32 = 16u; // head width / 4

struct AttentionParams {
    seq: u32, // T, or rows of the cache
    heads: u32,
    kv_heads: u32,
    workgroups: u32,
    scale: f32, // 1 / sqrt(D)
    log2_scale: f32, // the same for exponents of 2
}

@group(0) @binding(0) var<uniform> params: AttentionParams;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
