// muon_update: computes one step of Muon (muon.wgsl) on a matrix. After a bad step, nothing
// changes.
//
// binding 0  parameter  read_write  (rows, columns), taken as one list of elements
// binding 1  direction  read        as parameter
// binding 2  hyper      uniform     Hyper
// binding 3  stats      read        (4,)
// binding 4  dims       uniform     elements, 1 if the tensor decays, max(rows, columns)
// binding 5  half_copy  read_write  as parameter, in half precision, if `half_copy` is set
// dispatch: one thread per four elements
//!override half_copy = 0
//!let suffix =
//!let suffix = _f16 if half_copy
//!if half_copy
  //!include lm/half.wgsl
//!end
//!include lm/muon.wgsl

//!if half_copy
@group(0) @binding(5) var<storage, read_write> half_copy: array<vec4<f16>>;

//!end
@compute @workgroup_size(WORKGROUP_SIZE)
fn muon_update{suffix}(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (4u * i < dims.x && stats.z == 0.0) {
//!if half_copy
        let halves = saturate_to_halves(update_vector(i));
        half_copy[i] = select(half_copy[i], halves, live_elements(i, dims.x));
//!else
        update_vector(i);
//!end
    }
}
