// add_partials: add up the partial sums of a matrix product, in a fixed order.
//
// Where a product has few tiles, several workgroups take a part of the inner dimension each
// (03_matrix_product.wgsl); this makes one product of their partial sums. A thread loads a vector of
// every part before it adds the first two, so that it waits for memory once.
//
// binding 0  partials  read        (parts, elements), a vector per element
// binding 1  residual  read        (elements), a vector per element; anything where it is not added
// binding 2  product   read_write  (elements), a vector per element
// binding 3  dims      uniform     vectors, code of the addend
// dispatch: one thread per vector of `numbers` elements, 4 or 1
//!include lm/addend.wgsl
//!include lm/elements.wgsl
//!override parts = 2
//!override numbers = 4
//!let vector = vec4<f32>
//!let vector = f32 if numbers == 1

@group(0) @binding(0) var<storage, read> partials: array<{vector}>;
@group(0) @binding(1) var<storage, read> residual: array<{vector}>;
@group(0) @binding(2) var<storage, read_write> product: array<{vector}>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn add_partials(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        //!for part in 0..parts
        let part_{part} = partials[{part}u * dims.x + i];
        //!end
        var addend = {vector}();
        if (dims.y == ADD_RESIDUAL) {
            addend = residual[i];
        }
        if (dims.y == ADD_TO_PRODUCT) {
            addend = product[i];
        }
        var sum = {vector}(); // 0, which an addend of 0 does not change
        //!for part in 0..parts
        sum += part_{part};
        //!end
        product[i] = sum + addend;
    }
}
