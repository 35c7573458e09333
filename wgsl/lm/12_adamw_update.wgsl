// adamw_update: computes one step of AdamW (adamw.wgsl) on a tensor. After a bad step, nothing
// changes.
//
// binding 0  parameter  read_write  any shape, taken as one list of elements
// binding 1  gradient   read        as parameter
// binding 2  first      read_write  as parameter
// binding 3  second     read_write  as parameter
// binding 4  hyper      uniform     Hyper
// binding 5  stats      read        (4,)
// binding 6  dims       uniform     elements, 1 if the tensor decays
// binding 7  half_copy  read_write  as parameter, in half precision, if `half_copy` is set
// dispatch: one thread per four elements
// source: adamw_update_f16, with `half_copy`.
//!override half_copy = 0
//!let suffix =
//!let suffix = _f16 if half_copy
//!if half_copy
  //!include lm/half.wgsl
//!end
//!include lm/adamw_tensors.wgsl

//!if half_copy
@group(0) @binding(7) var<storage, read_write> half_copy: array<vec4<f16>>;

//!end
@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_update{suffix}(
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
