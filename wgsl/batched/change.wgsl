// Values in `changes` in place of an entry, for a stale occurrence, and for a side on which nothing
// changes.

const STALE: u32 = 0xFFFFFFFEu;
const UNCHANGED: u32 = 0xFFFFFFFFu;
