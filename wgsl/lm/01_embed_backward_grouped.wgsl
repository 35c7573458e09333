// embed_backward_grouped: adds up grad_out over equal tokens within each slice of SLICE sorted
// positions, see grouped_gradient.wgsl.
//
// binding 0  starts    read        (N + 1,) entry g: sorted position at which group g starts; N in
//   entries after the last group
// binding 1  rows      read        (N,) entry g: token of group g; 0xffffffff after the last group
// binding 2  sums      read_write  (V, C) gradient of the table, to which the kernel adds
// binding 3  pieces    read_write  (slices, 2, C) sums of groups that reach beyond the slice
// binding 4  dims      uniform     N, C, V, slices
// binding 5  order     read        (N,) position in the batch of each sorted position
// binding 6  grad_out  read        (N, C)
// dispatch: one thread per slice and column
// source: embed_backward. Here the host sorts positions by their token, so that no addition is
//   atomic.
//!include lm/grouped_gradient.wgsl

@group(0) @binding(5) var<storage, read> order: array<u32>;
@group(0) @binding(6) var<storage, read> grad_out: array<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed_backward_grouped(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    let slice = i / dims.y;
    let column = i % dims.y;
    if (slice >= dims.w) {
        return;
    }
    let begin = slice * SLICE;
    let end = min(begin + SLICE, dims.x);
    var group = group_of(begin);
    var sum = 0.0;
    for (var position = begin; position < end; position += 4u) {
        let values = four_gradients(position, end, column); // all loads precede the next store
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
    let value = grad_out[order[position] * dims.y + column];
    return select(0.0, value, is_finite(value));
}

// Adds the sum of a group to its row of `sums` if all positions of the group are in the slice.
// Otherwise stores the sum in `pieces`, from which embed_backward_join adds it. `next` is the
// sorted position after the group's last position in the slice.
fn finish_in_slice(slice: u32, group: u32, next: u32, column: u32, sum: f32) {
    if (starts[group] < slice * SLICE) {
        pieces[2u * slice * dims.y + column] = sum;
    } else if (next < starts[group + 1u]) {
        pieces[(2u * slice + 1u) * dims.y + column] = sum;
    } else {
        add_to_row(group, column, sum);
    }
}
