// Matrix products: a linear layer and its gradients.
//
//   linear:                  out         = x weight^T (+ residual)
//   linear_backward_input:   grad_x      = grad_out weight, or is added to
//   linear_backward_weight:  grad_weight is added grad_out^T x
//
// Shapes: x, grad_x (N, I); weight, grad_weight (O, I), f32 or f16; out, grad_out, residual (N, O).
// Products and sums are f32 always.
//
// Nearly all of a model's time goes here, so kernels of these names are written for each layout,
// tile and kind of sizes by llmgpu/lm/ops/matrix_source.py. A workgroup computes a tile of the
// product, e.g. 64 x 128. It goes along the inner dimension in steps of e.g. 16 terms: both factors'
// parts of a step are copied to workgroup memory, then each thread adds the terms of its own 8 x 8
// elements, whose sums are 16 named variables of 4, so that one number out of workgroup memory
// serves 8 multiplications. The next step's parts are loaded meanwhile. Bindings: left (rows,
// inner), right (inner, columns), product (rows, columns), dims (rows, columns, inner, inner of a
// part) and, where there is one, residual (rows, columns).
//
// Where a product has few tiles, several workgroups take a part of the inner dimension each and
// leave partial sums, which add_partials adds in a fixed order. A linear layer of few rows (one token
// at a time) only loads weights; it has kernels of its own.
enable f16;

//!include common/reduce.wgsl
//!include lm/elements.wgsl

// What is added to a product: another matrix, what is there, or nothing.
const ADD_RESIDUAL: u32 = 1u;
const ADD_TO_PRODUCT: u32 = 2u;

// add_partials
// binding 0  partials  read        (parts, elements)
// binding 1  residual  read        (elements); anything where it is not added
// binding 2  product   read_write  (elements)
// binding 3  dims      uniform     elements, parts, what to add
// dispatch: one thread an element
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

// linear_few_rows
// binding 0  x             read        (N, I)
// binding 1  weight        read        (O, I)
// binding 2  few_residual  read        (N, O); anything where it is not added
// binding 3  out           read_write  (N, O)
// binding 4  few_dims      uniform     N, O, I, what to add
// dispatch: one workgroup an element of out; neighbouring threads load neighbouring weights
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> few_residual: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> few_dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn linear_few_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_group(workgroup, workgroups);
    let start = few_starts(i);
    var sum = 0.0;
    for (var k = local_index; k < few_terms(i); k += WORKGROUP_SIZE) {
        sum = fma(x[start.x + k], weight[start.y + k], sum);
    }
    store_few(i, workgroup_sum(sum, local_index), local_index);
}

// linear_few_rows_half
// binding 0  x             read        (N, I)
// binding 1  weight_half   read        (O, I), f16
// binding 2  few_residual  read        (N, O); anything where it is not added
// binding 3  out           read_write  (N, O)
// binding 4  few_dims      uniform     N, O, I, what to add
// dispatch: one workgroup an element of out; neighbouring threads load neighbouring weights
@group(0) @binding(1) var<storage, read> weight_half: array<f16>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn linear_few_rows_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_group(workgroup, workgroups);
    let start = few_starts(i);
    var sum = 0.0;
    for (var k = local_index; k < few_terms(i); k += WORKGROUP_SIZE) {
        sum = fma(x[start.x + k], f32(weight_half[start.y + k]), sum);
    }
    store_few(i, workgroup_sum(sum, local_index), local_index);
}

// Where the rows of x and of the weights begin that element i of out is the product of.
fn few_starts(i: u32) -> vec2<u32> {
    return vec2<u32>(i / few_dims.y, i % few_dims.y) * few_dims.z;
}

// Terms of element i: none beyond the last one.
fn few_terms(i: u32) -> u32 {
    return select(0u, few_dims.z, i < few_dims.x * few_dims.y);
}

fn store_few(i: u32, sum: f32, local_index: u32) {
    if (local_index == 0u && i < few_dims.x * few_dims.y) {
        var total = sum;
        if (few_dims.w == ADD_RESIDUAL) {
            total += few_residual[i];
        }
        if (few_dims.w == ADD_TO_PRODUCT) {
            total += out[i];
        }
        out[i] = total;
    }
}
