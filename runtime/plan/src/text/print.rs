//! The printer.

use std::fmt;

use super::kind::KindText;
use crate::LowRank;
use crate::schema::{Bank, Operand, Place, Plan, Program, Rows, Step, Weight};

/// Prints a plan.
pub(super) struct PlanText<'a>(pub(super) &'a Plan);

impl fmt::Display for PlanText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        header(self.0, f)?;
        for (i, it) in self.0.sources.iter().enumerate() {
            writeln!(f, "source @{i} {:?} bytes {} sha256 {:?}", it.path, it.bytes, it.header_sha256)?;
        }
        for (i, it) in self.0.banks.iter().enumerate() {
            let Bank { layer, source, offset, bytes, experts, codebooks } = it;
            write!(f, "bank b{i} layer {layer} codebooks {codebooks} = @{source}[{offset:#x}]")?;
            writeln!(f, " experts {experts} bytes {bytes}")?;
        }
        for (i, it) in self.0.weights.iter().enumerate() {
            weight(i, it, f)?;
        }
        for (i, it) in self.0.states.iter().enumerate() {
            let [rows, positions, heads, d] = it.shape;
            write!(f, "state st{i} {:?} {} {}", it.name, it.kind.name(), it.dtype.name())?;
            writeln!(f, "[{rows},{positions},{heads},{d}] at {:#x} bytes {}", it.offset, it.bytes)?;
        }
        for it in &self.0.ports {
            let (name, dtype) = (it.name.name(), it.dtype.name());
            writeln!(f, "port {name} {dtype}[{},{}] at {:#x}", it.rows, it.cols, it.offset)?;
        }
        self.0.programs.iter().try_for_each(|it| program(self.0, it, f))
    }
}

fn header(plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (model, options, memory) = (&plan.model, &plan.options, &plan.memory);
    writeln!(f, "plan {} producer {:?} target {:?}", plan.version, plan.producer, plan.target)?;
    write!(f, "model {:?} arch {:?} ctx {}", model.name, model.arch, model.ctx_trained)?;
    writeln!(f, " vocab {} params {} bytes {}", model.vocab, model.params, model.source_bytes)?;
    write!(f, "options ctx {} batch {} chunk {}", options.ctx, options.batch, options.chunk)?;
    write!(f, " want {} kv {} math {}", options.want, options.kv.name(), options.math.name())?;
    if options.lookahead > 0 {
        write!(f, " lookahead {}", options.lookahead)?;
    }
    writeln!(f)?;
    writeln!(f, "passes {:?}", options.passes)?;
    writeln!(f, "stop {:?}", plan.stop_ids)?;
    write!(f, "memory weights {} states {} scratch {}", memory.weights, memory.states, memory.scratch)?;
    write!(f, " io {} thread {} text {}", memory.io, memory.thread, memory.text)?;
    if memory.expert_slots > 0 {
        write!(f, " experts {} slots {}", memory.experts, memory.expert_slots)?;
    }
    write!(f, " lower_bound {} placement {:?}", memory.scratch_lower_bound, memory.placement)?;
    writeln!(f, " ; peak {}", memory.peak())
}

fn weight(i: usize, it: &Weight, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "weight w{i} {:?} {}[", it.name, it.dtype.name())?;
    if it.bank != 1 {
        write!(f, "{},", it.bank)?;
    }
    write!(f, "{},{}]", it.rows, it.cols)?;
    let packing = it.packing.name();
    write!(f, " {packing} at {:#x} bytes {} crc {:#010x} = ", it.offset, it.bytes, it.crc32c)?;
    if let Some(records) = it.records {
        write!(f, "b{}[{:#x},{:#x}]", records.bank, records.indices, records.scales)?;
    }
    for (i, part) in it.parts.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        let transposed = if part.transposed { "^T" } else { "" };
        let (source, dtype) = (part.source, part.stored.name());
        write!(f, "{comma}@{source}[{:#x}]", part.offset)?;
        if let Some(scales) = part.scales {
            write!(f, "+[{scales:#x}]")?;
        }
        write!(f, ":{dtype}[{}]{transposed}", part.rows)?;
        for LowRank { source, stored, a, b, rank, scale } in &part.terms {
            write!(f, " + @{source}[{a:#x}][{b:#x}]:{}[{rank}] scale {scale:?}", stored.name())?;
        }
    }
    writeln!(f)
}

fn program(plan: &Plan, program: &Program, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "program {:?} tokens {} want {}", program.name, program.tokens, program.want)?;
    let width = 1 + program.steps.len().saturating_sub(1).to_string().len();
    for (i, it) in program.steps.iter().enumerate() {
        let barrier = if it.barrier { '|' } else { ' ' };
        let window = if it.window { "~ " } else { "" };
        let number = format!("#{i}");
        write!(f, "  {number:<width$} {barrier} {window}")?;
        step(plan, it, f)?;
    }
    Ok(())
}

fn step(plan: &Plan, step: &Step, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    operands(&step.writes, f)?;
    write!(f, " = {} ", step.kind.name())?;
    operands(&step.reads, f)?;
    let Step { tile, op, .. } = step;
    write!(f, "{} tile {}x{} op {op}", KindText(&step.kind), tile.rows, tile.cols)?;
    let names = step.reads.iter().filter_map(|it| match it.place {
        Place::Weight(id) => plan.weights.get(id as usize).map(|it| it.name.as_str()),
        Place::Scratch(_) | Place::Io(_) | Place::State(_) => None,
    });
    for (i, name) in names.enumerate() {
        write!(f, "{}{}", if i == 0 { " ; " } else { ", " }, name.escape_debug())?;
    }
    writeln!(f)
}

fn operands(operands: &[Operand], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, it) in operands.iter().enumerate() {
        f.write_str(if i == 0 { "" } else { ", " })?;
        match it.place {
            Place::Scratch(offset) => write!(f, "s[{offset:#x}]")?,
            Place::Io(offset) => write!(f, "io[{offset:#x}]")?,
            Place::Weight(id) => write!(f, "w{id}")?,
            Place::State(id) => write!(f, "st{id}")?,
        }
        write!(f, ":{}[", it.dtype.name())?;
        match it.rows {
            Rows::Fixed(n) => write!(f, "{n}")?,
            Rows::Tokens(1) => f.write_str("T")?,
            Rows::Tokens(n) => write!(f, "{n}*T")?,
            Rows::Want(1) => f.write_str("R")?,
            Rows::Want(n) => write!(f, "{n}*R")?,
        }
        write!(f, ",{}]", it.cols)?;
        if it.stride > 0 {
            write!(f, "/{}", it.stride)?;
        }
    }
    Ok(())
}
