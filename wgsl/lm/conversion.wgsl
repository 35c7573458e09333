// Conversion of the elements of `src` to elements of `dst`, four at a time. Expects src and dst, whose
// elements are a SourceVector and a TargetVector, n, and write_rest.
//
// As in bench/copy.wgsl, a thread starts all its loads before it stores anything, and neighbouring
// threads access neighbouring vectors. Elements of dst from n on are not written.
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
