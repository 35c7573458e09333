// The gradient of a table with positions sorted by their token on the host.
//
//   grad_table[v, d] += sum over s with tokens[s] == v of grad_out[s, d]
//
// Additions have a fixed order and need no atomics, so results repeat bit for bit. Each thread walks
// SLICE sorted positions of one column, and the sums of tokens that a slice's end cuts are joined in
// a second dispatch: a token that occurs thousands of times costs no more than others do.
// Gradients that are not finite count as 0, tokens beyond the table are left out.
//
// With COMPACT = 1 the sum of group g goes to row g: the gradient as distinct tokens and their rows.
//!include lm/elements.wgsl
//!include lm/finite.wgsl

override SLICE: u32 = 32u;
override COMPACT: u32 = 0u;

// embed_backward_grouped
// binding 0  starts      read        (N + 1,) sorted position where group g begins, N behind the last
// binding 1  rows        read        (N,) token of group g; 0xffffffff behind the last
// binding 2  group_sums  read_write  (V, C) added to
// binding 3  pieces      read_write  (slices, 2, C) sums of groups that end, begin beyond the slice
// binding 4  group_dims  uniform     N, C, V, slices
// binding 5  order       read        (N,) position in the batch of each sorted position
// binding 6  row_grads   read        (N, C)
// dispatch: one thread a slice and column
// A group inside one slice is added to its row. Of others, the part in the slice where the group
// begins is pieces[slice, 1], the part in each slice after that is pieces[slice, 0].
@group(0) @binding(0) var<storage, read> starts: array<u32>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> group_sums: array<f32>;
@group(0) @binding(3) var<storage, read_write> pieces: array<f32>;
@group(0) @binding(4) var<uniform> group_dims: vec4<u32>;
@group(0) @binding(5) var<storage, read> order: array<u32>;
@group(0) @binding(6) var<storage, read> row_grads: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_backward_grouped(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    let slice = i / group_dims.y;
    let column = i % group_dims.y;
    if (slice >= group_dims.w) {
        return;
    }
    let begin = slice * SLICE;
    let end = min(begin + SLICE, group_dims.x);
    var group = group_of(begin);
    var sum = 0.0;
    for (var position = begin; position < end; position += 4u) {
        let values = four_gradients(position, end, column); // loads that do not wait for stores
        for (var k = 0u; k < 4u; k++) {
            sum += values[k];
            let next = position + k + 1u;
            if (next <= end && (next == starts[group + 1u] || next == end)) {
                finish_in_slice(slice, group, next, column, sum);
                group += 1u;
                sum = 0.0;
            }
        }
    }
}

// Group whose sorted positions include this one.
fn group_of(position: u32) -> u32 {
    var low = 0u; // starts[low] <= position < starts[high]
    var high = group_dims.x;
    while (high - low > 1u) {
        let middle = (low + high) / 2u;
        if (starts[middle] <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

fn four_gradients(position: u32, end: u32, column: u32) -> vec4<f32> {
    return vec4<f32>(
        gradient(position, end, column),
        gradient(position + 1u, end, column),
        gradient(position + 2u, end, column),
        gradient(position + 3u, end, column),
    );
}

fn gradient(position: u32, end: u32, column: u32) -> f32 {
    if (position >= end) {
        return 0.0;
    }
    let value = row_grads[order[position] * group_dims.y + column];
    return select(0.0, value, is_finite(value));
}

fn finish_in_slice(slice: u32, group: u32, next: u32, column: u32, sum: f32) {
    if (starts[group] < slice * SLICE) {
        pieces[2u * slice * group_dims.y + column] = sum;
    } else if (next < starts[group + 1u]) {
        pieces[(2u * slice + 1u) * group_dims.y + column] = sum;
    } else {
        add_to_row(group, column, sum);
    }
}

fn add_to_row(group: u32, column: u32, sum: f32) {
    let row = select(rows[group], group, COMPACT == 1u);
    if (row < group_dims.z) {
        group_sums[row * group_dims.y + column] += sum;
    }
}

// embed_backward_join
// binding 0  starts      read        (N + 1,) sorted position where group g begins, N behind the last
// binding 1  rows        read        (N,) token of group g; 0xffffffff behind the last
// binding 2  group_sums  read_write  (V, C) added to
// binding 3  pieces      read_write  (slices, 2, C) as embed_backward_grouped leaves them
// binding 4  group_dims  uniform     N, C, V, slices
// dispatch: one thread a slice and column, for the group that begins in the slice and ends beyond
@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_backward_join(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    let slice = i / group_dims.y;
    let column = i % group_dims.y;
    if (slice + 1u >= group_dims.w) {
        return; // nothing is beyond the last slice
    }
    let group = group_of((slice + 1u) * SLICE - 1u);
    let last = (starts[group + 1u] - 1u) / SLICE; // slice in which the group ends
    if (starts[group] < slice * SLICE || last == slice) {
        return;
    }
    var sum = pieces[(2u * slice + 1u) * group_dims.y + column];
    for (var following = slice + 1u; following <= last; following++) {
        sum += pieces[2u * following * group_dims.y + column];
    }
    add_to_row(group, column, sum);
}
