//! The kernel table: one typed function a row, the best the machine has, chosen once.
//!
//! Invariants
//! - a row is written only here and by the families' `install` functions, and an `install` of a tier is called only
//!   where [`CpuFeatures`] holds that tier: so calling a row is sound. Kernels are safe functions apart from the
//!   instructions they need;
//! - tiers are installed ascending, so a tier without a twin for a row leaves the one below in place;
//! - every row has four builds of its portable body: plain, with `fma`, for AVX2 and for AVX-512; on Arm the plain one
//!   has all that NEON has. A twin of a lower tier
//!   takes precedence over the build of a higher one, as it was written where a compiler does not suffice.
//!
//! Deliberately absent: hidden state (the table is a value, forcing a tier is [`CpuFeatures::capped`]), and any
//! dispatch by name.

use std::ops::Range;

use half::f16;
use waste_plan::{Packing, VqCode};

use crate::argmax::{ArgMax, portable::*};
use crate::attention::{KvTiles, portable::*};
use crate::cpu::{CpuFeatures, Isa};
use crate::embed::portable::*;
use crate::epilogue::{Unary, portable::*};
use crate::latent::portable::*;
use crate::linear::portable::*;
use crate::linear::units::portable::*;
use crate::linear_f32::portable::*;
use crate::lut::portable::*;
use crate::norm::portable::*;
use crate::quant_act::portable::*;
use crate::recurrence::portable::*;
use crate::residual::portable::*;
use crate::rope::portable::*;
use crate::route::{RouteRule, portable::*};
use crate::view::{FxRowMut, FxRows, RowsF32, TileMut};

/// How a row's result compares with its portable definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// The same bits (a NaN is a NaN). All processor kernels are.
    BitExact,
}

/// What a table says about one of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowInfo {
    /// The row's name: op, weight format, arithmetic.
    pub name: &'static str,
    /// The tier of the kernel in use.
    pub isa: Isa,
    /// How its results compare with the portable kernel's.
    pub exactness: Exactness,
}

/// One row: a kernel and the tier it needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<F> {
    pub(crate) call: F,
    pub(crate) isa: Isa,
}

macro_rules! kernel_table {
    ($( $(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?; )+) => {
        /// One row per kernel; made by [`KernelTable::new`]. The contracts stand in the families' documentation.
        #[derive(Clone, Debug)]
        pub struct KernelTable {
            $( pub(crate) $name: Entry<unsafe fn($($ty),*) $(-> $ret)?>, )+
        }

        #[expect(clippy::too_many_arguments, reason = "one argument an operand")]
        impl KernelTable {
            $( $(#[$doc])*
            #[inline]
            pub fn $name(&self, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: a row is set only where `CpuFeatures` holds the tier its kernel needs (module invariant).
                unsafe { (self.$name.call)($($arg),*) }
            } )+

            /// Every row, in the order of declaration.
            pub fn rows(&self) -> impl Iterator<Item = RowInfo> + '_ {
                [$( RowInfo { name: stringify!($name), isa: self.$name.isa, exactness: Exactness::BitExact }, )+]
                    .into_iter()
            }
        }

        kernel_table!(@build plain, "Plain Rust.", Isa::Portable, [inline(never)],
            $( fn $name($($arg: $ty),*) $(-> $ret)?; )+);
        #[cfg(target_arch = "x86_64")]
        kernel_table!(@build fma, "The portable bodies with fused multiply-add.", Isa::Portable,
            [target_feature(enable = "fma")], $( fn $name($($arg: $ty),*) $(-> $ret)?; )+);
        #[cfg(target_arch = "x86_64")]
        kernel_table!(@build avx2, "The portable bodies for AVX2.", Isa::Avx2,
            [target_feature(enable = "avx2,fma,f16c")], $( fn $name($($arg: $ty),*) $(-> $ret)?; )+);
        #[cfg(target_arch = "x86_64")]
        kernel_table!(@build avx512, "The portable bodies for AVX-512.", Isa::Avx512,
            [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")],
            $( fn $name($($arg: $ty),*) $(-> $ret)?; )+);
    };
    (@build $build:ident, $doc:literal, $isa:expr, [$attribute:meta],
        $( fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?; )+) => {
        #[doc = $doc]
        #[expect(clippy::too_many_arguments, reason = "one argument an operand")]
        mod $build {
            use super::*;

            pub(super) fn table() -> KernelTable {
                KernelTable { $( $name: Entry { call: $name, isa: $isa }, )+ }
            }

            $( #[$attribute]
            fn $name($($arg: $ty),*) $(-> $ret)? {
                super::$name($($arg),*)
            } )+
        }
    };
}

kernel_table! {
    /// One row to three byte planes (family `quant_act`): x `f32[n]`, out a row of n inputs.
    fn quant_act_fx24(x: &[f32], out: &mut FxRowMut<'_>);
    /// As `quant_act_fx24` with two planes.
    fn quant_act_fx16(x: &[f32], out: &mut FxRowMut<'_>);
    /// As `quant_act_fx24` with one plane.
    fn quant_act_fx8(x: &[f32], out: &mut FxRowMut<'_>);

    /// y\[tokens, columns\] = x · Wᵀ (family `linear`): w packed blocks of 16 rows, k inputs.
    fn linear_w8_fixed24(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_fixed24` with two planes.
    fn linear_w8_fixed16(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_fixed24` with one plane.
    fn linear_w8_fixed8(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_fixed24` over `W4` weights.
    fn linear_w4_fixed24(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_fixed16` over `W4` weights.
    fn linear_w4_fixed16(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_fixed8` over `W4` weights.
    fn linear_w4_fixed8(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_fixed24` over `W4M` weights.
    fn linear_w4m_fixed24(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_fixed16` over `W4M` weights.
    fn linear_w4m_fixed16(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_fixed8` over `W4M` weights.
    fn linear_w4m_fixed8(w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);

    /// y\[tokens, columns\] = x · Wᵀ over weights in units (family `linear::units`): w packed blocks of 16 rows, k inputs.
    fn linear_units_fixed24(packing: Packing, w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_units_fixed24` with two planes.
    fn linear_units_fixed16(packing: Packing, w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);
    /// As `linear_units_fixed24` with one plane.
    fn linear_units_fixed8(packing: Packing, w: &[u8], k: usize, x: &FxRows<'_>, y: &mut TileMut<'_>);

    /// y\[tokens, columns\] = x · Wᵀ over f32 weights (family `linear_f32`): w packed blocks of 16 rows, k inputs.
    fn linear_f32_f32(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>);
    /// As `linear_f32_f32` over f16 weights.
    fn linear_f16_f32(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>);
    /// As `linear_f32_f32` over bf16 weights.
    fn linear_bf16_f32(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>);
    /// As `linear_f32_f32` over `W8` weights, sums per group of 32.
    fn linear_w8_f32(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_f32` over `W4` weights.
    fn linear_w4_f32(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_f32` over `W4M` weights.
    fn linear_w4m_f32(w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>);
    /// As `linear_w8_f32` over weights in units, sums per group.
    fn linear_units_f32(packing: Packing, w: &[u8], k: usize, x: &RowsF32<'_>, y: &mut TileMut<'_>);

    /// The tables of a range of the positions of x `f32[k]` (family `lut`): books `f32[stages][8][entries]`.
    fn lut_build_fixed24(code: VqCode, x: &[f32], books: &[f32], positions: Range<usize>, out: &mut [u8]);
    /// As `lut_build_fixed24` in 16 bits.
    fn lut_build_fixed16(code: VqCode, x: &[f32], books: &[f32], positions: Range<usize>, out: &mut [u8]);
    /// As `lut_build_fixed24` in f32.
    fn lut_build_f32(code: VqCode, x: &[f32], books: &[f32], positions: Range<usize>, out: &mut [u8]);
    /// As `lut_build_fixed24` in bytes, by the rule of VQ4P containers.
    fn lut_build_container(code: VqCode, x: &[f32], books: &[f32], positions: Range<usize>, out: &mut [u8]);
    /// acc `f32[rows]` += what whole blocks of 64 rows of an index stream look up in a range of positions.
    fn lut_apply_fixed24(
        code: VqCode, tables: &[u8], indices: &[u8], positions: Range<usize>, k: usize, acc: &mut [f32],
    );
    /// As `lut_apply_fixed24` in tables of 16 bits.
    fn lut_apply_fixed16(
        code: VqCode, tables: &[u8], indices: &[u8], positions: Range<usize>, k: usize, acc: &mut [f32],
    );
    /// As `lut_apply_fixed24` in tables of f32.
    fn lut_apply_f32(
        code: VqCode, tables: &[u8], indices: &[u8], positions: Range<usize>, k: usize, acc: &mut [f32],
    );
    /// As `lut_apply_fixed24` in tables of bytes.
    fn lut_apply_container(
        code: VqCode, tables: &[u8], indices: &[u8], positions: Range<usize>, k: usize, acc: &mut [f32],
    );
    /// y\[tokens, rows\] = x · Wᵀ of at most 8 tokens over a vector-quantised matrix (family `lut`): tables are made in `scratch`,
    /// [`waste_plan::LutLayout::linear_scratch`] floats, for each token and 16 positions at a time; scales f16, little-endian.
    fn vq_linear_fixed24(
        code: VqCode, x: &RowsF32<'_>, books: &[f32], indices: &[u8], scales: &[u8], scratch: &mut [f32],
        y: &mut TileMut<'_>,
    );
    /// As `vq_linear_fixed24` with tables of 16 bits.
    fn vq_linear_fixed16(
        code: VqCode, x: &RowsF32<'_>, books: &[f32], indices: &[u8], scales: &[u8], scratch: &mut [f32],
        y: &mut TileMut<'_>,
    );
    /// As `vq_linear_fixed24` with tables of f32.
    fn vq_linear_f32(
        code: VqCode, x: &RowsF32<'_>, books: &[f32], indices: &[u8], scales: &[u8], scratch: &mut [f32],
        y: &mut TileMut<'_>,
    );
    /// As `vq_linear_fixed24` with tables of bytes.
    fn vq_linear_container(
        code: VqCode, x: &RowsF32<'_>, books: &[f32], indices: &[u8], scales: &[u8], scratch: &mut [f32],
        y: &mut TileMut<'_>,
    );
    /// y = f32(scale) · acc, row by row; scales f16, little-endian.
    fn lut_scale(scales: &[u8], acc: &[f32], y: &mut [f32]);

    /// y = f(y), element by element (family `epilogue`).
    fn unary(kind: Unary, y: &mut [f32]);
    /// y = f(g) · u.
    fn glu(kind: Unary, g: &[f32], u: &[f32], y: &mut [f32]);
    /// y = a + b.
    fn add(a: &[f32], b: &[f32], y: &mut [f32]);
    /// y = a · b.
    fn mul(a: &[f32], b: &[f32], y: &mut [f32]);
    /// y = y + x.
    fn add_assign(y: &mut [f32], x: &[f32]);
    /// y = fma(a, x, y).
    fn add_scaled(y: &mut [f32], a: f32, x: &[f32]);
    /// y = beta · tanh(g / beta) · sigmoid(g) · (linear · tanh(u / linear), or u where linear ≤ 0).
    fn situ(g: &[f32], u: &[f32], beta: f32, linear: f32, y: &mut [f32]);

    /// y = (x · rms) · w, rms = 1 / sqrt(Σx² / n + eps) (family `norm`).
    fn rms_norm(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]);
    /// y = (x − mean) · rstd · w + b (family `norm`).
    fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]);

    /// Rotates the pairs (i, i + dims / 2) of every head (family `rope`); cos, sin `f32[dims / 2]`.
    fn rope_half(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]);
    /// Rotates the pairs (2i, 2i + 1) of every head.
    fn rope_pair(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]);

    /// Stores a key as position `pos` of a K tile `[d][32]` (family `attention`).
    fn kv_write_k_f32(tile: &mut [f32], pos: usize, k: &[f32]);
    /// As `kv_write_k_f32`, rounded to f16.
    fn kv_write_k_f16(tile: &mut [f16], pos: usize, k: &[f32]);
    /// Stores a value as position `pos` of a V tile `[32][dv]`.
    fn kv_write_v_f32(tile: &mut [f32], pos: usize, v: &[f32]);
    /// As `kv_write_v_f32`, rounded to f16.
    fn kv_write_v_f16(tile: &mut [f16], pos: usize, v: &[f32]);
    /// Attention of queries of one key/value head over its tiles (family `attention`).
    fn attention_f32(
        q: &RowsF32<'_>, n_pos: &[u32], kv: &KvTiles<'_, f32>, scale: f32, scratch: &mut [f32], out: &mut TileMut<'_>,
    );
    /// As `attention_f32` over an f16 cache.
    fn attention_f16(
        q: &RowsF32<'_>, n_pos: &[u32], kv: &KvTiles<'_, f16>, scale: f32, scratch: &mut [f32], out: &mut TileMut<'_>,
    );

    /// Absorbed latent attention of queries `[q | q_rope]` over tiles `[kl + r][32]` (family `latent`).
    fn latent_attention_f32(
        q: &RowsF32<'_>, q_rope: &RowsF32<'_>, n_pos: &[u32], cache: &[f32], scale: f32, scratch: &mut [f32],
        out: &mut TileMut<'_>,
    );
    /// As `latent_attention_f32` over an f16 cache.
    fn latent_attention_f16(
        q: &RowsF32<'_>, q_rope: &RowsF32<'_>, n_pos: &[u32], cache: &[f16], scale: f32, scratch: &mut [f32],
        out: &mut TileMut<'_>,
    );
    /// y = Wᵀ · x of one head: w plain f32\[n, k\], x `f32[n]`, y `f32[k]`.
    fn head_linear_t_f32(w: &[u8], x: &[f32], y: &mut [f32]);
    /// As `head_linear_t_f32` over f16.
    fn head_linear_t_f16(w: &[u8], x: &[f32], y: &mut [f32]);
    /// As `head_linear_t_f32` over bf16.
    fn head_linear_t_bf16(w: &[u8], x: &[f32], y: &mut [f32]);

    /// Depthwise causal convolution of some channels of a run of tokens (family `recurrence`): w `f32[c, taps]`.
    fn short_conv(
        x: &RowsF32<'_>, w: &[f32], taps: usize, ring: &[f32], next: &mut [f32], y: &mut TileMut<'_>,
    );
    /// The decay factors of one head.
    fn kda_gate(z: &[f32], dt_bias: &[f32], a_log: f32, lower_bound: f32, y: &mut [f32]);
    /// y = (x / sqrt(Σx² + eps)) · scale.
    fn l2_norm(x: &[f32], eps: f32, scale: f32, y: &mut [f32]);
    /// The delta rule of one head over a block of state columns, token after token.
    fn kda_step(
        q: &RowsF32<'_>, k: &RowsF32<'_>, v: &RowsF32<'_>, decay: &RowsF32<'_>, beta: &[f32], from: Option<&[f32]>,
        to: &mut [f32], o: &mut TileMut<'_>,
    );
    /// y = ((x · rms) · w) · sigmoid(gate).
    fn gated_rms_norm(x: &[f32], gate: &[f32], w: &[f32], eps: f32, y: &mut [f32]);

    /// y = the softmax mixture of blocks `f32[nb, h]` and x `f32[h]` (family `residual`).
    fn attn_res_mix(blocks: &[f32], x: &[f32], norm: &[f32], proj: &[f32], eps: f32, y: &mut [f32]);

    /// The best `ids.len()` experts of one token and their weights (family `route`); scratch `f32[2 · experts]`.
    fn route_top_k(
        logits: &[f32], bias: Option<&[f32]>, rule: &RouteRule, scratch: &mut [f32], ids: &mut [i32],
        weights: &mut [f32],
    );

    /// Row `lane` of a packed f32 block (family `embed`): out `f32[k]`.
    fn embed_f32(block: &[u8], k: usize, lane: usize, out: &mut [f32]);
    /// As `embed_f32` over f16.
    fn embed_f16(block: &[u8], k: usize, lane: usize, out: &mut [f32]);
    /// As `embed_f32` over bf16.
    fn embed_bf16(block: &[u8], k: usize, lane: usize, out: &mut [f32]);
    /// As `embed_f32` over `W8`.
    fn embed_w8(block: &[u8], k: usize, lane: usize, out: &mut [f32]);
    /// As `embed_f32` over `W4`.
    fn embed_w4(block: &[u8], k: usize, lane: usize, out: &mut [f32]);
    /// As `embed_f32` over `W4M`.
    fn embed_w4m(block: &[u8], k: usize, lane: usize, out: &mut [f32]);
    /// As `embed_f32` over units.
    fn embed_units(packing: Packing, block: &[u8], k: usize, lane: usize, out: &mut [f32]);
    /// A contiguous f16 row as f32.
    fn embed_plain_f16(row: &[u8], out: &mut [f32]);
    /// A contiguous bf16 row as f32.
    fn embed_plain_bf16(row: &[u8], out: &mut [f32]);

    /// The largest element, ties to the lowest index; a NaN never wins (family `argmax`).
    fn argmax_f32(x: &[f32]) -> ArgMax;
    /// The first index whose element is infinite or a NaN.
    fn first_non_finite(x: &[f32]) -> Option<usize>;
}

impl KernelTable {
    /// The best kernel of every row among the tiers of `cpu`.
    #[must_use]
    pub fn new(cpu: CpuFeatures) -> Self {
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            expect(unused_mut, reason = "other architectures have no more tiers")
        )]
        let mut table = plain::table();
        #[cfg(target_arch = "x86_64")]
        {
            if cpu.has_fma() {
                table = fma::table();
            }
            if cpu.has(Isa::Avx2) {
                table = if cpu.has(Isa::Avx512) { avx512::table() } else { avx2::table() };
                crate::attention::avx2::install(&mut table);
                crate::latent::avx2::install(&mut table);
                crate::linear::avx2::install(&mut table);
                crate::linear::units::avx2::install(&mut table);
                crate::linear_f32::avx2::install(&mut table);
                crate::lut::avx2::install(&mut table);
                crate::recurrence::avx2::install(&mut table);
            }
            if cpu.has(Isa::Avx512) {
                crate::attention::avx512::install(&mut table);
                crate::linear::avx512::nibbles::install(&mut table);
                crate::linear_f32::avx512::install(&mut table);
                crate::recurrence::avx512::install(&mut table);
            }
            if cpu.has(Isa::Vnni) {
                crate::linear::avx512::vnni::install(&mut table);
            }
            if cpu.has_vbmi() {
                crate::lut::avx512::install(&mut table);
            }
            if cpu.has(Isa::Amx) {
                crate::linear::amx::install(&mut table, cpu);
            }
        }
        // The plain build is NEON with fused multiply-add already: both belong to the architecture.
        #[cfg(target_arch = "aarch64")]
        {
            if cpu.has(Isa::Neon) {
                crate::attention::neon::install(&mut table);
                crate::latent::neon::install(&mut table);
                crate::linear::neon::products::install(&mut table);
                crate::linear_f32::neon::install(&mut table);
                crate::lut::neon::install(&mut table);
                crate::quant_act::neon::install(&mut table);
                crate::recurrence::neon::install(&mut table);
            }
            if cpu.has(Isa::Dotprod) {
                crate::linear::neon::dotprod::install(&mut table);
            }
            if cpu.has(Isa::I8mm) {
                crate::linear::neon::i8mm::install(&mut table);
            }
        }
        table
    }
}
