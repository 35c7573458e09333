// Computes a step of AdamW with moments that are stored as 8-bit codes.
//
// A block is BLOCK elements. With a the largest |first| of a block and b its largest sqrt(second):
//
//   first = a sign(c) (c / 127)^4,  c = -127 to 127      sqrt(second) = b (c / 255)^4,  c = 0 to 255
//
// A number gets the code of the nearest value. Because of the fourth power, small values are close
// together. A second moment that is not 0 has a code of at least 1, since a denominator near 0
// would make the step very large.
//
// Block-wise quantisation: T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, 8-bit Optimizers via
// Block-wise Quantization, arXiv 2110.02861.
//
// A code has one byte. Codes fill whole blocks, and codes after the tensor's end are 0. The scales
// of a block are a (first_scales) and b (second_scales). WORKGROUP_SIZE must be BLOCK / 4.
//!include common/reduce.wgsl
//!include lm/adamw.wgsl
//!include lm/live_elements.wgsl

const BLOCK: u32 = 256u;
const FIRST_LEVELS: f32 = 127.0;
const SECOND_LEVELS: f32 = 255.0;
const SMALLEST_NORMAL: f32 = 1.17549435e-38;

@group(0) @binding(0) var<storage, read_write> parameter: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gradient: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> first_codes: array<u32>;
@group(0) @binding(3) var<storage, read_write> first_scales: array<f32>;
@group(0) @binding(4) var<uniform> hyper: Hyper;
@group(0) @binding(5) var<storage, read> stats: vec4<f32>;
@group(0) @binding(6) var<storage, read_write> second_codes: array<u32>;
@group(0) @binding(7) var<storage, read_write> second_scales: array<f32>;
@group(0) @binding(8) var<uniform> dims: vec4<u32>;

fn fourth_power(x: vec4<f32>) -> vec4<f32> {
    return (x * x) * (x * x);
}

fn decode_first(codes: u32, scale: f32) -> vec4<f32> {
    let signed = vec4<f32>(unpack4xI8(codes));
    return scale * sign(signed) * fourth_power(signed / FIRST_LEVELS);
}

fn decode_second(codes: u32, scale: f32) -> vec4<f32> {
    let deviation = scale * fourth_power(vec4<f32>(unpack4xU8(codes)) / SECOND_LEVELS);
    return deviation * deviation;
}

// Returns the codes whose values are nearest to magnitude / scale. A scale below SMALLEST_NORMAL
// counts as SMALLEST_NORMAL: it would be too small to divide by.
fn nearest_codes(magnitude: vec4<f32>, scale: f32, levels: f32) -> vec4<f32> {
    let share = min(magnitude / max(scale, SMALLEST_NORMAL), vec4<f32>(1.0));
    let below = floor(levels * sqrt(sqrt(share)));
    let above = below + 1.0;
    let middle = 0.5 * (fourth_power(below / levels) + fourth_power(above / levels));
    return select(below, above, share > middle);
}

fn encode_first(first: vec4<f32>, scale: f32) -> u32 {
    let codes = nearest_codes(abs(first), scale, FIRST_LEVELS);
    return pack4xI8(vec4<i32>(sign(first) * codes));
}

fn encode_second(deviation: vec4<f32>, scale: f32) -> u32 {
    let codes = nearest_codes(deviation, scale, SECOND_LEVELS);
    let least = select(vec4<f32>(), vec4<f32>(1.0), deviation > vec4<f32>());
    return pack4xU8(vec4<u32>(max(codes, least)));
}

fn block_max(values: vec4<f32>, local_index: u32) -> f32 {
    return workgroup_max(max(max(values.x, values.y), max(values.z, values.w)), local_index);
}

// Updates the four elements of a thread, and returns them. Elements of the parameter after the
// tensor's end do not change.
fn update_block(block: u32, local_index: u32) -> vec4<f32> {
    let i = block * (BLOCK / 4u) + local_index;
    let live = live_elements(i, dims.x);
    let before = Adamw(
        parameter[i],
        decode_first(first_codes[i], first_scales[block]),
        decode_second(second_codes[i], second_scales[block]),
    );
    let after = adamw(before, stats.x * gradient[i], hyper, dims.y != 0u);
    let first = select(vec4<f32>(), after.first, live);
    let deviation = select(vec4<f32>(), sqrt(after.second), live);
    let first_scale = block_max(abs(first), local_index);
    let second_scale = block_max(deviation, local_index);
    let updated = select(before.parameter, after.parameter, live);
    if (live.x && stats.z == 0.0) {
        parameter[i] = updated;
        first_codes[i] = encode_first(first, first_scale);
        second_codes[i] = encode_second(deviation, second_scale);
        if (local_index == 0u) {
            first_scales[block] = first_scale;
            second_scales[block] = second_scale;
        }
    }
    return updated;
}
