//! codebooks.bin: records of one size, each a header and `[entries][8]` f16 centroids.
//!
//! The books of a bank with base b: gate's stages from b, up's from b + stages, down's from b + 2·stages.
//!
//! Invariants: the books of a bank are there, their headers say what they are, and every centroid is finite. Records that no
//! bank uses may be anything (a converter that was resumed leaves gaps).

use std::ops::Range;

use super::{VEC_DIM, VqCode};
use crate::formats::error::{FormatError, Item, Result};
use crate::formats::source::Source;

/// "WCBK", little-endian.
pub const BOOK_MAGIC: u32 = 0x4b42_4357;

/// Bytes before the centroids.
pub const BOOK_HEADER: u64 = 16;

/// The format byte of every codebook.
pub const BOOK_FORMAT: u8 = 4;

/// Where codebooks are in their file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codebooks {
    code: VqCode,
    count: u64,
}

impl Codebooks {
    /// As many whole books as `source` holds.
    pub(super) fn new(code: VqCode, source: &Source) -> Self {
        Self { code, count: source.size() / book_bytes(code) }
    }

    pub(super) fn code(self) -> VqCode {
        self.code
    }

    /// Where book `index` starts, header included.
    pub(super) fn offset(self, index: u32) -> u64 {
        u64::from(index) * book_bytes(self.code)
    }

    /// Checks `count` books from `base`: of a file that is not there, only that it has room for them.
    pub(super) fn check(self, source: &Source, base: u32, count: u32) -> Result<()> {
        let last = u64::from(base) + u64::from(count);
        if last > self.count {
            return Err(FormatError::Truncated {
                file: source.name(),
                item: Item::Codebook(base),
                offset: self.offset(base),
                need: u64::from(count) * book_bytes(self.code),
                end: source.size(),
            });
        }
        if source.is_absent() {
            return Ok(());
        }
        for index in base..base + count {
            let offset = self.offset(index);
            self.check_one(source.bytes(), index).map_err(|(at, reason)| FormatError::Malformed {
                file: source.name(),
                item: Item::Codebook(index),
                offset: offset + at,
                reason,
            })?;
        }
        Ok(())
    }

    fn check_one(self, bytes: &[u8], index: u32) -> std::result::Result<(), (u64, String)> {
        let book = self.bytes(bytes, index);
        let word = |at: usize| u32::from_le_bytes([book[at], book[at + 1], book[at + 2], book[at + 3]]);
        let (magic, id, entries) = (word(0), word(4) & 0xffff, word(8));
        let expect = |at: u64, what: &str, found: u32, expected: u32| {
            if found == expected {
                Ok(())
            } else {
                Err((at, format!("{what} {found:#x}, expected {expected:#x}")))
            }
        };
        expect(0, "magic", magic, BOOK_MAGIC)?;
        expect(4, "id", id, index & 0xffff)?;
        expect(6, "format", book[6].into(), BOOK_FORMAT.into())?;
        expect(7, "vector length", book[7].into(), VEC_DIM as u32)?;
        expect(8, "entries", entries, self.code.entries() as u32)?;
        let centroids = book[header()..].as_chunks::<2>().0;
        match centroids.iter().position(|it| !half::f16::from_le_bytes(*it).is_finite()) {
            None => Ok(()),
            Some(at) => Err((BOOK_HEADER + 2 * at as u64, "a centroid is not finite".to_owned())),
        }
    }

    /// The centroids of `books`, which were checked, one after the other.
    pub(super) fn decode(self, bytes: &[u8], books: Range<u32>) -> Vec<f32> {
        let halves = books.flat_map(|it| self.bytes(bytes, it)[header()..].as_chunks::<2>().0);
        halves.map(|it| half::f16::from_le_bytes(*it).to_f32()).collect()
    }

    fn bytes(self, all: &[u8], index: u32) -> &[u8] {
        let start = usize::try_from(self.offset(index)).expect("inside a mapped file");
        &all[start..start + usize::try_from(book_bytes(self.code)).expect("a few kilobytes")]
    }
}

const fn header() -> usize {
    BOOK_HEADER as usize
}

/// Bytes of one book, header included.
pub(super) const fn book_bytes(code: VqCode) -> u64 {
    BOOK_HEADER + (code.entries() * VEC_DIM * 2) as u64
}
