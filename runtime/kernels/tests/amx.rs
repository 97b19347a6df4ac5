//! The AMX rows, on any x86-64 Linux: on a processor without AMX, `common::amx` executes their tile instructions.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::amx::{
    Base, Fault, General, Instruction, Memory, Tiles, decode, has_own_tiles, observed, with_amx,
};
use common::{Flavor, LINEARS, LinearFn, Rng, weights};
use waste_kernels::{CpuFeatures, Isa, KernelTable};
use waste_plan::LANES;

/// Whole and partial tiles, batches, chunks and blocks: tokens, inputs, columns.
const SHAPES: [(usize, usize, usize); 10] = [
    (16, 32, 16),
    (17, 32, 1),
    (24, 64, 33),
    (31, 128, 17),
    (32, 160, 48),
    (33, 96, 40),
    (47, 256, 5),
    (48, 288, 64),
    (64, 576, 20),
    (83, 416, 31),
];

/// Builds of the rows for what may stand below them, as far as this machine goes; where `WASTE_TEST_TIERS` is short of
/// AVX2, without that one.
fn builds() -> Vec<(&'static str, CpuFeatures)> {
    let cpu = CpuFeatures::detect();
    let mut res = Vec::new();
    if std::env::var("WASTE_TEST_TIERS").map_or(true, |it| it.contains("avx2")) {
        res.push(("next to AVX2", cpu.capped(Isa::Avx2)));
    }
    if cpu.has(Isa::Vnni) {
        res.push(("next to VNNI", cpu));
    }
    res.into_iter().map(|(name, cpu)| (name, with_amx(cpu))).filter(|it| it.1.has(Isa::Amx)).collect()
}

#[test]
fn every_shape_has_the_bits_of_the_portable_rows() {
    let portable = KernelTable::new(CpuFeatures::detect().capped(Isa::Portable));
    for (build, cpu) in builds() {
        let (table, rng) = (KernelTable::new(cpu), &mut Rng(31));
        let mut rows = 0;
        for linear in LINEARS.iter().filter(|it| matches!(it.call, LinearFn::Fixed(..))) {
            rows += table.rows().filter(|it| it.name == linear.name && it.isa == Isa::Amx).count();
            for (i, (tokens, k, n)) in SHAPES.into_iter().enumerate() {
                let w = weights(linear.packing, n.div_ceil(LANES), k, rng);
                let flavor = Flavor::ALL[i % Flavor::ALL.len()];
                let x: Vec<f32> = (0..tokens).flat_map(|_| flavor.fill(k, rng)).collect();
                let bits = |y: Vec<f32>| {
                    y.into_iter()
                        .map(|y| if y.is_nan() { 0x7fc0_0000 } else { y.to_bits() })
                        .collect::<Vec<_>>()
                };
                let got = bits(linear.apply(&table, &w, k, &x, n));
                let want = bits(linear.apply(&portable, &w, k, &x, n));
                assert_eq!(got, want, "{} {build}: {tokens} tokens, {k} inputs, {n} columns", linear.name);
            }
        }
        assert_eq!(rows, 9, "rows of this tier {build}");
    }
}

/// Fewer than 16 tokens never touch a tile; more do, and leave none configured behind.
#[test]
fn tiles_are_for_sixteen_tokens_and_more_and_released() {
    for (build, cpu) in builds().into_iter().filter(|_| !has_own_tiles()) {
        let (table, rng) = (KernelTable::new(cpu), &mut Rng(32));
        for linear in LINEARS.iter().filter(|it| matches!(it.call, LinearFn::Fixed(..))) {
            for tokens in [1, 2, 15, 16, 17, 32] {
                let (w, x) = (weights(linear.packing, 2, 64, rng), rng.vec(tokens * 64, Rng::normal));
                let (before, _) = observed();
                linear.apply(&table, &w, 64, &x, 32);
                let (after, is_configured) = observed();
                assert_eq!(after != before, tokens >= 16, "{} {build}: {tokens} tokens", linear.name);
                assert!(!is_configured, "{} {build}: tiles are left configured", linear.name);
            }
        }
    }
}

#[test]
fn threads_have_tiles_of_their_own() {
    let Some((_, cpu)) = builds().pop() else { return };
    let table = KernelTable::new(cpu);
    let of_thread = |seed: u64| {
        let (table, linear) = (table.clone(), LINEARS[0]);
        move || {
            let rng = &mut Rng(seed);
            let (w, x) = (weights(linear.packing, 3, 320, rng), rng.vec(40 * 320, Rng::normal));
            (0..8).map(|_| linear.apply(&table, &w, 320, &x, 48)).collect::<Vec<_>>()
        }
    };
    let alone = [of_thread(1)(), of_thread(2)()];
    let threads = [1, 2].map(|seed| std::thread::spawn(of_thread(seed)));
    assert_eq!(threads.map(|it| it.join().unwrap()), alone);
}

// --- The emulator itself -------------------------------------------------------------------------------------------

/// 16 bytes-per-row fields and 16 row fields, from the first on.
fn config(shapes: &[(u8, u16)]) -> [u8; 64] {
    let mut res = [0; 64];
    res[0] = 1;
    for (i, (rows, row_bytes)) in shapes.iter().enumerate() {
        res[16 + 2 * i..][..2].copy_from_slice(&row_bytes.to_le_bytes());
        res[48 + i] = *rows;
    }
    res
}

#[test]
fn instructions_are_decoded_in_every_form_of_address() {
    let of = |bytes: &[u8]| {
        let mut bytes = bytes.iter();
        let res = decode(|| *bytes.next().unwrap());
        assert!(res.is_none() || bytes.next().is_none(), "bytes are left of {res:?}");
        res
    };
    let memory = |base, displacement, index, scale| Memory { base, displacement, index, scale };
    use Base::{Next, Register, Zero};
    for (bytes, instruction) in [
        (&[0xc4, 0xe2, 0x78, 0x49, 0x00][..], Instruction::LoadConfig(memory(Register(0), 0, None, 0))),
        (&[0xc4, 0xe2, 0x78, 0x49, 0x04, 0x24], Instruction::LoadConfig(memory(Register(4), 0, None, 0))),
        (&[0xc4, 0xc2, 0x78, 0x49, 0x45, 0xf0], Instruction::LoadConfig(memory(Register(13), -16, None, 0))),
        (&[0xc4, 0xe2, 0x78, 0x49, 0x05, 1, 2, 0, 0], Instruction::LoadConfig(memory(Next, 513, None, 0))),
        (&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Instruction::Release),
        (&[0xc4, 0xe2, 0x7b, 0x49, 0xd8], Instruction::Zero(3)),
        (&[0xc4, 0xe2, 0x7b, 0x4b, 0x1c, 0x18], Instruction::Load(3, memory(Register(0), 0, Some(3), 0))),
        (
            &[0xc4, 0x82, 0x7b, 0x4b, 0x7c, 0xaf, 0x40],
            Instruction::Load(7, memory(Register(15), 64, Some(13), 2)),
        ),
        (&[0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x25, 0, 1, 0, 0], Instruction::Load(1, memory(Zero, 256, None, 0))),
        (
            &[0xc4, 0xa2, 0x7a, 0x4b, 0x94, 0x21, 0, 4, 0, 0],
            Instruction::Store(memory(Register(1), 1024, Some(12), 0), 2),
        ),
        (&[0xc4, 0xe2, 0x63, 0x5e, 0xca], Instruction::Product { c: 1, a: 2, b: 3 }),
    ] {
        assert_eq!(of(bytes), Some(instruction), "{bytes:02x?}");
    }
    // Another map, W 1, L 1, another product, a tile of sixteen, a load without an index byte, and vpbroadcastd.
    for bytes in [
        [0xc4, 0xe1, 0x7b, 0x49, 0xd8],
        [0xc4, 0xe2, 0xfb, 0x49, 0xd8],
        [0xc4, 0xe2, 0x7f, 0x49, 0xd8],
        [0xc4, 0xe2, 0x62, 0x5e, 0xca],
        [0xc4, 0x62, 0x63, 0x5e, 0xca],
        [0xc4, 0xe2, 0x7b, 0x4b, 0x18],
        [0xc4, 0xe2, 0x7d, 0x58, 0xc0],
    ] {
        assert_eq!(of(&bytes), None, "{bytes:02x?}");
    }
}

#[test]
fn configurations_that_the_manual_forbids_are_refused() {
    let refused = |change: &dyn Fn(&mut [u8; 64])| {
        let mut config = config(&[(16, 64), (3, 32)]);
        change(&mut config);
        let mut tiles = Tiles::INITIAL;
        tiles.configure(&config).err().map(|it| it.0)
    };
    assert_eq!(refused(&|_| ()), None);
    assert_eq!(refused(&|it| it[0] = 2), Some("no such palette"));
    for reserved in [2, 15, 32, 47, 56, 63] {
        let reason = Some("reserved bytes of the configuration are not zero");
        assert_eq!(refused(&|it| it[reserved] = 1), reason);
    }
    assert_eq!(refused(&|it| it[48] = 17), Some("a tile is larger than the palette's"));
    assert_eq!(refused(&|it| it[16] = 65), Some("a tile is larger than the palette's"));
    assert_eq!(refused(&|it| it[17] = 1), Some("a tile is larger than the palette's"));
    let reason = Some("a tile has rows without bytes or bytes without rows");
    assert_eq!(refused(&|it| it[49] = 0), reason);
    assert_eq!(refused(&|it| it[48 + 7] = 1), reason);
}

#[test]
fn products_that_the_manual_forbids_are_refused() {
    // 0: C of 3 tokens; 1: A; 2: B; 3: as C with other rows; 4: as B with other rows; 5: rows that are not whole quads.
    let config = config(&[(3, 64), (3, 32), (8, 64), (4, 64), (7, 64), (3, 30)]);
    let general = General { registers: [0; 16], next: 0 };
    let product = |tiles: &mut Tiles, c, a, b| {
        // SAFETY: no memory is touched.
        unsafe { tiles.execute(Instruction::Product { c, a, b }, &general) }.err()
    };
    let mut tiles = Tiles::INITIAL;
    assert_eq!(product(&mut tiles, 0, 1, 2), Some(Fault("no tile is configured")));
    tiles.configure(&config).unwrap();
    assert_eq!(product(&mut tiles, 0, 1, 2), None);
    assert_eq!(product(&mut tiles, 0, 1, 6), Some(Fault("the tile is not configured")));
    for (c, a, b) in [(0, 0, 2), (0, 1, 1), (2, 1, 2)] {
        assert_eq!(product(&mut tiles, c, a, b), Some(Fault("operands of a product coincide")));
    }
    for (c, a, b) in [(3, 1, 2), (0, 1, 4), (0, 2, 1), (0, 1, 3)] {
        assert_eq!(product(&mut tiles, c, a, b), Some(Fault("the shapes of a product do not fit")));
    }
    assert_eq!(product(&mut tiles, 0, 5, 2), Some(Fault("a row is not whole quads")));
}

/// Loads, products and stores of real instructions against numbers worked out by hand.
#[test]
fn a_product_is_of_tokens_and_rows_and_signed() {
    let Some((_, cpu)) = builds().pop() else { return };
    assert!(cpu.has(Isa::Amx));
    let config = config(&[(3, 64), (3, 32), (8, 64)]);
    // Tokens 40 bytes apart; one input of each is not zero, but for the last, which has all.
    let (mut a, mut b, mut c) = ([0i8; 3 * 40], [0i8; 8 * 64], [[7i32; 16]; 4]);
    (a[9], a[40 + 31]) = (3, -128);
    a[80..112].fill(-128);
    (b[2 * 64 + 4 * 5 + 1], b[7 * 64 + 4 * 15 + 3]) = (-5, -128);
    (0..8).for_each(|quad| b[quad * 64..][..4].fill(-128));
    // SAFETY: AMX is here; the operands are rows of a and c at strides of 40 and 64, and whole of b.
    unsafe {
        std::arch::asm!(
            "ldtilecfg [r12]",
            "tileloadd tmm1, [r13 + {quarter}*4]",
            "tileloadd tmm2, [{b} + {wide} + 64]",
            "tilezero tmm0",
            "tdpbssd tmm0, tmm1, tmm2",
            "tdpbssd tmm0, tmm1, tmm2",
            "tilestored [{c} + {wide} - 256], tmm0",
            "tilerelease",
            in("r12") &raw const config,
            in("r13") a.as_ptr(),
            b = in(reg) b.as_ptr().wrapping_sub(64),
            c = in(reg) c.as_mut_ptr().wrapping_byte_add(256),
            quarter = in(reg) 10usize,
            wide = in(reg) 64usize,
            options(nostack),
        );
    }
    let mut want = [[0; 16]; 3];
    (want[0][0], want[0][5]) = (2 * 3 * -128, 2 * 3 * -5);
    (want[1][0], want[1][15]) = (2 * 128 * 128, 2 * 128 * 128);
    (want[2][0], want[2][5], want[2][15]) = (2 * 32 * 128 * 128, 2 * 128 * 5, 2 * 128 * 128);
    assert_eq!(c[..3], want);
    assert_eq!(c[3], [7; 16], "a row past the tile's was written");
}
