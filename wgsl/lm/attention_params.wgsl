// Inputs of all attention kernels: sizes, queries, keys and values.
//!include common/workgroup.wgsl
//!include lm/attention_sizes.wgsl

override HEAD_QUADS: u32 = 16u; // head width / 4

@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
