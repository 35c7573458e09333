// batched_lay_out: places the symbols of words at linked positions, and counts their pairs.
//
// Position 0 is a separator, and one follows each word. Symbol j of word w is at position
// j + w + 1. Until slots are given to pairs, a position's slot is 1 + the entry of the pair that
// starts there.
//
// binding 0  params         uniform     LayOutParams
// binding 1  word_symbols   read        (symbols) words end to end
// binding 2  pair_entries   read        (symbols) entry of the pair that starts there; ignored at a word's end
// binding 3  words          read        (words) end in word_symbols, occurrences
// binding 4  units          read_write  (positions)
// binding 5  links          read_write  (positions)
// binding 6  slots          read_write  (positions)
// binding 7  places         read_write  (positions) number of the occurrence among its pair's
// binding 8  entries        read_write  (distinct pairs) count and size
// dispatch: one thread per position
//!include common/workgroup.wgsl
//!include batched/state.wgsl

@group(0) @binding(0) var<uniform> params: LayOutParams;
@group(0) @binding(1) var<storage, read> word_symbols: array<u32>;
@group(0) @binding(2) var<storage, read> pair_entries: array<u32>;
@group(0) @binding(3) var<storage, read> words: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> units: array<Unit>;
@group(0) @binding(5) var<storage, read_write> links: array<Link>;
@group(0) @binding(6) var<storage, read_write> slots: array<u32>;
@group(0) @binding(7) var<storage, read_write> places: array<u32>;
@group(0) @binding(8) var<storage, read_write> entries: array<Entry>;

// The first word whose separator is not before this position.
fn word_at(position: u32) -> u32 {
    var low = 0u;
    var high = params.words;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (words[middle].x + middle + 1u < position) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn batched_lay_out(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let position = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    if (position >= params.positions) { return; }
    var unit = Unit(SEPARATOR, 0u);
    slots[position] = NO_SLOT;
    let number = word_at(position);
    let word = words[number];
    let end = word.x + number + 1u; // the separator after it
    if (position > 0u && position < end) {
        let at = position - number - 1u;
        unit = Unit(word_symbols[at], word.y);
        if (position + 1u < end) {
            let entry = pair_entries[at];
            atomicAdd(&entries[entry].count, unit.weight);
            places[position] = atomicAdd(&entries[entry].size, 1u);
            slots[position] = entry + 1u;
        }
    }
    units[position] = unit;
    links[position] = Link(max(position, 1u) - 1u, position + 1u);
}
