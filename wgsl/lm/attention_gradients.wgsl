// What the kernels of attention's gradients share: what they read, and probabilities anew.
//!include lm/attention_tiles.wgsl

@group(0) @binding(4) var<storage, read> grad_out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> log_sum_exp: array<f32>;
@group(0) @binding(6) var<storage, read> delta: array<f32>;

fn load_grad_out(corner: Corner, quads: u32, local_index: u32) -> mat4x4<f32> {
    let step = THREADS / quads;
    let first = moved(corner, local_index / quads, local_index % quads);
    var values = mat4x4<f32>();
    values[0] = load_grad_out_row(first, 0u);
    values[1] = load_grad_out_row(first, step);
    if (DEPTH_QUADS > 4u) {
        values[2] = load_grad_out_row(first, 2u * step);
        values[3] = load_grad_out_row(first, 3u * step);
    }
    return values;
}

fn load_grad_out_row(corner: Corner, row: u32) -> vec4<f32> {
    let inside = is_inside(corner, row, 0u);
    return select(vec4<f32>(), grad_out[select(0u, source_index(corner, row, 0u), inside)], inside);
}

// log_sum_exp of four queries as a score, that is, over the scale; 0 for those beyond the sequence.
fn query_logs(query: Corner, rows: vec4<u32>) -> vec4<f32> {
    let i = (rows + query.sequence) * query.heads + query.head;
    let values = vec4<f32>(
        log_sum_exp[i.x], log_sum_exp[i.y], log_sum_exp[i.z], log_sum_exp[i.w]
    );
    return select(vec4<f32>(), values / params.scale, rows < vec4<u32>(params.seq));
}

// 0 for queries beyond the sequence, too.
fn query_deltas(query: Corner, rows: vec4<u32>) -> vec4<f32> {
    let i = (rows + query.sequence) * query.heads + query.head;
    let values = vec4<f32>(delta[i.x], delta[i.y], delta[i.z], delta[i.w]);
    return select(vec4<f32>(), values, rows < vec4<u32>(params.seq));
}

// exp(scale * score - log_sum_exp), 0 for keys after their query and queries beyond the sequence.
fn probabilities(
    scores: vec4<f32>, logs: vec4<f32>, keys: vec4<u32>, queries: vec4<u32>
) -> vec4<f32> {
    let seen = (keys <= queries) & (queries < vec4<u32>(params.seq));
    let p = exp2(params.log2_scale * (scores - logs));
    return select(vec4<f32>(), p, seen);
}
