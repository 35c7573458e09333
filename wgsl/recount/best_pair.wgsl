// Compares pairs, and finds the best pair of a workgroup.
//
// A more frequent pair is better. Of equally frequent pairs, the pair with the smaller (first rank,
// second rank), which is the smaller packed pair, is better. The order is total, so the result
// depends neither on the slots of pairs nor on the order of comparisons.
//!include common/workgroup.wgsl

var<workgroup> sh_best: array<vec2<u32>, WORKGROUP_SIZE>; // count, packed pair

// Returns the better of two pairs, each given as (count, packed pair).
fn better(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    let y_wins = y.x > x.x || (y.x == x.x && y.y < x.y);
    return select(x, y, y_wins);
}

// Returns the best pair of the workgroup. All threads of the workgroup must call this function.
fn workgroup_best(own: vec2<u32>, local_index: u32) -> vec2<u32> {
    sh_best[local_index] = own;
    workgroupBarrier();
    for (var half = WORKGROUP_SIZE / 2u; half > 0u; half >>= 1u) {
        if (local_index < half) {
            sh_best[local_index] = better(sh_best[local_index], sh_best[local_index + half]);
        }
        workgroupBarrier();
    }
    return sh_best[0];
}
