//! What the kernel tests and benches share: seeded numbers, aligned bytes, packed weights, quantised rows.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod amx;
pub mod lut;

use half::f16;
use waste_kernels::{CpuFeatures, FxRowMut, FxRows, KernelTable, RowsF32, TileMut};
use waste_plan::units::UnitScale;
use waste_plan::{FxLayout, LANES, Math, Packing};

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in −1 … 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// About Gaussian.
    pub fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.unit()).sum::<f32>() * std::f32::consts::FRAC_1_SQRT_2
    }

    pub fn vec(&mut self, n: usize, mut f: impl FnMut(&mut Self) -> f32) -> Vec<f32> {
        (0..n).map(|_| f(self)).collect()
    }
}

/// Shapes of activations that have caught kernels before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flavor {
    Normal,
    HeavyTailed,
    /// Many elements at ±amax or one unit below: plane overflow.
    Extremes,
    Subnormal,
    Zeros,
    /// A NaN or an infinity in one group of some rows.
    NonFinite,
}

impl Flavor {
    pub const ALL: [Self; 6] =
        [Self::Normal, Self::HeavyTailed, Self::Extremes, Self::Subnormal, Self::Zeros, Self::NonFinite];

    pub fn fill(self, n: usize, rng: &mut Rng) -> Vec<f32> {
        let top = f32::from_bits(0x3f80_0000 + rng.below(1 << 23) as u32);
        let mut x = rng.vec(n, |rng| match self {
            Self::Normal | Self::NonFinite => rng.normal(),
            Self::HeavyTailed => {
                let x = rng.normal();
                x * (4.0 * rng.normal()).exp2()
            }
            Self::Extremes => {
                let near = f32::from_bits(top.to_bits() - rng.below(3) as u32);
                if rng.below(2) == 0 { near } else { -near }
            }
            Self::Subnormal => rng.unit() * 1e-38,
            Self::Zeros => 0.0,
        });
        if self == Self::NonFinite && n > 0 {
            x[rng.below(n)] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][rng.below(3)];
        }
        x
    }
}

/// Bytes that begin at a multiple of 64.
pub struct Bytes {
    data: Vec<u8>,
    at: usize,
    len: usize,
}

impl Bytes {
    pub fn zeroed(len: usize) -> Self {
        let data = vec![0; len + 64];
        let at = data.as_ptr().align_offset(64);
        Self { data, at, len }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.data[self.at..][..self.len]
    }
}

impl std::ops::DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data[self.at..][..self.len]
    }
}

/// Random packed blocks: every code value, signed scales of ordinary size.
pub fn weights(packing: Packing, blocks: usize, k: usize, rng: &mut Rng) -> Bytes {
    let block_bytes = packing.block_bytes(k);
    let mut w = Bytes::zeroed(blocks * block_bytes);
    for block in w.chunks_exact_mut(block_bytes) {
        let payload = packing.payload_bytes(k);
        match packing {
            Packing::F32 => {
                block
                    .as_chunks_mut::<4>()
                    .0
                    .iter_mut()
                    .for_each(|it| *it = (rng.normal() * 0.1).to_le_bytes());
            }
            Packing::F16 => {
                for it in block.as_chunks_mut::<2>().0 {
                    *it = f16::from_f32(rng.normal() * 0.1).to_le_bytes();
                }
            }
            Packing::BF16 => {
                for it in block.as_chunks_mut::<2>().0 {
                    *it = half::bf16::from_f32(rng.normal() * 0.1).to_le_bytes();
                }
            }
            Packing::W8 | Packing::W4 | Packing::W4M => {
                // Runs of equal codes among random ones: the largest sums are reached.
                let run = (rng.below(3) == 0).then(|| rng.next() as u8);
                block[..payload].iter_mut().for_each(|it| *it = run.unwrap_or(rng.next() as u8));
                if rng.below(4) == 0 {
                    block[..payload].fill(0x80);
                }
                for it in block[payload..].as_chunks_mut::<2>().0 {
                    *it = f16::from_f32(rng.normal() * 0.01).to_le_bytes();
                }
            }
            Packing::Plain | Packing::Columns | Packing::Record => panic!("no blocks of rows"),
            _ => fill_units(packing, block, rng),
        }
    }
    w
}

/// Random units: runs of equal bytes among random ones in codes and in integer scales, so that the largest sums are reached.
fn fill_units(packing: Packing, block: &mut [u8], rng: &mut Rng) {
    let layout = packing.units().expect("a packing in units");
    for unit in block.chunks_exact_mut(layout.bytes()) {
        for range in [0..layout.scales_at(), layout.scales_at()..layout.d_at()] {
            let run = match rng.below(6) {
                0 => Some(rng.next() as u8),
                1 => Some([0, 0x7f, 0x80, 0xff][rng.below(4)]),
                _ => None,
            };
            unit[range].iter_mut().for_each(|it| *it = run.unwrap_or(rng.next() as u8));
        }
        let small = if layout.has_group_scales() { 3e-4 } else { 0.01 };
        let mut halves = |at: usize| {
            for it in unit[at..at + 2 * LANES].as_chunks_mut::<2>().0 {
                *it = f16::from_f32(rng.normal() * small).to_le_bytes();
            }
        };
        if layout.minima {
            halves(layout.m_at());
        }
        match layout.scale {
            UnitScale::Half => halves(layout.d_at()),
            UnitScale::Exponent => {
                unit[layout.d_at()..][..LANES].iter_mut().for_each(|it| *it = 118 + rng.below(8) as u8);
            }
        }
    }
}

/// The weight of row `lane`, input `i` of a block, as `waste_plan::units` describes it.
fn unit_weight(packing: Packing, block: &[u8], lane: usize, i: usize) -> f64 {
    let layout = packing.units().expect("a packing in units");
    let (unit, i) = (&block[i / layout.inputs * layout.bytes()..][..layout.bytes()], i % layout.inputs);
    let half = |at: usize| f16::from_le_bytes([unit[at + 2 * lane], unit[at + 2 * lane + 1]]).to_f64();
    let d = match layout.scale {
        UnitScale::Half => half(layout.d_at()),
        UnitScale::Exponent => (f64::from(unit[layout.d_at() + lane]) - 128.0).exp2(),
    };
    let (mut scale, mut minimum) = (1.0, if layout.minima { half(layout.m_at()) } else { 0.0 });
    if layout.has_group_scales() {
        let byte = |at: usize| unit[at + i / layout.group * LANES + lane];
        let s = byte(layout.scales_at());
        scale = if layout.signed { f64::from(s.cast_signed()) } else { f64::from(s) };
        minimum *= if layout.minima { -f64::from(byte(layout.minima_at())) } else { 0.0 };
    }
    d * scale * f64::from(layout.integer(unit, lane, i)) + minimum
}

/// The weight of row `r`, input `i`, read by the layout's description, in f64.
pub fn weight(packing: Packing, w: &[u8], k: usize, r: usize, i: usize) -> f64 {
    let (block, lane) = (&w[r / LANES * packing.block_bytes(k)..], r % LANES);
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f64();
    let scale = || half(packing.payload_bytes(k) + (i / 32 * LANES + lane) * 2);
    let nibble = || block[i / 8 * 64 + lane * 4 + i % 4] >> if i % 8 < 4 { 0 } else { 4 } & 15;
    match packing {
        Packing::F32 => {
            let at = (i * LANES + lane) * 4;
            f64::from(f32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes")))
        }
        Packing::F16 => half((i * LANES + lane) * 2),
        Packing::BF16 => {
            let at = (i * LANES + lane) * 2;
            half::bf16::from_le_bytes([block[at], block[at + 1]]).to_f64()
        }
        Packing::W8 => scale() * f64::from(block[i / 4 * 64 + lane * 4 + i % 4].cast_signed()),
        Packing::W4 => scale() * (f64::from(nibble()) - 8.0),
        Packing::W4M => {
            scale() * f64::from(nibble()) + half(packing.minima_at(k) + (i / 32 * LANES + lane) * 2)
        }
        Packing::Plain | Packing::Columns | Packing::Record => panic!("no blocks of rows"),
        _ => unit_weight(packing, block, lane, i),
    }
}

/// Quantised rows in memory of their own.
pub struct Quantised {
    bytes: Bytes,
    rows: usize,
    n: usize,
    layout: FxLayout,
}

impl Quantised {
    /// Quantises rows of `n` with the table's own row.
    pub fn new(table: &KernelTable, math: Math, x: &[f32], n: usize) -> Self {
        let layout = math.act_dtype().and_then(waste_plan::DType::fx).expect("integer arithmetic");
        let stride = layout.row_bytes(n);
        let mut bytes = Bytes::zeroed(stride * (x.len() / n));
        for (x, row) in x.chunks_exact(n).zip(bytes.chunks_exact_mut(stride)) {
            let mut row = FxRowMut::new(row, n, layout);
            match math {
                Math::Fixed24 => table.quant_act_fx24(x, &mut row),
                Math::Fixed16 => table.quant_act_fx16(x, &mut row),
                Math::Fixed8 => table.quant_act_fx8(x, &mut row),
                Math::F32 => unreachable!("has no layout"),
            }
        }
        Self { bytes, rows: x.len() / n, n, layout }
    }

    pub fn rows(&self) -> FxRows<'_> {
        FxRows::new(&self.bytes, self.rows, self.n, self.layout.row_bytes(self.n), self.layout)
    }
}

/// A table for every tier of this machine, the portable build without fma first; or for those that `WASTE_TEST_TIERS`
/// names, where all of them would take too long. AMX is among them where AVX2 is, executed by a handler if need be.
pub fn tables() -> Vec<(String, KernelTable)> {
    let cpu = CpuFeatures::detect();
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    let cpu = amx::with_amx(cpu);
    let mut res = vec![("portable without fma".to_owned(), KernelTable::new(cpu.without_fma()))];
    for isa in cpu.tiers() {
        res.push((isa.name().to_owned(), KernelTable::new(cpu.capped(isa))));
    }
    if let Ok(names) = std::env::var("WASTE_TEST_TIERS") {
        let all = std::mem::take(&mut res);
        for name in names.split(',') {
            let named = all.iter().find(|(tier, _)| tier == name);
            res.push(named.unwrap_or_else(|| panic!("this machine has no {name}")).clone());
        }
    }
    res
}

/// How often a case of made-up shapes is run: a fraction where an emulator runs it.
pub fn rounds(usual: usize, fraction: usize) -> usize {
    if std::env::var_os("WASTE_TEST_TIERS").is_some() { usual / fraction } else { usual }
}

/// A linear row with its operands' formats.
#[derive(Clone, Copy)]
pub struct Linear {
    pub name: &'static str,
    pub packing: Packing,
    pub call: LinearFn,
}

#[derive(Clone, Copy)]
pub enum LinearFn {
    Fixed(Math, fn(&KernelTable, &[u8], usize, &FxRows<'_>, &mut TileMut<'_>)),
    Float(fn(&KernelTable, &[u8], usize, &RowsF32<'_>, &mut TileMut<'_>)),
    /// The row serves all packings in units.
    FixedUnits(Math, fn(&KernelTable, Packing, &[u8], usize, &FxRows<'_>, &mut TileMut<'_>)),
    FloatUnits(fn(&KernelTable, Packing, &[u8], usize, &RowsF32<'_>, &mut TileMut<'_>)),
}

/// The packings in units.
pub const UNITS: [Packing; 10] = [
    Packing::W5,
    Packing::W5M,
    Packing::W4T,
    Packing::W4E,
    Packing::K2,
    Packing::K3,
    Packing::K4,
    Packing::K5,
    Packing::K6,
    Packing::K4T,
];

/// Every linear row with every packing it serves.
pub fn linears() -> Vec<Linear> {
    let mut all = LINEARS.to_vec();
    for packing in UNITS {
        let fixed = |name, math, call| Linear { name, packing, call: LinearFn::FixedUnits(math, call) };
        all.push(fixed("linear_units_fixed24", Math::Fixed24, KernelTable::linear_units_fixed24));
        all.push(fixed("linear_units_fixed16", Math::Fixed16, KernelTable::linear_units_fixed16));
        all.push(fixed("linear_units_fixed8", Math::Fixed8, KernelTable::linear_units_fixed8));
        let call = LinearFn::FloatUnits(KernelTable::linear_units_f32);
        all.push(Linear { name: "linear_units_f32", packing, call });
    }
    all
}

macro_rules! fixed {
    ($name:ident, $packing:ident, $math:ident) => {
        Linear {
            name: stringify!($name),
            packing: Packing::$packing,
            call: LinearFn::Fixed(Math::$math, KernelTable::$name),
        }
    };
}

macro_rules! float {
    ($name:ident, $packing:ident) => {
        Linear {
            name: stringify!($name),
            packing: Packing::$packing,
            call: LinearFn::Float(KernelTable::$name),
        }
    };
}

/// The rows of packings whose kernels do not share their unpacking.
pub const LINEARS: [Linear; 15] = [
    fixed!(linear_w8_fixed24, W8, Fixed24),
    fixed!(linear_w8_fixed16, W8, Fixed16),
    fixed!(linear_w8_fixed8, W8, Fixed8),
    fixed!(linear_w4_fixed24, W4, Fixed24),
    fixed!(linear_w4_fixed16, W4, Fixed16),
    fixed!(linear_w4_fixed8, W4, Fixed8),
    fixed!(linear_w4m_fixed24, W4M, Fixed24),
    fixed!(linear_w4m_fixed16, W4M, Fixed16),
    fixed!(linear_w4m_fixed8, W4M, Fixed8),
    float!(linear_f32_f32, F32),
    float!(linear_f16_f32, F16),
    float!(linear_bf16_f32, BF16),
    float!(linear_w8_f32, W8),
    float!(linear_w4_f32, W4),
    float!(linear_w4m_f32, W4M),
];

impl Linear {
    /// y f32\[tokens, cols\] of x f32\[tokens, k\].
    pub fn apply(self, table: &KernelTable, w: &[u8], k: usize, x: &[f32], cols: usize) -> Vec<f32> {
        let tokens = x.len() / k;
        // A wider stride than the columns, and marks between them that must survive.
        let stride = cols + 3;
        let mut y = vec![MARK; tokens * stride];
        let mut tile = TileMut::from_slice(&mut y, tokens, cols, stride);
        match self.call {
            LinearFn::Fixed(math, call) => {
                call(table, w, k, &Quantised::new(table, math, x, k).rows(), &mut tile);
            }
            LinearFn::Float(call) => call(table, w, k, &RowsF32::new(x, tokens, k, k), &mut tile),
            LinearFn::FixedUnits(math, call) => {
                let x = Quantised::new(table, math, x, k);
                call(table, self.packing, w, k, &x.rows(), &mut tile);
            }
            LinearFn::FloatUnits(call) => {
                call(table, self.packing, w, k, &RowsF32::new(x, tokens, k, k), &mut tile);
            }
        }
        assert!(y.chunks(stride).all(|row| row[cols..] == [MARK; 3]), "{} wrote outside its tile", self.name);
        y.chunks(stride).flat_map(|row| row[..cols].to_vec()).collect()
    }
}

const MARK: f32 = 12345.5;
