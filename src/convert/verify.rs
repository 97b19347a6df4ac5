//! `waste verify`: is a container whole, and how far is it from the checkpoint that it was made of.
//!
//! Whole means: tables fit their files (opening checks that), every record has the header that the geometry asks for, its
//! CRC-32, finite scales and zeros behind, and the trunk's scales are finite. trunk.bin and codebooks.bin carry no checksums:
//! that is version 0's, not ours to add.
//!
//! The distance of a matrix is |W − W'| / |W| (Frobenius), both decoded to f32, sums in f64 in a fixed order. It is infinite where
//! the checkpoint has a weight that is not finite: no container is made of such.

use rayon::prelude::*;

use super::matrix::Matrix;
use super::source::Checkpoint;
use super::{ConvertError, Result, index};
use crate::formats::container::{Bank, Container, MatrixKind, TrunkFormat, TrunkTensor};
use crate::formats::{FormatError, Item, ModelFiles};
use crate::progress::Progress;

/// What was found.
#[derive(Debug, Default)]
pub struct Verified {
    /// Records whose headers and checksums were looked at.
    pub records: u64,
    /// Tensors of the trunk.
    pub tensors: u64,
    /// What is broken, in the order of the files.
    pub damages: Vec<FormatError>,
    /// How far matrices are from the checkpoint; empty without one.
    pub distances: Vec<Distance>,
}

/// How far one tensor of the trunk, or one kind of matrix of a layer's experts, is from the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Distance {
    /// The tensor, or layer and kind.
    pub name: String,
    /// How it is stored.
    pub format: &'static str,
    /// Bits a weight, scales included.
    pub bits: f64,
    /// The number of matrices taken together.
    pub matrices: u32,
    /// |W − W'| / |W| over all of them; never NaN.
    pub relative: f64,
    /// The largest of a single one.
    pub worst: f64,
}

/// Squared lengths of a difference and of what it is measured by.
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    difference: f64,
    whole: f64,
}

impl Squares {
    fn add(&mut self, source: &[f32], stored: &[f32]) {
        for (a, b) in source.iter().zip(stored) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            self.difference += (a - b) * (a - b);
            self.whole += a * a;
        }
    }

    fn sum(parts: &[Self]) -> Self {
        let both = |sum: Self, it: &Self| Self {
            difference: sum.difference + it.difference,
            whole: sum.whole + it.whole,
        };
        parts.iter().fold(Self::default(), both)
    }

    /// Never NaN, which no comparison would find.
    fn relative(self) -> f64 {
        let relative = if self.difference == 0.0 { 0.0 } else { (self.difference / self.whole).sqrt() };
        if relative.is_nan() { f64::INFINITY } else { relative }
    }
}

/// Checks `container`, and compares it with the checkpoint `source` if there is one. `progress` counts bytes of records and of
/// tensors that are compared.
///
/// # Errors
/// If the checkpoint is none that could be converted. Damage of the container is no error but a result.
pub fn verify(
    container: &Container,
    source: Option<&ModelFiles>,
    progress: &dyn Progress,
) -> Result<Verified> {
    let checkpoint = source.map(Checkpoint::new).transpose()?;
    let mut report = Verified { tensors: container.tensors().len() as u64, ..Verified::default() };
    let banks: u64 = container.banks().values().map(|it| u64::from(it.experts()) * it.record_bytes()).sum();
    let total = banks + checkpoint.as_ref().map_or(0, Checkpoint::stored_bytes);
    let mut done = 0;
    let mut step = |bytes: u64| {
        done += bytes;
        progress.update(done, total);
    };
    for (name, tensor) in container.tensors() {
        report.damages.extend(tensor_damage(container, name, tensor));
    }
    for bank in container.banks().values() {
        let damages: Vec<Option<FormatError>> = (0..bank.experts())
            .into_par_iter()
            .map(|expert| record_damage(container, bank, expert))
            .collect();
        report.damages.extend(damages.into_iter().flatten());
        report.records += u64::from(bank.experts());
        step(u64::from(bank.experts()) * bank.record_bytes());
    }
    let Some(checkpoint) = checkpoint else { return Ok(report) };
    // What is broken is not compared.
    if !report.damages.is_empty() {
        return Ok(report);
    }
    compare_trunk(container, &checkpoint, &mut report, &mut step)?;
    compare_experts(container, &checkpoint, &mut report, &mut step)?;
    Ok(report)
}

fn tensor_damage(container: &Container, name: &str, tensor: &TrunkTensor) -> Option<FormatError> {
    let bad = |offset: u64, reason: &str| FormatError::Malformed {
        file: container.sources()[Container::TRUNK].name(),
        item: Item::tensor(name),
        offset,
        reason: reason.to_owned(),
    };
    if tensor.fmt != TrunkFormat::F32 {
        let row = tensor.broken_scale(container.trunk())?;
        return Some(bad(tensor.scale_offset + row * tensor.groups() * 2, "a scale is not finite"));
    }
    let mut weights = row_buffer(tensor.cols());
    let is_broken = |row: &u64| {
        tensor.decode_row(container.trunk(), *row, &mut weights);
        weights.iter().any(|it| !it.is_finite())
    };
    let row = (0..tensor.rows()).find(is_broken)?;
    Some(bad(tensor.offset + row * tensor.row_bytes(), "an element is not finite"))
}

fn record_damage(container: &Container, bank: &Bank, expert: u32) -> Option<FormatError> {
    let record = match container.record(bank, expert) {
        Ok(record) => record,
        Err(err) => return Some(err),
    };
    let checked =
        record.check_crc().and_then(|()| record.check_scales()).and_then(|()| record.check_padding());
    checked.err().map(|fault| container.blame(bank, expert, fault))
}

fn compare_trunk(
    container: &Container,
    checkpoint: &Checkpoint<'_>,
    report: &mut Verified,
    step: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut count = 0;
    for matrix in checkpoint.trunk() {
        count += 1;
        step(matrix.stored_bytes());
        let Some(tensor) = container.tensors().get(matrix.name()) else {
            report.damages.extend(container.tensor(matrix.name()).err());
            continue;
        };
        if (tensor.rows(), tensor.cols()) != (matrix.rows(), matrix.cols()) {
            let (found, expected) = (&tensor.shape, matrix.shape());
            report.damages.push(FormatError::Malformed {
                file: container.sources()[Container::TRUNK].name(),
                item: Item::tensor(matrix.name()),
                offset: tensor.offset,
                reason: format!("has shape {found:?}, the checkpoint {expected:?}"),
            });
            continue;
        }
        let bytes = tensor.payload_bytes() + tensor.scale_bytes();
        let squares = compare_tensor(container, tensor, matrix);
        report.distances.push(Distance {
            name: matrix.name().to_owned(),
            format: tensor.fmt.name(),
            bits: bits(bytes, tensor.rows() * tensor.cols()),
            matrices: 1,
            relative: squares.relative(),
            worst: squares.relative(),
        });
    }
    if report.damages.is_empty() && container.tensors().len() > count {
        let reason = format!("has {} tensors, the container's trunk {}", count, container.tensors().len());
        return Err(ConvertError::Source { file: checkpoint.folder(), reason });
    }
    Ok(())
}

fn compare_tensor(container: &Container, tensor: &TrunkTensor, matrix: &Matrix<'_>) -> Squares {
    /// Rows of a task; sums are taken task by task, so that they do not depend on threads.
    const ROWS: u64 = 64;
    let tasks = index(tensor.rows().div_ceil(ROWS));
    let of_task = |task: usize| {
        let first = task as u64 * ROWS;
        let (mut a, mut b) = (row_buffer(matrix.cols()), row_buffer(matrix.cols()));
        let mut squares = Squares::default();
        for row in first..matrix.rows().min(first + ROWS) {
            matrix.decode_row(row, &mut a);
            tensor.decode_row(container.trunk(), row, &mut b);
            squares.add(&a, &b);
        }
        squares
    };
    let parts: Vec<Squares> = (0..tasks).into_par_iter().map(of_task).collect();
    Squares::sum(&parts)
}

fn compare_experts(
    container: &Container,
    checkpoint: &Checkpoint<'_>,
    report: &mut Verified,
    step: &mut dyn FnMut(u64),
) -> Result<()> {
    let layers: Vec<u32> = container.banks().keys().copied().collect();
    let has_equal = layers == checkpoint.moe_layers().collect::<Vec<_>>()
        && container.banks().values().all(|it| it.experts() == checkpoint.geometry.experts());
    if !has_equal {
        let reason = "has experts in other layers, or other numbers of them, than the container".to_owned();
        return Err(ConvertError::Source { file: checkpoint.folder(), reason });
    }
    for bank in container.banks().values() {
        for kind in MatrixKind::ALL {
            let books = container.books(bank, kind);
            let of_expert = |expert: u32| -> Result<(Squares, u64)> {
                let matrix = checkpoint.expert(bank.layer(), expert, kind)?;
                let record = container.record(bank, expert)?;
                let (mut a, mut b) = (row_buffer(matrix.cols()), row_buffer(matrix.cols()));
                let mut squares = Squares::default();
                for row in 0..bank.matrix(kind).rows {
                    matrix.decode_row(row.into(), &mut a);
                    record.decode_row(kind, row, &books, &mut b);
                    squares.add(&a, &b);
                }
                Ok((squares, matrix.stored_bytes()))
            };
            let parts: Vec<Result<(Squares, u64)>> =
                (0..bank.experts()).into_par_iter().map(of_expert).collect();
            let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
            let squares: Vec<Squares> = parts.iter().map(|it| it.0).collect();
            step(parts.iter().map(|it| it.1).sum());
            report.distances.push(expert_distance(container, bank, kind, &squares));
        }
    }
    Ok(())
}

fn expert_distance(container: &Container, bank: &Bank, kind: MatrixKind, squares: &[Squares]) -> Distance {
    let matrix = bank.matrix(kind);
    let weights = u64::from(matrix.rows) * u64::from(matrix.cols);
    let stream = container.code().index_bytes(matrix.rows.into(), matrix.cols.into()).unwrap_or(0);
    Distance {
        name: format!("experts of layer {}, {}", bank.layer(), kind.name()),
        format: container.code().name(),
        bits: bits(stream + 2 * u64::from(matrix.rows), weights),
        matrices: bank.experts(),
        relative: Squares::sum(squares).relative(),
        worst: squares.iter().map(|it| it.relative()).fold(0.0, f64::max),
    }
}

fn bits(bytes: u64, weights: u64) -> f64 {
    crate::report::units::float(8 * bytes) / crate::report::units::float(weights)
}

fn row_buffer(cols: u64) -> Vec<f32> {
    vec![0.0; index(cols)]
}
