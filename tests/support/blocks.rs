//! Random blocks of GGML's formats of several bit planes, and a decode of them that shares nothing with the product's: element by element
//! from the fields of the structs in ggml-common.h, in f64.

use half::f16;

/// A format: GGML's number, elements and bytes of a block, and scales that make weights of about 0.06.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Format {
    pub(crate) name: &'static str,
    pub(crate) kind: u32,
    pub(crate) elems: usize,
    bytes: usize,
    /// Where d and m stand, and how large they are; MXFP4 has an exponent instead.
    halves: &'static [(usize, f32)],
}

pub(crate) const FORMATS: [Format; 10] = [
    Format { name: "Q5_0", kind: 6, elems: 32, bytes: 22, halves: &[(0, 0.007)] },
    Format { name: "Q5_1", kind: 7, elems: 32, bytes: 24, halves: &[(0, 0.007), (2, -0.11)] },
    Format { name: "Q2_K", kind: 10, elems: 256, bytes: 84, halves: &[(80, 0.008), (82, 0.012)] },
    Format { name: "Q3_K", kind: 11, elems: 256, bytes: 110, halves: &[(108, 0.0015)] },
    Format { name: "Q4_K", kind: 12, elems: 256, bytes: 144, halves: &[(0, 3e-4), (2, 0.0022)] },
    Format { name: "Q5_K", kind: 13, elems: 256, bytes: 176, halves: &[(0, 1.5e-4), (2, 0.0022)] },
    Format { name: "Q6_K", kind: 14, elems: 256, bytes: 210, halves: &[(208, 5e-5)] },
    Format { name: "IQ4_NL", kind: 20, elems: 32, bytes: 18, halves: &[(0, 0.001)] },
    Format { name: "IQ4_XS", kind: 23, elems: 256, bytes: 136, halves: &[(0, 6e-5)] },
    Format { name: "MXFP4", kind: 39, elems: 32, bytes: 17, halves: &[] },
];

impl Format {
    /// Random bytes of `n` elements: any code, any integer scale.
    pub(crate) fn random(&self, n: usize, seed: &mut u64) -> Vec<u8> {
        let mut next = || {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 56) as u8
        };
        let mut all = Vec::new();
        for _ in 0..n / self.elems {
            let mut block: Vec<u8> = (0..self.bytes).map(|_| next()).collect();
            for (at, size) in self.halves {
                let value = size * (0.5 + f32::from(next()) / 255.0);
                block[*at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
            }
            if self.halves.is_empty() {
                block[0] = 120 + next() % 3;
            }
            all.extend(block);
        }
        all
    }

    /// The elements of whole blocks.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Vec<f64> {
        let element = match self.name {
            "Q5_0" => q5_0,
            "Q5_1" => q5_1,
            "Q2_K" => q2_k,
            "Q3_K" => q3_k,
            "Q4_K" => q4_k,
            "Q5_K" => q5_k,
            "Q6_K" => q6_k,
            "IQ4_NL" => iq4_nl,
            "IQ4_XS" => iq4_xs,
            _ => mxfp4,
        };
        bytes
            .chunks_exact(self.bytes)
            .flat_map(|block| (0..self.elems).map(move |i| element(block, i)))
            .collect()
    }
}

fn half(block: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f64()
}

/// The nibble of element `i` of 32 in 16 bytes.
fn nibble(codes: &[u8], i: usize) -> u8 {
    if i < 16 { codes[i] & 15 } else { codes[i - 16] >> 4 }
}

/// The code of element `i` of 32: a nibble of `codes`, and bit i of the word `high`.
fn five_bits(high: &[u8], codes: &[u8], i: usize) -> f64 {
    let word = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    f64::from(u32::from(nibble(codes, i)) + 16 * (word >> i & 1))
}

fn q5_0(block: &[u8], i: usize) -> f64 {
    half(block, 0) * (five_bits(&block[2..6], &block[6..], i) - 16.0)
}

fn q5_1(block: &[u8], i: usize) -> f64 {
    half(block, 0) * five_bits(&block[4..8], &block[8..], i) + half(block, 2)
}

/// scales[16], qs[64], d, dmin.
fn q2_k(block: &[u8], i: usize) -> f64 {
    let (big, rest) = (i / 128, i % 128);
    let code = block[16 + 32 * big + rest % 32] >> (2 * (rest / 32)) & 3;
    let scale = block[i / 16];
    half(block, 80) * f64::from(scale & 15) * f64::from(code) - half(block, 82) * f64::from(scale >> 4)
}

/// hmask[32], qs[64], scales[12], d.
fn q3_k(block: &[u8], i: usize) -> f64 {
    let (big, rest) = (i / 128, i % 128);
    let low = block[32 + 32 * big + rest % 32] >> (2 * (rest / 32)) & 3;
    let missing = if block[i % 32] >> (4 * big + rest / 32) & 1 == 1 { 0 } else { 4 };
    let (j, scales) = (i / 16, &block[96..108]);
    let low_scale = if j < 8 { scales[j] & 15 } else { scales[j - 8] >> 4 };
    let high_scale = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
    let scale = i32::from(low_scale | high_scale << 4) - 32;
    half(block, 108) * f64::from(scale) * f64::from(i32::from(low) - missing)
}

/// `get_scale_min_k4` of ggml-quants.c.
fn scale_and_minimum(scales: &[u8], j: usize) -> (f64, f64) {
    let (scale, minimum) = if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        ((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4, (scales[j + 4] >> 4) | (scales[j] >> 6) << 4)
    };
    (f64::from(scale), f64::from(minimum))
}

/// d, dmin, scales[12], qs[128].
fn q4_k(block: &[u8], i: usize) -> f64 {
    let byte = block[16 + 32 * (i / 64) + i % 32];
    let code = if i % 64 < 32 { byte & 15 } else { byte >> 4 };
    let (scale, minimum) = scale_and_minimum(&block[4..16], i / 32);
    half(block, 0) * scale * f64::from(code) - half(block, 2) * minimum
}

/// d, dmin, scales[12], qh[32], qs[128].
fn q5_k(block: &[u8], i: usize) -> f64 {
    let byte = block[48 + 32 * (i / 64) + i % 32];
    let low = if i % 64 < 32 { byte & 15 } else { byte >> 4 };
    let code = low + 16 * (block[16 + i % 32] >> (i / 32) & 1);
    let (scale, minimum) = scale_and_minimum(&block[4..16], i / 32);
    half(block, 0) * scale * f64::from(code) - half(block, 2) * minimum
}

/// ql[128], qh[64], scales[16], d.
fn q6_k(block: &[u8], i: usize) -> f64 {
    let (big, rest) = (i / 128, i % 128);
    let byte = block[64 * big + rest % 64];
    let low = if rest < 64 { byte & 15 } else { byte >> 4 };
    let high = block[128 + 32 * big + rest % 32] >> (2 * (rest / 32)) & 3;
    let code = f64::from(low + 16 * high) - 32.0;
    half(block, 208) * f64::from(block[192 + i / 16].cast_signed()) * code
}

const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn iq4_nl(block: &[u8], i: usize) -> f64 {
    half(block, 0) * f64::from(IQ4[usize::from(nibble(&block[2..], i))])
}

/// d, scales_h, scales_l[4], qs[128].
fn iq4_xs(block: &[u8], i: usize) -> f64 {
    let (j, high) = (i / 32, u16::from_le_bytes([block[2], block[3]]));
    let low = if j % 2 == 0 { block[4 + j / 2] & 15 } else { block[4 + j / 2] >> 4 };
    let scale = i32::from(low) + i32::from(high >> (2 * j) & 3) * 16 - 32;
    half(block, 0) * f64::from(scale) * f64::from(IQ4[usize::from(nibble(&block[8 + 16 * j..], i % 32))])
}

/// A sign, two bits of exponent and one of fraction, times 2^(e − 127).
fn mxfp4(block: &[u8], i: usize) -> f64 {
    let code = nibble(&block[1..], i);
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
    sign * magnitude * (f64::from(block[0]) - 127.0).exp2()
}
