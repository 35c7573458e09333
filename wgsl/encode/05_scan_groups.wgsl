// encode_scan_groups: computes the index in the output at which the tokens of each workgroup begin,
// and the slice's number of tokens.
//
// binding 0  params      uniform     SliceParams
// binding 1  group_sums  read_write  (workgroups) in: tokens of each workgroup; out: tokens of all
//                                    earlier workgroups
// binding 2  state       read_write  WordState; out: tokens
// dispatch: 1 workgroup
//!include scan
//!include words/state.wgsl

@group(0) @binding(0) var<uniform> params: SliceParams;
@group(0) @binding(1) var<storage, read_write> group_sums: array<u32>;
@group(0) @binding(2) var<storage, read_write> state: WordState;

@compute @workgroup_size(WORKGROUP_SIZE)
fn encode_scan_groups(scan_input: ScanInput) {
    let group_bytes = WORKGROUP_SIZE * 32u;
    let groups = (params.main_end + group_bytes - 1u) / group_bytes;
    var before = 0u;
    for (var begin = 0u; begin < groups; begin += WORKGROUP_SIZE) {
        let group = begin + scan_input.local_index;
        var tokens = 0u;
        if (group < groups) {
            tokens = group_sums[group];
        }
        let scan = workgroup_scan(tokens, scan_input);
        if (group < groups) {
            group_sums[group] = before + scan.exclusive;
        }
        before += scan.total;
    }
    if (scan_input.local_index == 0u) {
        state.tokens = before;
    }
}
