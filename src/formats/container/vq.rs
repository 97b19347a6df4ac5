//! How vector-quantised matrices are coded: 8 weights at a time, as the sum of one centroid a stage.
//!
//! W[r][8v + d] = scale_r · Σ_s C_s[idx_s(r, v)][d]. The index stream of a matrix is blocked by 64 rows; within a block
//! positions v ascend, within a position rows, within a row the index bytes of its stages.

/// Weights of one vector.
pub const VEC_DIM: usize = 8;

/// Rows of one block of an index stream.
pub const ROW_BLOCK: usize = 64;

/// The code of a container's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VqCode {
    /// Three stages of 256 centroids, a byte each: 3 bits a weight.
    Vq3r,
    /// Two stages of 256 centroids, a byte each: 2 bits a weight.
    Vq2r,
    /// Four stages of 64 centroids, 6 bits each in three bytes: 3 bits a weight.
    Vq4p,
}

impl VqCode {
    /// Every code.
    pub const ALL: [Self; 3] = [Self::Vq3r, Self::Vq2r, Self::Vq4p];

    /// The name in flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vq3r => "vq3r",
            Self::Vq2r => "vq2r",
            Self::Vq4p => "vq4p",
        }
    }

    /// Parses [`VqCode::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Centroids that are summed.
    #[must_use]
    pub const fn stages(self) -> usize {
        match self {
            Self::Vq3r => 3,
            Self::Vq2r => 2,
            Self::Vq4p => 4,
        }
    }

    /// Centroids of a stage.
    #[must_use]
    pub const fn entries(self) -> usize {
        match self {
            Self::Vq3r | Self::Vq2r => 256,
            Self::Vq4p => 64,
        }
    }

    /// Bytes of the indices of one vector.
    #[must_use]
    pub const fn position_bytes(self) -> usize {
        match self {
            Self::Vq2r => 2,
            Self::Vq3r | Self::Vq4p => 3,
        }
    }

    /// Elements of a matrix's codebooks, `[stages][entries][8]`.
    #[must_use]
    pub const fn books_len(self) -> usize {
        self.stages() * self.entries() * VEC_DIM
    }

    /// Bytes of the index stream of a matrix of `rows` × `k`, its rows filled up to whole blocks; `None` if k is no multiple
    /// of 8, or the number is beyond 64 bits.
    #[must_use]
    pub fn index_bytes(self, rows: u64, k: u64) -> Option<u64> {
        let block = (k / VEC_DIM as u64).checked_mul((ROW_BLOCK * self.position_bytes()) as u64)?;
        rows.div_ceil(ROW_BLOCK as u64).checked_mul(block).filter(|_| k.is_multiple_of(VEC_DIM as u64))
    }

    /// Where the indices of `row` at vector `position` start in the stream of a matrix of k columns; `None` if there is no
    /// such position.
    #[must_use]
    pub fn index_at(self, row: u64, position: u64, k: u64) -> Option<u64> {
        let (block, positions) = (ROW_BLOCK as u64, k / VEC_DIM as u64);
        let vector =
            (row / block).checked_mul(positions)?.checked_add(position).filter(|_| position < positions)?;
        vector.checked_mul(block)?.checked_add(row % block)?.checked_mul(self.position_bytes() as u64)
    }

    /// The indices in `bytes`; those of stages that the code does not have are 0.
    ///
    /// # Panics
    /// If there are fewer than [`VqCode::position_bytes`] bytes.
    #[must_use]
    pub const fn unpack(self, bytes: &[u8]) -> [u8; 4] {
        match self {
            Self::Vq3r => [bytes[0], bytes[1], bytes[2], 0],
            Self::Vq2r => [bytes[0], bytes[1], 0, 0],
            Self::Vq4p => {
                let (b0, b1, b2) = (bytes[0], bytes[1], bytes[2]);
                [b0 & 63, (b0 >> 6 | b1 << 2) & 63, (b1 >> 4 | b2 << 4) & 63, b2 >> 2]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_blocked_by_64_rows() {
        let code = VqCode::Vq3r;
        assert_eq!(code.index_bytes(65, 16), Some(128 * 2 * 3));
        assert_eq!((code.index_bytes(64, 20), code.index_bytes(u64::MAX, 1 << 40)), (None, None));
        let at = [(0, 0), (1, 0), (0, 1), (63, 1), (64, 0)].map(|(row, v)| code.index_at(row, v, 16));
        assert_eq!(at, [0, 3, 192, 381, 384].map(Some));
        assert_eq!(code.index_at(0, 2, 16), None);
        assert_eq!(VqCode::Vq4p.unpack(&[0b1000_0001, 0b0011_0000, 0b0001_0000]), [1, 2, 3, 4]);
    }
}
