//! The tensors of trunk.bin: plain f32, or integers in groups along a row with one f16 scale a group.
//!
//! | format | a row of n weights, groups of g, G = ⌈n/g⌉ | weight i |
//! |---|---|---|
//! | f32 | 4·n bytes | itself |
//! | q8g | G·g bytes, i8 | scale · q |
//! | q4g | G·g/2 bytes, low nibble first | scale · (nibble − 8) |
//! | q3g | ⌈3·G·g/8⌉ + 1 bytes, 3 bits from the lowest on | scale · (code − 4) |
//!
//! Invariants
//! - payload and scales lie inside the file, and no two tensors share a byte.

use std::collections::BTreeMap;

use super::manifest::TrunkEntry;
use crate::formats::error::{FormatError, Item, Result, shown};
use crate::formats::source::Source;

/// Inputs of a group where the manifest does not say.
pub const DEFAULT_GROUP: u64 = 128;

/// Matrices below stay in f32: they weigh nothing, and some are read as vectors.
const MIN_ELEMENTS: u64 = 4096;

/// How the names of matrices end that are stored in 8 bits at least.
const FINE: [&str; 3] = ["embed_tokens.weight", "lm_head.weight", ".gate.weight"];

/// Tensors begin at multiples of this.
pub(crate) const ALIGN: u64 = 64;

/// Elements of a dimension at most.
pub(crate) const MAX_DIM: u64 = 1 << 26;

const SUPPORTED: &str = "0 (f32), 2 (q8g), 3 (q4g) and 7 (q3g) are";

/// How the weights of a trunk tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrunkFormat {
    /// IEEE binary32.
    F32,
    /// 8-bit signed integers.
    Q8G,
    /// 4-bit codes, 8 is zero.
    Q4G,
    /// 3-bit codes, 4 is zero.
    Q3G,
}

impl TrunkFormat {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::F32, Self::Q8G, Self::Q4G, Self::Q3G];

    /// The name in flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Q8G => "q8g",
            Self::Q4G => "q4g",
            Self::Q3G => "q3g",
        }
    }

    /// Parses [`TrunkFormat::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// The number in a manifest.
    #[must_use]
    pub const fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Q8G => 2,
            Self::Q4G => 3,
            Self::Q3G => 7,
        }
    }

    /// Bits of one weight, without scales.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::F32 => 32,
            Self::Q8G => 8,
            Self::Q4G => 4,
            Self::Q3G => 3,
        }
    }

    /// Bytes of a row of `cols` weights in groups of `group`; `None` beyond 64 bits, or where a 4-bit row is no whole bytes.
    #[must_use]
    pub fn row_bytes(self, cols: u64, group: u64) -> Option<u64> {
        let padded = cols.div_ceil(group.max(1)).checked_mul(group)?;
        match self {
            Self::F32 => cols.checked_mul(4),
            Self::Q8G => Some(padded),
            Self::Q4G => padded.is_multiple_of(2).then_some(padded / 2),
            // One byte more, so that a reader of two bytes stays in the row.
            Self::Q3G => Some(padded.checked_mul(3)?.div_ceil(8) + 1),
        }
    }
}

/// A tensor of the trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrunkTensor {
    /// How it is stored.
    pub fmt: TrunkFormat,
    /// Row-major; all dimensions but the last together are the rows.
    pub shape: Vec<u64>,
    /// Inputs that share a scale; means nothing for f32.
    pub group: u64,
    /// Where its rows start in trunk.bin, in bytes.
    pub offset: u64,
    /// Where its scales start in trunk.bin, f16 `[rows][groups]`; 0 for f32.
    pub scale_offset: u64,
}

impl TrunkTensor {
    /// The tensor `name` in a trunk most of whose matrices are stored as `asked`, the first that begins at byte `at` or after;
    /// and where the next begins.
    ///
    /// | tensor | stored as |
    /// |---|---|
    /// | not two-dimensional, of one row or column, or of fewer than 4096 elements | f32 |
    /// | embedding, head, routers | q8g at least |
    /// | other matrices | as asked |
    pub(crate) fn place(name: &str, shape: Vec<u64>, asked: TrunkFormat, at: u64) -> (Self, u64) {
        // One row or column is a vector, whatever the checkpoint calls it.
        let is_matrix = shape.len() == 2 && !shape.contains(&1) && shape[0] * shape[1] >= MIN_ELEMENTS;
        let is_fine = FINE.iter().any(|it| name.ends_with(it));
        let fmt = match asked {
            TrunkFormat::Q4G | TrunkFormat::Q3G if is_matrix && is_fine => TrunkFormat::Q8G,
            _ if is_matrix => asked,
            _ => TrunkFormat::F32,
        };
        let shape = if shape.is_empty() { vec![1] } else { shape };
        let mut tensor = Self { fmt, shape, group: DEFAULT_GROUP, offset: at, scale_offset: 0 };
        let mut end = at + tensor.payload_bytes();
        if fmt != TrunkFormat::F32 {
            tensor.scale_offset = end;
            end += tensor.scale_bytes();
        }
        (tensor, end.next_multiple_of(ALIGN))
    }

    /// The number of rows: the product of all dimensions but the last.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.shape.iter().rev().skip(1).product()
    }

    /// Weights of a row.
    #[must_use]
    pub fn cols(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Scales of a row; 0 for f32.
    #[must_use]
    pub fn groups(&self) -> u64 {
        if self.fmt == TrunkFormat::F32 { 0 } else { self.cols().div_ceil(self.group) }
    }

    /// Bytes of a row, without its scales.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.fmt.row_bytes(self.cols(), self.group).expect("checked when the table was read")
    }

    /// Bytes of all rows, without their scales.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.rows() * self.row_bytes()
    }

    /// Bytes of all scales.
    #[must_use]
    pub fn scale_bytes(&self) -> u64 {
        self.rows() * self.groups() * 2
    }

    /// Decodes `row` into `out` of [`TrunkTensor::cols`] elements: w = scale · q in f32, rounded once. `trunk` is trunk.bin.
    ///
    /// # Panics
    /// If there is no such row, `out` has another length, or `trunk` is another file.
    pub fn decode_row(&self, trunk: &[u8], row: u64, out: &mut [f32]) {
        assert!(row < self.rows() && out.len() as u64 == self.cols(), "a row of this tensor");
        let part = |at: u64, len: u64| &trunk[index(at)..index(at + len)];
        let bytes = part(self.offset + row * self.row_bytes(), self.row_bytes());
        if self.fmt == TrunkFormat::F32 {
            let words = bytes.as_chunks::<4>().0;
            out.iter_mut().zip(words).for_each(|(w, it)| *w = f32::from_le_bytes(*it));
            return;
        }
        let scales = part(self.scale_offset + row * self.groups() * 2, self.groups() * 2);
        let groups = out.chunks_mut(index(self.group)).zip(scales.as_chunks::<2>().0);
        for (group, (weights, scale)) in groups.enumerate() {
            let scale = half::f16::from_le_bytes(*scale).to_f32();
            let start = group * index(self.group);
            for (idx, w) in weights.iter_mut().enumerate() {
                *w = scale * f32::from(self.fmt.integer(bytes, start + idx));
            }
        }
    }

    /// The first row with a scale that is no finite number, if any. `trunk` is trunk.bin.
    #[must_use]
    pub fn broken_scale(&self, trunk: &[u8]) -> Option<u64> {
        let scales = &trunk[index(self.scale_offset)..index(self.scale_offset + self.scale_bytes())];
        let is_broken = |it: &[u8; 2]| !half::f16::from_le_bytes(*it).is_finite();
        scales.as_chunks::<2>().0.iter().position(is_broken).map(|at| at as u64 / self.groups())
    }
}

impl TrunkFormat {
    /// The integer of weight `idx` in a row's bytes.
    fn integer(self, row: &[u8], idx: usize) -> i8 {
        match self {
            Self::F32 => 0,
            Self::Q8G => row[idx].cast_signed(),
            Self::Q4G => (row[idx / 2] >> (4 * (idx % 2)) & 15).cast_signed() - 8,
            Self::Q3G => {
                let (byte, bit) = (idx * 3 / 8, idx * 3 % 8);
                let pair = u16::from_le_bytes([row[byte], row[byte + 1]]);
                ((pair >> bit & 7) as u8).cast_signed() - 4
            }
        }
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("inside a mapped file")
}

/// Where the last of `entries` ends: the length of a trunk.bin that is not there.
pub(super) fn extent(file: &str, entries: &[TrunkEntry]) -> Result<u64> {
    let mut end = 0;
    for entry in entries {
        let tensor = tensor(file, entry)?;
        let parts = [(tensor.offset, tensor.payload_bytes()), (tensor.scale_offset, tensor.scale_bytes())];
        for (at, bytes) in parts {
            let last = at.checked_add(bytes);
            let last =
                last.ok_or_else(|| malformed(file, &entry.name, at, "ends beyond 64 bits".to_owned()))?;
            end = end.max(last);
        }
    }
    Ok(end)
}

/// The checked table of `entries` over trunk.bin.
pub(super) fn table(source: &Source, entries: Vec<TrunkEntry>) -> Result<BTreeMap<String, TrunkTensor>> {
    let file = source.name();
    let end = source.size();
    let mut table = BTreeMap::new();
    let mut spans = Vec::with_capacity(2 * entries.len());
    for entry in entries {
        let tensor = tensor(&file, &entry)?;
        let name = entry.name;
        let parts = [(tensor.offset, tensor.payload_bytes()), (tensor.scale_offset, tensor.scale_bytes())];
        for (at, need) in parts.into_iter().filter(|it| it.1 > 0) {
            if at.checked_add(need).is_none_or(|last| last > end) {
                return Err(FormatError::Truncated {
                    file,
                    item: Item::tensor(&name),
                    offset: at,
                    need,
                    end,
                });
            }
            spans.push((at, at + need, name.clone()));
        }
        if table.insert(name.clone(), tensor).is_some() {
            return Err(malformed(&file, &name, entry.off, "occurs twice in the manifest".to_owned()));
        }
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        let ((at, last, name), (next, _, other)) = (&pair[0], &pair[1]);
        if next < last {
            let reason = format!("overlaps tensor '{}' at {at:#x}", shown(name));
            return Err(malformed(&file, other, *next, reason));
        }
    }
    Ok(table)
}

fn malformed(file: &str, name: &str, offset: u64, reason: String) -> FormatError {
    FormatError::Malformed { file: file.to_owned(), item: Item::tensor(name), offset, reason }
}

/// The tensor that a row of the manifest describes; its place is not compared with the file yet.
fn tensor(file: &str, entry: &TrunkEntry) -> Result<TrunkTensor> {
    let bad = |reason: String| malformed(file, &entry.name, entry.off, reason);
    let known = TrunkFormat::ALL.into_iter().find(|it| it.id() == entry.fmt);
    let fmt = known.ok_or_else(|| FormatError::Unsupported {
        file: file.to_owned(),
        item: Item::tensor(&entry.name),
        offset: entry.off,
        what: format!("fmt {}", entry.fmt),
        supported: SUPPORTED,
    })?;
    let shape = &entry.shape;
    if !(1..=4).contains(&shape.len()) || !shape.iter().all(|it| (1..=MAX_DIM).contains(it)) {
        return Err(bad(format!("shape {shape:?}, expected 1 to 4 dimensions of 1 to {MAX_DIM}")));
    }
    let group = entry.group.unwrap_or(DEFAULT_GROUP);
    if !(1..=MAX_DIM).contains(&group) {
        return Err(bad(format!("group {group}, expected 1 to {MAX_DIM}")));
    }
    let scale_offset = match (fmt, entry.scale_off) {
        (TrunkFormat::F32, _) => 0,
        (_, Some(at)) => at,
        (_, None) => return Err(bad(format!("{} without 'scale_off'", fmt.name()))),
    };
    let tensor = TrunkTensor { fmt, shape: shape.clone(), group, offset: entry.off, scale_offset };
    let (cols, leading) = shape.split_last().expect("has 1 to 4 dimensions");
    let rows = leading.iter().try_fold(1u64, |rows, n| rows.checked_mul(*n));
    let sizes = rows.zip(fmt.row_bytes(*cols, group)).and_then(|(rows, row)| {
        // Scales too: neither product may wrap.
        rows.checked_mul(cols.div_ceil(group))?.checked_mul(2)?;
        rows.checked_mul(row)
    });
    match sizes {
        Some(_) => Ok(tensor),
        None => {
            Err(bad(format!("shape {shape:?} in groups of {group} has no size in bytes as {}", fmt.name())))
        }
    }
}
