// bpe_run_reduce: finds the last start of a run of the merged symbol in each block, and in each
// group of RUN_TILE blocks.
//
// The kernel runs only if a symbol is merged with itself. A run is then merged from the left: a a a
// becomes (a a) a.
//
//   run_tiles[k] = max(run_starts[RUN_TILE * k], ..., run_starts[RUN_TILE * (k + 1) - 1])
//
// binding 0  symbols     read        (symbol_count) see symbols.wgsl
// binding 1  run_starts  read_write  (blocks) out: position + 1 of the last start in each block; 0
//                                    if there is none
// binding 2  run_tiles   read_write  (ceil(blocks / RUN_TILE)) in: 0; out: maximum of RUN_TILE
//                                    run_starts
// binding 3  state       read        IterState
// dispatch: ARGS_RUNS = ceil(symbol_count / BLOCK) or none
// source: none. Without this kernel, two threads would both merge the middle of a run a a a.
//!include common/scan_max.wgsl
//!include recount/iter_state.wgsl

@group(0) @binding(0) var<storage, read> symbols: array<u32>;
@group(0) @binding(1) var<storage, read_write> run_starts: array<u32>;
@group(0) @binding(2) var<storage, read_write> run_tiles: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read> state: IterState;

//!include recount/runs.wgsl

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_run_reduce(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let block = flat_group(workgroup, workgroups);
    var own = 0u;
    for (var k = local_index; k < BLOCK; k += WORKGROUP_SIZE) {
        own = max(own, run_start_mark(block * BLOCK + k));
    }
    let last = workgroup_max_scan(own, local_index).total;
    if (local_index == 0u && block * BLOCK < state.symbol_count) {
        run_starts[block] = last;
        if (last != 0u) {
            atomicMax(&run_tiles[block / RUN_TILE], last);
        }
    }
}
