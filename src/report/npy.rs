//! Arrays for NumPy: version 1.0 of its file format, f32 in C order, written as rows come.
//!
//! Format: numpy.lib.format, "Format Version 1.0": magic, version, header length u16, an ASCII Python dictionary padded with
//! spaces so that data begin at a multiple of 64 and ended by a line feed.

use std::io::{self, Write};

/// Writes `f32[rows, cols]` row by row.
#[derive(Debug)]
pub struct NpyWriter<W> {
    out: W,
    cols: usize,
    /// Rows still to come.
    left: u64,
    bytes: Vec<u8>,
}

impl<W: Write> NpyWriter<W> {
    /// Writes the header of an array of `rows` × `cols`.
    ///
    /// # Errors
    /// Those of writing.
    pub fn new(mut out: W, rows: u64, cols: usize) -> io::Result<Self> {
        out.write_all(&header(rows, cols)?)?;
        Ok(Self { out, cols, left: rows, bytes: Vec::with_capacity(cols * 4) })
    }

    /// Writes the next row.
    ///
    /// # Errors
    /// Those of writing, and if the row is one too many or of another length.
    pub fn row(&mut self, row: &[f32]) -> io::Result<()> {
        if row.len() != self.cols || self.left == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a row outside the announced shape"));
        }
        self.left -= 1;
        self.bytes.clear();
        self.bytes.extend(row.iter().flat_map(|it| it.to_le_bytes()));
        self.out.write_all(&self.bytes)
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// Those of writing, and if rows are missing.
    pub fn finish(mut self) -> io::Result<W> {
        if self.left != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "fewer rows than announced"));
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Magic, version, length and dictionary.
fn header(rows: u64, cols: usize) -> io::Result<Vec<u8>> {
    const FIXED: usize = 10;
    let mut dict = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    let length = (FIXED + dict.len() + 1).next_multiple_of(64) - FIXED;
    dict.extend(std::iter::repeat_n(' ', length - dict.len() - 1));
    dict.push('\n');
    let length = u16::try_from(length).map_err(io::Error::other)?;
    let mut res = b"\x93NUMPY\x01\x00".to_vec();
    res.extend(length.to_le_bytes());
    res.extend(dict.bytes());
    Ok(res)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_bytes_are_those_that_numpy_writes() {
        let mut npy = NpyWriter::new(Vec::new(), 2, 3).unwrap();
        npy.row(&[1.0, -2.0, 0.5]).unwrap();
        npy.row(&[0.0, f32::INFINITY, 3.0]).unwrap();
        let bytes = npy.finish().unwrap();
        let (head, data) = bytes.split_at(128);
        assert_eq!(&head[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert!(head[10..].starts_with(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   "));
        assert!(head.ends_with(b" \n"));
        let floats: Vec<f32> =
            data.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect();
        assert_eq!(floats, [1.0, -2.0, 0.5, 0.0, f32::INFINITY, 3.0]);
    }

    #[test]
    fn the_announced_shape_is_kept() {
        let mut npy = NpyWriter::new(Vec::new(), 1, 2).unwrap();
        assert!(npy.row(&[1.0]).is_err());
        npy.row(&[1.0, 2.0]).unwrap();
        assert!(npy.row(&[1.0, 2.0]).is_err());
        assert!(NpyWriter::new(Vec::new(), 1, 2).unwrap().finish().is_err());
    }
}
