//! One expert's record: its header checked against the bank, its checksum, its rows decoded.
//!
//! No offset that a record states is ever used to find bytes: a header that was checked states what the bank says.

use waste_plan::record::{Fault, HEADER, fault, stored_crc};

use super::VEC_DIM;
use super::bank::{Bank, MatrixKind};

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
    pub fn check_header(&self) -> Result<(), Fault> {
        fault(self.bytes, &self.bank.header_of(self.expert)).map_or(Ok(()), Err)
    }

    /// Compares the CRC-32 of indices and scales with the header's.
    ///
    /// # Errors
    /// If they differ.
    pub fn check_crc(&self) -> Result<(), Fault> {
        let stored = stored_crc(self.bytes);
        let start = HEADER as u64;
        let found = crc32fast::hash(self.part(start, self.bank.used_bytes() - start));
        if stored == found {
            return Ok(());
        }
        let reason = format!("CRC-32 {found:#010x}, the header says {stored:#010x}");
        Err(Fault { at: start, reason })
    }

    /// Checks that every row scale is a finite number.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check_scales(&self) -> Result<(), Fault> {
        let start = self.bank.matrix(MatrixKind::Gate).scales;
        let scales = self.part(start, self.bank.used_bytes() - start).as_chunks::<2>().0;
        match scales.iter().position(|it| !half::f16::from_le_bytes(*it).is_finite()) {
            None => Ok(()),
            Some(at) => {
                Err(Fault { at: start + 2 * at as u64, reason: "a row scale is not finite".to_owned() })
            }
        }
    }

    /// Checks that nothing but zeros follows the scales.
    ///
    /// # Errors
    /// The first other byte.
    pub fn check_padding(&self) -> Result<(), Fault> {
        let start = self.bank.used_bytes();
        match self.part(start, self.bank.record_bytes() - start).iter().position(|it| *it != 0) {
            None => Ok(()),
            Some(at) => Err(Fault { at: start + at as u64, reason: "the padding is not zero".to_owned() }),
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
