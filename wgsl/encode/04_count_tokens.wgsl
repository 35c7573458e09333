// encode_count_tokens: counts the tokens of each segment, 32 bytes of text, and adds up the counts
// of each workgroup.
//
// binding 0  params       uniform     SliceParams
// binding 1  start_bits   read        (length bits) 1 where a word starts
// binding 2  words        read        (length) at the start of each word its number
// binding 3  entries      read        (word_capacity) index in `ids` of a word's first token,
//                                     number of its tokens
// binding 4  offsets      read_write  (segments) out: tokens of the earlier segments of the same
//                                     workgroup
// binding 5  group_sums   read_write  (workgroups) out: tokens of each workgroup's segments
// binding 6  state        read_write  WordState
// dispatch: one thread per segment
//!include scan
//!include words/state.wgsl
//!include encode/tokens.wgsl

@group(0) @binding(0) var<uniform> params: SliceParams;
@group(0) @binding(1) var<storage, read> start_bits: array<u32>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read> entries: array<Tokens>;
@group(0) @binding(4) var<storage, read_write> offsets: array<u32>;
@group(0) @binding(5) var<storage, read_write> group_sums: array<u32>;
@group(0) @binding(6) var<storage, read_write> state: WordState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_count_tokens(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    scan_input: ScanInput,
) {
    let group = flat_group(workgroup, workgroups);
    let segment = group * WORKGROUP_SIZE + scan_input.local_index;
    var tokens = 0u;
    if (atomicLoad(&state.pending) == 0u) {
        tokens = count_tokens(segment, starts_in(segment));
    }
    let scan = workgroup_scan(tokens, scan_input);
    if (segment * SEGMENT < params.main_end) {
        offsets[segment] = scan.exclusive;
    }
    if (scan_input.local_index == 0u && group * WORKGROUP_SIZE * SEGMENT < params.main_end) {
        group_sums[group] = scan.total;
    }
}
