//! The text form of a plan: what people read, compare, snapshot and break by hand in tests.
//!
//! One entity a line; `;` starts a comment. Numbers are decimal, offsets hexadecimal.
//!
//! ```text
//! plan 1 producer "waste 0.1.0" target "cpu"
//! model "tiny" arch "llama" ctx 64 vocab 32 params 4096 bytes 8192
//! options ctx 64 batch 1 chunk 8 want 1 kv f32 math fixed24
//! passes ["cse", "dce"]
//! stop [2]
//! memory weights 4096 states 0 scratch 512 io 1024 thread 0 text 0 lower_bound 512 placement "by-size"
//! source @0 "tiny.gguf" bytes 9000 sha256 "…"
//! weight w0 "embd" f32[32,16] plain at 0x0 bytes 2048 crc 0x1f2e3d4c = @0[0x40]:f32[32]
//! state st0 "k.0" keys f32[1,64,1,16] at 0x0 bytes 4096
//! port token i32[8,1] at 0x0
//! program "decode" tokens 1 want 1
//!   #0   s[0x0]:f32[T,16]/64 = embed io[0x0]:i32[T,1]/4, w0:f32[32,16] tile 4x16 op 0
//!   #1 | s[0x40]:f32[T,16]/64 = unary s[0x0]:f32[T,16]/64 {kind=silu} tile 4x16 op 1
//! ```
//!
//! An operand is `place:dtype[rows,cols]/stride`: places are `s[..]` scratch, `io[..]`, `w0` a weight, `st0` a state;
//! rows are `7`, `T`, `3*T`, `R` or `3*R`; a stride of 0 is left out. A weight `f32[8,32,16]` is a bank of 8 matrices. `|` marks a barrier before the step, `~` a step
//! in a loop over experts, `^T` a part that its file holds transposed. `bank b0 layer 3 codebooks 27 = @4[0x0] experts 8 bytes 4096` is a bank of records,
//! `= b0[0x30,0x900]` a weight with indices and scales in them. `options … lookahead 2` guesses two experts a layer; a stored matrix
//! `@0[0x40]:f32[32] + @1[0x80][0x280]:f32[4] scale 0.5` has a term of rank 4 added, B and A at these places.
//!
//! Invariants: `parse(&print(p)) == p` for every plan whose floats are finite; the parser never recurses, and allocates
//! in proportion to its input. Deliberately absent: any judgement of what it reads ([`crate::validate`]).

mod kind;
mod lex;
mod parse;
mod print;

use crate::schema::Plan;

/// What is wrong with the text of a plan, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// A sentence with found and expected.
    pub message: String,
}

/// The canonical text of `plan`.
#[must_use]
pub fn print(plan: &Plan) -> String {
    print::PlanText(plan).to_string()
}

/// Reads the text form.
///
/// # Errors
/// The first error of each line, in order, at most 64.
pub fn parse(text: &str) -> Result<Plan, Vec<ParseError>> {
    parse::plan(text)
}

#[cfg(test)]
#[path = "text/tests.rs"]
mod tests;
