// Stores the sums of a product on matrix units, for 03_matrix_product_units.wgsl.
//
// subgroupMatrixStore makes each thread store 8 bytes per row of a matrix, which is slow in global
// memory. So a subgroup first stores `together` adjacent matrices of sums in workgroup memory, in
// left_tile or right_tile. From workgroup memory, neighbouring threads store neighbouring numbers
// of the product, so that they fill whole cache lines: vectors of 16 bytes if `aligned` is set, and
// single words if not. The sums of a symmetric product are stored a second time, transposed, on the
// other side of the diagonal.
//
// sum_stride: vectors of four sums from a row of sums to the next in workgroup memory. sum_size:
// vectors of a subgroup. at_once: numbers that a call of `store` stores.
//!let sum_stride = {together * unit_columns / 4 + 2}
//!let sum_size = {unit_rows * sum_stride}
//!let at_once = 4
//!let at_once = 8 if half and aligned

//!block store
  //!if half
    //!include lm/two_halves.wgsl
  //!end
  //!if aligned
    //!let sums = sums: vec4<f32>
    //!let sums = low: vec4<f32>, high: vec4<f32> if half
    //!let sums = {sums}, whole: bool if adds_late
// Stores adjacent numbers of a row of the product, from `column` on, if they are inside. If `whole`
// is true, the sums contain the addends.
fn store(part: u32, row: u32, column: u32, {sums}) {
    //!if edges
    if (row >= dims.x || column >= dims.y) {
        return;
    }
    //!end
    let place = ((part * dims.x + row) * dims.y + column) / {at_once}u;
    //!if half
    product[place] = vec4<u32>(
        two_halves(low.xy), two_halves(low.zw), two_halves(high.xy), two_halves(high.zw)
    );
    //!else
      //!if adds_late
    if (whole) {
        product[place] = sums;
    } else {
        product[place] = sums + {addend}[place];
    }
      //!else
    product[place] = sums;
      //!end
    //!end
}
  //!else
// Stores four adjacent numbers of a row of the product, from `column` on, as far as they are
// inside: f32 numbers one by one, and halves in pairs.
fn store(part: u32, row: u32, column: u32, sums: vec4<f32>) {
    if (row >= dims.x) {
        return;
    }
    let first = (part * dims.x + row) * dims.y + column;
    //!if half
      //!for j in 0..2
    if (column + {2 * j}u < dims.y) {
        product[(first + {2 * j}u) / 2u] = two_halves(vec2<f32>(sums[{2 * j}], sums[{2 * j + 1}]));
    }
      //!end
    //!else
      //!for j in 0..4
        //!let added =
        //!let added = + {addend}[first + {j}u] if adds
    if (column + {j}u < dims.y) {
        product[first + {j}u] = sums[{j}] {added};
    }
      //!end
    //!end
}
  //!end
//!end

// Loads the addends into the matrices of sums if the whole tile is inside the product. The kernel
// has this branch even if all tiles are inside: without it, products were 3 % slower.
//!block start_sums
  //!if aligned and adds
        let whole = row0 + {rows}u <= dims.x && column0 + {columns}u <= dims.y;
        if (whole) {
    //!for i in 0..down
      //!for j in 0..across
        //!let row = row0 + own_row + {i * unit_rows}u
        //!let column = column0 + own_column + {j * unit_columns}u
        //!let place = ((part * dims.x + {row}) * dims.y + {column}) / 4u
            sums_{i}_{j} = subgroupMatrixLoad<Sum, row_major>(&{addend}, {place}, dims.y / 4u);
      //!end
    //!end
        }
  //!end
//!end

// Stores the matrices of sums in workgroup memory, and from there the elements that are inside the
// product. If left_tile and right_tile both have room for the sums, the turns alternate between
// them, and a turn needs only the barrier between its stores and its reads. When a turn overwrites
// an array, all threads have read it, because they have passed the barrier of the turn in between.
//!block store_sums
        // The remainder lets the compiler prove that the index is inside the array.
        let own_sums = subgroup % {subgroups}u * {sum_size}u;
  //!let has_room = {right_size >= subgroups * sum_size}
  //!for i in 0..down
    //!for turn in 0..across / together
      //!let j = {turn * together}
      //!let tile = left_tile
      //!if has_room
        //!let tile = right_tile if (i * (across / together) + turn) % 2
      //!else
        //!if i or turn
        workgroupBarrier();
        //!end
      //!end
      //!for k in 0..together
        //!let place = own_sums + {k * unit_columns / 4}u
        subgroupMatrixStore<row_major>(&{tile}, {place}, sums_{i}_{j + k}, {sum_stride}u);
      //!end
        workgroupBarrier();
      //!let line = {together * unit_columns / at_once}
      //!let pieces = {unit_rows * line}
        for (var n = 0u; n < {(pieces + lanes - 1) / lanes}u; n++) {
            let v = lane + n * {lanes}u;
      //!if pieces % lanes
            if (v >= {pieces}u) { break; }
      //!end
            let first = own_sums + v / {line}u * {sum_stride}u + v % {line}u * {at_once / 4}u;
      //!let row = row0 + own_row + {i * unit_rows}u + v / {line}u
      //!let column = column0 + own_column + {j * unit_columns}u + v % {line}u * {at_once}u
      //!let sums = bitcast<vec4<f32>>({tile}[first + 0u])
      //!let sums = {sums}, bitcast<vec4<f32>>({tile}[first + 1u]) if at_once == 8
      //!let sums = {sums}, whole if adds_late
            store(part, {row}, {column}, {sums});
        }
      //!if symmetric
        // Store the transposed tile on the other side of the diagonal. A row of the transposed tile
        // is a column of the sums in workgroup memory.
        if (row0 != column0) {
            for (var n = 0u; n < {(pieces + lanes - 1) / lanes}u; n++) {
                let v = lane + n * {lanes}u;
        //!if pieces % lanes
                if (v >= {pieces}u) { break; }
        //!end
                let line = v / {unit_rows / at_once}u;
                let first = v % {unit_rows / at_once}u * {at_once}u;
        //!for e in 0..at_once
          //!let at = own_sums + (first + {e}u) * {sum_stride}u + line / 4u
          //!let sum{e} = bitcast<f32>({tile}[{at}][line % 4u])
        //!end
        //!let row = column0 + own_column + {j * unit_columns}u + line
        //!let column = row0 + own_row + {i * unit_rows}u + first
        //!let sums = vec4<f32>({sum0}, {sum1}, {sum2}, {sum3})
        //!if at_once == 8
          //!let sums = {sums}, vec4<f32>({sum4}, {sum5}, {sum6}, {sum7})
        //!end
                store(part, {row}, {column}, {sums});
            }
        }
      //!end
    //!end
  //!end
//!end
