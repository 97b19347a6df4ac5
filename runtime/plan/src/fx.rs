//! The layout of quantised activations.

/// Row layout of quantised activations (numerics §2), for a row of `n` inputs in groups of 128:
///
/// | part | type | at |
/// |---|---|---|
/// | byte planes, highest first | `i8[planes][np]` | 0 |
/// | group scales xs | `f32[ng]` | `planes · np` |
/// | recombined sums z of each 32 inputs | `f32[np / 32]` | + 4 · ng |
/// | plane sums of each 16 inputs | `i16[planes][np / 16]` | + 4 · np / 32 |
///
/// with ng = ceil(n / 128), np = 128 · ng, and padding inputs zero. Rows start at multiples of 64 bytes.
/// z of inputs 32j … 32j+31 is the recombination of the three plane sums (what minima multiply), and the
/// sums of 16 (|·| ≤ 2048) correct unsigned codes in integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FxLayout {
    /// Byte planes: 3, 2 or 1.
    pub planes: usize,
}

/// Inputs that share one activation scale.
pub const FX_GROUP: usize = 128;

impl FxLayout {
    /// Groups of a row of `n` inputs.
    #[must_use]
    #[inline]
    pub const fn groups(self, n: usize) -> usize {
        n.div_ceil(FX_GROUP)
    }

    /// Inputs of a row after padding to whole groups.
    #[must_use]
    #[inline]
    pub const fn padded(self, n: usize) -> usize {
        self.groups(n) * FX_GROUP
    }

    /// Byte offset of the group scales.
    #[must_use]
    #[inline]
    pub const fn scales_at(self, n: usize) -> usize {
        self.planes * self.padded(n)
    }

    /// Byte offset of the recombined sums of 32.
    #[must_use]
    #[inline]
    pub const fn z_at(self, n: usize) -> usize {
        self.scales_at(n) + 4 * self.groups(n)
    }

    /// Byte offset of the plane sums of 16.
    #[must_use]
    #[inline]
    pub const fn sums_at(self, n: usize) -> usize {
        self.z_at(n) + 4 * (self.padded(n) / 32)
    }

    /// Bytes of a row, rounded up to a multiple of 64.
    #[must_use]
    #[inline]
    pub const fn row_bytes(self, n: usize) -> usize {
        (self.sums_at(n) + 2 * self.planes * (self.padded(n) / 16)).next_multiple_of(64)
    }

    /// Q: the largest quantised magnitude.
    #[must_use]
    #[inline]
    pub const fn q_max(self) -> i32 {
        match self.planes {
            3 => 8_355_711,
            2 => 32_639,
            _ => 127,
        }
    }
}
