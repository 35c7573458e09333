// attention_delta_half: computes the sums of 10_attention_delta.wgsl from half-precision rows.
//
// binding 0  out       read        (N, H * D), half precision, 8 per element
// binding 1  grad_out  read        (N, H * D), half precision, 8 per element
// binding 2  delta     read_write  (N, H) sums, then (N,) starts as f32
// binding 3  starts    read        (N,) first key that each row sees
// binding 4  dims      uniform     N * H, 0, N
// dispatch: one thread per head of a row; a head has `vectors` = D / 8 elements
//!include lm/elements.wgsl
//!override vectors = 8

@group(0) @binding(0) var<storage, read> out: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> grad_out: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> delta: array<f32>;
@group(0) @binding(3) var<storage, read> starts: array<u32>;
@group(0) @binding(4) var<uniform> dims: vec4<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn attention_delta_half(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) local_index: u32,
) {
    let i = flat_element(workgroup, workgroups, local_index);
    if (i < dims.x) {
        //!for n in 0..vectors
        let out_{n} = out[i * {vectors}u + {n}u];
        let gradient_{n} = grad_out[i * {vectors}u + {n}u];
        //!end
        var sum = 0.0;
        //!for n in 0..vectors
        for (var word = 0u; word < 4u; word++) {
            sum += dot(unpack2x16float(out_{n}[word]), unpack2x16float(gradient_{n}[word]));
        }
        //!end
        delta[i] = sum;
        if (i < dims.z) {
            delta[dims.x + i] = f32(starts[i]);
        }
    }
}
