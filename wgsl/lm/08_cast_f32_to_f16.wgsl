// cast_f32_to_f16: rounds numbers to half-precision numbers.
//
// Numbers beyond +-65504, even infinities, become +-65504; NaN stays NaN. In WGSL, it depends on
// the device which of the two nearest halves a conversion returns, whether halves below 2^-14
// become 0, and what clamp(NaN) returns. NaN is recognized by its bits, because compilers may
// replace x != x by false.
//
// binding 0  src  read        elements of any shape, f32, four at a time
// binding 1  dst  read_write  elements, f16, four at a time
// binding 2  n    uniform     elements
// dispatch: one thread per 4 * `vectors` elements
// source: cast_f32_to_f16, f16(clamp(x)). Here NaN passes the clamp, and a thread converts several
//   vectors of four elements.
//!include lm/half.wgsl

alias SourceVector = vec4<f32>;
alias TargetVector = vec4<f16>;

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
fn cast_f32_to_f16(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = {vectors}u * WORKGROUP_SIZE * flat_group(workgroup, workgroups) + local_index;
    //!for k in 0..vectors
    let vector_{k} = source_vector(i + {k}u * WORKGROUP_SIZE);
    //!end
    //!for k in 0..vectors
    write_vector(i + {k}u * WORKGROUP_SIZE, saturate_to_halves(vector_{k}));
    //!end
}
