// Computes fused multiply-adds in registers, to measure the highest arithmetic rate that a kernel
// reaches on a device. The benchmark reports the rates of other kernels as shares of this rate.
//!include lm/elements.wgsl

override ROUNDS: u32 = 1024u;

// multiply_add
// binding 0  values   read_write  (threads,) in: a value; out: the sum of 16 chains. Chain k starts
//                                 with x = value + k, and computes x = x * m + s 4 * ROUNDS times
// binding 1  factors  uniform     m, s
// dispatch: one thread per value, which computes 64 multiply-adds per round
@group(0) @binding(0) var<storage, read_write> values: array<f32>;
@group(0) @binding(1) var<uniform> factors: vec4<f32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn multiply_add(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i >= arrayLength(&values)) {
        return;
    }
    let m = vec4<f32>(factors.x);
    let s = vec4<f32>(factors.y);
    var a = vec4<f32>(values[i]) + vec4<f32>(0.0, 1.0, 2.0, 3.0);
    var b = a + 4.0;
    var c = a + 8.0;
    var d = a + 12.0;
    for (var round = 0u; round < ROUNDS; round++) {
        a = four_times(a, m, s);
        b = four_times(b, m, s);
        c = four_times(c, m, s);
        d = four_times(d, m, s);
    }
    values[i] = dot(a + b + c + d, vec4<f32>(1.0));
}

fn four_times(x: vec4<f32>, m: vec4<f32>, s: vec4<f32>) -> vec4<f32> {
    return fma(fma(fma(fma(x, m, s), m, s), m, s), m, s);
}
