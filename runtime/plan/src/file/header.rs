//! Header and section table of a plan file, to and from bytes.

use std::ops::Range;

use crate::schema::VERSION;

use super::{FileError, OLDEST, SECTION_ALIGN};

pub(super) const HEADER_BYTES: usize = 64;
pub(super) const ENTRY_BYTES: usize = 32;
const MAGIC: [u8; 4] = *b"WPLN";
const MAX_SECTIONS: u32 = 64;
const REQUIRED: u32 = 1;

/// The fixed part at the start.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u32,
    table_at: u64,
    n_sections: u32,
    table_crc: u32,
}

/// One row of the section table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: [u8; 4],
    pub(super) required: bool,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// CRC-32C of the bytes; 0 for weights.
    pub(super) crc: u32,
}

impl Header {
    /// Reads and checks the header of a whole file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, FileError> {
        let start = &bytes[..bytes.len().min(MAGIC.len())];
        if start != MAGIC {
            return Err(FileError::Magic { found: start.escape_ascii().to_string() });
        }
        let short = || FileError::Length { found: bytes.len() as u64, expected: HEADER_BYTES as u64 };
        let head: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or_else(short)?;
        // The version comes first: an older or newer file may have another header after it.
        let version = u32_at(head, 4);
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(FileError::Version { found: version });
        }
        check_crc("header", 0, &head[..60], u32_at(head, 60))?;
        let expected = u64_at(head, 24);
        if expected != bytes.len() as u64 {
            return Err(FileError::Length { found: bytes.len() as u64, expected });
        }
        Ok(Self {
            version,
            table_at: u64_at(head, 8),
            n_sections: u32_at(head, 16),
            table_crc: u32_at(head, 20),
        })
    }

    /// Reads and checks the section table: all sections inside the file, aligned, ascending, apart.
    pub(super) fn sections(&self, bytes: &[u8]) -> Result<Vec<Entry>, FileError> {
        let misplaced = |reason: String| FileError::Layout {
            what: "section table".to_owned(),
            offset: self.table_at,
            reason,
        };
        if self.n_sections > MAX_SECTIONS {
            let reason = format!("{} sections, at most {MAX_SECTIONS} are allowed", self.n_sections);
            return Err(misplaced(reason));
        }
        let len = self.n_sections as usize * ENTRY_BYTES;
        let table = usize::try_from(self.table_at).ok().filter(|at| *at >= HEADER_BYTES);
        let table = table.and_then(|at| bytes.get(at..)?.get(..len));
        let table = table.ok_or_else(|| misplaced(format!("{len} bytes from there are not in the file")))?;
        check_crc("section table", self.table_at, table, self.table_crc)?;
        let entries: Vec<Entry> =
            table.as_chunks::<ENTRY_BYTES>().0.iter().map(Entry::parse).collect::<Result<_, _>>()?;
        let mut free_from = self.table_at + len as u64;
        for (idx, it) in entries.iter().enumerate() {
            free_from = it.check_place(free_from, bytes.len() as u64)?;
            if entries[..idx].iter().any(|other| other.kind == it.kind) {
                return Err(it.misplaced("occurs twice".to_owned()));
            }
        }
        Ok(entries)
    }
}

impl Entry {
    fn parse(row: &[u8; ENTRY_BYTES]) -> Result<Self, FileError> {
        let flags = u32_at(row, 4);
        let it = Self {
            kind: [row[0], row[1], row[2], row[3]],
            required: flags & REQUIRED != 0,
            offset: u64_at(row, 8),
            len: u64_at(row, 16),
            crc: u32_at(row, 24),
        };
        if flags & !REQUIRED != 0 {
            return Err(it.misplaced(format!("flags {flags:#x}, this build knows only {REQUIRED:#x}")));
        }
        Ok(it)
    }

    /// Checks that the section starts at or after `free_from` and ends within `end`; returns where it ends.
    fn check_place(&self, free_from: u64, end: u64) -> Result<u64, FileError> {
        if !self.offset.is_multiple_of(SECTION_ALIGN) {
            return Err(self.misplaced(format!("not at a multiple of {SECTION_ALIGN}")));
        }
        if self.offset < free_from {
            return Err(self.misplaced(format!("overlaps what ends at {free_from:#x}")));
        }
        let last = self.offset.checked_add(self.len).filter(|it| *it <= end);
        last.ok_or_else(|| self.misplaced(format!("needs {} bytes, the file ends at {end:#x}", self.len)))
    }

    /// The kind as error messages show it.
    pub(super) fn name(&self) -> String {
        self.kind.escape_ascii().to_string().trim_end().to_owned()
    }

    /// An error about this section.
    pub(super) fn misplaced(&self, reason: String) -> FileError {
        FileError::Layout { what: format!("section '{}'", self.name()), offset: self.offset, reason }
    }

    /// Where the section lies in the bytes it was checked against.
    pub(super) fn range(&self) -> Range<usize> {
        let at = |offset: u64| usize::try_from(offset).expect("checked against bytes in memory");
        at(self.offset)..at(self.offset + self.len)
    }

    /// The section's bytes, if they have the CRC of the table.
    pub(super) fn checked<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], FileError> {
        let bytes = &bytes[self.range()];
        check_crc(&format!("section '{}'", self.name()), self.offset, bytes, self.crc)?;
        Ok(bytes)
    }
}

/// Header and table of a file of `file_bytes` with `sections`; the table follows the header.
pub(super) fn encode(sections: &[Entry], file_bytes: u64) -> Vec<u8> {
    let mut table = Vec::with_capacity(sections.len() * ENTRY_BYTES);
    for it in sections {
        table.extend(it.kind);
        table.extend(u32::from(it.required).to_le_bytes());
        table.extend(it.offset.to_le_bytes());
        table.extend(it.len.to_le_bytes());
        table.extend(it.crc.to_le_bytes());
        table.extend([0; 4]);
    }
    let n_sections = u32::try_from(sections.len()).expect("a handful of sections");
    let mut out = Vec::with_capacity(HEADER_BYTES + table.len());
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((HEADER_BYTES as u64).to_le_bytes());
    out.extend(n_sections.to_le_bytes());
    out.extend(crc32c::crc32c(&table).to_le_bytes());
    out.extend(file_bytes.to_le_bytes());
    out.resize(60, 0);
    out.extend(crc32c::crc32c(&out).to_le_bytes());
    out.extend(table);
    out
}

fn check_crc(what: &str, offset: u64, bytes: &[u8], expected: u32) -> Result<(), FileError> {
    let found = crc32c::crc32c(bytes);
    if found == expected {
        return Ok(());
    }
    Err(FileError::Checksum { what: what.to_owned(), offset, found, expected })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
