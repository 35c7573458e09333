// round_to_half: rounds numbers to the nearest half-precision numbers (ties to even). Numbers
// beyond the range of half precision become infinite.
//
// The result shows an overflow, unlike the result of cast_f32_to_f16: numbers of magnitude 65520 or
// more become infinite, and NaN stays NaN. If the number of elements is odd, the upper half of the
// last word keeps its bits.
//
// binding 0  src  read        elements of any shape, f32, four at a time
// binding 1  dst  read_write  elements, f16, four at a time, two per word
// binding 2  n    uniform     elements
// dispatch: one thread per 4 * `vectors` elements
//!include lm/four_halves.wgsl

alias SourceVector = vec4<f32>;
alias TargetVector = vec2<u32>;

@group(0) @binding(0) var<storage, read> src: array<SourceVector>;
@group(0) @binding(1) var<storage, read_write> dst: array<TargetVector>;
@group(0) @binding(2) var<uniform> n: u32;

//!include lm/conversion.wgsl

// Returns the word to store: `halves`, or, if only one element is left, the lower half of `halves`
// and the upper half of `before`, the old word.
fn kept(halves: u32, before: u32, left: u32) -> u32 {
    return select((halves & 0xffffu) | (before & 0xffff0000u), halves, left > 1u);
}

// Writes the first `left` elements of the last vector. `left` is 1 to 3.
fn write_rest(i: u32, values: TargetVector, left: u32) {
    dst[i].x = kept(values.x, dst[i].x, left);
    if (left > 2u) { dst[i].y = kept(values.y, dst[i].y, left - 2u); }
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn round_to_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = {vectors}u * WORKGROUP_SIZE * flat_group(workgroup, workgroups) + local_index;
    //!for k in 0..vectors
    let vector_{k} = source_vector(i + {k}u * WORKGROUP_SIZE);
    //!end
    //!for k in 0..vectors
    write_vector(i + {k}u * WORKGROUP_SIZE, four_halves(vector_{k}));
    //!end
}
