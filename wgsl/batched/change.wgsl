// In place of an entry in `changes`: the occurrence is stale, or nothing changes on that side.

const STALE: u32 = 0xFFFFFFFEu;
const UNCHANGED: u32 = 0xFFFFFFFFu;
