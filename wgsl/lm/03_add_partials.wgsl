// add_partials: adds up the partial sums of a matrix product, in a fixed order.
//
// If a product has few tiles, 03_matrix_product.wgsl splits the inner dimension into `parts` ranges
// of terms, and stores one matrix of partial sums per range. This kernel adds up these matrices. A
// thread loads its vectors of all matrices before it adds the first two, so that it waits for
// memory once.
//
// binding 0  partials  read        (parts, elements), a vector per element
// binding 1  residual  read        (elements), a vector per element; only read for ADD_RESIDUAL
// binding 2  product   read_write  (elements), a vector per element
// binding 3  dims      uniform     vectors of the product, code of the addend (addend.wgsl)
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
        // A sum that starts at +0 is never -0, so an addend of 0 does not change its bits.
        var sum = {vector}();
        //!for part in 0..parts
        sum += part_{part};
        //!end
        product[i] = sum + addend;
    }
}
