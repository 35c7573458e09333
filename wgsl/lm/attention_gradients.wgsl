// Declares the inputs of the kernels that compute the gradients of attention, and computes
// probabilities for them.
//
//   p[t, u]   = exp(scale q[t] . k[u] - log_sum_exp[t])           for starts[t] <= u <= t
//   ds[t, u]  = scale p[t, u] (grad_out[t] . v[u] - delta[t]),    delta[t] = grad_out[t] . out[t]
//
// Probabilities are computed again from scores and log_sum_exp. All sums are added in a fixed
// order.
//!include lm/attention_tiles.wgsl

@group(0) @binding(4) var<storage, read> grad_out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> log_sum_exp: array<f32>;
@group(0) @binding(6) var<storage, read> delta: array<f32>;

fn quad_of(source: u32, i: u32) -> vec4<f32> {
    if (source == Q) {
        return q[i];
    }
    if (source == K) {
        return k[i];
    }
    if (source == V) {
        return v[i];
    }
    return grad_out[i];
}

// Returns log_sum_exp of four queries divided by the scale, so that scores can be compared with
// it. The result is 0 for queries beyond the sequence.
fn query_logs(query: Corner, rows: vec4<u32>) -> vec4<f32> {
    let i = (rows + query.sequence) * query.heads + query.head;
    let values = vec4<f32>(
        log_sum_exp[i.x], log_sum_exp[i.y], log_sum_exp[i.z], log_sum_exp[i.w]
    );
    return select(vec4<f32>(), values / params.scale, rows < vec4<u32>(params.seq));
}

// Returns delta of four queries, and 0 for queries beyond the sequence.
fn query_deltas(query: Corner, rows: vec4<u32>) -> vec4<f32> {
    let i = (rows + query.sequence) * query.heads + query.head;
    let values = vec4<f32>(delta[i.x], delta[i.y], delta[i.z], delta[i.w]);
    return select(vec4<f32>(), values, rows < vec4<u32>(params.seq));
}

// Returns the first key that a row of a sequence sees. `delta` holds the first keys of all rows
// after the deltas, because attention_backward_kv already binds 8 storage buffers, WebGPU's
// default limit.
fn start_of(query: Corner, row: u32) -> u32 {
    return u32(delta[params.starts + query.sequence + min(row, params.seq - 1u)]);
}

// Returns the first keys that four queries see.
fn query_starts(query: Corner, rows: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(
        start_of(query, rows.x), start_of(query, rows.y), start_of(query, rows.z),
        start_of(query, rows.w),
    );
}

// Returns exp(scale * score - log_sum_exp), and 0 for keys that their query does not see and for
// queries beyond the sequence. `logs` are log_sum_exp / scale.
fn probabilities(
    scores: vec4<f32>,
    logs: vec4<f32>,
    keys: vec4<u32>,
    queries: vec4<u32>,
    firsts: vec4<u32>,
) -> vec4<f32> {
    let seen = (keys <= queries) & (keys >= firsts) & (queries < vec4<u32>(params.seq));
    let p = exp2(params.log2_scale * (scores - logs));
    return select(vec4<f32>(), p, seen);
}
