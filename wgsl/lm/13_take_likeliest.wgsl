// take_likeliest: stores the most probable id of each row as the next id, at the row's next
// position.
//
// The sequence of a row that is not in use starts at row `last` of the cache. The position of such
// a row does not change.
//
// binding 0  params   uniform     sizes
// binding 1  partial  read        (N, parts) pairs: order of the logit (order.wgsl), id
// binding 2  tokens   read_write  (N,) out: the chosen id
// binding 3  places   read_write  (2, N), positions and the rows of the cache where sequences start
// binding 4  chosen   read_write  (steps, N) out: the chosen id, in row `step`
// dispatch: one workgroup per row
//!include lm/likeliest.wgsl

struct ChoiceParams {
    rows: u32, // N
    parts: u32, // no more than WORKGROUP_SIZE
    step: u32,
    last: u32, // row of the cache at which the sequences of unused rows start
}

@group(0) @binding(0) var<uniform> params: ChoiceParams;
@group(0) @binding(1) var<storage, read> partial: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(3) var<storage, read_write> places: array<u32>;
@group(0) @binding(4) var<storage, read_write> chosen: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn take_likeliest(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let row = flat_group(workgroup, workgroups);
    var own = vec2<u32>(0u, 0xffffffffu);
    if (row < params.rows && local_index < params.parts) {
        own = partial[row * params.parts + local_index];
    }
    let found = likeliest_of_workgroup(own, local_index);
    if (row < params.rows && local_index == 0u) {
        tokens[row] = found.y;
        chosen[params.step * params.rows + row] = found.y;
        if (places[params.rows + row] < params.last) {
            places[row] += 1u;
        }
    }
}
