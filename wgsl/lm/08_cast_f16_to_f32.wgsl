// cast_f16_to_f32: converts half-precision numbers to single precision, without any rounding.
//
// binding 0  src  read        elements of any shape, f16, four at a time
// binding 1  dst  read_write  elements, f32, four at a time
// binding 2  n    uniform     elements
// dispatch: one thread per 4 * `vectors` elements
// source: cast_f16_to_f32. Here a thread converts several vectors of four elements.
enable f16;

alias SourceVector = vec4<f16>;
alias TargetVector = vec4<f32>;

@group(0) @binding(0) var<storage, read> src: array<SourceVector>;
@group(0) @binding(1) var<storage, read_write> dst: array<TargetVector>;
@group(0) @binding(2) var<uniform> n: u32;

//!include lm/conversion.wgsl

// Writes the first `left` elements of the last vector. `left` is 1 to 3.
fn write_rest(i: u32, values: TargetVector, left: u32) {
    dst[i].x = values.x;
    if (left > 1u) { dst[i].y = values.y; }
    if (left > 2u) { dst[i].z = values.z; }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn cast_f16_to_f32(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = {vectors}u * WORKGROUP_SIZE * flat_group(workgroup, workgroups) + local_index;
    //!for k in 0..vectors
    let vector_{k} = source_vector(i + {k}u * WORKGROUP_SIZE);
    //!end
    //!for k in 0..vectors
    write_vector(i + {k}u * WORKGROUP_SIZE, TargetVector(vector_{k}));
    //!end
}
