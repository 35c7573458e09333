// The order of pairs, and the best of a workgroup.
//
// A pair is better when it is more frequent; of equally frequent pairs, the one with the smaller
// (first rank, second rank) is better, that is, the smaller packed pair. The order is total, so the
// result depends neither on slots nor on the order in which threads are compared.
//!include common/workgroup.wgsl

var<workgroup> sh_best: array<vec2<u32>, WORKGROUP_SIZE>; // count, packed pair

fn better(x: vec2<u32>, y: vec2<u32>) -> vec2<u32> {
    let y_wins = y.x > x.x || (y.x == x.x && y.y < x.y);
    return select(x, y, y_wins);
}

// Call from all threads of the workgroup.
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
