//! The text form of a module (`.wir`): one printer, one parser.
//!
//! ```text
//! module   = "module" STRING "arch=" name "ctx=" INT "vocab=" INT "{" item* "}"
//! item     = "source" "@"INT STRING "bytes=" INT "header=sha256:" HEX
//!          | "sym" name "in" INT "..=" INT
//!          | "weight" STRING ":" type "=" init [ "books" STRING ] [ "as" PACKING ]
//!          | "state" "@"name ":" type ( "keys" | "values" | "recurrent" )
//!          | "graph" "@"name "(" [ param ("," param)* ] ")" "phase=" PHASE "{" op* "return" [ out ("," out)* ] "}"
//! init     = DTYPE place | "transpose" DTYPE place | "concat" STRING ("," STRING)*
//!          | "bank" DTYPE run ("," run)*
//!          | "grouped" DTYPE place step "scales" INT step     ; codes, then their scales
//!          | "records" place "+=" INT "indices" INT "scales" INT
//!          | "merge" STRING ( "+" term )*                     ; a stored matrix and low-rank terms
//! term     = DTYPE "a" place "b" INT "rank" INT "scale" FLOAT
//! step     = [ "+=" INT ]                                    ; from matrix to matrix of a bank
//! run      = place [ "+=" INT "*" INT ]                      ; matrices: one, or as many as the last INT, so many bytes apart
//! place    = "@"INT "+" INT                                  ; source, first byte
//! type     = DTYPE "[" [ dim ("," dim)* ] "]"
//! dim      = INT | [ INT "*" ] name
//! param    = name ":" type
//! op       = [ value ("," value)* ":" type ("," type)* "=" ] OP [ operand ("," operand)* ] [ attrs ] [ region ]
//! operand  = ref | NAME "=" ref                              ; optional operands are named
//! ref      = value | name | "w" STRING | "@"name             ; result, input, weight, state
//! attrs    = "{" NAME "=" attr ("," NAME "=" attr)* "}"      ; those that are not neutral, in table order
//! attr     = WORD | INT | FLOAT | WORD attrs
//! region   = "{" "^" "(" param ("," param)* ")" op* "yield" ref ("," ref)* "}"
//! out      = ( name | "@"name ) ":" ref                      ; "@"name: the final version of a state
//! name     = WORD | STRING
//! ```
//!
//! A WORD is a letter or `_`, then letters, digits, `_`, and single inner dots. An INT is decimal or `0x` hex. A STRING has the
//! escapes `\" \\ \n \r \t \u{HEX}`. `;` begins a comment; white space separates and means nothing else.
//!
//! Invariants
//! - `parse(print(m)) == m` for a verified module in [canonical numbering](crate::Module::canonical);
//! - `print(parse(t)) == t` for text that the printer made;
//! - the parser never panics, nests at most [`MAX_DEPTH`] regions, and allocates in proportion to the text, a run of a bank counted
//!   as at most [`MAX_BANK`] matrices.
//!
//! Deliberately absent: types are taken as written and attributes only as far as their own syntax goes; whether they are
//! right is for [`mod@crate::verify`]. Only the first error is told: what follows it would be guesses.

mod cursor;
mod lexer;
mod parse_graph;
mod parser;
mod printer;

pub(crate) use lexer::is_word;
pub use parser::parse_module;
pub(crate) use printer::{Name, print_graph_header, print_output, print_state, print_sym, print_weight};
pub use printer::{ValueNames, print_graph, print_module, print_op};

/// The deepest nesting of regions.
pub const MAX_DEPTH: usize = 16;

/// The most matrices of a bank in text.
pub const MAX_BANK: usize = 1 << 16;

/// Where a text stops being a module, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What was expected and what was found.
    pub message: String,
}
