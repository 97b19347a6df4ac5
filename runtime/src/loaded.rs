//! A plan ready to be opened: its file mapped, its structure validated, its weights found.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use waste_plan::file::PlanFile;
use waste_plan::pack::{PartBytes, RowBuffer, pack_block};
use waste_plan::schema::{Plan, Weight};
use waste_plan::validate::validate;

use crate::arena::Buffer;
use crate::error::RuntimeError;
use crate::weights::{MappedFile, WeightBuffer, WeightBytes};

/// A validated plan with its weights. Cheap to clone; sessions share it.
#[derive(Clone, Debug)]
pub struct LoadedPlan {
    /// The file, for messages.
    name: Arc<str>,
    /// The file, if there is one.
    path: Option<Arc<Path>>,
    /// The folder that paths of sources are relative to.
    folder: Arc<Path>,
    plan: Arc<Plan>,
    weights: WeightBytes,
    /// IR text and tokenizer bytes.
    ir: Arc<str>,
    text: Arc<[u8]>,
}

impl LoadedPlan {
    /// Maps and validates the plan file at `path`; repacks weights that stayed outside.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, foreign or of another version, or its sources have changed.
    pub fn open(path: &Path) -> Result<Self, RuntimeError> {
        let loaded = Self::open_to_look(path)?;
        if loaded.has_weights() {
            return Ok(loaded);
        }
        let weights = repack(&loaded.plan, &loaded.folder)?;
        Ok(Self { weights, ..loaded })
    }

    /// As [`Self::open`], but weights that stayed outside stay there, and need not be there: for whoever looks at the plan.
    /// [`Session::open`](crate::Session::open) refuses it then.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, foreign or of another version.
    pub fn open_to_look(path: &Path) -> Result<Self, RuntimeError> {
        let io = |source| RuntimeError::Io { path: path.to_owned(), source };
        let bad = |message: String| RuntimeError::Plan { path: path.to_owned(), message };
        let file = Arc::new(MappedFile::open(path).map_err(io)?);
        let parsed = PlanFile::parse(file.bytes()).map_err(|it| bad(it.to_string()))?;
        let (plan, ir, text) = (parsed.plan, Arc::from(parsed.ir), Arc::from(parsed.text));
        validate(&plan).map_err(|errors| bad(first_of(&errors)))?;
        let is_inside = parsed.weights.is_some();
        let weights = match parsed.weights {
            Some(range) => WeightBytes::Mapped(Arc::clone(&file), range),
            None => WeightBytes::Outside,
        };
        let found = weights.bytes().len();
        if is_inside && (found as u64) < plan.memory.weights {
            return Err(bad(format!("weights take {} bytes, the file holds {found}", plan.memory.weights)));
        }
        let name = Arc::from(path.to_string_lossy());
        let folder = Arc::from(path.parent().unwrap_or(Path::new("")));
        let path = Some(Arc::from(path));
        Ok(Self { name, path, folder, plan: Arc::new(plan), weights, ir, text })
    }

    /// A plan that was never written to a file, with its packed weights; paths of its sources are relative to the working folder.
    ///
    /// # Errors
    /// If the plan is not valid or `weights` are too few bytes.
    pub fn from_parts(
        plan: Plan,
        weights: WeightBuffer,
        ir: &str,
        text: &[u8],
    ) -> Result<Self, RuntimeError> {
        let bad = |message: String| RuntimeError::Plan { path: PathBuf::from("(in memory)"), message };
        validate(&plan).map_err(|errors| bad(first_of(&errors)))?;
        let WeightBuffer(buffer) = weights;
        let given = buffer.bytes().len();
        if (given as u64) < plan.memory.weights {
            return Err(bad(format!("weights take {} bytes, {given} are given", plan.memory.weights)));
        }
        Ok(Self {
            name: Arc::from("(in memory)"),
            path: None,
            folder: Arc::from(Path::new("")),
            plan: Arc::new(plan),
            weights: WeightBytes::Owned(Arc::new(buffer)),
            ir: Arc::from(ir),
            text: Arc::from(text),
        })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The file that it was opened from, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The final graphs as text, and the pass report; empty if the file has none.
    #[must_use]
    pub fn ir(&self) -> &str {
        &self.ir
    }

    /// The tokenizer section.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Compares the CRC of every packed weight with the plan's, on all cores.
    ///
    /// # Errors
    /// [`RuntimeError::Damaged`], for the first that differs.
    pub fn verify_weights(&self) -> Result<(), RuntimeError> {
        let crcs: Vec<u32> =
            (0..self.plan.weights.len()).into_par_iter().map(|it| crc32c::crc32c(self.weight(it))).collect();
        let bad = self.plan.weights.iter().zip(&crcs).position(|(weight, crc)| weight.crc32c != *crc);
        bad.map_or(Ok(()), |index| Err(self.damaged(index, crcs[index])))
    }

    /// The error for weight `index`, whose bytes have CRC `found`.
    pub(crate) fn damaged(&self, index: usize, found: u32) -> RuntimeError {
        let weight = &self.plan.weights[index];
        RuntimeError::Damaged {
            file: self.name.to_string(),
            offset: self.weights.starts_at() + weight.offset,
            name: weight.name.clone(),
            found,
            expected: weight.crc32c,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn shared_plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan)
    }

    pub(crate) fn has_weights(&self) -> bool {
        !matches!(self.weights, WeightBytes::Outside)
    }

    pub(crate) fn weights(&self) -> WeightBytes {
        self.weights.clone()
    }

    /// The packed bytes of weight `index`.
    #[must_use]
    pub fn weight(&self, index: usize) -> &[u8] {
        let weight = &self.plan.weights[index];
        let at = |it: u64| usize::try_from(it).expect("validated weights fit in memory");
        &self.weights.bytes()[at(weight.offset)..at(weight.offset + weight.bytes)]
    }
}

fn first_of<E: std::fmt::Display>(errors: &[E]) -> String {
    let first = errors.first().map_or_else(String::new, ToString::to_string);
    if errors.len() > 1 { format!("{first} (and {} more)", errors.len() - 1) } else { first }
}

/// Source files of a plan, relative to `folder`, checked to be the ones it was compiled from.
fn open_sources(plan: &Plan, folder: &Path) -> Result<Vec<MappedFile>, RuntimeError> {
    let open = |source: &waste_plan::schema::Source| {
        let path = folder.join(&source.path);
        let file =
            MappedFile::open(&path).map_err(|source| RuntimeError::Io { path: path.clone(), source })?;
        let found = file.bytes().len() as u64;
        if found != source.bytes {
            let message = format!("has {found} bytes, the plan was compiled from {}", source.bytes);
            return Err(RuntimeError::Plan { path, message });
        }
        Ok(file)
    };
    plan.sources.iter().map(open).collect()
}

/// The stored parts of one weight inside the mapped sources.
struct Parts<'a> {
    weight: &'a Weight,
    sources: &'a [MappedFile],
}

impl Parts<'_> {
    /// `len` bytes at `at` of a source, if they lie inside it.
    fn slice(&self, source: u32, at: u64, len: Option<u64>) -> Option<&[u8]> {
        let start = usize::try_from(at).ok()?;
        let end = start.checked_add(usize::try_from(len?).ok()?)?;
        self.sources.get(source as usize)?.bytes().get(start..end)
    }

    /// Stored bytes of part `index`, if they lie inside their source.
    fn bytes(&self, index: usize) -> Option<&[u8]> {
        let part = self.weight.parts.get(index)?;
        self.slice(part.source, part.offset, self.weight.part_bytes(index))
    }

    /// The scales of part `index`: no bytes where it has none apart; `None` if they leave their source.
    fn scale_bytes(&self, index: usize) -> Option<&[u8]> {
        let part = self.weight.parts.get(index)?;
        let Some(at) = part.scales else { return Some(&[]) };
        self.slice(part.source, at, self.weight.scale_bytes(index))
    }

    /// The factors of a term of part `index`, if they lie inside their source.
    fn factor_bytes(&self, index: usize, term: usize) -> Option<[&[u8]; 2]> {
        let part = self.weight.parts.get(index)?;
        let term = part.terms.get(term)?;
        let a = self.slice(term.source, term.a, term.a_bytes(self.weight.cols))?;
        Some([a, self.slice(term.source, term.b, term.b_bytes(part.rows))?])
    }

    /// Whether part `index` and all it is made of lie inside their sources.
    fn is_inside(&self, index: usize) -> bool {
        let terms = self.weight.parts[index].terms.len();
        self.bytes(index).is_some()
            && self.scale_bytes(index).is_some()
            && (0..terms).all(|it| self.factor_bytes(index, it).is_some())
    }
}

impl PartBytes for Parts<'_> {
    fn part(&self, index: usize) -> &[u8] {
        self.bytes(index).expect("checked by `repack`")
    }

    fn scales(&self, index: usize) -> &[u8] {
        self.scale_bytes(index).expect("checked by `repack`")
    }

    fn factors(&self, index: usize, term: usize) -> [&[u8]; 2] {
        self.factor_bytes(index, term).expect("checked by `repack`")
    }

    fn release(&self) {
        self.sources.iter().for_each(MappedFile::release);
    }
}

/// Packs every weight of a plan whose weights stayed outside, on all cores, into one buffer.
fn repack(plan: &Plan, folder: &Path) -> Result<WeightBytes, RuntimeError> {
    let sources = open_sources(plan, folder)?;
    let mut buffer = Buffer::new(plan.memory.weights, "weights")?;
    let mut rest = buffer.bytes_mut();
    let mut at = 0;
    for weight in plan.weights.iter().filter(|it| it.records.is_none()) {
        let parts = Parts { weight, sources: &sources };
        if (0..weight.parts.len()).any(|it| !parts.is_inside(it)) {
            let path = folder.join(&plan.sources[weight.parts[0].source as usize].path);
            return Err(RuntimeError::Plan {
                path,
                message: format!("tensor '{}' leaves the file", weight.name),
            });
        }
        let size = |it: u64| usize::try_from(it).expect("validated weights fit in memory");
        let (_, tail) = rest.split_at_mut(size(weight.offset - at));
        let (out, tail) = tail.split_at_mut(size(weight.bytes));
        pack_weight(weight, &parts, out);
        (rest, at) = (tail, weight.offset + weight.bytes);
    }
    Ok(WeightBytes::Owned(Arc::new(buffer)))
}

/// Bytes of blocks that are packed between two releases of what they were read from: small against what a program takes anyway, and
/// large against what a release costs.
const PIECE: usize = 8 << 20;

/// Packs one weight into `out`, its blocks in parallel, and releases what it was read from.
pub fn pack_weight(weight: &Weight, parts: &dyn PartBytes, out: &mut [u8]) {
    debug_assert_eq!(out.len() as u64, weight.bytes);
    let piece = piece_bytes(weight);
    for (i, out) in out.chunks_mut(piece).enumerate() {
        pack_piece(weight, i * piece, parts, out);
    }
}

/// As [`pack_weight`], a piece of some megabytes at a time, in order: where the whole need not be in memory.
///
/// # Errors
/// The first of `sink`.
pub fn pack_pieces<E>(
    weight: &Weight,
    parts: &dyn PartBytes,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (all, piece) = (bytes_of(weight), piece_bytes(weight));
    let mut buffer = Vec::new();
    for at in (0..all).step_by(piece) {
        buffer.clear();
        buffer.resize(piece.min(all - at), 0);
        pack_piece(weight, at, parts, &mut buffer);
        sink(&buffer)?;
    }
    Ok(())
}

fn bytes_of(weight: &Weight) -> usize {
    usize::try_from(weight.bytes).expect("validated weights fit in memory")
}

fn block_bytes(weight: &Weight) -> usize {
    weight.packing.block_bytes(usize::try_from(weight.cols).expect("validated weights fit in memory"))
}

/// Whole blocks of a weight that has some; else all of it. At least one byte.
fn piece_bytes(weight: &Weight) -> usize {
    if !weight.packing.is_blocked() {
        return bytes_of(weight).max(1);
    }
    let block = block_bytes(weight);
    (PIECE / block).max(1) * block
}

/// Packs what stands from byte `at` of a weight on.
fn pack_piece(weight: &Weight, at: usize, parts: &dyn PartBytes, out: &mut [u8]) {
    if weight.packing.is_blocked() {
        let block_bytes = block_bytes(weight);
        let blocks = out.par_chunks_mut(block_bytes).enumerate();
        blocks.for_each_init(RowBuffer::default, |rows, (block, out)| {
            pack_block(weight, (at / block_bytes + block) as u64, parts, rows, out);
        });
    } else {
        pack_block(weight, 0, parts, &mut RowBuffer::default(), out);
    }
    parts.release();
}
