// Multiplies two small matrices on matrix units, to measure the highest rate that a kernel reaches
// on these units. The benchmark reports the rates of products in half precision as shares of this
// rate.
//
//   product[s, k] = rounds * left right, for all subgroups s and k in 0..sums
//
// binding 0  left     read        (unit_rows, unit_inner)
// binding 1  right    read        (unit_inner, unit_columns)
// binding 2  product  read_write  (subgroups of all workgroups, sums, unit_rows, unit_columns)
// dispatch: any number of workgroups of `subgroups` subgroups
// limits: the subgroups of a workgroup have `lanes` threads each

//!include lm/matrix_units.wgsl
//!override lanes = 32
//!override subgroups = 4
//!override sums = 16
//!override rounds = 2048
@group(0) @binding(0) var<storage, read> left: array<f16>;
@group(0) @binding(1) var<storage, read> right: array<f16>;
@group(0) @binding(2) var<storage, read_write> product: array<f32>;

@compute @workgroup_size({subgroups * lanes})
fn multiply_matrices(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
) {
    let first = (workgroup.x * {subgroups}u + subgroup) * {sums}u;
    let l = subgroupMatrixLoad<Left, row_major>(&left, 0u, {unit_inner}u);
    let r = subgroupMatrixLoad<Right, row_major>(&right, 0u, {unit_columns}u);
    //!for k in 0..sums
    var sum_{k}: Sum;
    //!end
    for (var round = 0u; round < {rounds}u; round++) {
        //!for k in 0..sums
        sum_{k} = subgroupMatrixMultiplyAccumulate(l, r, sum_{k});
        //!end
    }
    //!for k in 0..sums
    subgroupMatrixStore<row_major>(
        &product, (first + {k}u) * {unit_rows * unit_columns}u, sum_{k}, {unit_columns}u
    );
    //!end
}
