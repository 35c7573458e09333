// Entries of changes that are none: the occurrence is stale, or no symbol is on that side.

const STALE: u32 = 0xFFFFFFFEu;
const UNCHANGED: u32 = 0xFFFFFFFFu;
