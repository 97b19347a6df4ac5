//! Tokens to a module: declarations. Graphs are in `parse_graph`.

use std::borrow::Cow;
use std::collections::HashMap;

use waste_plan::{DType, Packing};

use super::cursor::Cursor;
use super::lexer::Kind;
use super::{MAX_BANK, ParseError};
use crate::graph::{
    ModelInfo, Module, SourceDecl, SourceId, StateDecl, StateId, StateKind, Steps, WeightDecl, WeightId,
    WeightInit,
};
use crate::types::{Dim, Shape, SymDecl, SymId, TensorType};
use waste_plan::LowRank;

/// Reads a module from its text form.
///
/// # Errors
/// Where the text departs from the grammar, or names what was not declared before.
pub fn parse_module(text: &str) -> Result<Module, ParseError> {
    let mut parser =
        Parser { cursor: Cursor::new(text)?, module: Module::default(), names: Names::default() };
    parser.module()?;
    Ok(parser.module)
}

/// A half-read module.
pub(super) struct Parser<'t> {
    pub(super) cursor: Cursor<'t>,
    pub(super) module: Module,
    pub(super) names: Names<'t>,
}

/// What has been declared so far.
#[derive(Default)]
pub(super) struct Names<'t> {
    pub(super) syms: HashMap<Cow<'t, str>, SymId>,
    pub(super) weights: HashMap<Cow<'t, str>, WeightId>,
    pub(super) states: HashMap<Cow<'t, str>, StateId>,
}

impl<'t> Parser<'t> {
    fn module(&mut self) -> Result<(), ParseError> {
        let cursor = &mut self.cursor;
        cursor.keyword("module")?;
        let name = cursor.string("the module's name in quotes")?.into_owned();
        cursor.key("arch")?;
        let arch = cursor.name("an architecture")?.into_owned();
        cursor.key("ctx")?;
        let ctx_trained = cursor.int("a number of positions")?;
        cursor.key("vocab")?;
        let vocab = cursor.int("a vocabulary size")?;
        self.module.info = ModelInfo { name, arch, ctx_trained, vocab };
        self.cursor.punct('{')?;
        while !self.cursor.eat('}') {
            self.item()?;
        }
        match self.cursor.peek() {
            Kind::End => Ok(()),
            _ => Err(self.cursor.expected("the end of the text")),
        }
    }

    fn item(&mut self) -> Result<(), ParseError> {
        match *self.cursor.peek() {
            Kind::Word("source") => self.source(),
            Kind::Word("sym") => self.sym(),
            Kind::Word("weight") => self.weight(),
            Kind::Word("state") => self.state(),
            Kind::Word("graph") => self.graph(),
            _ => Err(self.cursor.expected("source, sym, weight, state, graph or '}'")),
        }
    }

    fn source(&mut self) -> Result<(), ParseError> {
        let cursor = &mut self.cursor;
        cursor.skip();
        cursor.punct('@')?;
        let at = cursor.offset();
        let index: usize = cursor.int("the number of the source")?;
        if index != self.module.sources.len() {
            let message = format!("expected source @{}, found @{index}", self.module.sources.len());
            return Err(cursor.error(at, message));
        }
        let path = cursor.string("a path in quotes")?.into_owned();
        cursor.key("bytes")?;
        let bytes = cursor.int("a number of bytes")?;
        cursor.key("header")?;
        cursor.keyword("sha256")?;
        cursor.punct(':')?;
        let header_sha256 = cursor.alphanumeric("hex digits")?.into_owned();
        self.module.sources.push(SourceDecl { path, bytes, header_sha256 });
        Ok(())
    }

    fn sym(&mut self) -> Result<(), ParseError> {
        let cursor = &mut self.cursor;
        cursor.skip();
        let at = cursor.offset();
        let name = cursor.name("a symbol")?;
        cursor.keyword("in")?;
        let lo = cursor.int("the least value")?;
        if *cursor.peek() != Kind::Through {
            return Err(cursor.expected("'..='"));
        }
        cursor.skip();
        let hi = cursor.int("the largest value")?;
        let id = self.module.syms.push(SymDecl { name: name.clone().into_owned(), lo, hi });
        match self.names.syms.insert(name, id) {
            None => Ok(()),
            Some(_) => Err(self.cursor.error(at, "this symbol is declared twice".to_owned())),
        }
    }

    fn weight(&mut self) -> Result<(), ParseError> {
        self.cursor.skip();
        let at = self.cursor.offset();
        let name = self.cursor.string("the weight's name in quotes")?;
        self.cursor.punct(':')?;
        let ty = self.ty()?;
        self.cursor.punct('=')?;
        let init = self.weight_init()?;
        let books = match self.cursor.eat_word("books") {
            true => Some(self.part()?),
            false => None,
        };
        let packing = match self.cursor.eat_word("as") {
            true => Some(self.named("a packing", Packing::from_name)?),
            false => None,
        };
        let decl = WeightDecl { name: name.clone().into_owned(), ty, init, books, packing };
        let id = self.module.weights.push(decl);
        match self.names.weights.insert(name, id) {
            None => Ok(()),
            Some(_) => Err(self.cursor.error(at, "this weight is declared twice".to_owned())),
        }
    }

    fn weight_init(&mut self) -> Result<WeightInit, ParseError> {
        if self.cursor.eat_word("concat") {
            let mut parts = vec![self.part()?];
            while self.cursor.eat(',') {
                parts.push(self.part()?);
            }
            return Ok(WeightInit::Concat(parts));
        }
        if self.cursor.eat_word("bank") {
            let stored = self.named("a dtype", DType::from_name)?;
            let mut parts = Vec::new();
            self.run(&mut parts)?;
            while self.cursor.eat(',') {
                self.run(&mut parts)?;
            }
            return Ok(WeightInit::Bank { stored, parts });
        }
        if self.cursor.eat_word("grouped") {
            let stored = self.named("a dtype", DType::from_name)?;
            let (source, first) = self.place()?;
            let codes = Steps { first, step: self.step()? };
            self.cursor.keyword("scales")?;
            let first = self.cursor.int("a byte offset")?;
            let scales = Steps { first, step: self.step()? };
            return Ok(WeightInit::Grouped { source, stored, codes, scales });
        }
        if self.cursor.eat_word("merge") {
            let (base, mut terms) = (self.part()?, Vec::new());
            while self.cursor.eat('+') {
                terms.push(self.term()?);
            }
            return Ok(WeightInit::Merged { base, terms });
        }
        if self.cursor.eat_word("records") {
            return self.records();
        }
        let transposed = self.cursor.eat_word("transpose");
        let stored = self.named("a dtype", DType::from_name)?;
        let (source, offset) = self.place()?;
        Ok(if transposed {
            WeightInit::Transposed { source, offset, stored }
        } else {
            WeightInit::Stored { source, offset, stored }
        })
    }

    /// `f32 a @1+0x400 b 0x800 rank 4 scale 2.0`.
    fn term(&mut self) -> Result<LowRank<SourceId>, ParseError> {
        let stored = self.named("a dtype", DType::from_name)?;
        self.cursor.keyword("a")?;
        let (source, a) = self.place()?;
        self.cursor.keyword("b")?;
        let b = self.cursor.int("a byte offset")?;
        self.cursor.keyword("rank")?;
        let rank = self.cursor.int("the rank")?;
        self.cursor.keyword("scale")?;
        let scale = self.cursor.float("the scale")?;
        Ok(LowRank { source, stored, a, b, rank, scale })
    }

    /// `@2+0x0 += 0x1000 indices 0x30 scales 0x930`.
    fn records(&mut self) -> Result<WeightInit, ParseError> {
        let (source, first) = self.place()?;
        self.cursor.punct('+')?;
        self.cursor.punct('=')?;
        let stride = self.cursor.int("the bytes of a record")?;
        self.cursor.keyword("indices")?;
        let indices = self.cursor.int("a byte of the record")?;
        self.cursor.keyword("scales")?;
        let scales = self.cursor.int("a byte of the record")?;
        Ok(WeightInit::Records { source, first, stride, indices, scales })
    }

    /// `+= 0x40`: the bytes from matrix to matrix, or 0 where it is left out.
    fn step(&mut self) -> Result<u64, ParseError> {
        if !self.cursor.eat('+') {
            return Ok(0);
        }
        self.cursor.punct('=')?;
        self.cursor.int("the bytes from matrix to matrix")
    }

    /// `@0+0x100`: a source and a byte.
    fn place(&mut self) -> Result<(SourceId, u64), ParseError> {
        self.cursor.punct('@')?;
        let at = self.cursor.offset();
        let index: usize = self.cursor.int("the number of a source")?;
        let source = self.module.sources.keys().nth(index);
        let source = source.ok_or_else(|| self.cursor.error(at, format!("there is no source @{index}")))?;
        self.cursor.punct('+')?;
        Ok((source, self.cursor.int("a byte offset")?))
    }

    /// `@0+0x100 += 0x40 * 8`: eight matrices of a bank, or one without the part from `+=`.
    fn run(&mut self, parts: &mut Vec<(SourceId, u64)>) -> Result<(), ParseError> {
        let (source, first) = self.place()?;
        if !self.cursor.eat('+') {
            parts.push((source, first));
            return Ok(());
        }
        self.cursor.punct('=')?;
        let at = self.cursor.offset();
        let step: u64 = self.cursor.int("the bytes from matrix to matrix")?;
        self.cursor.punct('*')?;
        let count: u64 = self.cursor.int("the number of matrices")?;
        let last =
            count.checked_sub(1).and_then(|it| it.checked_mul(step)).and_then(|it| it.checked_add(first));
        if last.is_none() || count.saturating_add(parts.len() as u64) > MAX_BANK as u64 {
            let message =
                format!("expected 1 to {MAX_BANK} matrices below byte 2^64, found {count} of {step}");
            return Err(self.cursor.error(at, message));
        }
        parts.extend((0..count).map(|i| (source, first + i * step)));
        Ok(())
    }

    fn part(&mut self) -> Result<WeightId, ParseError> {
        let at = self.cursor.offset();
        let name = self.cursor.string("the name of a weight in quotes")?;
        let id = self.names.weights.get(&name).copied();
        id.ok_or_else(|| self.cursor.error(at, format!("no weight {name:?} is declared before")))
    }

    fn state(&mut self) -> Result<(), ParseError> {
        self.cursor.skip();
        self.cursor.punct('@')?;
        let at = self.cursor.offset();
        let name = self.cursor.name("the name of a state")?;
        self.cursor.punct(':')?;
        let ty = self.ty()?;
        let kind = self.named("keys, values or recurrent", StateKind::from_name)?;
        let id = self.module.states.push(StateDecl { name: name.clone().into_owned(), ty, kind });
        match self.names.states.insert(name, id) {
            None => Ok(()),
            Some(_) => Err(self.cursor.error(at, "this state is declared twice".to_owned())),
        }
    }

    /// A word that `find` knows.
    pub(super) fn named<T>(
        &mut self,
        what: &str,
        find: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ParseError> {
        let Kind::Word(word) = *self.cursor.peek() else { return Err(self.cursor.expected(what)) };
        let found = find(word).ok_or_else(|| self.cursor.expected(what))?;
        self.cursor.skip();
        Ok(found)
    }

    /// `f32[T, 576]`.
    pub(super) fn ty(&mut self) -> Result<TensorType, ParseError> {
        let dtype = self.named("a dtype", DType::from_name)?;
        self.cursor.punct('[')?;
        let mut dims = Vec::new();
        while !self.cursor.eat(']') {
            if !dims.is_empty() {
                self.cursor.punct(',')?;
            }
            dims.push(self.dim()?);
        }
        Ok(TensorType { dtype, shape: Shape::new(&dims) })
    }

    fn dim(&mut self) -> Result<Dim, ParseError> {
        let Kind::Number(_) = self.cursor.peek() else {
            return Ok(Dim::sym(self.sym_ref()?));
        };
        let n = self.cursor.int("a size")?;
        if self.cursor.eat('*') {
            Ok(Dim::Scaled { sym: self.sym_ref()?, mul: n })
        } else {
            Ok(Dim::Const(n))
        }
    }

    fn sym_ref(&mut self) -> Result<SymId, ParseError> {
        let at = self.cursor.offset();
        let name = self.cursor.name("a size or a symbol")?;
        let id = self.names.syms.get(&name).copied();
        id.ok_or_else(|| self.cursor.error(at, format!("no symbol {name:?} is declared before")))
    }
}
