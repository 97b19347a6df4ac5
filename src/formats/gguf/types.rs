//! GGML's tensor types by number, name and, where known, [`DType`].
//!
//! Source: `enum ggml_type` in ggml.h; numbers of removed types keep their old names.

use waste_plan::dtype::DType;

/// What error messages say instead of a type we do not read.
pub(super) const SUPPORTED: &str = "floats, Q4_0 … Q8_0, Q2_K … Q6_K, IQ4_NL, IQ4_XS and MXFP4 are";

const NAMES: [&str; 40] = [
    "F32",
    "F16",
    "Q4_0",
    "Q4_1",
    "Q4_2",
    "Q4_3",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q8_1",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q8_K",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ3_XXS",
    "IQ1_S",
    "IQ4_NL",
    "IQ3_S",
    "IQ2_S",
    "IQ4_XS",
    "I8",
    "I16",
    "I32",
    "I64",
    "F64",
    "IQ1_M",
    "BF16",
    "Q4_0_4_4",
    "Q4_0_4_8",
    "Q4_0_8_8",
    "TQ1_0",
    "TQ2_0",
    "IQ4_NL_4_4",
    "IQ4_NL_4_8",
    "IQ4_NL_8_8",
    "MXFP4",
];

/// The dtype of weights of GGML type `code`, if we read it.
pub(super) fn dtype(code: u32) -> Option<DType> {
    Some(match code {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2K,
        11 => DType::Q3K,
        12 => DType::Q4K,
        13 => DType::Q5K,
        14 => DType::Q6K,
        20 => DType::Iq4Nl,
        23 => DType::Iq4Xs,
        30 => DType::BF16,
        39 => DType::Mxfp4,
        _ => return None,
    })
}

/// GGML's name of type `code`.
pub(super) fn name(code: u32) -> String {
    let known = usize::try_from(code).ok().and_then(|idx| NAMES.get(idx));
    known.map_or_else(|| format!("number {code}"), |it| (*it).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_dtypes_agree() {
        for code in 0..64 {
            if let Some(dtype) = dtype(code) {
                assert_eq!(dtype.name().to_uppercase(), name(code));
            }
        }
        assert_eq!(name(12), "Q4_K");
        assert_eq!(name(39), "MXFP4");
        assert_eq!(name(40), "number 40");
    }
}
