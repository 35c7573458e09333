// probe_halves: rounds numbers to half precision by the device's own conversion
// (packed_halves.wgsl).
//
// The host compares the results with the nearest half-precision numbers.
//
// binding 0  numbers  read        (N,), four per element
// binding 1  halves   read_write  (N,), half precision, four per element
// dispatch: one thread per four numbers; surplus threads write nothing
//!include lm/elements.wgsl
//!include lm/packed_halves.wgsl

@group(0) @binding(0) var<storage, read> numbers: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> halves: array<vec2<u32>>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn probe_halves(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < arrayLength(&numbers)) {
        halves[i] = four_halves(numbers[i]);
    }
}
