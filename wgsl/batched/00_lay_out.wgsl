// batched_lay_out: writes the symbols of all words to the positions of a linked list, and counts
// their pairs.
//
// Position 0 holds a separator, and a separator follows each word. word_symbols[j], a symbol of
// word w, gets position j + w + 1. The pairs have no slots in the pair table yet. So this kernel
// sets slots[position] to 1 + the index in `entries` of the pair that starts at the position, or to
// 0 if no pair starts there. batched_first_links replaces these numbers by slots.
//
// binding 0  params         uniform     LayOutParams
// binding 1  word_symbols   read        (symbols) symbols of all words, end to end
// binding 2  pair_entries   read        (symbols) index in `entries` of the pair that starts at the
//                                       symbol; undefined for the last symbol of a word
// binding 3  words          read        (words) x: end of the word in word_symbols; y: how
//                                       often the word occurs
// binding 4  units          read_write  (positions) out: symbol and weight
// binding 5  links          read_write  (positions) out: the positions before and after
// binding 6  slots          read_write  (positions) out: 1 + index in `entries`, or 0
// binding 7  places         read_write  (positions) out: index of the occurrence among the
//                                       occurrences of its pair
// binding 8  entries        read_write  (distinct pairs) in: zeros; out: count and size
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

// Returns the index of the word at a position. The separator after a word counts as a part of the
// word, and position 0 as a part of word 0.
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
    let end = word.x + number + 1u; // position of the separator after the word
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
