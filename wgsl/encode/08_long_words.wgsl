// encode_long_words: lists the long words, which the host encodes, each with its text and the index
// in the output at which its tokens belong.
//
// The long words are a linked list, which encode_look_up made: state.last_long is the start of the
// first word, and words[start + 1] is the start of the next word. Every workgroup follows the whole
// list, and copies every GROUPS-th word; all its threads copy one word together. If there are more
// than LISTED long words, the kernel lists none, and a word of more than LISTED_BYTES bytes is listed
// without its text; the host then reads the text itself.
//
// binding 0  params      uniform     SliceParams
// binding 1  text        read        (length) bytes, four per u32
// binding 2  start_bits  read        (length bits) 1 where a word starts
// binding 3  words       read        (length) at the start of a long word LONG_WORD, then the start
//                                    of the next long word
// binding 4  entries     read        (word_capacity) index in `ids` of a word's first token, number
//                                    of its tokens
// binding 5  offsets     read        (segments) tokens of the earlier segments of the same
//                                    workgroup
// binding 6  group_sums  read        (workgroups) tokens of all earlier workgroups
// binding 7  long_words  read_write  (LISTED)
// binding 8  state       read_write  WordState
// dispatch: GROUPS workgroups
//!include common/workgroup.wgsl
//!include words/state.wgsl
//!include words/text.wgsl
//!include encode/tokens.wgsl

const LISTED: u32 = 512u;        // largest number of words that are listed
const GROUPS: u32 = 8u;          // workgroups
const LISTED_BYTES: u32 = 4080u; // largest number of bytes of a word that are copied

struct LongWord {
    start: u32,  // position in the text
    place: u32,  // index in the output of the LONG_WORD that stands for the word's tokens
    length: u32, // bytes; 0: more than LISTED_BYTES
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

// Returns the number of bytes of the word that starts at a position; 0 if it has more than
// LISTED_BYTES.
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
