//! Whether AMX tiles may be used here: what the processor has, what the system keeps of it, and what it permits.
//!
//! That a processor names the extension is not enough. The system must save tiles when it switches threads (XCR0), and
//! Linux wants to be asked before the first of them: without its permission a tile instruction ends the process
//! with SIGILL. Permission is given to the process, all its threads included, and stays until exec; asking again
//! changes nothing. A sandbox may refuse the request, an older kernel does not know it.
//!
//! Sources: Intel's manual, volume 1, chapter 18 (CPUID leaves 7, 1Dh and 1Eh; XCR0 bits 17 and 18); Linux,
//! Documentation/arch/x86/xstate.rst.
//!
//! Invariants
//! - permission is asked only where everything else is there;
//! - nothing here can end the process: every instruction is one that the processor was asked for first.
//!
//! Deliberately absent: systems other than Linux, whose ways to ask have not been tried.

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::fmt;

/// What CPUID and XGETBV say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    /// Extensions by name, and whether they are here.
    extensions: [(&'static str, bool); 2],
    /// Palette 1: names, rows of a tile, bytes of a row.
    palette: [u32; 3],
    /// What is multiplied at most: quads of inputs, bytes of 16 results.
    product: [u32; 2],
    /// The states that the system saves; 0 where it does not say.
    xcr0: u64,
}

/// What the kernels need of [`Found::palette`] and [`Found::product`].
const PALETTE: [u32; 3] = [8, 16, 64];
const PRODUCT: [u32; 2] = [16, 64];
/// Tile configuration and tile data.
const STATES: u64 = 0b11 << 17;

/// The system's answer to a request for permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Granted,
    Refused {
        errno: i64,
    },
    /// No way to ask is known.
    Unknown,
}

/// Why tiles may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Extension(&'static str),
    Palette([u32; 3]),
    Product([u32; 2]),
    State,
    Permission { errno: i64 },
    Request,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Extension(name) => write!(f, "the processor has no {name}"),
            Self::Palette([names, rows, bytes]) => {
                write!(f, "the processor's {names} tiles of {rows} rows of {bytes} bytes are too small")
            }
            Self::Product([quads, bytes]) => {
                write!(
                    f,
                    "the processor's tile products of {} inputs and {} results are too small",
                    quads * 4,
                    bytes / 4
                )
            }
            Self::State => f.write_str("the system does not save tile registers"),
            Self::Permission { errno } => {
                write!(f, "the system refuses permission to use tile registers (error {errno})")
            }
            Self::Request => f.write_str("no way is known to ask this system for tile registers"),
        }
    }
}

/// Whether this process may use tiles of int8; asks for permission if only that is missing.
pub(super) fn available() -> Result<(), Missing> {
    verdict(&look(), ask)
}

fn verdict(found: &Found, ask: impl FnOnce() -> Answer) -> Result<(), Missing> {
    if let Some((name, _)) = found.extensions.into_iter().find(|it| !it.1) {
        return Err(Missing::Extension(name));
    }
    let is_less = |here: &[u32], needed: &[u32]| here.iter().zip(needed).any(|(here, needed)| here < needed);
    if is_less(&found.palette, &PALETTE) {
        return Err(Missing::Palette(found.palette));
    }
    if is_less(&found.product, &PRODUCT) {
        return Err(Missing::Product(found.product));
    }
    if found.xcr0 & STATES != STATES {
        return Err(Missing::State);
    }
    match ask() {
        Answer::Granted => Ok(()),
        Answer::Refused { errno } => Err(Missing::Permission { errno }),
        Answer::Unknown => Err(Missing::Request),
    }
}

fn look() -> Found {
    let max_leaf = __cpuid(0).eax;
    let edx = if max_leaf < 7 { 0 } else { __cpuid_count(7, 0).edx };
    let [tile, int8] = [24, 25].map(|bit| edx >> bit & 1 != 0);
    let mut found = Found {
        extensions: [("amx-tile", tile), ("amx-int8", int8)],
        palette: [0; 3],
        product: [0; 2],
        xcr0: 0,
    };
    if tile && 0x1e <= max_leaf {
        let palette = __cpuid_count(0x1d, 1);
        found.palette = [palette.ebx >> 16, palette.ecx & 0xffff, palette.ebx & 0xffff];
        let product = __cpuid_count(0x1e, 0).ebx;
        found.product = [product & 0xff, product >> 8 & 0xffff];
    }
    // OSXSAVE: the system has enabled XGETBV.
    if __cpuid(1).ecx >> 27 & 1 != 0 {
        // SAFETY: OSXSAVE is set, so the instruction is there; register 0 always is.
        found.xcr0 = unsafe { _xgetbv(0) };
    }
    found
}

fn ask() -> Answer {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    if !cfg!(target_os = "linux") {
        return Answer::Unknown;
    }
    let res: i64;
    // SAFETY: this is Linux, and the call takes numbers alone and touches no memory; rcx and r11 are the instruction's.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => res,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, nomem),
        );
    }
    if res == 0 { Answer::Granted } else { Answer::Refused { errno: -res } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Found = Found {
        extensions: [("amx-tile", true), ("amx-int8", true)],
        palette: PALETTE,
        product: PRODUCT,
        xcr0: 0x6_02e7,
    };

    #[test]
    fn permission_alone_decides_where_all_else_is_there() {
        assert_eq!(verdict(&WHOLE, || Answer::Granted), Ok(()));
        assert_eq!(verdict(&WHOLE, || Answer::Refused { errno: 1 }), Err(Missing::Permission { errno: 1 }));
        assert_eq!(verdict(&WHOLE, || Answer::Unknown), Err(Missing::Request));
    }

    #[test]
    fn whatever_is_missing_is_named_and_nobody_is_asked() {
        let tile = |tile, int8| [("amx-tile", tile), ("amx-int8", int8)];
        for (found, reason) in [
            (Found { extensions: tile(false, false), ..WHOLE }, "the processor has no amx-tile"),
            (Found { extensions: tile(true, false), ..WHOLE }, "the processor has no amx-int8"),
            (
                Found { palette: [8, 8, 64], ..WHOLE },
                "the processor's 8 tiles of 8 rows of 64 bytes are too small",
            ),
            (
                Found { product: [8, 64], ..WHOLE },
                "the processor's tile products of 32 inputs and 16 results are too small",
            ),
            (Found { xcr0: 0x2_02e7, ..WHOLE }, "the system does not save tile registers"),
            (Found { xcr0: 0x4_02e7, ..WHOLE }, "the system does not save tile registers"),
            (Found { xcr0: 0, ..WHOLE }, "the system does not save tile registers"),
        ] {
            let missing = verdict(&found, || panic!("asked in spite of {found:?}"));
            assert_eq!(missing.map_err(|it| it.to_string()), Err(reason.to_owned()));
        }
    }

    /// Whether by a processor without tiles, a system without them or its consent: asking has no other effect.
    #[test]
    fn asking_is_harmless_and_always_answered_alike() {
        assert_eq!(ask(), ask());
        assert_eq!(available(), available());
        if !look().extensions[0].1 {
            assert!(available().is_err());
            assert_ne!(ask(), Answer::Granted, "permission for what the processor lacks");
        }
    }
}
