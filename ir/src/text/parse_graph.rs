//! Tokens to a graph: parameters, ops, regions, outputs.

use std::borrow::Cow;
use std::collections::HashMap;

use smallvec::SmallVec;

use super::lexer::Kind;
use super::parser::Parser;
use super::{MAX_DEPTH, ParseError};
use crate::graph::{
    Def, Graph, OpData, OpId, Output, Phase, Region, RegionId, StateId, ValueData, ValueId, WeightId,
};
use crate::ops::Op;
use crate::types::TensorType;

/// A half-read graph.
#[derive(Default)]
struct Body<'t> {
    graph: Graph,
    values: HashMap<Cow<'t, str>, ValueId>,
    weights: HashMap<WeightId, ValueId>,
    states: HashMap<StateId, ValueId>,
}

/// The operands of an op as written.
struct Operands<'t> {
    positional: SmallVec<[ValueId; 4]>,
    named: SmallVec<[(&'t str, ValueId); 2]>,
}

impl<'t> Parser<'t> {
    pub(super) fn graph(&mut self) -> Result<(), ParseError> {
        self.cursor.skip();
        self.cursor.punct('@')?;
        let mut body = Body::default();
        body.graph.name = self.cursor.name("the name of a graph")?.into_owned();
        for (i, (at, name, ty)) in self.params()?.into_iter().enumerate() {
            let def = Def::Input(u32::try_from(i).expect("fewer than 2^32 tokens"));
            let data = ValueData { ty, def, name: name.clone().into_owned() };
            let value = self.define(&mut body, at, name, data)?;
            body.graph.inputs.push(value);
        }
        self.cursor.key("phase")?;
        body.graph.phase =
            self.named("a phase", |word| Phase::ALL.into_iter().find(|it| it.name() == word))?;
        self.cursor.punct('{')?;
        body.graph.order = self.ops(&mut body, "return", 0)?;
        if *self.cursor.peek() != Kind::Punct('}') {
            self.outputs(&mut body)?;
        }
        self.cursor.punct('}')?;
        self.module.graphs.push(body.graph);
        Ok(())
    }

    /// `(name: type, …)`, each with its place in the text.
    fn params(&mut self) -> Result<Vec<(usize, Cow<'t, str>, TensorType)>, ParseError> {
        self.cursor.punct('(')?;
        let mut params = Vec::new();
        while !self.cursor.eat(')') {
            if !params.is_empty() {
                self.cursor.punct(',')?;
            }
            let at = self.cursor.offset();
            let name = self.cursor.name("the name of a parameter or ')'")?;
            self.cursor.punct(':')?;
            params.push((at, name, self.ty()?));
        }
        Ok(params)
    }

    /// Ops up to and including the word `end`.
    fn ops(&mut self, body: &mut Body<'t>, end: &str, depth: usize) -> Result<Vec<OpId>, ParseError> {
        let mut order = Vec::new();
        while !self.cursor.eat_word(end) {
            order.push(self.op(body, depth)?);
        }
        Ok(order)
    }

    fn op(&mut self, body: &mut Body<'t>, depth: usize) -> Result<OpId, ParseError> {
        let mut results = Vec::new();
        if !self.is_statement() {
            results = self.results()?;
            self.cursor.punct('=')?;
        }
        let at = self.cursor.offset();
        let name = self.cursor.word("an op")?;
        let operands = self.operands(body)?;
        let attrs = self.attrs()?;
        let op = Op::from_text(name, &attrs).map_err(|message| self.cursor.error(at, message))?;
        let operands = slots(&op, &operands).map_err(|message| self.cursor.error(at, message))?;
        let region = match self.cursor.peek() {
            Kind::Punct('{') => Some(self.region(body, depth)?),
            _ => None,
        };
        let id = body.graph.ops.push(OpData { op, operands, results: SmallVec::new(), region });
        for (i, (at, name, ty)) in results.into_iter().enumerate() {
            let def = Def::Op(id, u32::try_from(i).expect("fewer than 2^32 tokens"));
            let value = self.define(body, at, name, ValueData { ty, def, name: String::new() })?;
            body.graph.ops[id].results.push(value);
        }
        Ok(id)
    }

    /// Whether an op without results is next, and not a value that has its name.
    fn is_statement(&self) -> bool {
        let is_value = matches!(self.cursor.peek_nth(1), Kind::Punct(':' | ',' | '='));
        matches!(self.cursor.peek(), Kind::Word(name) if Op::is_statement(name)) && !is_value
    }

    /// `v3, v4: type, type`.
    fn results(&mut self) -> Result<Vec<(usize, Cow<'t, str>, TensorType)>, ParseError> {
        let mut names = Vec::new();
        loop {
            let at = self.cursor.offset();
            names.push((at, self.cursor.word("the name of a result")?));
            if !self.cursor.eat(',') {
                break;
            }
        }
        self.cursor.punct(':')?;
        let mut results = Vec::with_capacity(names.len());
        for (at, name) in names {
            if !results.is_empty() {
                self.cursor.punct(',')?;
            }
            results.push((at, Cow::Borrowed(name), self.ty()?));
        }
        Ok(results)
    }

    fn operands(&mut self, body: &mut Body<'t>) -> Result<Operands<'t>, ParseError> {
        let mut operands = Operands { positional: SmallVec::new(), named: SmallVec::new() };
        loop {
            match (self.cursor.peek(), self.cursor.peek_nth(1)) {
                (Kind::Word(name), Kind::Punct('=')) => {
                    let name = *name;
                    self.cursor.skip();
                    self.cursor.skip();
                    operands.named.push((name, self.value_ref(body)?));
                }
                _ => operands.positional.push(self.value_ref(body)?),
            }
            if !self.cursor.eat(',') {
                return Ok(operands);
            }
        }
    }

    /// `{name=value, …}` if it is there; a `{` before `^` opens a region instead.
    fn attrs(&mut self) -> Result<Vec<(&'t str, &'t str)>, ParseError> {
        let mut attrs = Vec::new();
        if *self.cursor.peek() != Kind::Punct('{') || *self.cursor.peek_nth(1) == Kind::Punct('^') {
            return Ok(attrs);
        }
        self.cursor.skip();
        loop {
            let name = self.cursor.word("the name of an attribute")?;
            self.cursor.punct('=')?;
            attrs.push((name, self.cursor.attr_text()?));
            if !self.cursor.eat(',') {
                break;
            }
        }
        self.cursor.punct('}')?;
        Ok(attrs)
    }

    fn region(&mut self, body: &mut Body<'t>, depth: usize) -> Result<RegionId, ParseError> {
        if depth == MAX_DEPTH {
            return Err(self.cursor.expected(&format!("at most {MAX_DEPTH} nested regions")));
        }
        self.cursor.punct('{')?;
        self.cursor.punct('^')?;
        let id = body.graph.regions.push(Region::default());
        for (i, (at, name, ty)) in self.params()?.into_iter().enumerate() {
            let def = Def::Arg(id, u32::try_from(i).expect("fewer than 2^32 tokens"));
            let value = self.define(body, at, name, ValueData { ty, def, name: String::new() })?;
            body.graph.regions[id].args.push(value);
        }
        let order = self.ops(body, "yield", depth + 1)?;
        let mut yields = vec![self.value_ref(body)?];
        while self.cursor.eat(',') {
            yields.push(self.value_ref(body)?);
        }
        self.cursor.punct('}')?;
        body.graph.regions[id].order = order;
        body.graph.regions[id].yields = yields;
        Ok(id)
    }

    fn outputs(&mut self, body: &mut Body<'t>) -> Result<(), ParseError> {
        loop {
            let prefix = if self.cursor.eat('@') { "@" } else { "" };
            let name = format!("{prefix}{}", self.cursor.name("the name of an output")?);
            self.cursor.punct(':')?;
            let value = self.value_ref(body)?;
            body.graph.outputs.push(Output { name, value });
            if !self.cursor.eat(',') {
                return Ok(());
            }
        }
    }

    /// A result, an input, `w"weight"` or `@state`.
    fn value_ref(&mut self, body: &mut Body<'t>) -> Result<ValueId, ParseError> {
        let at = self.cursor.offset();
        if let Kind::Weight(name) = self.cursor.peek() {
            let Some(&id) = self.names.weights.get(name) else {
                return Err(self.cursor.error(at, format!("no weight {name:?} is declared before")));
            };
            self.cursor.skip();
            let ty = &self.module.weights[id].ty;
            return Ok(*body
                .weights
                .entry(id)
                .or_insert_with(|| body.graph.values.push(outer(ty, Def::Weight(id)))));
        }
        if self.cursor.eat('@') {
            let name = self.cursor.name("the name of a state")?;
            let Some(&id) = self.names.states.get(&name) else {
                return Err(self.cursor.error(at, format!("no state {name:?} is declared before")));
            };
            let ty = &self.module.states[id].ty;
            return Ok(*body
                .states
                .entry(id)
                .or_insert_with(|| body.graph.values.push(outer(ty, Def::State(id)))));
        }
        let name = self.cursor.name("a value")?;
        let value = body.values.get(&name).copied();
        value.ok_or_else(|| self.cursor.error(at, format!("no value {name:?} is defined before")))
    }

    fn define(
        &self,
        body: &mut Body<'t>,
        at: usize,
        name: Cow<'t, str>,
        data: ValueData,
    ) -> Result<ValueId, ParseError> {
        let value = body.graph.values.push(data);
        match body.values.insert(name, value) {
            None => Ok(value),
            Some(_) => Err(self.cursor.error(at, "this value is defined twice".to_owned())),
        }
    }
}

fn outer(ty: &TensorType, def: Def) -> ValueData {
    ValueData { ty: ty.clone(), def, name: String::new() }
}

/// One entry per operand name of `op`: mandatory operands by position, optional ones by name.
fn slots(op: &Op, given: &Operands<'_>) -> Result<SmallVec<[Option<ValueId>; 4]>, String> {
    let names = op.operand_names();
    let mandatory = names.iter().filter(|it| !it.ends_with('?')).count();
    if given.positional.len() != mandatory {
        let found = given.positional.len();
        return Err(format!("'{}' takes {mandatory} unnamed operands, found {found}", op.name()));
    }
    let mut positional = given.positional.iter().copied();
    let mut slots: SmallVec<[Option<ValueId>; 4]> =
        names.iter().map(|it| if it.ends_with('?') { None } else { positional.next() }).collect();
    for (name, value) in &given.named {
        let slot = names.iter().position(|it| it.strip_suffix('?') == Some(name));
        let slot = slot.ok_or_else(|| format!("'{}' has no optional operand '{name}'", op.name()))?;
        if slots[slot].replace(*value).is_some() {
            return Err(format!("operand '{name}' given twice"));
        }
    }
    Ok(slots)
}
