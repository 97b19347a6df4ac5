//! NEON twin: 16 inputs at a time, their bytes by one `tbl` a plane.

use std::arch::aarch64::{
    vabsq_f32, vaddlvq_s8, vdupq_n_s8, vdupq_n_u8, vdupq_n_u32, veorq_u8, vmaxq_u32, vmaxvq_u32,
    vreinterpretq_s8_u8, vreinterpretq_u32_f32,
};

use waste_plan::{FX_GROUP, FxLayout, LANES};

use super::portable::{recombine, step};
use crate::cpu::Isa;
use crate::neon::{biased_digits, load_ps, store_signed};
use crate::table::{Entry, KernelTable};
use crate::view::{FxParts, FxRowMut};

macro_rules! rows {
    ($($name:ident: $planes:literal;)+) => {
        /// Overlays the rows of this tier. The caller has the tier.
        pub(crate) fn install(table: &mut KernelTable) {
            $( table.$name = Entry { call: $name, isa: Isa::Neon }; )+
        }
        $(#[target_feature(enable = "neon")]
        fn $name(x: &[f32], out: &mut FxRowMut<'_>) {
            quant_act::<$planes>(x, out);
        })+
    };
}

rows! {
    quant_act_fx24: 3;
    quant_act_fx16: 2;
    quant_act_fx8: 1;
}

#[inline]
#[target_feature(enable = "neon")]
fn quant_act<const P: usize>(x: &[f32], out: &mut FxRowMut<'_>) {
    assert_eq!((x.len(), P), (out.n(), out.layout().planes), "inputs and planes of a quantised row");
    let np = out.layout().padded(x.len());
    let (groups, rest) = x.as_chunks::<FX_GROUP>();
    let mut last = [0.0; FX_GROUP];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&last);
    let FxParts { planes, xs, z, sums } = out.parts();
    for (g, (x, xs)) in groups.iter().chain(last).zip(xs).enumerate() {
        let inverse;
        (*xs, inverse) = step(amax(x), FxLayout { planes: P }.q_max());
        let mut sums_of_32 = [[0i32; P]; FX_GROUP / 32];
        for (j, x) in x.as_chunks().0.iter().enumerate() {
            let at = g * FX_GROUP + j * LANES;
            let mut bytes = [vdupq_n_s8(0); P];
            if let Some(inverse) = inverse {
                for (bytes, digits) in bytes.iter_mut().zip(biased_digits::<P>(x, inverse)) {
                    *bytes = vreinterpretq_s8_u8(veorq_u8(digits, vdupq_n_u8(128)));
                }
            }
            for (p, bytes) in bytes.into_iter().enumerate() {
                store_signed(planes[p * np + at..].first_chunk_mut().expect("16 inputs of a plane"), bytes);
                let sum = vaddlvq_s8(bytes);
                sums[p * (np / 16) + at / 16] = sum;
                sums_of_32[j / 2][p] += i32::from(sum);
            }
        }
        for (z, sums) in z[g * sums_of_32.len()..].iter_mut().zip(sums_of_32) {
            *z = recombine(sums);
        }
    }
}

/// The largest magnitude, a NaN above all.
#[inline]
#[target_feature(enable = "neon")]
fn amax(x: &[f32; FX_GROUP]) -> f32 {
    let mut amax = vdupq_n_u32(0);
    for four in x.as_chunks().0 {
        amax = vmaxq_u32(amax, vreinterpretq_u32_f32(vabsq_f32(load_ps(four))));
    }
    f32::from_bits(vmaxvq_u32(amax))
}
