// Storing the sums of a product on matrix units, see 03_matrix_product_units.wgsl.
//
// A matrix unit stores a matrix in pieces of 8 bytes per row and thread, which is slow in global
// memory. So some matrices of sums are first stored in workgroup memory, in the place of the
// factors. From there neighbouring threads store neighbouring numbers: whole cache lines, in
// vectors of 16 bytes if the rows of the product are aligned for them. Sums of a symmetric product are
// stored a second time, on the other side of the diagonal.
//!let sum_stride = {together * unit_columns / 4 + 2}
//!let sum_size = {unit_rows * sum_stride}
//!let at_once = 4
//!let at_once = 8 if half && aligned

//!block store
  //!if half
    //!include lm/two_halves.wgsl
  //!end
  //!if aligned
    //!let sums = sums: vec4<f32>
    //!let sums = low: vec4<f32>, high: vec4<f32> if half
    //!let sums = {sums}, whole: bool if adds_late
// Store neighbours from a row and a column on, if they are inside.
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
// Store neighbours from a row and a column on, one by one, or pairs of halves, if they are inside.
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

// Load the addends of sums, where matrices are loaded whole. There is a branch even where all
// are: without it, products were measured to take 3 % longer.
//!block start_sums
  //!if aligned && adds
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

// Store matrices into workgroup memory, and from there elements that are inside. If both parts of
// it have room for sums, they take turns: one barrier is enough before the sums are read, and by
// the next but one all threads have read them.
//!block store_sums
        // The compiler can tell that this stays inside.
        let own_sums = subgroup % {subgroups}u * {sum_size}u;
  //!let has_room = {right_size >= subgroups * sum_size}
  //!for i in 0..down
    //!for turn in 0..across / together
      //!let j = {turn * together}
      //!let tile = left_tile
      //!if has_room
        //!let tile = right_tile if (i * (across / together) + turn) % 2
      //!else
        //!if i || turn
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
        // The tile across the diagonal has the same sums, which lie here in columns.
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
