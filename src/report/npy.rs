//! Arrays for NumPy: written as version 1.0 of its file format, f32 in C order, row by row; read likewise, or whole as `npz` does.
//!
//! Format: numpy.lib.format, "Format Version 1.0": magic, version, header length u16, an ASCII Python dictionary padded with
//! spaces so that data begin at a multiple of 64 and ended by a line feed. Versions 2.0 and 3.0, which are read too, have a length of u32.

use std::fmt;
use std::io::{self, Read, Write};

use crate::formats::shown;

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

/// The element type of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Element {
    /// Little-endian floating-point numbers of so many bytes: 2, 4 or 8.
    Float(u8),
    /// Little-endian integers of so many bytes, 4 or 8, with their sign.
    Signed(u8),
    /// As [`Element::Signed`], without one.
    Unsigned(u8),
    /// What is not read, as the header writes it.
    Other(String),
}

impl Element {
    fn of(descr: &str) -> Self {
        match descr {
            "<f2" => Self::Float(2),
            "<f4" | "=f4" => Self::Float(4),
            "<f8" => Self::Float(8),
            "<i4" => Self::Signed(4),
            "<i8" => Self::Signed(8),
            "<u4" => Self::Unsigned(4),
            "<u8" => Self::Unsigned(8),
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(n) => write!(f, "<f{n}"),
            Self::Signed(n) => write!(f, "<i{n}"),
            Self::Unsigned(n) => write!(f, "<u{n}"),
            Self::Other(name) => f.write_str(&shown(name)),
        }
    }
}

/// What the header of an array states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its elements.
    pub element: Element,
    /// Whether the last index runs fastest.
    pub is_rows_first: bool,
    /// Its size in each direction.
    pub shape: Vec<u64>,
}

/// Reads all of `bytes`; an end before that is said in words.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<()> {
    input.read_exact(bytes).map_err(|err| match err.kind() {
        io::ErrorKind::UnexpectedEof => invalid("ends before its array does".into()),
        _ => err,
    })
}

impl Header {
    /// Reads magic, version, length and dictionary: all that stands before the data.
    ///
    /// # Errors
    /// Those of reading, and if it is no array.
    pub fn read(input: &mut impl Read) -> io::Result<Self> {
        let mut fixed = [0; 8];
        fill(input, &mut fixed)?;
        let length = match fixed {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _] => {
                let mut bytes = [0; 2];
                fill(input, &mut bytes)?;
                u32::from(u16::from_le_bytes(bytes))
            }
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _] => {
                let mut bytes = [0; 4];
                fill(input, &mut bytes)?;
                u32::from_le_bytes(bytes)
            }
            _ => return Err(invalid("no NumPy array".into())),
        };
        if MOST_HEADER < length {
            return Err(invalid(format!("a header of {length} bytes, at most {MOST_HEADER} are read")));
        }
        let mut dict = vec![0; length as usize];
        fill(input, &mut dict)?;
        Self::parse(&dict)
    }

    /// What a dictionary of exactly `descr`, `fortran_order` and `shape` states.
    fn parse(dict: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(dict).map_err(|_| invalid("a header that is no text".into()))?;
        let inner = text.trim().strip_prefix('{').and_then(|it| it.strip_suffix('}'));
        let mut rest = inner.ok_or_else(|| invalid("a header that is no dictionary".into()))?.trim();
        let (mut element, mut is_rows_first, mut shape) = (None, None, None);
        while !rest.is_empty() {
            let (key, after) =
                rest.split_once(':').ok_or_else(|| invalid("a header without values".into()))?;
            let after = after.trim_start();
            // The only value with a comma inside is in parentheses.
            let end = if after.starts_with('(') { after.find(')').map(|it| it + 1) } else { after.find(',') };
            let (value, after) = after.split_at(end.unwrap_or(after.len()));
            match (key.trim().trim_matches(['\'', '"']), value.trim()) {
                ("descr", it) => element = Some(Element::of(it.trim_matches(['\'', '"']))),
                ("fortran_order", it) => is_rows_first = Some(it == "False"),
                ("shape", it) => shape = sizes(it),
                (key, _) => return Err(invalid(format!("a header with '{}'", shown(key)))),
            }
            rest = after.trim_start().trim_start_matches(',').trim();
        }
        match (element, is_rows_first, shape) {
            (Some(element), Some(is_rows_first), Some(shape)) => Ok(Self { element, is_rows_first, shape }),
            _ => Err(invalid("a header without 'descr', 'fortran_order' or 'shape'".into())),
        }
    }
}

impl fmt::Display for Header {
    /// `<f4 (40, 272)`, as NumPy writes shapes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.is_rows_first { "" } else { " in Fortran order" };
        write!(f, "{} {}{order}", self.element, shape_text(&self.shape))
    }
}

/// A shape as NumPy writes it: `(40, 272)`, `(7,)`.
#[must_use]
pub fn shape_text(shape: &[u64]) -> String {
    match shape {
        [one] => format!("({one},)"),
        all => format!("({})", all.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// The numbers in a pair of parentheses.
fn sizes(text: &str) -> Option<Vec<u64>> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    inner.split(',').map(str::trim).filter(|it| !it.is_empty()).map(|it| it.parse().ok()).collect()
}

/// Reads `f32[rows, cols]` row by row.
#[derive(Debug)]
pub struct NpyReader<R> {
    input: R,
    /// Rows still to come.
    left: u64,
    bytes: Vec<u8>,
    row: Vec<f32>,
}

impl<R: Read> NpyReader<R> {
    /// Reads the header of an array that must be `<f4` of `rows` × `cols` in C order.
    ///
    /// # Errors
    /// Those of reading, and if it is no such array.
    pub fn new(mut input: R, rows: u64, cols: usize) -> io::Result<Self> {
        let found = Header::read(&mut input)?;
        let expected =
            Header { element: Element::Float(4), is_rows_first: true, shape: vec![rows, cols as u64] };
        if found != expected {
            return Err(invalid(format!("an array {found}, expected {expected}")));
        }
        Ok(Self { input, left: rows, bytes: vec![0; cols * 4], row: vec![0.0; cols] })
    }

    /// The next row; `None` after the last.
    ///
    /// # Errors
    /// Those of reading, and if the file ends early.
    pub fn next_row(&mut self) -> io::Result<Option<&[f32]>> {
        if self.left == 0 {
            return Ok(None);
        }
        fill(&mut self.input, &mut self.bytes)?;
        self.left -= 1;
        let (words, _) = self.bytes.as_chunks::<4>();
        self.row.iter_mut().zip(words).for_each(|(to, it)| *to = f32::from_le_bytes(*it));
        Ok(Some(&self.row))
    }
}

/// Bytes of the longest header that is read; NumPy's own for a matrix has 118.
const MOST_HEADER: u32 = 1 << 16;

pub(super) fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
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

    #[test]
    fn what_is_written_is_read() {
        let mut npy = NpyWriter::new(Vec::new(), 2, 3).unwrap();
        npy.row(&[1.0, -2.0, 0.5]).unwrap();
        npy.row(&[0.0, f32::INFINITY, 3.0]).unwrap();
        let bytes = npy.finish().unwrap();
        let mut reader = NpyReader::new(&bytes[..], 2, 3).unwrap();
        assert_eq!(reader.next_row().unwrap(), Some(&[1.0, -2.0, 0.5][..]));
        assert_eq!(reader.next_row().unwrap(), Some(&[0.0, f32::INFINITY, 3.0][..]));
        assert_eq!(reader.next_row().unwrap(), None);
        for (rows, cols) in [(2, 4), (3, 3)] {
            let err = NpyReader::new(&bytes[..], rows, cols).unwrap_err().to_string();
            assert_eq!(err, format!("an array <f4 (2, 3), expected <f4 ({rows}, {cols})"));
        }
        for cut in [0, 5, 9, 60, bytes.len() - 1] {
            let read = NpyReader::new(&bytes[..cut], 2, 3).and_then(|mut it| {
                while it.next_row()?.is_some() {}
                Ok(())
            });
            assert!(read.is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn headers_come_in_any_order_and_nothing_else_is_taken() {
        let good = [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 3), }  \n",
            "{\"shape\": (7,3), 'fortran_order':False,'descr':'<f4'}",
        ];
        let parsed = |it: &str| Header::parse(it.as_bytes()).map(|it| it.to_string());
        assert!(good.iter().all(|it| parsed(it).is_ok_and(|it| it == "<f4 (7, 3)")));
        for (descr, order, shape, want) in [
            ("<f2", "False", "(7,)", "<f2 (7,)"),
            ("<i8", "True", "(1, 7, 3)", "<i8 (1, 7, 3) in Fortran order"),
            (">f4", "False", "()", ">f4 ()"),
        ] {
            let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
            assert_eq!(parsed(&text).unwrap(), want);
        }
        let bad = [
            "",
            "{}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-7, 3), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 3), 'x': 1}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 3",
            "{'descr' '<f4'}",
        ];
        for bad in bad {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        let mut long = b"\x93NUMPY\x02\x00".to_vec();
        long.extend(u32::MAX.to_le_bytes());
        assert!(NpyReader::new(&long[..], 1, 3).is_err(), "a length that nobody has");
    }
}
