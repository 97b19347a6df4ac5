//! Scans of one row: the greedy choice and the finite check.

pub(crate) mod portable;

/// The largest element of a row and where it stands first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArgMax {
    /// Index of the first element equal to the maximum; 0 for a row without a number above −inf.
    pub id: usize,
    /// The element there; −inf for an empty row and where every element is a NaN.
    pub value: f32,
}
