// add_partials: add up the partial sums of a matrix product, in a fixed order.
//
// Where a product has few tiles, several workgroups take a part of the inner dimension each
// (03_matrix_product.wgsl); this makes one product of their partial sums.
//
// binding 0  partials  read        (parts, elements)
// binding 1  residual  read        (elements); anything where it is not added
// binding 2  product   read_write  (elements)
// binding 3  dims      uniform     elements, parts, code of the addend
// dispatch: one thread per element
//!include lm/addend.wgsl
//!include lm/elements.wgsl

@group(0) @binding(0) var<storage, read> partials: array<f32>;
@group(0) @binding(1) var<storage, read> residual: array<f32>;
@group(0) @binding(2) var<storage, read_write> product: array<f32>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn add_partials(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        var sum = 0.0;
        for (var part = 0u; part < dims.y; part++) {
            sum += partials[part * dims.x + i];
        }
        if (dims.z == ADD_RESIDUAL) {
            sum += residual[i];
        }
        if (dims.z == ADD_TO_PRODUCT) {
            sum += product[i];
        }
        product[i] = sum;
    }
}
