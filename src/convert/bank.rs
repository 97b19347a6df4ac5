//! experts-L{n}.bin and its codebooks, one layer after the other.
//!
//! The codebooks of a kind of matrix are fitted to vectors from at most 12 experts of the layer, drawn by the seed, in even
//! spread over their rows. Then every expert is coded, one at a time, its rows on all threads.

use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};

use half::f16;
use rayon::prelude::*;
use waste_plan::record::{BLOCK, Expected, HEADER, header};

use super::encode::{encode, normalise};
use super::kmeans;
use super::matrix::Matrix;
use super::nearest::{Book, Vector};
use super::part::Part;
use super::source::Checkpoint;
use super::{BankEntry, ConvertError, ConvertOptions, MatrixKind, Meter, Result, VqCode, index};
use crate::formats::container::{BOOK_FORMAT, BOOK_HEADER, BOOK_MAGIC, BankMatrix, VEC_DIM};
use crate::random::Xoshiro256PlusPlus;

/// Experts that a layer's codebooks are fitted to.
const SAMPLED_EXPERTS: u32 = 12;

/// Where things lie in every bank.
pub(super) struct Layout {
    code: VqCode,
    first_layer: u32,
    layers: u32,
    experts: u32,
    matrices: [BankMatrix; 3],
    used_bytes: u64,
}

impl Layout {
    /// # Errors
    /// If the experts cannot be coded, or there are more codebooks than records can number.
    pub(super) fn new(checkpoint: &Checkpoint<'_>, code: VqCode) -> Result<Self> {
        let refuse = |reason: String| ConvertError::Source { file: checkpoint.folder(), reason };
        let shape = checkpoint.shape();
        let (matrices, used_bytes) = shape.layout(code).ok_or_else(|| {
            let (rows, cols) = (shape.inter, shape.latent);
            refuse(format!("experts of {rows} × {cols} cannot be coded in vectors of {VEC_DIM}"))
        })?;
        let moe = checkpoint.moe_layers();
        let layout = Self {
            code,
            first_layer: moe.start,
            layers: moe.end - moe.start,
            experts: checkpoint.geometry.experts(),
            matrices,
            used_bytes,
        };
        if layout.layers * layout.books() > u32::from(u16::MAX) {
            let books = layout.layers * layout.books();
            return Err(refuse(format!("needs {books} codebooks, records number {}", u16::MAX)));
        }
        Ok(layout)
    }

    fn record_bytes(&self) -> u64 {
        self.used_bytes.next_multiple_of(BLOCK)
    }

    /// Codebooks of a layer.
    fn books(&self) -> u32 {
        3 * self.code.stages() as u32
    }

    fn book_bytes(&self) -> u64 {
        BOOK_HEADER + (self.code.entries() * VEC_DIM * 2) as u64
    }

    /// Bytes of codebooks.bin.
    pub(super) fn codebook_bytes(&self) -> u64 {
        u64::from(self.layers * self.books()) * self.book_bytes()
    }

    /// The manifest's row for `layer`.
    pub(super) fn entry(&self, layer: u32) -> BankEntry {
        BankEntry {
            file: format!("experts-L{layer}.bin"),
            experts: self.experts.into(),
            bytes: u64::from(self.experts) * self.record_bytes(),
            codebook_base: u64::from((layer - self.first_layer) * self.books()),
        }
    }

    /// Bytes of the checkpoint that become the bank of `layer`.
    pub(super) fn stored_bytes(&self, checkpoint: &Checkpoint<'_>, layer: u32) -> Result<u64> {
        let mut sum = 0;
        for expert in 0..self.experts {
            for kind in MatrixKind::ALL {
                sum += checkpoint.expert(layer, expert, kind)?.stored_bytes();
            }
        }
        Ok(sum)
    }
}

/// Fits the codebooks of `layer` and writes them and its bank.
///
/// # Errors
/// If a weight cannot be coded, or the files cannot be written.
pub(super) fn write(
    checkpoint: &Checkpoint<'_>,
    layout: &Layout,
    entry: &BankEntry,
    layer: u32,
    options: &ConvertOptions,
    part: &Part,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let mut books = Vec::new();
    for kind in MatrixKind::ALL {
        let mut rng = rng_of(options.seed, layer, kind);
        let mut sample = sample(checkpoint, layer, kind, options.sample, &mut rng)?;
        books.push(kmeans::fit(options.experts, &mut sample, &mut rng));
    }
    write_codebooks(layout, entry, &books, part)?;

    let (path, file) = part.create(&entry.file)?;
    let io = ConvertError::io(&path);
    let mut file = BufWriter::new(file);
    let mut record = Vec::new();
    for expert in 0..layout.experts {
        let matrices = MatrixKind::ALL.map(|kind| checkpoint.expert(layer, expert, kind));
        let matrices = matrices.into_iter().collect::<Result<Vec<_>>>()?;
        encode_record(layout, entry, layer, expert, &matrices, &books, &mut record)?;
        file.write_all(&record).map_err(io)?;
        meter.add(matrices.iter().map(Matrix::stored_bytes).sum());
    }
    file.flush().map_err(io)?;
    file.get_ref().sync_all().map_err(io)
}

/// A generator of its own for each fit, so that no fit depends on another.
fn rng_of(seed: u64, layer: u32, kind: MatrixKind) -> Xoshiro256PlusPlus {
    let place = u64::from(layer) << 8 | kind as u64;
    // SplitMix64's increment: seeds of different places are far apart.
    Xoshiro256PlusPlus::from_seed(seed ^ place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// At most `most` normalised vectors of `kind`, in even spread over the rows of the drawn experts.
fn sample(
    checkpoint: &Checkpoint<'_>,
    layer: u32,
    kind: MatrixKind,
    most: usize,
    rng: &mut Xoshiro256PlusPlus,
) -> Result<Vec<Vector>> {
    let mut pool: Vec<u32> = (0..checkpoint.geometry.experts()).collect();
    let count = pool.len().min(SAMPLED_EXPERTS as usize);
    for at in 0..count {
        let other = at + below(pool.len() - at, rng);
        pool.swap(at, other);
    }
    pool.truncate(count);
    pool.sort_unstable();
    let matrices =
        pool.into_iter().map(|expert| checkpoint.expert(layer, expert, kind)).collect::<Result<Vec<_>>>()?;
    let (rows, cols) = checkpoint.shape().shape(kind);
    let per_row = cols as usize / VEC_DIM;
    let all = matrices.len() * rows as usize * per_row;
    let picks = spread(all, most, rng);
    let of_row = |row: usize| {
        let picks = picks_in(&picks, row * per_row..(row + 1) * per_row);
        if picks.is_empty() {
            return Ok(Vec::new());
        }
        let mut weights = vec![0.0; cols as usize];
        normalise(&matrices[row / rows as usize], (row % rows as usize) as u64, &mut weights)?;
        let vectors = weights.as_chunks::<VEC_DIM>().0;
        Ok(picks.iter().map(|it| vectors[it - row * per_row]).collect())
    };
    let parts: Vec<Result<Vec<Vector>>> =
        (0..matrices.len() * rows as usize).into_par_iter().map(of_row).collect();
    Ok(parts.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

/// A number below `n`.
fn below(n: usize, rng: &mut Xoshiro256PlusPlus) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..n")]
    let at = (rng.next_f64() * n as f64) as usize;
    at.min(n.saturating_sub(1))
}

/// At most `most` numbers below `all`, ascending: one at a random place in each of as many equal parts.
fn spread(all: usize, most: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<usize> {
    if all <= most {
        return (0..all).collect();
    }
    let part = |it: usize| it * all / most;
    (0..most).map(|it| part(it) + below(part(it + 1) - part(it), rng)).collect()
}

/// Those of the ascending `picks` that lie in `range`.
fn picks_in(picks: &[usize], range: std::ops::Range<usize>) -> &[usize] {
    let at = |bound: usize| picks.partition_point(|it| *it < bound);
    &picks[at(range.start)..at(range.end)]
}

fn write_codebooks(layout: &Layout, entry: &BankEntry, books: &[Vec<Book>], part: &Part) -> Result<()> {
    let (path, mut file) = part.open_or_create("codebooks.bin")?;
    let io = ConvertError::io(&path);
    let mut bytes = Vec::new();
    for (id, book) in (entry.codebook_base as u16..).zip(books.iter().flatten()) {
        bytes.extend(BOOK_MAGIC.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes.extend([BOOK_FORMAT, VEC_DIM as u8]);
        bytes.extend((layout.code.entries() as u32).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(book.centroids().iter().flatten().flat_map(|x| f16::from_f32(*x).to_le_bytes()));
    }
    file.seek(SeekFrom::Start(entry.codebook_base * layout.book_bytes())).map_err(io)?;
    file.write_all(&bytes).map_err(io)?;
    file.sync_all().map_err(io)
}

/// The whole record of an expert into `record`.
fn encode_record(
    layout: &Layout,
    entry: &BankEntry,
    layer: u32,
    expert: u32,
    matrices: &[Matrix<'_>],
    books: &[Vec<Book>],
    record: &mut Vec<u8>,
) -> Result<()> {
    record.clear();
    record.resize(index(layout.record_bytes()), 0);
    for ((place, matrix), books) in layout.matrices.iter().zip(matrices).zip(books) {
        let len = layout.code.index_bytes(place.rows.into(), place.cols.into()).expect("laid out before");
        let stream = &mut record[index(place.indices)..index(place.indices + len)];
        let scales = encode(layout.code, matrix, books, stream)?;
        let out = record[index(place.scales)..].as_chunks_mut::<2>().0;
        out.iter_mut().zip(scales).for_each(|(out, scale)| *out = scale.to_le_bytes());
    }
    let crc = crc32fast::hash(&record[HEADER..index(layout.used_bytes)]);
    let says = Expected {
        layer,
        expert,
        codebooks: index(entry.codebook_base) as u32,
        is_packed: layout.code == VqCode::Vq4p,
        bytes: layout.record_bytes(),
        indices: layout.matrices.map(|it| it.indices),
        scales: layout.matrices[0].scales,
    };
    record[..HEADER].copy_from_slice(&header(&says, layout.code, crc));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_spread_and_ascend() {
        let mut rng = Xoshiro256PlusPlus::from_seed(4);
        assert_eq!(spread(5, 9, &mut rng), [0, 1, 2, 3, 4]);
        let picks = spread(1000, 7, &mut rng);
        assert_eq!(picks.len(), 7);
        assert!(picks.iter().enumerate().all(|(at, it)| (at * 1000 / 7..(at + 1) * 1000 / 7).contains(it)));
        assert_eq!(picks_in(&[3, 5, 5, 9], 4..9), [5, 5]);
    }
}
