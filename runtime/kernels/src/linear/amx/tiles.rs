//! The tile registers: their configuration, and the one product that the linears make of them.
//!
//! A weight group of 32 inputs is one `tdpbssd`: A `i8[tokens][32]` times B `i8[8 quads][16 rows][4]` is
//! C `i32[tokens][16 rows]`, every lane an exact sum of 32 products (|C| ≤ 32 · 2^14). No tile lives longer than one
//! block of assembly, so the compiler need not know of them.
//!
//! The configuration belongs to the thread. It is loaded where a run of products begins and released where it ends, on
//! every way out: a thread that is between two kernels has no tile state for the system to save, and whatever code it
//! runs next finds the registers as a new thread has them.

use std::arch::asm;
use std::marker::PhantomData;

use waste_plan::LANES;

use crate::linear::portable::GROUP;

/// Tokens of a full tile.
pub(super) const TOKENS: usize = 16;

/// The weights of a group and 16 rows: quads of inputs, as `W8` has them.
pub(super) type Weights = [[u8; 4 * LANES]; GROUP / 4];

/// Memory that no tile row crosses a cache line in.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Aligned<T>(pub(super) T);

/// One plane of a group of up to 16 tokens.
pub(super) type Plane = [[u8; GROUP]; TOKENS];

/// The sums of one plane: per token, 16 rows.
pub(super) type Sums = [[i32; LANES]; TOKENS];

/// The operand of `ldtilecfg`: registers 0 … 7 of palette 1.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Three C, three A, none, B.
    const fn of(tokens: u8) -> Self {
        const WIDE: u16 = 64;
        const NARROW: u16 = 32;
        let mut res = Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let mut plane = 0;
        while plane < 3 {
            (res.rows[plane], res.row_bytes[plane]) = (tokens, WIDE);
            (res.rows[3 + plane], res.row_bytes[3 + plane]) = (tokens, NARROW);
            plane += 1;
        }
        (res.rows[7], res.row_bytes[7]) = (8, WIDE);
        res
    }
}

/// This thread's tile registers, configured for some number of tokens until it is dropped.
pub(super) struct Tiles {
    /// A thread's own.
    not_send: PhantomData<*const ()>,
}

impl Tiles {
    /// Configures the registers for `tokens` tokens, 1 … 16.
    ///
    /// # Safety
    /// The thread may use AMX with int8 (the tier [`crate::Isa::Amx`]), and has no other [`Tiles`].
    #[inline(always)]
    pub(super) unsafe fn configure(tokens: usize) -> Self {
        assert!((1..=TOKENS).contains(&tokens), "{tokens} tokens in a tile");
        let config = Config::of(tokens as u8);
        // SAFETY: reads 64 bytes, a configuration of palette 1 that `Config::of` has made; AMX is here.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags, readonly))
        };
        Self { not_send: PhantomData }
    }

    /// sums\[p\] = planes\[p\] · w for the configured tokens; the sums of others are left alone.
    #[inline(always)]
    pub(super) fn multiply<const P: usize>(&self, planes: &[Plane; P], w: &Weights, sums: &mut [Sums; P]) {
        const { assert!(1 <= P && P <= 3 && size_of::<Plane>() == 512 && size_of::<Sums>() == 1024) };
        // SAFETY: the registers are configured (`self`): at most 16 rows, of 32 bytes in A, 64 in B (8 rows) and C, at
        // strides of as much. So reads stay in P planes and the weights, writes in P sums.
        unsafe {
            asm!(
                "tileloadd tmm7, [{w} + {wide}]",
                "tileloadd tmm3, [{planes} + {narrow}]",
                "tilezero tmm0",
                "tdpbssd tmm0, tmm3, tmm7",
                ".if {p} > 1",
                "tileloadd tmm4, [{planes} + {narrow} + 512]",
                "tilezero tmm1",
                "tdpbssd tmm1, tmm4, tmm7",
                ".endif",
                ".if {p} > 2",
                "tileloadd tmm5, [{planes} + {narrow} + 1024]",
                "tilezero tmm2",
                "tdpbssd tmm2, tmm5, tmm7",
                ".endif",
                "tilestored [{sums} + {wide}], tmm0",
                ".if {p} > 1",
                "tilestored [{sums} + {wide} + 1024], tmm1",
                ".endif",
                ".if {p} > 2",
                "tilestored [{sums} + {wide} + 2048], tmm2",
                ".endif",
                p = const P,
                w = in(reg) w,
                planes = in(reg) planes,
                sums = in(reg) sums,
                narrow = in(reg) 32usize,
                wide = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm7") _,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Drop for Tiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: AMX is here, or there would be no `self`; nobody else uses the registers.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
