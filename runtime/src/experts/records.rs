//! Where every record is: banks of equal records, one a layer.

use std::sync::Arc;

use super::error::{ExpertError, Fault};
use super::file::{ReadAt, span};

/// The records of one layer: expert e's are `bytes` bytes at `offset + e · stride`.
#[derive(Clone, Debug)]
pub struct Bank {
    /// The model's number of the layer.
    pub layer: u32,
    /// The file.
    pub file: Arc<dyn ReadAt>,
    /// Where expert 0's record begins.
    pub offset: u64,
    /// Bytes from one record to the next.
    pub stride: u64,
    /// Bytes of a record.
    pub bytes: u32,
    /// How many experts there are.
    pub experts: u32,
}

/// All records, numbered by bank and expert.
#[derive(Debug)]
pub(super) struct Records {
    banks: Vec<Bank>,
    /// Number of the first record of each bank.
    firsts: Vec<u32>,
    /// Bank of each layer.
    of_layer: Vec<Option<u32>>,
    n: u32,
}

/// Layers beyond this are taken for damage, not for a model.
const MAX_LAYERS: u32 = 1 << 16;

impl Records {
    /// Checks and numbers the records of `banks`.
    pub(super) fn new(banks: Vec<Bank>) -> Result<Self, ExpertError> {
        let mut firsts = Vec::with_capacity(banks.len());
        let mut of_layer = Vec::new();
        let mut n = 0u32;
        for (at, bank) in banks.iter().enumerate() {
            bank.check()?;
            let error = |what: &str| ExpertError::Banks(format!("layer {}: {what}", bank.layer));
            firsts.push(n);
            // The last number is that of no slot and no record.
            n = n
                .checked_add(bank.experts)
                .filter(|it| *it < u32::MAX)
                .ok_or_else(|| error("too many experts"))?;
            let layer = bank.layer as usize;
            of_layer.resize(of_layer.len().max(layer + 1), None);
            let at = u32::try_from(at).map_err(|_| error("too many banks"))?;
            if of_layer[layer].replace(at).is_some() {
                return Err(error("has two banks"));
            }
        }
        Ok(Self { banks, firsts, of_layer, n })
    }

    pub(super) fn len(&self) -> u32 {
        self.n
    }

    /// The number of a record.
    pub(super) fn find(&self, layer: u32, expert: u32) -> Option<u32> {
        let bank = (*self.of_layer.get(layer as usize)?)? as usize;
        (expert < self.banks[bank].experts).then(|| self.firsts[bank] + expert)
    }

    /// The bank and expert of a record.
    pub(super) fn place(&self, record: u32) -> (&Bank, u32) {
        let bank = self.firsts.partition_point(|it| *it <= record) - 1;
        (&self.banks[bank], record - self.firsts[bank])
    }

    /// Bytes of memory that hold any record with the blocks around it.
    pub(super) fn slot_bytes(&self) -> u64 {
        self.banks.iter().map(Bank::slot_bytes).max().unwrap_or(0)
    }
}

impl Bank {
    /// Where the record of `expert` begins.
    pub(super) fn offset_of(&self, expert: u32) -> u64 {
        self.offset + u64::from(expert) * self.stride
    }

    pub(super) fn error(&self, expert: u32, fault: Fault) -> ExpertError {
        let path = Arc::clone(self.file.path());
        ExpertError::Record { path, layer: self.layer, expert, offset: self.offset_of(expert), fault }
    }

    /// Records of one bank may lie differently in their first block.
    fn slot_bytes(&self) -> u64 {
        let alignment = self.file.alignment();
        if self.offset.is_multiple_of(alignment as u64) && self.stride.is_multiple_of(alignment as u64) {
            return span(0, self.bytes.into(), alignment);
        }
        span(alignment as u64 - 1, self.bytes.into(), alignment)
    }

    /// The records must lie in the file, without overlapping.
    fn check(&self) -> Result<(), ExpertError> {
        let path = self.file.path().display();
        let error = |what: String| {
            Err(ExpertError::Banks(format!("{path}: experts of layer {}: {what}", self.layer)))
        };
        if MAX_LAYERS <= self.layer || self.experts == 0 || self.bytes == 0 {
            return error(format!("{} records of {} bytes", self.experts, self.bytes));
        }
        if self.stride < self.bytes.into() {
            return error(format!("records of {} bytes, {} apart", self.bytes, self.stride));
        }
        let last =
            u64::from(self.experts - 1).checked_mul(self.stride).and_then(|it| it.checked_add(self.offset));
        let end = last.and_then(|it| it.checked_add(self.bytes.into()));
        let len = match self.file.size() {
            Ok(len) => len,
            Err(why) => return error(why.to_string()),
        };
        match end {
            Some(end) if end <= len => Ok(()),
            Some(end) => error(format!("end at {end:#x}, the file at {len:#x} (truncated?)")),
            None => error("offsets overflow".to_owned()),
        }
    }
}
