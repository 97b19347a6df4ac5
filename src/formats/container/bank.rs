//! experts-L{n}.bin: one record an expert, all of one size, and what a record must be.
//!
//! A record is a header of 48 bytes, the index streams of gate, up and down without gaps, the f16 scales of their rows in the
//! same order, and zeros up to a multiple of 4096. So all offsets follow from the geometry; a record that states others is
//! refused, and none of them is ever used to find bytes.
//!
//! Invariants: a [`Record`] is whole, and one whose header was checked has its matrices where [`Bank`] says.

use std::ops::Range;

use serde::Deserialize;
use waste_plan::record::{BLOCK, Expected, Fault, HEADER, bank_sha256};

use super::geometry::Geometry;
use super::record::Record;
use super::{VEC_DIM, VqCode};
use crate::formats::error::{FormatError, Item, Result};
use crate::formats::source::Source;

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
        let mut at = HEADER as u64;
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
        let expected = used_bytes.next_multiple_of(BLOCK);
        if !entry.bytes.is_multiple_of(entry.experts) || record_bytes != expected {
            let found = format!("{} bytes for {} experts", entry.bytes, entry.experts);
            return Err(bad(format!("{found}, expected {expected} bytes each")));
        }
        let end = source.size();
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

    /// Bytes of one record, a multiple of [`BLOCK`].
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
        Record::new(self, expert, &bytes[index(at)..index(at + self.record_bytes)])
    }

    /// The [`bank_sha256`] of its records in `source`, its file; `None` if that is not there.
    #[must_use]
    pub fn headers_sha256(&self, source: &Source) -> Option<String> {
        let header = |expert: u32| {
            let at = usize::try_from(u64::from(expert) * self.record_bytes).ok();
            at.and_then(|it| source.bytes().get(it..)?.first_chunk()).copied().ok_or(())
        };
        bank_sha256(self.experts, header).ok()
    }

    /// What the header of the record of `expert` must say.
    pub(super) fn header_of(&self, expert: u32) -> Expected {
        Expected {
            layer: self.layer,
            expert,
            codebooks: self.codebook_base,
            is_packed: self.code == VqCode::Vq4p,
            bytes: self.record_bytes,
            indices: self.matrices.map(|it| it.indices),
            scales: self.matrices[0].scales,
        }
    }

    /// A record that was read from elsewhere; `None` if it has not the length of one.
    #[must_use]
    pub fn record_in<'a>(&'a self, expert: u32, bytes: &'a [u8]) -> Option<Record<'a>> {
        (bytes.len() as u64 == self.record_bytes).then(|| Record::new(self, expert, bytes))
    }

    pub(super) fn blame(&self, source: &Source, expert: u32, fault: Fault) -> FormatError {
        FormatError::Malformed {
            file: source.name(),
            item: Item::Expert { expert, layer: self.layer },
            offset: u64::from(expert) * self.record_bytes + fault.at,
            reason: fault.reason,
        }
    }
}
