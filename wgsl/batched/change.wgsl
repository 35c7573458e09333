// `changes` has one of these values in place of an entry's index. STALE: the pair does not start at
// the listed position, because an earlier merge has destroyed it. UNCHANGED: this occurrence counts
// no new pair with the neighbouring symbol.

const STALE: u32 = 0xFFFFFFFEu;
const UNCHANGED: u32 = 0xFFFFFFFFu;
