//! One row of a weight as f32: the embedding of a token.
//!
//! The value is the reference decode of the format, rounded once to f32. Packed rows stand in a block of 16
//! (`waste_plan::pack`): `block` is that block, `k` the row's length, `lane` the row in it, out: `f32[k]`.
//! `embed_plain_*` read a contiguous row of f16 or bf16 elements, little-endian; a plain f32 row needs no kernel.

pub(crate) mod portable;
