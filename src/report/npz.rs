//! Archives of NumPy arrays: what `numpy.savez` and `numpy.savez_compressed` write.
//!
//! Format: a ZIP archive whose members are arrays in NumPy's own format, `NAME.npy` for the array NAME.
//!
//! Invariants: headers are read when an archive is opened, data when they are asked for; memory grows with what is read, whatever a header
//! claims.
//!
//! Deliberately absent: pickled objects, and element types that neither ids nor hidden states have.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use half::f16;
use zip::ZipArchive;

use super::npy::{Element, Header, invalid};

/// An opened archive.
#[derive(Debug)]
pub struct Npz {
    zip: ZipArchive<BufReader<File>>,
    headers: BTreeMap<String, Header>,
}

impl Npz {
    /// Opens the archive at `path` and reads the header of every array.
    ///
    /// # Errors
    /// Those of reading, and if it is no archive of arrays.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut zip = ZipArchive::new(BufReader::new(File::open(path)?))?;
        let mut headers = BTreeMap::new();
        for index in 0..zip.len() {
            let mut member = zip.by_index(index)?;
            if let Some(name) = member.name()?.strip_suffix(".npy").map(str::to_owned) {
                let header = Header::read(&mut member).map_err(|err| about(&name, &err))?;
                headers.insert(name, header);
            }
        }
        Ok(Self { zip, headers })
    }

    /// Names and headers, sorted by name.
    #[must_use]
    pub const fn arrays(&self) -> &BTreeMap<String, Header> {
        &self.headers
    }

    /// The floating-point numbers of the array `name`, row by row.
    ///
    /// # Errors
    /// Those of reading, and if there is no such array, it holds something else, or ends early.
    pub fn floats(&mut self, name: &str) -> io::Result<Vec<f64>> {
        let (header, bytes) = self.read(name)?;
        match header.element {
            Element::Float(2) => Ok(numbers(&bytes, |it| f16::from_le_bytes(it).into())),
            Element::Float(4) => Ok(numbers(&bytes, |it| f32::from_le_bytes(it).into())),
            Element::Float(8) => Ok(numbers(&bytes, f64::from_le_bytes)),
            other => Err(about(name, &format!("elements {other}, expected <f2, <f4 or <f8"))),
        }
    }

    /// The integers of the array `name`; those above the largest `i64` become it.
    ///
    /// # Errors
    /// As [`Self::floats`].
    pub fn integers(&mut self, name: &str) -> io::Result<Vec<i64>> {
        let (header, bytes) = self.read(name)?;
        match header.element {
            Element::Signed(4) => Ok(numbers(&bytes, |it| i32::from_le_bytes(it).into())),
            Element::Signed(8) => Ok(numbers(&bytes, i64::from_le_bytes)),
            Element::Unsigned(4) => Ok(numbers(&bytes, |it| u32::from_le_bytes(it).into())),
            Element::Unsigned(8) => {
                Ok(numbers(&bytes, |it| i64::try_from(u64::from_le_bytes(it)).unwrap_or(i64::MAX)))
            }
            other => Err(about(name, &format!("elements {other}, expected <i4, <i8, <u4 or <u8"))),
        }
    }

    /// The header and the data of an array; of data in Fortran order only those that have one in any case.
    fn read(&mut self, name: &str) -> io::Result<(Header, Vec<u8>)> {
        let mut member = self.zip.by_name(&format!("{name}.npy"))?;
        let header = Header::read(&mut member).map_err(|err| about(name, &err))?;
        let is_vector = header.shape.iter().filter(|it| **it != 1).count() < 2;
        if !header.is_rows_first && !is_vector {
            return Err(about(name, &"is in Fortran order: numpy.ascontiguousarray makes it C order"));
        }
        let size = match header.element {
            Element::Float(it) | Element::Signed(it) | Element::Unsigned(it) => u64::from(it),
            Element::Other(_) => 0,
        };
        let length = header.shape.iter().try_fold(size, |n, it| n.checked_mul(*it));
        let length = length.ok_or_else(|| about(name, &"is larger than any memory"))?;
        let mut bytes = Vec::new();
        member.take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(about(name, &format!("ends after {} of {length} bytes", bytes.len())));
        }
        Ok((header, bytes))
    }
}

/// An error in the array `name`.
fn about(name: &str, err: &dyn std::fmt::Display) -> io::Error {
    invalid(format!("array '{}': {err}", crate::formats::shown(name)))
}

fn numbers<const N: usize, T>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|it| number(*it)).collect()
}
