//! Changes in one step: its operands, its tiles, its attributes.

use waste_plan::schema::{Operand, Place, Plan, Program, Rows, Situ, Step, StepKind};
use waste_plan::words::{Act, RopeStyle, Scoring, UnaryKind};

use super::mutate::Rng;

pub(super) fn step(plan: &mut Plan, program: usize, at: usize, kind: &str, rng: &mut Rng) -> Option<String> {
    let shapes: Vec<[u32; 4]> = plan.states.iter().map(|it| it.shape).collect();
    let n_weights = plan.weights.len();
    let ports: Vec<u64> = plan.ports.iter().map(|it| it.offset).collect();
    let tokens = plan.programs[program].tokens;
    if kind.starts_with("tile") {
        return tile(plan, program, at, rng);
    }
    let step = &mut plan.programs[program].steps[at];
    // What is demanded ahead changes no result.
    if matches!(step.kind, StepKind::ExpertPrefetch { speculative: false, .. }) && kind != "port" {
        return None;
    }
    match kind {
        "attribute" | "attribute of few" => return attribute(&mut step.kind, rng),
        "swap results" | "swap reads" => return swap(step, kind == "swap reads", rng),
        _ => {}
    }
    let is_write = kind == "nudge write" || (kind != "nudge read" && rng.below(3) == 0);
    let operands = if is_write { &mut step.writes } else { &mut step.reads };
    let slot = if operands.is_empty() { return None } else { rng.below(operands.len()) };
    // Rows of pairs are where they are: nobody asks for their order.
    let is_unread = match step.kind {
        StepKind::ExpertLinear { gather: false, .. }
        | StepKind::ExpertLut { gather: false }
        | StepKind::ExpertVq { gather: false, .. } => slot == 2,
        StepKind::ExpertGlu { gather: false, .. } => slot == 3,
        _ => false,
    };
    if is_unread && !is_write {
        return None;
    }
    let it: &mut Operand = &mut operands[slot];
    let was = *it;
    let fits = match (kind, it.place) {
        ("weight", Place::Weight(_)) => {
            it.place = Place::Weight(u32::try_from(rng.below(n_weights)).unwrap());
            true
        }
        ("state", Place::State(id)) => {
            // Mostly one of the same shape: a planner would not take another.
            let same: Vec<usize> =
                (0..shapes.len()).filter(|it| shapes[*it] == shapes[id as usize]).collect();
            let to = if rng.below(4) > 0 { rng.pick(&same) } else { rng.below(shapes.len()) };
            it.place = Place::State(u32::try_from(to).unwrap());
            true
        }
        ("port", Place::Io(_)) => {
            it.place = Place::Io(rng.pick(&ports));
            true
        }
        ("weight" | "state" | "port", _) | (_, Place::Weight(_) | Place::State(_)) => false,
        // One row is as far from the next as one likes.
        ("stride", _) if it.rows == Rows::Fixed(1) => false,
        ("stride", _) => {
            it.stride = rng.pick(&[
                it.stride + 4,
                it.stride + 64,
                it.stride * 2,
                it.stride - 4,
                it.stride.next_multiple_of(256),
            ]);
            true
        }
        ("rows", _) => {
            let (Rows::Fixed(n) | Rows::Tokens(n) | Rows::Want(n)) = it.rows;
            it.rows = rng.pick(&[
                Rows::Tokens(1),
                Rows::Tokens(2),
                Rows::Want(1),
                Rows::Fixed(1),
                Rows::Fixed(tokens * n),
            ]);
            true
        }
        ("cols", _) => {
            it.cols = rng.pick(&[it.cols * 2, it.cols / 2, it.cols + 16, it.cols.max(2) - 1]);
            true
        }
        (_, Place::Scratch(offset) | Place::Io(offset)) => {
            let by = rng.pick(&[4, 16, 64, 128, 512, 2048]);
            let to = if rng.below(2) == 0 { offset + by } else { offset.saturating_sub(by) };
            it.place = if matches!(it.place, Place::Io(_)) { Place::Io(to) } else { Place::Scratch(to) };
            true
        }
    };
    let which = if is_write { "write" } else { "read" };
    if fits { Some(format!("{which} {slot}: {was:?} → {it:?}")) } else { None }
}

/// Other tiles: fewer rows, other columns, more columns than there are. Threads get the memory that they need.
fn tile(plan: &mut Plan, program: usize, at: usize, rng: &mut Rng) -> Option<String> {
    let Program { tokens, want, steps, .. } = &mut plan.programs[program];
    let step = &mut steps[at];
    let was = step.tile;
    let cols = step.writes.first()?.cols;
    if rng.below(2) == 0 {
        step.tile.rows = u32::try_from(1 + rng.below(20)).unwrap();
    } else {
        step.tile.cols = rng.pick(&[
            cols,
            cols + 1,
            2 * cols,
            16,
            64,
            16 * was.cols.div_ceil(32),
            was.cols / 2,
            was.cols + 16,
        ]);
    }
    plan.memory.thread = plan.memory.thread.max(step.thread_bytes(*tokens, *want));
    Some(format!("of {}: {was:?} → {:?}", step.kind.name(), step.tile))
}

/// Two operands of the same side trade places.
fn swap(step: &mut Step, reads: bool, rng: &mut Rng) -> Option<String> {
    let operands = if reads { &mut step.reads } else { &mut step.writes };
    let n = operands.len();
    let (a, b) = if n < 2 { return None } else { (rng.below(n), rng.below(n)) };
    if rng.below(2) == 0 {
        operands.swap(a, b);
    } else {
        // Only where they lie, as a planner that mixes up two values of a shape would.
        let place = operands[a].place;
        operands[a].place = operands[b].place;
        operands[b].place = place;
    }
    Some(format!("{a} and {b}"))
}

fn attribute(kind: &mut StepKind, rng: &mut Rng) -> Option<String> {
    let was = format!("{kind:?}");
    let other_situ = |it: &mut Situ, rng: &mut Rng| match rng.below(2) {
        0 => it.beta *= 2.0,
        _ => it.linear += 1.0,
    };
    match kind {
        StepKind::LinearGlu { act, situ, .. }
        | StepKind::Glu { act, situ }
        | StepKind::ExpertGlu { act, situ, .. }
            if *act == Act::Situ && rng.below(2) == 0 =>
        {
            other_situ(situ, rng);
        }
        StepKind::ExpertGlu { gather, .. } | StepKind::ExpertLinear { gather, .. } if rng.below(2) == 0 => {
            *gather = !*gather;
        }
        StepKind::Linear { act, .. }
        | StepKind::LinearGlu { act, .. }
        | StepKind::Glu { act, .. }
        | StepKind::ShortConv { act }
        | StepKind::ExpertLinear { act, .. }
        | StepKind::ExpertGlu { act, .. } => *act = rng.pick(Act::ALL),
        StepKind::Unary { kind } => *kind = rng.pick(UnaryKind::ALL),
        StepKind::RmsNorm { eps, .. }
        | StepKind::LayerNorm { eps, .. }
        | StepKind::GatedRmsNorm { eps }
        | StepKind::AttnResMix { eps, .. } => *eps *= 1.5,
        StepKind::RopeAngles { freqs, .. } => {
            let at = rng.below(freqs.len());
            freqs[at] *= 1.001;
        }
        StepKind::Rope { style, skip, head_dim } => match rng.below(3) {
            0 => *style = rng.pick(RopeStyle::ALL),
            1 => *skip = skip.checked_sub(2).unwrap_or(2),
            _ => *head_dim = (*head_dim / 2).max(1),
        },
        StepKind::Attention { scale, .. } => *scale *= 0.5,
        StepKind::LatentAttention { scale, heads, .. } => match rng.below(2) {
            0 => *scale *= 0.5,
            _ => *heads += 1,
        },
        StepKind::L2Norm { dim, eps, scale } => match rng.below(3) {
            0 => *dim /= 2,
            1 => *eps *= 2.0,
            _ => *scale *= 2.0,
        },
        StepKind::KdaGate { lower_bound } => *lower_bound -= 1.0,
        StepKind::RouteTopK { scoring, groups, keep, renorm, scale, .. } => match rng.below(5) {
            0 => *scoring = rng.pick(Scoring::ALL),
            1 => *groups = if *groups == 1 { 2 } else { 1 },
            2 => *keep = if *keep == 1 { 2 } else { 1 },
            3 => *renorm = !*renorm,
            _ => *scale *= 2.0,
        },
        StepKind::ExpertSort { experts } => {
            *experts = if rng.below(2) == 0 { *experts + 1 } else { *experts - 1 }
        }
        StepKind::LutBuild { code, tables } => match rng.below(2) {
            0 => *code = rng.pick(waste_plan::VqCode::ALL),
            _ => *tables = rng.pick(waste_plan::Tables::ALL),
        },
        StepKind::ExpertLut { gather } => *gather = !*gather,
        StepKind::ExpertVq { code, tables, gather } => match rng.below(3) {
            0 => *code = rng.pick(waste_plan::VqCode::ALL),
            1 => *tables = rng.pick(waste_plan::Tables::ALL),
            _ => *gather = !*gather,
        },
        StepKind::HeadLinear => *kind = StepKind::HeadLinearT,
        StepKind::HeadLinearT => *kind = StepKind::HeadLinear,
        StepKind::Add => *kind = StepKind::Mul,
        StepKind::Mul => *kind = StepKind::Add,
        StepKind::Argmax => *kind = StepKind::FiniteCheck,
        StepKind::FiniteCheck => *kind = StepKind::Argmax,
        StepKind::Embed
        | StepKind::QuantAct { .. }
        | StepKind::KvAppend
        | StepKind::SelectRows
        | StepKind::Concat
        | StepKind::KdaStep
        | StepKind::ExpertGather
        | StepKind::ExpertSum
        | StepKind::ExpertPrefetch { .. }
        | StepKind::ExpertWindow { .. }
        | StepKind::ExpertRelease { .. } => return None,
    }
    Some(format!("{was} → {kind:?}"))
}
