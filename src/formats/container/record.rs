//! One expert's record: its header checked against the bank, its checksum, its rows decoded.
//!
//! No offset that a record states is ever used to find bytes: a header that was checked states what the bank says.

use super::bank::{Bank, MatrixKind};
use super::{VEC_DIM, VqCode};

/// "WEXP", little-endian.
pub const RECORD_MAGIC: u32 = 0x5058_4557;

/// Bytes before the first index stream.
pub const RECORD_HEADER: u64 = 48;

/// Records are whole multiples of this.
pub const RECORD_ALIGN: u64 = 4096;

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
    /// `bytes` are as long as a record of `bank`.
    pub(super) fn new(bank: &'a Bank, expert: u32, bytes: &'a [u8]) -> Self {
        Self { bank, expert, bytes }
    }

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
    pub fn check_header(&self) -> Result<(), RecordFault> {
        let bank = self.bank;
        let [gate, up, down] = MatrixKind::ALL.map(|it| bank.matrix(it));
        let half = |at: u64| u64::from(u16::from_le_bytes(self.array(at)));
        let word = |at: u64| u64::from(u32::from_le_bytes(self.array(at)));
        let format = u64::from(self.array::<1>(8)[0]);
        // Two-stage records are written with the number of three-stage ones.
        let is_known = match bank.code() {
            VqCode::Vq4p => format == 8,
            VqCode::Vq3r | VqCode::Vq2r => matches!(format, 4 | 5),
        };
        if word(0) == u64::from(RECORD_MAGIC) && !is_known {
            let reason = format!("fmt {format} is not that of {}", bank.code().name());
            return Err(RecordFault { at: 8, reason });
        }
        let blocks = bank.record_bytes() / RECORD_ALIGN;
        let fields = [
            (0, "magic", word(0), RECORD_MAGIC.into()),
            (4, "layer", half(4), bank.layer().into()),
            (6, "expert_id", half(6), self.expert.into()),
            (10, "codebook_id", half(10), bank.codebook_base().into()),
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
    pub fn check_crc(&self) -> Result<(), RecordFault> {
        let stored = u32::from_le_bytes(self.array(36));
        let found = crc32fast::hash(self.part(RECORD_HEADER, self.bank.used_bytes() - RECORD_HEADER));
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
    pub fn check_scales(&self) -> Result<(), RecordFault> {
        let start = self.bank.matrix(MatrixKind::Gate).scales;
        let scales = self.part(start, self.bank.used_bytes() - start).as_chunks::<2>().0;
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
    pub fn check_padding(&self) -> Result<(), RecordFault> {
        let start = self.bank.used_bytes();
        match self.part(start, self.bank.record_bytes() - start).iter().position(|it| *it != 0) {
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
        let (code, matrix) = (self.bank.code(), self.bank.matrix(kind));
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
