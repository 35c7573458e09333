// encode_long_words: lists the words that the host encodes, with their text and with where their
// tokens go.
//
// encode_look_up has chained the words. Every workgroup follows the whole chain and lists one of
// GROUPS consecutive words; its threads copy the text of this word together. The host reads the text
// itself if there are more than LISTED words, or if a word has more than LISTED_BYTES bytes.
//
// binding 0  params      uniform     SliceParams
// binding 1  text        read        (length)
// binding 2  start_bits  read        (length bits) where words start
// binding 3  words       read        (length) LONG_WORD where a long word starts, then the next one
// binding 4  entries     read        (word_capacity) where the tokens of a word are, and how many
// binding 5  offsets     read        (segments) tokens of the segments before in the workgroup
// binding 6  group_sums  read        (workgroups) tokens of the workgroups before
// binding 7  long_words  read_write  (LISTED) start, place of its token, length or 0; text
// binding 8  state       read_write  WordState
// dispatch: GROUPS workgroups
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include words/text.wgsl
//!include encode/tokens.wgsl

const LISTED: u32 = 512u;        // words
const GROUPS: u32 = 8u;
const LISTED_BYTES: u32 = 4080u; // of the text of each

struct LongWord {
    start: u32,
    place: u32,
    length: u32, // 0: more than LISTED_BYTES
    unused: u32,
    text: array<u32, LISTED_BYTES / 4u>,
}

@group(0) @binding(0) var<uniform> params: SliceParams;
@group(0) @binding(1) var<storage, read> text: array<u32>;
@group(0) @binding(2) var<storage, read> start_bits: array<u32>;
@group(0) @binding(3) var<storage, read> words: array<u32>;
@group(0) @binding(4) var<storage, read> entries: array<Tokens>;
@group(0) @binding(5) var<storage, read> offsets: array<u32>;
@group(0) @binding(6) var<storage, read> group_sums: array<u32>;
@group(0) @binding(7) var<storage, read_write> long_words: array<LongWord>;
@group(0) @binding(8) var<storage, read_write> state: WordState;

// How long the word that starts at a position is; 0 if it has more than LISTED_BYTES.
fn length_at(start: u32) -> u32 {
    let first = start / SEGMENT;
    let last = min((params.main_end - 1u) / SEGMENT, (start + LISTED_BYTES) / SEGMENT);
    var end = params.main_end;
    for (var segment = first; segment <= last; segment++) {
        var starts = start_bits[segment];
        if (segment == first) {
            starts &= 0xFFFFFFFEu << (start % SEGMENT);
        }
        if (starts != 0u) {
            end = min(end, segment * SEGMENT + countTrailingZeros(starts));
            break;
        }
    }
    return select(0u, end - start, end - start <= LISTED_BYTES);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_long_words(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let count = atomicLoad(&state.long);
    if (atomicLoad(&state.pending) != 0u || count > LISTED) { return; }
    var start = atomicLoad(&state.last_long);
    for (var k = 0u; k < count; k++) {
        let next = words[start + 1u];
        if (k % GROUPS != workgroup.x) {
            start = next;
            continue;
        }
        let length = length_at(start);
        for (var done = 4u * thread; done < length; done += 4u * WORKGROUP_SIZE) {
            long_words[k].text[done / 4u] = four_bytes(start + done);
        }
        if (thread == 0u) {
            let segment = start / SEGMENT;
            let before = starts_in(segment) & ((1u << (start % SEGMENT)) - 1u);
            let group = group_sums[segment / WORKGROUP_SIZE];
            long_words[k].start = start;
            long_words[k].place = group + offsets[segment] + count_tokens(segment, before);
            long_words[k].length = length;
        }
        start = next;
    }
}
