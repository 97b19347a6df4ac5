//! Values of the evaluator.

/// A value: its shape, outermost first, and its elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Elements; as many as the product of the sizes.
    pub data: Data,
}

/// The elements of a [`Tensor`].
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Numbers.
    F64(Vec<f64>),
    /// Ids, rows, positions.
    I32(Vec<i32>),
}

impl Tensor {
    /// A vector of ids.
    #[must_use]
    pub fn ids(ids: &[i32]) -> Self {
        Self { shape: vec![ids.len()], data: Data::I32(ids.to_vec()) }
    }

    /// A matrix of numbers with `cols` columns.
    #[must_use]
    pub fn matrix(cols: usize, data: Vec<f64>) -> Self {
        Self { shape: vec![data.len().checked_div(cols).unwrap_or(0), cols], data: Data::F64(data) }
    }

    /// The numbers, or nothing if this holds ids.
    #[must_use]
    pub fn f64s(&self) -> &[f64] {
        match &self.data {
            Data::F64(it) => it,
            Data::I32(_) => &[],
        }
    }

    /// The ids, or nothing if this holds numbers.
    #[must_use]
    pub fn i32s(&self) -> &[i32] {
        match &self.data {
            Data::I32(it) => it,
            Data::F64(_) => &[],
        }
    }

    /// The size of the last dimension.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The numbers, row by row of the last dimension.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f64> {
        self.f64s().chunks_exact(self.cols())
    }

    /// Row `i` of the last dimension, if there is one.
    #[must_use]
    pub fn row(&self, i: usize) -> Option<&[f64]> {
        self.rows().nth(i)
    }
}
