// Copies an array, to measure the highest memory rate that a kernel reaches. The benchmark reports
// the rates of other kernels as shares of this rate.
//!include lm/elements.wgsl

// copy
// binding 0  source          read        (vectors,) four f32 each
// binding 1  target_vectors  read_write  (vectors,)
// binding 2  copy_dims       uniform     x: number of vectors
// dispatch: one thread per eight vectors; a workgroup copies 8 * WORKGROUP_SIZE vectors in a row
@group(0) @binding(0) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> target_vectors: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> copy_dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn copy(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = 8u * WORKGROUP_SIZE * flat_group(workgroup, workgroups) + local_index;
    let first = source_vector(i); // all eight loads are under way before the first store
    let second = source_vector(i + WORKGROUP_SIZE);
    let third = source_vector(i + 2u * WORKGROUP_SIZE);
    let fourth = source_vector(i + 3u * WORKGROUP_SIZE);
    let fifth = source_vector(i + 4u * WORKGROUP_SIZE);
    let sixth = source_vector(i + 5u * WORKGROUP_SIZE);
    let seventh = source_vector(i + 6u * WORKGROUP_SIZE);
    let eighth = source_vector(i + 7u * WORKGROUP_SIZE);
    write_vector(i, first);
    write_vector(i + WORKGROUP_SIZE, second);
    write_vector(i + 2u * WORKGROUP_SIZE, third);
    write_vector(i + 3u * WORKGROUP_SIZE, fourth);
    write_vector(i + 4u * WORKGROUP_SIZE, fifth);
    write_vector(i + 5u * WORKGROUP_SIZE, sixth);
    write_vector(i + 6u * WORKGROUP_SIZE, seventh);
    write_vector(i + 7u * WORKGROUP_SIZE, eighth);
}

fn source_vector(i: u32) -> vec4<f32> {
    if (i >= copy_dims.x) {
        return vec4<f32>();
    }
    return source[i];
}

fn write_vector(i: u32, values: vec4<f32>) {
    if (i < copy_dims.x) {
        target_vectors[i] = values;
    }
}
