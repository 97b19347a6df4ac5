//! What each kernel depends on, in symbols: a result element is a hash of exactly the elements that go into it.
//!
//! Plan and graph run through the same [`targets`](super::targets::targets) and [`element`](super::element::element), one over the
//! plan's memory, the other over ideal values. Two results are equal only if they were made by the same arithmetic from the same inputs.
//!
//! Numbers that steps compute (experts, the order of pairs) are hashes like all else; beside each stands, in both memories alike, the
//! number that it is.

/// Units of four bytes that tables are written in: a line of 64 bytes.
pub(crate) const LINE: u64 = 16;

/// Mixes a number into a hash (splitmix64's finaliser).
pub(crate) const fn mix(hash: u64, with: u64) -> u64 {
    let mut z = (hash ^ with.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A hash of text.
pub(crate) fn name(text: &str) -> u64 {
    text.bytes().fold(0, |hash, byte| mix(hash, u64::from(byte)))
}

/// Where the operands of an op are read.
pub(crate) trait Operands {
    /// A hash of elements `from .. to` of a row of operand `slot`; of all of it for weights.
    fn row(&mut self, slot: usize, row: u64, from: u64, to: u64) -> u64;
    /// A hash of matrix `at` of the bank at operand `slot`.
    fn matrix(&mut self, slot: usize, at: u64) -> u64;
    /// Rows of operand `slot`.
    fn rows(&self, slot: usize) -> u64;
    /// Elements in a row of operand `slot`; none of a weight.
    fn cols(&self, slot: usize) -> u64;
    /// Columns of operand `slot`, padding left out.
    fn width(&self, slot: usize) -> u64;
    /// The number that an element stands for.
    fn number(&mut self, slot: usize, row: u64, col: u64) -> u64;
    /// From now on elements with the hash `tag` stand for `number`.
    fn note(&mut self, tag: u64, number: u64);
    /// A hash of the vectors of positions `0 ..= pos` in the cache at operand `slot`.
    fn cached(&mut self, slot: usize, row: u64, pos: u64, head: u64) -> u64;
    /// Heads of the cache at operand `slot`.
    fn heads(&self, slot: usize) -> u64;
    /// A hash of element `col` of what a recurrence has accepted of a row.
    fn accepted(&mut self, row: u64, col: u64) -> u64;
    /// The number of operands.
    fn len(&self) -> usize;
}

/// The family of a kernel, as far as dependences go, and a hash of its attributes.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) family: Family,
    pub(crate) attrs: u64,
    /// Columns of one head of the result, where heads matter; lines of a slab of tables.
    pub(crate) head: u64,
    /// Query heads of an attention, heads of a bank, matrices of experts.
    pub(crate) heads: u64,
    /// Whether the last operand is a residual.
    pub(crate) residual: bool,
    /// Whether rows of pairs are gathered from rows of tokens.
    pub(crate) gather: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Embed,
    /// Each element from its whole row, and weights.
    Row,
    /// Each element from a whole row and weights, then one element of the residual.
    Product,
    /// Each element from the same element of all operands.
    Elementwise,
    Angles,
    Rope,
    Append,
    Attention,
    Select,
    /// The columns of two operands.
    Concat,
    /// Each element from its head's columns of the first operand, then as [`Family::Elementwise`].
    HeadNorm,
    /// Each element from one element, and weights by its column.
    Gate,
    /// Each element from its channel of this token and the few before it; the last inputs are the next state.
    Conv,
    /// A column of a head's state from all earlier tokens of the row, and what each token reads off it.
    Delta,
    /// Row r times matrix r mod heads; tiles are tokens by all heads' columns.
    HeadProduct,
    /// The same, columns summed together.
    HeadProductT,
    Latent,
    /// Ids and weights of the experts of a token.
    Route,
    /// Order, groups and slots of all pairs, at once.
    Sort,
    /// A row of a token for each of its pairs.
    Gather,
    /// Each pair's row times its expert's matrix; tiles are experts that have pairs, by columns.
    Expert,
    /// The same with two matrices.
    ExpertGlu,
    /// The same, by tables and records.
    ExpertLut,
    /// The same, by tables that it makes.
    ExpertVq,
    /// Rows of pairs by the weights of their token.
    Sum,
    /// Tables of a row, slab by slab.
    Tables,
}

impl Family {
    /// Whether tiles are experts and rows are pairs.
    pub(crate) const fn is_by_expert(self) -> bool {
        matches!(self, Self::Expert | Self::ExpertGlu | Self::ExpertLut | Self::ExpertVq)
    }

    /// Whether it walks the tokens of a row one after the other, from a state to the next one.
    pub(crate) const fn is_recurrent(self) -> bool {
        matches!(self, Self::Conv | Self::Delta)
    }

    /// Operands that hold the order of pairs and the groups of experts.
    pub(crate) const fn pair_slots(self) -> (usize, usize) {
        if matches!(self, Self::ExpertGlu) { (3, 4) } else { (2, 3) }
    }
}

impl Kernel {
    pub(crate) fn new(family: Family, attrs: impl AsRef<str>) -> Self {
        Self { family, attrs: name(attrs.as_ref()), head: 1, heads: 1, residual: false, gather: false }
    }

    /// What tiles cover, given the rows and elements of the (first) result.
    pub(crate) fn extent(&self, rows: u64, units: u64) -> (u64, u64) {
        match self.family {
            Family::HeadProduct | Family::HeadProductT => (rows / self.heads, units * self.heads),
            it if it.is_by_expert() => (rows.min(self.heads), units),
            Family::Tables => (rows, units / LINE),
            _ => (rows, units),
        }
    }

    /// Elements of a row that are read together before any of them is written.
    pub(crate) const fn group(&self) -> u64 {
        match self.family {
            Family::Rope | Family::HeadNorm => self.head,
            _ => 1,
        }
    }
}
