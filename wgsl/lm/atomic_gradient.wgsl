// Computes the gradient of a table by atomic additions.
//
// Threads add in no fixed order, so the last bits of a result differ from run to run, and threads
// of equal tokens wait for each other. 01_embed_backward_grouped.wgsl has neither disadvantage.
// Gradients that are not finite and tokens beyond the table are ignored.
//!include lm/elements.wgsl
//!include lm/finite.wgsl

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> grad_out: array<f32>;
@group(0) @binding(2) var<storage, read_write> grad_table: array<atomic<u32>>;
@group(0) @binding(3) var<uniform> dims: vec4<u32>;

// Adds a value to an element of grad_table. WGSL has no atomic f32, so the thread replaces the
// bits of the element by the bits of the sum, and tries again if another thread has changed the
// element since it was loaded. 0 is skipped to save the time of an addition. A value that is not
// finite is skipped, because the element could never become finite again.
fn add_atomically(element: u32, value: f32) {
    if (value == 0.0 || !is_finite(value)) {
        return;
    }
    var seen = atomicLoad(&grad_table[element]);
    loop {
        let sum = bitcast<u32>(bitcast<f32>(seen) + value);
        let result = atomicCompareExchangeWeak(&grad_table[element], seen, sum);
        if (result.exchanged) {
            break;
        }
        seen = result.old_value;
    }
}
