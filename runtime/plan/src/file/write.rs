//! Writing a plan file: weights are streamed, and the CRCs they turn out to have end in the plan.
//!
//! Sections lie in the order json, ir, text, weights, so that `head` shows the plan. The JSON section's place is
//! measured before the weights are known, with the widest number for each CRC, and filled in at the end.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use crate::schema::{Plan, VERSION};

use super::header::{self, ENTRY_BYTES, Entry, HEADER_BYTES};
use super::temp::TempFile;
use super::{FileError, SECTION_ALIGN, doc, kind, weight_space};

/// Bytes gathered before the system is asked to write.
const BUFFER: usize = 1 << 20;

/// Whether a plan holds its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsAt {
    /// In the file: every weight must be written, and its CRC is taken from what was.
    Inside,
    /// In the sources: none is written, and the CRCs of the plan are kept.
    Outside,
}

/// Writes one plan file. The final name appears in [`PlanWriter::finish`], whole; dropping the writer before leaves
/// nothing.
pub struct PlanWriter {
    temp: TempFile,
    out: BufWriter<File>,
    plan: Plan,
    weights: WeightsAt,
    /// Everything but the JSON, in file order.
    sections: Vec<Entry>,
    json_room: u64,
    /// Where the weight space starts in the file.
    weights_at: u64,
    /// The weight being written, and how many of its bytes are.
    open: usize,
    written: u64,
}

impl PlanWriter {
    /// Starts the file that will be `path`, and writes the texts.
    ///
    /// # Errors
    /// [`FileError::Io`]; [`FileError::Unwritable`] if the weights of `plan` are not in ascending order of offset, or
    /// the plan does not survive its own encoding.
    pub fn create(
        path: &Path,
        plan: &Plan,
        ir: &str,
        text: &[u8],
        weights: WeightsAt,
    ) -> Result<Self, FileError> {
        check_plan(plan)?;
        let mut widest = plan.clone();
        widest.weights.iter_mut().for_each(|it| it.crc32c = u32::MAX);
        let json_room = doc::encode(&widest)?.len() as u64;
        let mut sections = Vec::new();
        let mut at = align(json_at(weights) + json_room);
        for (kind, required, bytes) in [(kind::IR, false, ir.as_bytes()), (kind::TEXT, true, text)] {
            let len = bytes.len() as u64;
            sections.push(Entry { kind, required, offset: at, len, crc: crc32c::crc32c(bytes) });
            at = align(at + len);
        }
        if weights == WeightsAt::Inside {
            let (kind, len) = (kind::WEIGHTS, weight_space(plan)?);
            at.checked_add(len)
                .ok_or_else(|| unwritable("the weights pass the end of any file".to_owned()))?;
            sections.push(Entry { kind, required: true, offset: at, len, crc: 0 });
        }
        let temp = TempFile::create(path)?;
        let file = temp.file().try_clone().map_err(FileError::io(temp.path()))?;
        let mut plan = plan.clone();
        if weights == WeightsAt::Inside {
            plan.weights.iter_mut().for_each(|it| it.crc32c = 0);
        }
        let mut it = Self {
            temp,
            out: BufWriter::with_capacity(BUFFER, file),
            plan,
            weights,
            sections,
            json_room,
            weights_at: at,
            open: 0,
            written: 0,
        };
        it.write_texts(ir, text).map_err(FileError::io(it.temp.path()))?;
        Ok(it)
    }

    fn write_texts(&mut self, ir: &str, text: &[u8]) -> io::Result<()> {
        for (idx, bytes) in [ir.as_bytes(), text].into_iter().enumerate() {
            self.out.seek(SeekFrom::Start(self.sections[idx].offset))?;
            self.out.write_all(bytes)?;
        }
        let first = self.plan.weights.first().map_or(0, |it| it.offset);
        self.out.seek(SeekFrom::Start(self.weights_at + first))?;
        Ok(())
    }

    /// Appends `bytes` to weight `index`. Weights come in ascending order, each in as many calls as the caller likes.
    ///
    /// # Errors
    /// [`FileError::Io`]; [`FileError::Unwritable`] if the weights stay outside, the order is broken, the weight before is
    /// not whole, or this one becomes longer than the plan says.
    pub fn weight(&mut self, index: usize, bytes: &[u8]) -> Result<(), FileError> {
        if self.weights == WeightsAt::Outside {
            return Err(unwritable("this plan leaves its weights outside".to_owned()));
        }
        if index >= self.plan.weights.len() || index < self.open {
            return Err(unwritable(format!("weight {index} comes after weight {}", self.open)));
        }
        while self.open < index {
            self.next_weight()?;
        }
        let weight = &mut self.plan.weights[index];
        let written = self.written + bytes.len() as u64;
        if written > weight.bytes {
            return Err(unwritable(format!(
                "weight '{}' has {} bytes, {written} were given",
                weight.name, weight.bytes
            )));
        }
        weight.crc32c = crc32c::crc32c_append(weight.crc32c, bytes);
        self.written = written;
        self.out.write_all(bytes).map_err(FileError::io(self.temp.path()))
    }

    /// Closes the open weight and fills the gap to the next with zeros.
    fn next_weight(&mut self) -> Result<(), FileError> {
        let weight = &self.plan.weights[self.open];
        if self.written != weight.bytes {
            return Err(unwritable(format!(
                "weight '{}' has {} bytes, {} were given",
                weight.name, weight.bytes, self.written
            )));
        }
        self.open += 1;
        self.written = 0;
        if let Some(next) = self.plan.weights.get(self.open) {
            let gap = next.offset - (weight.offset + weight.bytes);
            io::copy(&mut io::Read::take(io::repeat(0), gap), &mut self.out)
                .map_err(FileError::io(self.temp.path()))?;
        }
        Ok(())
    }

    /// Writes the plan with the CRCs of its weights, puts everything on disk and gives the file its final name.
    /// Returns the plan as written.
    ///
    /// # Errors
    /// [`FileError::Io`]; [`FileError::Unwritable`] if a weight is missing or not whole.
    pub fn finish(mut self) -> Result<Plan, FileError> {
        if self.weights == WeightsAt::Inside {
            while self.open < self.plan.weights.len() {
                self.next_weight()?;
            }
        }
        let json = doc::encode(&self.plan)?;
        if json.len() as u64 > self.json_room {
            let reason = format!("plan: {} bytes of JSON, measured {}", json.len(), self.json_room);
            return Err(unwritable(reason));
        }
        self.write_head(json.as_bytes()).map_err(FileError::io(self.temp.path()))?;
        self.temp.publish()?;
        Ok(self.plan)
    }

    fn write_head(&mut self, json: &[u8]) -> io::Result<()> {
        let (offset, crc) = (json_at(self.weights), crc32c::crc32c(json));
        let entry = Entry { kind: kind::JSON, required: true, offset, len: json.len() as u64, crc };
        self.sections.insert(0, entry);
        let end = self.sections.last().map_or(0, |it| it.offset + it.len);
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header::encode(&self.sections, end))?;
        self.out.seek(SeekFrom::Start(offset))?;
        self.out.write_all(json)?;
        self.out.flush()?;
        // An empty last section may start past the last byte written.
        self.out.get_ref().set_len(end)
    }
}

impl std::fmt::Debug for PlanWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanWriter")
            .field("path", &self.temp.path())
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

fn unwritable(reason: String) -> FileError {
    FileError::Unwritable { reason }
}

fn align(at: u64) -> u64 {
    at.next_multiple_of(SECTION_ALIGN)
}

/// Where the JSON section starts: after header and table.
fn json_at(weights: WeightsAt) -> u64 {
    let n_sections = match weights {
        WeightsAt::Inside => 4,
        WeightsAt::Outside => 3,
    };
    align((HEADER_BYTES + n_sections * ENTRY_BYTES) as u64)
}

/// What streaming needs of a plan: this build's version, and weights that ascend without overlap.
fn check_plan(plan: &Plan) -> Result<(), FileError> {
    if plan.version != VERSION {
        return Err(unwritable(format!("plan version {}, this build writes {VERSION}", plan.version)));
    }
    let mut end = 0;
    for it in &plan.weights {
        let last = it.offset.checked_add(it.bytes).filter(|_| it.offset >= end);
        end = last.ok_or_else(|| {
            unwritable(format!("weight '{}' at {:#x} overlaps what ends at {end:#x}", it.name, it.offset))
        })?;
    }
    Ok(())
}
