//! What a token brings to a chunk of inputs.

use waste_plan::Packing;

use super::{Format, SLICES};
use crate::view::FxRows;

/// A chunk's part of one token.
#[derive(Clone, Copy)]
pub(super) struct Part<const P: usize> {
    /// 4 inputs each: slice by slice, plane by plane.
    pub(super) quads: [[[[u8; 4]; 4]; P]; SLICES],
    /// What the two i16 lanes of a row start from.
    pub(super) start: [[[u8; 4]; P]; SLICES],
    /// Sums of two neighbouring groups of the minima.
    pub(super) sums: [[[u8; 4]; P]; SLICES / 2],
    /// What the i32 sums of each 32 inputs start from.
    pub(super) base: [[i32; P]; SLICES / 2],
    pub(super) z: [f32; SLICES / 2],
    pub(super) xs: f32,
}

impl<const P: usize> Part<P> {
    pub(super) const ZERO: Self = Self {
        quads: [[[[0; 4]; 4]; P]; SLICES],
        start: [[[0; 4]; P]; SLICES],
        sums: [[[0; 4]; P]; SLICES / 2],
        base: [[0; P]; SLICES / 2],
        z: [0.0; SLICES / 2],
        xs: 0.0,
    };

    /// The part of token `t` in chunk `chunk`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn lay_out<F: Format>(&mut self, x: &FxRows<'_>, t: usize, chunk: usize) {
        for p in 0..P {
            let plane: &[[[[u8; 4]; 4]; SLICES]] =
                x.plane_bytes(t, p).as_chunks().0.as_chunks().0.as_chunks().0;
            let sums: &[i16; SLICES] = &x.sums(t, p).as_chunks().0[chunk];
            for (s, quads) in plane[chunk].iter().enumerate() {
                self.quads[s][p] = *quads;
                match F::PACKING {
                    Packing::K3 => self.start[s][p] = pair([-F::BIAS * sums[s], 0]),
                    Packing::K6 => {
                        self.start[s][p] =
                            pair(lanes(quads).map(|it| it.wrapping_mul(-F::BIAS).wrapping_sub(1)))
                    }
                    _ => {}
                }
            }
            for j in 0..SLICES / 2 {
                if F::LAYOUT.has_group_scales() && F::LAYOUT.minima {
                    self.sums[j][p] = match (F::LAYOUT.group, j * 4 + 3) {
                        (16, _) => pair([sums[2 * j], sums[2 * j + 1]]),
                        (_, last) if last < SLICES => {
                            pair([sums[last - 3] + sums[last - 2], sums[last - 1] + sums[last]])
                        }
                        _ => [0; 4],
                    };
                } else if !F::LAYOUT.has_group_scales() {
                    self.base[j][p] = -i32::from(F::BIAS) * i32::from(sums[2 * j] + sums[2 * j + 1]);
                }
            }
        }
        self.z = x.z(t).as_chunks().0[chunk];
        self.xs = x.xs(t)[chunk];
    }
}

/// Two words as they stand in memory.
#[inline(always)]
fn pair([a, b]: [i16; 2]) -> [u8; 4] {
    let ([a0, a1], [b0, b1]) = (a.to_le_bytes(), b.to_le_bytes());
    [a0, a1, b0, b1]
}

/// Sums of the inputs of a slice that go to either lane.
#[inline(always)]
fn lanes(quads: &[[u8; 4]; 4]) -> [i16; 2] {
    let signed = |byte: u8| i16::from(byte.cast_signed());
    quads.iter().fold([0; 2], |[a, b], quad| {
        [a + signed(quad[0]) + signed(quad[1]), b + signed(quad[2]) + signed(quad[3])]
    })
}
