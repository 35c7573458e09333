// argmax: finds the most probable token of each row of logits.
//
//   out[n] = the first v < W with logits[n, v] = max(logits[n, :W])
//
// The kernel is memory-bound. It reads the logits once.
//
// binding 0  logits  read        (N, V)
// binding 1  out     read_write  (N,)
// binding 2  dims    uniform     N, V, W
// dispatch: one workgroup per row; its threads stride over the logits
//!include common/workgroup.wgsl

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@group(0) @binding(2) var<uniform> dims: vec4<u32>;

var<workgroup> sh_values: array<f32, WORKGROUP_SIZE>;
var<workgroup> sh_columns: array<u32, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn argmax(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let row = flat_group(workgroup, workgroups);
    let width = select(0u, dims.z, row < dims.x);
    let base = row * dims.y;
    var value = -3.4e38;
    var column = dims.z;
    for (var v = local_index; v < width; v += WORKGROUP_SIZE) {
        if (column == dims.z || logits[base + v] > value) {
            value = logits[base + v];
            column = v;
        }
    }
    sh_values[local_index] = value;
    sh_columns[local_index] = column;
    workgroupBarrier();
    // Of equal values, the reduction keeps the value in the smaller column.
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half >>= 1u) {
        if (local_index < half) {
            let other = sh_values[local_index + half];
            let at = sh_columns[local_index + half];
            let mine = sh_values[local_index];
            if (other > mine || (other == mine && at < sh_columns[local_index])) {
                sh_values[local_index] = other;
                sh_columns[local_index] = at;
            }
        }
        workgroupBarrier();
    }
    if (row < dims.x && local_index == 0u) {
        out[row] = sh_columns[0];
    }
}
