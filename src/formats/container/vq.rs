//! How vector-quantised matrices are coded: 8 weights at a time, as the sum of one centroid a stage.
//!
//! W[r][8v + d] = scale_r · Σ_s C_s[idx_s(r, v)][d]. The index stream of a matrix is blocked by 64 rows; within a block
//! positions v ascend, within a position rows, within a row the index bytes of its stages.

/// Weights of one vector.
pub const VEC_DIM: u32 = 8;

/// Rows of one block of an index stream.
pub const INDEX_BLOCK: u32 = 64;

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
    pub const fn stages(self) -> u32 {
        match self {
            Self::Vq3r => 3,
            Self::Vq2r => 2,
            Self::Vq4p => 4,
        }
    }

    /// Centroids of a stage.
    #[must_use]
    pub const fn entries(self) -> u32 {
        match self {
            Self::Vq3r | Self::Vq2r => 256,
            Self::Vq4p => 64,
        }
    }

    /// Bits of one index.
    #[must_use]
    pub const fn index_bits(self) -> u32 {
        match self {
            Self::Vq3r | Self::Vq2r => 8,
            Self::Vq4p => 6,
        }
    }

    /// Bytes of the indices of one vector.
    #[must_use]
    pub const fn index_bytes(self) -> u32 {
        self.stages() * self.index_bits() / 8
    }

    /// Bytes of the index stream of a matrix, its rows filled up to whole blocks; `None` if rows are not whole vectors or the
    /// number is beyond 64 bits.
    #[must_use]
    pub fn stream_bytes(self, rows: u32, cols: u32) -> Option<u64> {
        if !cols.is_multiple_of(VEC_DIM) {
            return None;
        }
        let padded = u64::from(rows).next_multiple_of(INDEX_BLOCK.into());
        padded.checked_mul(u64::from(cols / VEC_DIM))?.checked_mul(self.index_bytes().into())
    }

    /// Where the indices of `row` at vector `position` start in the stream of a matrix of `cols` columns.
    #[must_use]
    pub fn index_at(self, row: u32, position: u32, cols: u32) -> u64 {
        let block = u64::from(INDEX_BLOCK);
        let (row, position, positions) = (u64::from(row), u64::from(position), u64::from(cols / VEC_DIM));
        ((row / block * positions + position) * block + row % block) * u64::from(self.index_bytes())
    }

    /// The indices in `bytes`, which are [`VqCode::index_bytes`] long; stages beyond the code's are 0.
    #[must_use]
    pub fn unpack(self, bytes: &[u8]) -> [u8; 4] {
        match self {
            Self::Vq3r => [bytes[0], bytes[1], bytes[2], 0],
            Self::Vq2r => [bytes[0], bytes[1], 0, 0],
            Self::Vq4p => {
                let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
                [0, 6, 12, 18].map(|shift| (word >> shift & 63) as u8)
            }
        }
    }

    /// Writes what [`VqCode::unpack`] reads; indices are below [`VqCode::entries`].
    pub fn pack(self, indices: [u8; 4], out: &mut [u8]) {
        match self {
            Self::Vq3r | Self::Vq2r => out.copy_from_slice(&indices[..out.len()]),
            Self::Vq4p => {
                let words = indices.map(u32::from);
                let word = words[0] | words[1] << 6 | words[2] << 12 | words[3] << 18;
                out.copy_from_slice(&word.to_le_bytes()[..3]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_come_back() {
        for code in VqCode::ALL {
            let most = (code.entries() - 1) as u8;
            for indices in [[0; 4], [most; 4], [1, 2, 3, 4], [most, 0, most - 1, 5]] {
                let used = code.stages() as usize;
                let mut bytes = vec![0; code.index_bytes() as usize];
                code.pack(indices, &mut bytes);
                assert_eq!(code.unpack(&bytes)[..used], indices[..used], "{}", code.name());
            }
        }
        // The words of the description: b0 = s0 | s1 << 6, …
        let mut bytes = [0; 3];
        VqCode::Vq4p.pack([1, 2, 3, 4], &mut bytes);
        assert_eq!(bytes, [0b1000_0001, 0b0011_0000, 0b0001_0000]);
    }

    #[test]
    fn streams_are_blocked_by_64_rows() {
        let code = VqCode::Vq3r;
        assert_eq!(code.stream_bytes(65, 16), Some(128 * 2 * 3));
        assert_eq!(code.stream_bytes(64, 20), None);
        assert_eq!(VqCode::Vq2r.stream_bytes(u32::MAX, 1 << 31), Some((1 << 32) * (1 << 28) * 2));
        assert_eq!(
            [(0, 0), (1, 0), (0, 1), (63, 1), (64, 0)].map(|(r, v)| code.index_at(r, v, 16)),
            [0, 3, 192, 381, 384]
        );
    }
}
