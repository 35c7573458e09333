// Computes a step of AdamW on some rows of an embedding table.
//
// `rows` lists these rows, each once, with 0xffffffff in unused entries. The step does not change
// the moments of other rows, so such rows behave as if the step had not happened. Row k of the
// gradient is the gradient of row rows[k] of the table.
//!include lm/adamw.wgsl
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read_write> parameter: array<f32>;
@group(0) @binding(1) var<storage, read> gradient: array<f32>;
@group(0) @binding(2) var<storage, read_write> first: array<f32>;
@group(0) @binding(3) var<storage, read_write> second: array<f32>;
@group(0) @binding(4) var<uniform> hyper: Hyper;
@group(0) @binding(5) var<storage, read> stats: vec4<f32>;
@group(0) @binding(6) var<storage, read> rows: array<u32>;
@group(0) @binding(7) var<uniform> dims: vec4<u32>;

// An element of the table with its gradient.
struct Place {
    listed: bool, // false if the entry of `rows` is unused
    element: u32, // index in the table
    of_gradient: u32, // index in the gradient
}

// Returns the place of element `i` of the gradient.
fn place_of(i: u32) -> Place {
    if (i >= dims.x) {
        return Place(false, 0u, 0u);
    }
    let row = rows[i / dims.y];
    return Place(row < dims.z, row * dims.y + i % dims.y, i);
}

fn update_place(place: Place) -> f32 {
    let element = place.element;
    let before = Adamw(
        vec4<f32>(parameter[element]),
        vec4<f32>(first[element]),
        vec4<f32>(second[element]),
    );
    let g = vec4<f32>(stats.x * gradient[place.of_gradient]);
    let after = adamw(before, g, hyper, dims.w != 0u); // all four components are the same element
    parameter[element] = after.parameter.x;
    first[element] = after.first.x;
    second[element] = after.second.x;
    return after.parameter.x;
}
