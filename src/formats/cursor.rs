//! A bounded little-endian reader over the start of a file.
//!
//! Invariants
//! - the position never passes the end of the bytes;
//! - no arithmetic on values from the file can wrap.

use super::error::{FormatError, Item, Result};

/// Reads forward through `bytes`, blaming `file` and the current item for what is wrong.
pub(crate) struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// What is being read; every error carries it.
    pub(crate) item: Item,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(file: &'a str, bytes: &'a [u8]) -> Self {
        Self { file, bytes, at: 0, item: Item::Header }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = usize::try_from(len).ok().and_then(|len| rest.get(..len)) else {
            return Err(FormatError::Truncated {
                file: self.file.to_owned(),
                item: self.item.clone(),
                offset: self.at as u64,
                need: len,
                end: self.bytes.len() as u64,
            });
        };
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N as u64)?;
        Ok(taken.try_into().expect("take returns the length asked for"))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string with its length before it, at most `cap` bytes, as UTF-8.
    pub(crate) fn name(&mut self, cap: u64) -> Result<&'a str> {
        let start = self.at;
        let len = self.u64()?;
        if len > cap {
            return Err(self.malformed(start, format!("a name of {len} bytes, at most {cap} are allowed")));
        }
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|_| self.malformed(start, "the name is not UTF-8"))
    }

    /// A count of things of at least `min_bytes` each, refused if the rest of the file cannot hold
    /// them or if it exceeds `cap`.
    pub(crate) fn count(&mut self, what: &str, min_bytes: u64, cap: u64) -> Result<usize> {
        let start = self.at;
        let count = self.u64()?;
        let room = self.remaining() as u64 / min_bytes;
        if count > room {
            let reason = format!("claims {count} {what}, the file has room for {room}");
            return Err(self.malformed(start, reason));
        }
        if count > cap {
            return Err(self.malformed(start, format!("claims {count} {what}, at most {cap} are allowed")));
        }
        Ok(usize::try_from(count).expect("bounded by the bytes in memory"))
    }

    pub(crate) fn malformed(&self, offset: usize, reason: impl Into<String>) -> FormatError {
        FormatError::Malformed {
            file: self.file.to_owned(),
            item: self.item.clone(),
            offset: offset as u64,
            reason: reason.into(),
        }
    }

    pub(crate) fn unsupported(
        &self,
        offset: usize,
        what: impl Into<String>,
        supported: &'static str,
    ) -> FormatError {
        FormatError::Unsupported {
            file: self.file.to_owned(),
            item: self.item.clone(),
            offset: offset as u64,
            what: what.into(),
            supported,
        }
    }
}
