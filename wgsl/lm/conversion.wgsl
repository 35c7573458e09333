// Loads vectors of four elements from `src`, and stores vectors of four elements in `dst`, for
// kernels that convert elements.
//
// The kernel binds src, an array of SourceVector, dst, an array of TargetVector, and n, the number
// of elements. It defines write_rest(i, values, left), which stores the first `left` elements of
// the last vector. As in bench/copy.wgsl, a thread starts all its loads before its first store,
// and neighbouring threads access neighbouring vectors. Elements of dst from n on are not written.
//!include lm/elements.wgsl
//!override vectors = 4

fn source_vector(i: u32) -> SourceVector {
    if (4u * i >= n) { return SourceVector(); }
    return src[i];
}

fn write_vector(i: u32, values: TargetVector) {
    if (4u * i >= n) { return; }
    let left = n - 4u * i;
    if (left >= 4u) {
        dst[i] = values;
    } else {
        write_rest(i, values, left);
    }
}
