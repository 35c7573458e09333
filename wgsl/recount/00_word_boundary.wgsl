// bpe_word_boundary: turns bytes into symbols, and marks the first symbol of each pre-token.
//
//   symbols[i] = byte_ranks[text[i]] | (WORD_START_BIT where a pre-token starts at i)
//
// A kernel of wgsl/pretoken has marked the starts of pre-tokens before.
//
// binding 0  text        read        (symbol_count) bytes, four per u32
// binding 1  start_bits  read        (symbol_count bits) 1 where a pre-token starts
// binding 2  byte_ranks  read        (256) rank of each byte, see symbols.wgsl
// binding 3  symbols     read_write  (symbol_count) see symbols.wgsl
// binding 4  state       read        IterState
// dispatch: ceil(symbol_count / (SYMBOLS_PER_WORD * WORKGROUP_SIZE)), one thread per u32 of symbols
// source: bpe_word_boundary. There the kernel finds the starts by the class of each byte, for one
//   pattern. Here kernels of wgsl/pretoken mark the starts, because most patterns depend on
//   characters. Here symbols are ranks, so that every rule for ties is an order of numbers.
//!include common/workgroup.wgsl
//!include recount/iter_state.wgsl
//!include recount/symbols.wgsl

@group(0) @binding(0) var<storage, read> text: array<u32>;
@group(0) @binding(1) var<storage, read> start_bits: array<u32>;
@group(0) @binding(2) var<storage, read> byte_ranks: array<u32>;
@group(0) @binding(3) var<storage, read_write> symbols: array<u32>;
@group(0) @binding(4) var<storage, read> state: IterState;

fn text_byte(i: u32) -> u32 {
    return (text[i >> 2u] >> ((i & 3u) * 8u)) & 0xFFu;
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn bpe_word_boundary(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let word = flat_group(workgroup, workgroups) * WORKGROUP_SIZE + local_index;
    let end = min((word + 1u) * SYMBOLS_PER_WORD, state.symbol_count);
    var packed = 0u;
    for (var i = word * SYMBOLS_PER_WORD; i < end; i++) {
        let starts = ((start_bits[i >> 5u] >> (i & 31u)) & 1u) == 1u;
        let own = byte_ranks[text_byte(i)] | select(0u, WORD_START_BIT, starts);
        packed |= own << (i % SYMBOLS_PER_WORD * SYMBOL_BITS);
    }
    if (word * SYMBOLS_PER_WORD < end) {
        symbols[word] = packed;
    }
}
