//! Types of values: element type and symbolic shape.
//!
//! Invariant: every dimension has a finite upper bound, so every value has a known largest size.
//! Deliberately absent: strides (a transposed product is its own op) and packed layouts (they belong to weights).

use std::fmt;

use smallvec::SmallVec;
use waste_plan::DType;
use waste_plan::ids::PrimaryMap;

use crate::text::Name;

waste_plan::entity!(/// A symbolic size of a [`Module`](crate::Module).
    SymId, "sym");

/// A symbolic size: its name and inclusive range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymDecl {
    /// The name in text, such as `T`.
    pub name: String,
    /// Smallest value.
    pub lo: u32,
    /// Largest value; planning uses it.
    pub hi: u32,
}

/// The symbols of a module.
pub type Syms = PrimaryMap<SymId, SymDecl>;

/// One dimension of a shape.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dim {
    /// A known size.
    Const(u32),
    /// `mul · sym`.
    Scaled {
        /// The symbol.
        sym: SymId,
        /// Its factor, at least 1.
        mul: u32,
    },
}

/// `576`, `sym0`, `4*sym0`: what messages show where the names of symbols are out of reach.
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Const(n) => write!(f, "{n}"),
            Self::Scaled { sym, mul: 1 } => write!(f, "{sym}"),
            Self::Scaled { sym, mul } => write!(f, "{mul}*{sym}"),
        }
    }
}

impl Dim {
    /// `1 · sym`.
    #[must_use]
    pub const fn sym(sym: SymId) -> Self {
        Self::Scaled { sym, mul: 1 }
    }

    /// The largest value, by the range of the symbol.
    #[must_use]
    pub fn upper(self, syms: &Syms) -> u64 {
        match self {
            Self::Const(n) => u64::from(n),
            Self::Scaled { sym, mul } => u64::from(mul) * u64::from(syms[sym].hi),
        }
    }

    /// This dimension times `factor`, if that fits.
    #[must_use]
    pub fn times(self, factor: u32) -> Option<Self> {
        Some(match self {
            Self::Const(n) => Self::Const(n.checked_mul(factor)?),
            Self::Scaled { sym, mul } => Self::Scaled { sym, mul: mul.checked_mul(factor)? },
        })
    }

    /// This dimension divided by `divisor`, if that is exact.
    #[must_use]
    pub fn divided(self, divisor: u32) -> Option<Self> {
        let exact = |n: u32| (divisor != 0 && n.is_multiple_of(divisor)).then(|| n / divisor);
        Some(match self {
            Self::Const(n) => Self::Const(exact(n)?),
            Self::Scaled { sym, mul } => Self::Scaled { sym, mul: exact(mul)? },
        })
    }

    /// The size if it is known.
    #[must_use]
    pub const fn known(self) -> Option<u32> {
        match self {
            Self::Const(n) => Some(n),
            Self::Scaled { .. } => None,
        }
    }
}

/// The dimensions of a value, outermost first. At most rank 4 in practice.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Shape(SmallVec<[Dim; 4]>);

impl Shape {
    /// A shape of `dims`, outermost first.
    #[must_use]
    pub fn new(dims: &[Dim]) -> Self {
        Self(dims.into())
    }

    /// The dimensions, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// The number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The innermost dimension if it is known.
    #[must_use]
    pub fn cols(&self) -> Option<u32> {
        self.0.last().and_then(|it| it.known())
    }

    /// The outer dimension of a matrix.
    #[must_use]
    pub fn rows(&self) -> Option<Dim> {
        if self.rank() == 2 { Some(self.0[0]) } else { None }
    }
}

/// Element type and shape of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Shape,
}

impl TensorType {
    /// A type of `dtype` and `dims`.
    #[must_use]
    pub fn new(dtype: DType, dims: &[Dim]) -> Self {
        Self { dtype, shape: Shape::new(dims) }
    }

    /// A matrix `dtype[rows, cols]`.
    #[must_use]
    pub fn matrix(dtype: DType, rows: Dim, cols: u32) -> Self {
        Self::new(dtype, &[rows, Dim::Const(cols)])
    }

    /// The printed form, such as `f32[T, 576]`.
    #[must_use]
    pub fn display<'a>(&'a self, syms: &'a Syms) -> DisplayType<'a> {
        DisplayType { ty: self, syms }
    }
}

/// Prints a [`TensorType`].
#[derive(Debug)]
pub struct DisplayType<'a> {
    ty: &'a TensorType,
    syms: &'a Syms,
}

impl fmt::Display for DisplayType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.ty.dtype.name())?;
        for (i, dim) in self.ty.shape.dims().iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            match *dim {
                Dim::Const(n) => write!(f, "{n}")?,
                Dim::Scaled { sym, mul } => {
                    if mul != 1 {
                        write!(f, "{mul}*")?;
                    }
                    match self.syms.get(sym) {
                        Some(decl) => Name(&decl.name).fmt(f)?,
                        None => write!(f, "?{sym}")?,
                    }
                }
            }
        }
        f.write_str("]")
    }
}
