//! experts-L{n}.bin: one record an expert, all of one size, and what a record must be.
//!
//! A record is a header of 48 bytes, the index streams of gate, up and down without gaps, the f16 scales of their rows in the
//! same order, and zeros up to a multiple of 4096. So all offsets follow from the geometry; a record that states others is
//! refused, and none of them is ever used to find bytes.
//!
//! Invariants: a [`Record`] is whole, and one whose header was checked has its matrices where [`Bank`] says.

use std::ops::Range;

use serde::Deserialize;

use super::{VEC_DIM, VqCode};
use crate::formats::error::{FormatError, Item, Result};
use crate::formats::meta::Meta;
use crate::formats::source::Source;

/// "WEXP", little-endian.
pub const RECORD_MAGIC: u32 = 0x5058_4557;

/// Bytes before the first index stream.
pub const RECORD_HEADER: u64 = 48;

/// Records are whole multiples of this.
pub const RECORD_ALIGN: u64 = 4096;

/// Experts of a layer at most: a record numbers them in 16 bits.
const MAX_EXPERTS: u32 = 1 << 16;

/// Rows and columns of an expert's matrices at most.
const MAX_DIM: u32 = 1 << 20;

/// Which matrix of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixKind {
    /// `[inter, latent]`, before the activation function.
    Gate,
    /// `[inter, latent]`, beside the gate.
    Up,
    /// `[latent, inter]`.
    Down,
}

impl MatrixKind {
    /// In the order of a record.
    pub const ALL: [Self; 3] = [Self::Gate, Self::Up, Self::Down];

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// The sizes that the configuration gives to experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    layers: u32,
    first_moe: u32,
    experts: u32,
    inter: u32,
    latent: u32,
}

/// The shape of one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expert {
    /// Rows of gate and up.
    pub inter: u32,
    /// Columns of gate and up: the width of the residual stream, or of the latent one.
    pub latent: u32,
}

impl Expert {
    /// Rows and columns of a matrix.
    #[must_use]
    pub fn shape(self, kind: MatrixKind) -> (u32, u32) {
        match kind {
            MatrixKind::Gate | MatrixKind::Up => (self.inter, self.latent),
            MatrixKind::Down => (self.latent, self.inter),
        }
    }

    /// Where the matrices lie in a record coded as `code`, and the bytes up to the padding; `None` if rows are not whole
    /// vectors or an offset is beyond 32 bits.
    #[must_use]
    pub fn layout(self, code: VqCode) -> Option<([BankMatrix; 3], u64)> {
        let mut at = RECORD_HEADER;
        let mut matrices = [BankMatrix { rows: 0, cols: 0, indices: 0, scales: 0 }; 3];
        for (matrix, kind) in matrices.iter_mut().zip(MatrixKind::ALL) {
            let (rows, cols) = self.shape(kind);
            *matrix = BankMatrix { rows, cols, indices: at, scales: 0 };
            at = at.checked_add(code.index_bytes(rows.into(), cols.into())?)?;
        }
        for matrix in &mut matrices {
            matrix.scales = at;
            at = at.checked_add(2 * u64::from(matrix.rows))?;
        }
        u32::try_from(at).ok().map(|_| (matrices, at))
    }
}

impl Geometry {
    pub(crate) fn of_config(config: &Meta) -> Result<Self> {
        let get = |key: &str| config.get_u32(key);
        let experts = match get("num_experts")? {
            Some(count) => count,
            None => get("n_routed_experts")?.unwrap_or(0),
        };
        if experts == 0 {
            return Ok(Self { layers: 0, first_moe: 0, experts: 0, inter: 0, latent: 0 });
        }
        let bounded = |key: &str, value: u32, most: u32| match value {
            n if (1..=most).contains(&n) => Ok(n),
            n => Err(config.refuse(key, format!("{n}, expected 1 to {most}"))),
        };
        let layers = config.u32("num_hidden_layers")?;
        let latent_key = "routed_expert_hidden_size";
        let (key, latent) = match get(latent_key)?.filter(|it| *it > 0) {
            Some(latent) => (latent_key, latent),
            None => ("hidden_size", config.u32("hidden_size")?),
        };
        Ok(Self {
            layers: bounded("num_hidden_layers", layers, 1 << 16)?,
            first_moe: get("first_k_dense_replace")?.unwrap_or(0),
            experts: bounded("num_experts", experts, MAX_EXPERTS)?,
            inter: bounded("moe_intermediate_size", config.u32("moe_intermediate_size")?, MAX_DIM)?,
            latent: bounded(key, latent, MAX_DIM)?,
        })
    }

    /// The layers with experts; none if the model has no experts.
    pub(crate) fn moe_layers(&self) -> Range<u32> {
        self.first_moe.min(self.layers)..self.layers
    }

    /// Experts of such a layer.
    pub(crate) fn experts(&self) -> u32 {
        self.experts
    }

    /// The shape of each.
    pub(crate) fn expert(&self) -> Expert {
        Expert { inter: self.inter, latent: self.latent }
    }

    /// `entries` by layer: one for each layer with experts, none for others.
    pub(super) fn match_layers(
        &self,
        config: &Meta,
        entries: Vec<(u32, BankEntry)>,
    ) -> Result<Vec<(u32, BankEntry)>> {
        let wanted = self.moe_layers();
        let refuse = |layer: u32, reason: String| FormatError::Malformed {
            file: config.file().to_owned(),
            item: Item::key(&format!("layers.{layer}")),
            offset: 0,
            reason,
        };
        for (layer, entry) in &entries {
            if !wanted.contains(layer) {
                return Err(refuse(*layer, format!("only layers {wanted:?} have experts")));
            }
            if entry.experts != u64::from(self.experts) {
                return Err(refuse(
                    *layer,
                    format!("{} experts, the model has {}", entry.experts, self.experts),
                ));
            }
        }
        // Sorted and unique, so the first that is missing shifts all after it.
        match wanted.clone().enumerate().find(|(idx, it)| entries.get(*idx).map(|entry| entry.0) != Some(*it))
        {
            Some((_, layer)) => Err(FormatError::Missing {
                file: config.file().to_owned(),
                item: Item::key(&format!("layers.{layer}")),
                hint: format!(" (layers {wanted:?} have experts)"),
            }),
            None => Ok(entries),
        }
    }
}

/// One matrix in every record of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BankMatrix {
    /// Outputs.
    pub rows: u32,
    /// Inputs; a multiple of 8.
    pub cols: u32,
    /// Where its index stream starts, in bytes from the start of a record.
    pub indices: u64,
    /// Where its row scales start, f16, in bytes from the start of a record.
    pub scales: u64,
}

/// A bank as a manifest has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct BankEntry {
    /// The file beside the manifest.
    pub file: String,
    /// The number of experts.
    pub experts: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The first codebook of the layer.
    pub codebook_base: u64,
}

/// The experts of one layer.
#[derive(Clone, Debug)]
pub struct Bank {
    layer: u32,
    file: usize,
    experts: u32,
    record_bytes: u64,
    codebook_base: u32,
    code: VqCode,
    matrices: [BankMatrix; 3],
    /// Header, indices and scales; what follows is padding.
    used_bytes: u64,
}

impl Bank {
    pub(super) fn new(
        layer: u32,
        file: usize,
        geometry: &Geometry,
        code: VqCode,
        entry: BankEntry,
        source: &Source,
    ) -> Result<Self> {
        let bad = |reason: String| FormatError::Malformed {
            file: source.name(),
            item: Item::key(&format!("layers.{layer}")),
            offset: 0,
            reason,
        };
        let expert = geometry.expert();
        let (matrices, used_bytes) = expert.layout(code).ok_or_else(|| {
            bad(format!(
                "experts of {} × {} cannot be coded in vectors of {VEC_DIM}",
                expert.inter, expert.latent
            ))
        })?;
        let record_bytes = entry.bytes / entry.experts;
        let expected = used_bytes.next_multiple_of(RECORD_ALIGN);
        if !entry.bytes.is_multiple_of(entry.experts) || record_bytes != expected {
            let found = format!("{} bytes for {} experts", entry.bytes, entry.experts);
            return Err(bad(format!("{found}, expected {expected} bytes each")));
        }
        let end = source.bytes().len() as u64;
        if end < entry.bytes {
            let item = Item::key(&format!("layers.{layer}"));
            return Err(FormatError::Truncated {
                file: source.name(),
                item,
                offset: 0,
                need: entry.bytes,
                end,
            });
        }
        if entry.bytes < end {
            return Err(bad(format!("the file has {end} bytes, the manifest says {}", entry.bytes)));
        }
        let experts = u32::try_from(entry.experts).expect("equal to the model's number");
        let codebook_base = u32::try_from(entry.codebook_base).ok().filter(|it| *it <= u32::from(u16::MAX));
        let codebook_base = codebook_base
            .ok_or_else(|| bad(format!("codebook_base {} is beyond 16 bits", entry.codebook_base)))?;
        Ok(Self { layer, file, experts, record_bytes, codebook_base, code, matrices, used_bytes })
    }

    /// The layer, from 0.
    #[must_use]
    pub fn layer(&self) -> u32 {
        self.layer
    }

    /// The number of its file in the container's sources.
    #[must_use]
    pub fn file(&self) -> usize {
        self.file
    }

    /// The number of experts; expert e has its record at e · [`Bank::record_bytes`].
    #[must_use]
    pub fn experts(&self) -> u32 {
        self.experts
    }

    /// Bytes of one record, a multiple of [`RECORD_ALIGN`].
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    /// Bytes of a record before its padding.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The first codebook of this layer.
    #[must_use]
    pub fn codebook_base(&self) -> u32 {
        self.codebook_base
    }

    /// How the matrices are coded.
    #[must_use]
    pub fn code(&self) -> VqCode {
        self.code
    }

    /// Where `kind` lies in every record.
    #[must_use]
    pub fn matrix(&self, kind: MatrixKind) -> BankMatrix {
        self.matrices[kind as usize]
    }

    /// The codebooks of `kind`, one a stage.
    #[must_use]
    pub fn books(&self, kind: MatrixKind) -> Range<u32> {
        let stages = self.code.stages() as u32;
        let first = self.codebook_base + kind as u32 * stages;
        first..first + stages
    }

    /// The record of `expert` in `bytes`, the whole file; not checked yet.
    ///
    /// # Panics
    /// If there is no such expert.
    #[must_use]
    pub fn record_of<'a>(&'a self, expert: u32, bytes: &'a [u8]) -> Record<'a> {
        assert!(expert < self.experts, "expert {expert} of {}", self.experts);
        let index = |at: u64| usize::try_from(at).expect("inside a mapped file");
        let at = u64::from(expert) * self.record_bytes;
        Record { bank: self, expert, bytes: &bytes[index(at)..index(at + self.record_bytes)] }
    }

    /// A record that was read from elsewhere; `None` if it has not the length of one.
    #[must_use]
    pub fn record_in<'a>(&'a self, expert: u32, bytes: &'a [u8]) -> Option<Record<'a>> {
        (bytes.len() as u64 == self.record_bytes).then_some(Record { bank: self, expert, bytes })
    }

    pub(super) fn blame(&self, source: &Source, expert: u32, fault: RecordFault) -> FormatError {
        FormatError::Malformed {
            file: source.name(),
            item: Item::Expert { expert, layer: self.layer },
            offset: u64::from(expert) * self.record_bytes + fault.at,
            reason: fault.reason,
        }
    }
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFault {
    /// Where, in bytes from the start of the record.
    pub at: u64,
    /// Found and expected.
    pub reason: String,
}

/// One expert's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    bank: &'a Bank,
    expert: u32,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The expert.
    #[must_use]
    pub fn expert(&self) -> u32 {
        self.expert
    }

    /// Checks the header against the bank: after this every matrix lies where the bank says.
    ///
    /// # Errors
    /// The first field that is not as it must be.
    pub fn check_header(&self) -> std::result::Result<(), RecordFault> {
        let bank = self.bank;
        let [gate, up, down] = bank.matrices;
        let half = |at: u64| u64::from(u16::from_le_bytes(self.array(at)));
        let word = |at: u64| u64::from(u32::from_le_bytes(self.array(at)));
        let format = u64::from(self.array::<1>(8)[0]);
        // Two-stage records are written with the number of three-stage ones.
        let is_known = match bank.code {
            VqCode::Vq4p => format == 8,
            VqCode::Vq3r | VqCode::Vq2r => matches!(format, 4 | 5),
        };
        if word(0) == u64::from(RECORD_MAGIC) && !is_known {
            let reason = format!("fmt {format} is not that of {}", bank.code.name());
            return Err(RecordFault { at: 8, reason });
        }
        let blocks = bank.record_bytes / RECORD_ALIGN;
        let fields = [
            (0, "magic", word(0), RECORD_MAGIC.into()),
            (4, "layer", half(4), bank.layer.into()),
            (6, "expert_id", half(6), self.expert.into()),
            (10, "codebook_id", half(10), bank.codebook_base.into()),
            (12, "lowrank_id", half(12), 0),
            (16, "rec_4k_blocks", word(16), blocks),
            (20, "gate_off", word(20), gate.indices),
            (24, "up_off", word(24), up.indices),
            (28, "down_off", word(28), down.indices),
            (32, "chan_corr_off", word(32), gate.scales),
        ];
        match fields.into_iter().find(|(_, _, found, expected)| found != expected) {
            None => Ok(()),
            Some((at, name, found, expected)) => {
                Err(RecordFault { at, reason: format!("{name} is {found:#x}, expected {expected:#x}") })
            }
        }
    }

    /// Compares the CRC-32 of indices and scales with the header's.
    ///
    /// # Errors
    /// If they differ.
    pub fn check_crc(&self) -> std::result::Result<(), RecordFault> {
        let stored = u32::from_le_bytes(self.array(36));
        let found = crc32fast::hash(self.part(RECORD_HEADER, self.bank.used_bytes - RECORD_HEADER));
        if stored == found {
            return Ok(());
        }
        let reason = format!("CRC-32 {found:#010x}, the header says {stored:#010x}");
        Err(RecordFault { at: RECORD_HEADER, reason })
    }

    /// Checks that every row scale is a finite number.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check_scales(&self) -> std::result::Result<(), RecordFault> {
        let start = self.bank.matrices[0].scales;
        let scales = self.part(start, self.bank.used_bytes - start).as_chunks::<2>().0;
        match scales.iter().position(|it| !half::f16::from_le_bytes(*it).is_finite()) {
            None => Ok(()),
            Some(at) => {
                Err(RecordFault { at: start + 2 * at as u64, reason: "a row scale is not finite".to_owned() })
            }
        }
    }

    /// Checks that nothing but zeros follows the scales.
    ///
    /// # Errors
    /// The first other byte.
    pub fn check_padding(&self) -> std::result::Result<(), RecordFault> {
        let start = self.bank.used_bytes;
        match self.part(start, self.bank.record_bytes - start).iter().position(|it| *it != 0) {
            None => Ok(()),
            Some(at) => {
                Err(RecordFault { at: start + at as u64, reason: "the padding is not zero".to_owned() })
            }
        }
    }

    /// Decodes `row` of `kind` into `out`: scale · Σ centroids, the sum in f64, rounded once. `books` are those of
    /// `Container::books`. Indices of a code with 256 entries cannot be out of range, nor can six bits with 64.
    ///
    /// # Panics
    /// If there is no such row, or `out` or `books` has another length.
    pub fn decode_row(&self, kind: MatrixKind, row: u32, books: &[f32], out: &mut [f32]) {
        let (code, matrix) = (self.bank.code, self.bank.matrix(kind));
        assert!(row < matrix.rows && out.len() == matrix.cols as usize, "a row of this matrix");
        assert_eq!(books.len(), code.books_len(), "the books of this matrix");
        let scale = half::f16::from_le_bytes(self.array(matrix.scales + 2 * u64::from(row))).to_f64();
        for (position, weights) in (0..).zip(out.as_chunks_mut::<VEC_DIM>().0) {
            let at = code.index_at(row.into(), position, matrix.cols.into()).expect("a position of this row");
            let indices = code.unpack(self.part(matrix.indices + at, code.position_bytes() as u64));
            let mut sums = [0.0; VEC_DIM];
            for (stage, index) in books.chunks_exact(code.entries() * VEC_DIM).zip(indices) {
                let centroid = &stage[usize::from(index) * VEC_DIM..][..VEC_DIM];
                sums.iter_mut().zip(centroid).for_each(|(sum, c)| *sum += f64::from(*c));
            }
            #[expect(clippy::cast_possible_truncation, reason = "rounding once is the definition")]
            weights.iter_mut().zip(sums).for_each(|(w, sum)| *w = (scale * sum) as f32);
        }
    }

    fn part(&self, at: u64, len: u64) -> &'a [u8] {
        let index = |at: u64| usize::try_from(at).expect("inside a record");
        &self.bytes[index(at)..index(at + len)]
    }

    fn array<const N: usize>(&self, at: u64) -> [u8; N] {
        self.part(at, N as u64).try_into().expect("as long as asked for")
    }
}
