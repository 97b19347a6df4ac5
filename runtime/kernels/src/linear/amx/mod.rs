//! AMX twins of the fixed-point linears, for 16 tokens and more; fewer go to the tier below.
//!
//! Planes are signed bytes and so are the packed weights, so a plane of 16 tokens times a weight group of 16 rows is one
//! tile product (`tiles`), exact as it stands: no bias to take off. What is left is the definition, token by token:
//! recombine, scale, minima. The products of a tile run one step ahead of it in the second of two buffers, so
//! that the tile unit and the vector unit work at the same time.
//!
//! Inputs are walked in chunks of one activation group: the planes of at most [`BATCH`] tokens are laid out once, then
//! every block is multiplied with all of them, nibbles having been spread to bytes once a block. Tokens past the last 16
//! make a lower tile. A scale step is due every 32 inputs, whatever the format's groups were: numerics §2 demands
//! one of the packed layout's scales.
//!
//! Nothing here but `tiles` names an instruction: the same text is compiled for AVX2 and for AVX-512.

mod tiles;

use waste_plan::{FX_GROUP, LANES, Packing};

use self::tiles::{Aligned, Plane, Sums, TOKENS, Tiles, Weights};
use super::avx2::{nibbles, octets};
use super::avx512::vnni;
use crate::avx2::{store_pair, widen_halves};
use crate::cpu::{CpuFeatures, Isa};
use crate::linear::check;
use crate::linear::portable::{Codes, GROUP, W4, W4M, W8};
use crate::table::{Entry, KernelTable};
use crate::view::{FxRows, TileMut};

/// Tokens whose planes are laid out at once.
const BATCH: usize = 2 * TOKENS;
/// Weight groups in a chunk of inputs.
const GROUPS: usize = FX_GROUP / GROUP;

macro_rules! rows {
    ($($name:ident: $codes:ty, $planes:literal, $avx2:path, $vnni:path;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable, cpu: CpuFeatures) {
            if cpu.has(Isa::Vnni) {
                $( table.$name = Entry { call: with_vnni::$name, isa: Isa::Amx }; )+
            } else {
                $( table.$name = Entry { call: with_avx2::$name, isa: Isa::Amx }; )+
            }
        }

        rows!(@build with_avx2, "Next to AVX2.", [target_feature(enable = "avx2,fma,f16c")],
            $( $name: $codes, $planes, $avx2; )+);
        rows!(@build with_vnni, "Next to AVX-512 with VNNI.",
            [target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")],
            $( $name: $codes, $planes, $vnni; )+);
    };
    (@build $build:ident, $doc:literal, [$attribute:meta],
        $($name:ident: $codes:ty, $planes:literal, $below:path;)+) => {
        #[doc = $doc]
        mod $build {
            use super::*;

            $(
            /// # Safety
            /// The tier is here.
            #[$attribute]
            pub(super) unsafe fn $name(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
                if y.rows() < TOKENS {
                    return $below(w, k, x, y);
                }
                // SAFETY: the tier is here.
                unsafe { linear::<$codes, $planes>(w, k, x, y) };
            }
            )+
        }
    };
}

rows! {
    linear_w8_fixed24: W8, 3, octets::fixed24, vnni::linear_w8_fixed24;
    linear_w8_fixed16: W8, 2, octets::fixed16, vnni::linear_w8_fixed16;
    linear_w8_fixed8: W8, 1, octets::fixed8, vnni::linear_w8_fixed8;
    linear_w4_fixed24: W4, 3, nibbles::w4_fixed24, vnni::linear_w4_fixed24;
    linear_w4_fixed16: W4, 2, nibbles::w4_fixed16, vnni::linear_w4_fixed16;
    linear_w4_fixed8: W4, 1, nibbles::w4_fixed8, vnni::linear_w4_fixed8;
    linear_w4m_fixed24: W4M, 3, nibbles::w4m_fixed24, vnni::linear_w4m_fixed24;
    linear_w4m_fixed16: W4M, 2, nibbles::w4m_fixed16, vnni::linear_w4m_fixed16;
    linear_w4m_fixed8: W4M, 1, nibbles::w4m_fixed8, vnni::linear_w4m_fixed8;
}

/// A format's codes as tile operands.
trait Spread: Codes {
    /// The weights of a chunk's groups, in place or spread into `bytes`.
    fn spread<'a>(codes: &'a [u8], bytes: &'a mut [Weights; GROUPS]) -> &'a [Weights];
}

impl Spread for W8 {
    #[inline(always)]
    fn spread<'a>(codes: &'a [u8], _: &'a mut [Weights; GROUPS]) -> &'a [Weights] {
        codes.as_chunks().0.as_chunks().0
    }
}

impl Spread for W4 {
    #[inline(always)]
    fn spread<'a>(codes: &'a [u8], bytes: &'a mut [Weights; GROUPS]) -> &'a [Weights] {
        spread_nibbles::<8>(codes, bytes)
    }
}

impl Spread for W4M {
    #[inline(always)]
    fn spread<'a>(codes: &'a [u8], bytes: &'a mut [Weights; GROUPS]) -> &'a [Weights] {
        spread_nibbles::<0>(codes, bytes)
    }
}

/// The weights of nibbles, `BIAS` too large as they stand. A line is two quads of inputs, the low ones first.
#[inline(always)]
fn spread_nibbles<'a, const BIAS: u8>(codes: &[u8], bytes: &'a mut [Weights; GROUPS]) -> &'a [Weights] {
    let (lines, _) = codes.as_chunks::<{ 4 * LANES }>();
    for (line, quads) in lines.iter().zip(bytes.as_flattened_mut().as_chunks_mut::<2>().0) {
        for (i, code) in line.iter().enumerate() {
            quads[0][i] = (code & 15).wrapping_sub(BIAS);
            quads[1][i] = (code >> 4).wrapping_sub(BIAS);
        }
    }
    &bytes[..lines.len() / (GROUP / 8)]
}

/// A chunk of the inputs of one tile's tokens.
#[derive(Clone, Copy)]
struct Part<const P: usize> {
    planes: Aligned<[[Plane; P]; GROUPS]>,
    xs: [f32; TOKENS],
    /// Group by group.
    z: [[f32; TOKENS]; GROUPS],
}

impl<const P: usize> Part<P> {
    const ZERO: Self = Self {
        planes: Aligned([[[[0; GROUP]; TOKENS]; P]; GROUPS]),
        xs: [0.0; TOKENS],
        z: [[0.0; TOKENS]; GROUPS],
    };

    /// Lays out `groups` groups from chunk `chunk` on of the tokens from `from` on.
    #[inline(always)]
    fn lay_out(&mut self, x: &FxRows<'_>, from: usize, tokens: usize, chunk: usize, groups: usize) {
        for (t, row) in (from..from + tokens).enumerate() {
            self.xs[t] = x.xs(row)[chunk];
            let z = &x.z(row)[chunk * GROUPS..];
            for p in 0..P {
                let bytes: &[[u8; GROUP]] = x.plane_bytes(row, p)[chunk * FX_GROUP..].as_chunks().0;
                for (g, bytes) in bytes[..groups].iter().enumerate() {
                    self.planes.0[g][p][t] = *bytes;
                }
            }
            for (z_of, z) in self.z.iter_mut().zip(&z[..groups]) {
                z_of[t] = *z;
            }
        }
    }
}

/// Scales and minima of a chunk of one block.
#[derive(Clone, Copy)]
struct Steps {
    scales: [[f32; LANES]; GROUPS],
    minima: [[f32; LANES]; GROUPS],
}

impl Steps {
    const ZERO: Self = Self { scales: [[0.0; LANES]; GROUPS], minima: [[0.0; LANES]; GROUPS] };

    #[inline(always)]
    fn read<C: Codes>(&mut self, block: &[u8], k: usize, chunk: usize, groups: usize) {
        widen(&block[C::PACKING.payload_bytes(k)..], chunk, &mut self.scales[..groups]);
        if matches!(C::PACKING, Packing::W4M) {
            widen(&block[C::PACKING.minima_at(k)..], chunk, &mut self.minima[..groups]);
        }
    }
}

/// The f16 numbers of a chunk's groups.
#[inline(always)]
fn widen(halves: &[u8], chunk: usize, to: &mut [[f32; LANES]]) {
    let (halves, _) = halves.as_chunks::<{ 2 * LANES }>();
    for (to, halves) in to.iter_mut().zip(&halves[chunk * GROUPS..]) {
        // SAFETY: every build has AVX2, FMA and F16C.
        let wide = unsafe { widen_halves(halves) };
        // SAFETY: as above.
        unsafe { store_pair(to, wide) };
    }
}

/// The sums of a tile over a chunk.
type ChunkSums<const P: usize> = Aligned<[[Sums; P]; GROUPS]>;

/// What the kernel works with: a batch's planes, and buffers for two tiles in turn.
struct Scratch<const P: usize> {
    parts: [Part<P>; BATCH / TOKENS],
    bytes: Aligned<[Weights; GROUPS]>,
    sums: [ChunkSums<P>; 2],
    steps: [Steps; 2],
}

/// # Safety
/// The tier is here.
#[inline(always)]
unsafe fn linear<C: Spread, const P: usize>(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>) {
    check(C::PACKING, P, w, k, x, y);
    for t in 0..y.rows() {
        y.row_mut(t).fill(0.0);
    }
    let mut scratch = Scratch::<P> {
        parts: [Part::ZERO; BATCH / TOKENS],
        bytes: Aligned([[[0; 4 * LANES]; GROUP / 4]; GROUPS]),
        sums: [Aligned([[[[0; LANES]; TOKENS]; P]; GROUPS]); 2],
        steps: [Steps::ZERO; 2],
    };
    let (mut from, cols) = (0, y.cols());
    while from < y.rows() {
        let (tiles, tokens) = match y.rows() - from {
            left @ ..TOKENS => (1, left),
            left => (BATCH.min(left) / TOKENS, TOKENS),
        };
        // SAFETY: the tier is here; the last batch's tiles are dropped.
        let registers = unsafe { Tiles::configure(tokens) };
        let y = &mut y.sub(from..from + tiles * tokens, 0..cols);
        for chunk in 0..k.div_ceil(FX_GROUP) {
            let groups = GROUPS.min(k / GROUP - chunk * GROUPS);
            for (i, part) in scratch.parts[..tiles].iter_mut().enumerate() {
                part.lay_out(x, from + i * tokens, tokens, chunk, groups);
            }
            let shape = Shape { k, chunk, groups, tiles, tokens };
            scratch.times_blocks::<C>(&registers, w, shape, y);
        }
        from += tiles * tokens;
    }
}

/// Where a batch's chunk is, and how much of the scratch it fills.
#[derive(Clone, Copy)]
struct Shape {
    k: usize,
    chunk: usize,
    groups: usize,
    tiles: usize,
    /// Of every tile.
    tokens: usize,
}

impl<const P: usize> Scratch<P> {
    /// Adds the parts' chunk times every block to the tile `y` of theirs: the products of one tile, then the scale steps
    /// of the one before.
    #[inline(always)]
    fn times_blocks<C: Spread>(&mut self, registers: &Tiles, w: &[u8], shape: Shape, y: &mut TileMut<'_>) {
        let Shape { k, chunk, groups, tiles, tokens: _ } = shape;
        let block_bytes = C::PACKING.block_bytes(k);
        let codes = chunk * GROUPS * C::GROUP_BYTES..(chunk * GROUPS + groups) * C::GROUP_BYTES;
        let end = y.cols().div_ceil(LANES) * tiles;
        let mut weights: &[Weights] = &[];
        for tile in 0..=end {
            let (b, i) = (tile / tiles, tile % tiles);
            if tile < end && i == 0 {
                let block = &w[b * block_bytes..][..block_bytes];
                self.steps[b % 2].read::<C>(block, k, chunk, groups);
                weights = C::spread(&block[codes.clone()], &mut self.bytes.0);
            }
            if tile < end {
                let planes = &self.parts[i].planes.0;
                for ((planes, w), sums) in planes.iter().zip(weights).zip(&mut self.sums[tile % 2].0) {
                    registers.multiply(planes, w, sums);
                }
            }
            if let Some(done) = tile.checked_sub(1) {
                let (b, i) = (done / tiles, done % tiles);
                let (part, sums) = (&self.parts[i], &self.sums[done % 2].0);
                finish::<C, P>(part, &self.steps[b % 2], sums, shape, (b, i), y);
            }
        }
    }
}

/// The scale steps of a chunk: adds the sums of tile i's tokens to their outputs of block b.
#[inline(always)]
fn finish<C: Codes, const P: usize>(
    part: &Part<P>,
    steps: &Steps,
    sums: &[[Sums; P]; GROUPS],
    shape: Shape,
    (b, i): (usize, usize),
    y: &mut TileMut<'_>,
) {
    for t in 0..shape.tokens {
        let row = &mut y.row_mut(i * shape.tokens + t)[b * LANES..];
        // No closure: it would be compiled without the build's instructions.
        if let Some(acc) = row.first_chunk_mut() {
            step::<C, P>(part, steps, sums, shape.groups, t, acc);
        } else {
            let mut acc = [0.0; LANES];
            acc[..row.len()].copy_from_slice(row);
            step::<C, P>(part, steps, sums, shape.groups, t, &mut acc);
            row.copy_from_slice(&acc[..row.len()]);
        }
    }
}

/// The scale steps of a chunk for token t.
#[inline(always)]
fn step<C: Codes, const P: usize>(
    part: &Part<P>,
    steps: &Steps,
    sums: &[[Sums; P]; GROUPS],
    groups: usize,
    t: usize,
    acc: &mut [f32; LANES],
) {
    let xs = part.xs[t];
    for (g, sums) in sums.iter().enumerate().take(groups) {
        let s = recombine(sums, t);
        for ((acc, s), d) in acc.iter_mut().zip(s).zip(&steps.scales[g]) {
            *acc = s.mul_add(d * xs, *acc);
        }
        if matches!(C::PACKING, Packing::W4M) {
            let z = part.z[g][t];
            for (acc, m) in acc.iter_mut().zip(&steps.minima[g]) {
                *acc = z.mul_add(m * xs, *acc);
            }
        }
    }
}

/// The `s` of 16 rows from their plane sums: the two lower planes join exactly in i32.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "rounded to nearest even, as defined")]
fn recombine<const P: usize>(sums: &[Sums; P], t: usize) -> [f32; LANES] {
    let mut s = [0.0; LANES];
    for r in 0..LANES {
        let mut low = sums[P - 1][t][r];
        if P > 1 {
            low = low.wrapping_add(sums[P - 2][t][r] << 8);
        }
        s[r] = low as f32;
        if P > 2 {
            s[r] = (sums[0][t][r] as f32).mul_add(65536.0, s[r]);
        }
    }
    s
}
