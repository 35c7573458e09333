// AdamW on some rows of a table (an embedding's), and the clearing of their gradients.
//
// Rows that are not listed keep their moments as they are, as if the step had not been. `rows` holds
// different row numbers, and 0xffffffff in entries that are not in use.
//
// Shapes: table, gradient and moments (V, C), rows (U,).
//!include lm/half.wgsl
//!include lm/adamw.wgsl
//!include lm/elements.wgsl

// adamw_update_rows
// binding 0  parameter  read_write  (V, C)
// binding 1  gradient   read        (V, C)
// binding 2  first      read_write  (V, C)
// binding 3  second     read_write  (V, C)
// binding 4  hyper      uniform     Hyper
// binding 5  stats      read        (4,)
// binding 6  rows       read        (U,)
// binding 7  dims       uniform     U C, C, V, 1 if the table decays
// dispatch: one thread an element of a listed row
@group(0) @binding(0) var<storage, read_write> parameter: array<f32>;
@group(0) @binding(1) var<storage, read> gradient: array<f32>;
@group(0) @binding(2) var<storage, read_write> first: array<f32>;
@group(0) @binding(3) var<storage, read_write> second: array<f32>;
@group(0) @binding(4) var<uniform> hyper: Hyper;
@group(0) @binding(5) var<storage, read> stats: vec4<f32>;
@group(0) @binding(6) var<storage, read> rows: array<u32>;
@group(0) @binding(7) var<uniform> dims: vec4<u32>;

// An element of the table; `listed` is false where entry `i` / C of `rows` has no row.
struct Place {
    listed: bool,
    element: u32,
}

fn place_of(i: u32) -> Place {
    if (i >= dims.x) {
        return Place(false, 0u);
    }
    let row = rows[i / dims.y];
    return Place(row < dims.z, row * dims.y + i % dims.y);
}

fn update_element(element: u32) -> f32 {
    let before = Adamw(
        vec4<f32>(parameter[element]),
        vec4<f32>(first[element]),
        vec4<f32>(second[element]),
    );
    let g = vec4<f32>(stats.x * gradient[element]);
    let after = adamw(before, g, hyper, dims.w != 0u); // four times the same element
    parameter[element] = after.parameter.x;
    first[element] = after.first.x;
    second[element] = after.second.x;
    return after.parameter.x;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_update_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let place = place_of(flat_element(workgroup, workgroups, local_index));
    if (place.listed && stats.z == 0.0) {
        update_element(place.element);
    }
}

// adamw_update_rows_f16
// binding 0  parameter  read_write  (V, C)
// binding 1  gradient   read        (V, C)
// binding 2  first      read_write  (V, C)
// binding 3  second     read_write  (V, C)
// binding 4  hyper      uniform     Hyper
// binding 5  stats      read        (4,)
// binding 6  rows       read        (U,)
// binding 7  dims       uniform     U C, C, V, 1 if the table decays
// binding 8  mirror     read_write  (V, C), f16
// dispatch: one thread an element of a listed row
@group(0) @binding(8) var<storage, read_write> mirror: array<f16>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn adamw_update_rows_f16(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let place = place_of(flat_element(workgroup, workgroups, local_index));
    if (place.listed && stats.z == 0.0) {
        mirror[place.element] = saturate_to_half(update_element(place.element));
    }
}

// fill_zero_rows
// binding 0  table      read_write  (V, C)
// binding 1  zero_rows  read        (U,)
// binding 2  zero_dims  uniform     U C, C, V
// dispatch: one thread an element of a listed row
@group(0) @binding(0) var<storage, read_write> table: array<f32>;
@group(0) @binding(1) var<storage, read> zero_rows: array<u32>;
@group(0) @binding(2) var<uniform> zero_dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn fill_zero_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < zero_dims.x) {
        let row = zero_rows[i / zero_dims.y];
        if (row < zero_dims.z) {
            table[row * zero_dims.y + i % zero_dims.y] = 0.0;
        }
    }
}
