//! Mutants: one change to a valid plan, of the kinds that a wrong planner would make.

use waste_plan::schema::{Operand, Place, Plan, Rows, Step, StepKind};
use waste_plan::words::{Act, RopeStyle, UnaryKind};

/// A seeded generator (xorshift64*).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap() % n
    }
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// The kinds of change, by name.
pub(crate) const KINDS: &[&str] = &[
    "nudge read",
    "nudge write",
    "drop barrier",
    "add barrier",
    "swap neighbours",
    "move step",
    "drop step",
    "twice",
    "shrink scratch",
    "shrink io",
    "stride",
    "rows",
    "cols",
    "tile",
    "weight",
    "state",
    "attribute",
    "port",
    "move port",
    "move weight",
    "move state",
    "move buffer",
    "swap offsets",
    "part",
    "packing",
    "tokens",
];

/// Changes `plan` by `kind`; says what was changed, or nothing if the plan has no place for it.
pub(crate) fn mutate(plan: &mut Plan, kind: &str, rng: &mut Rng) -> Option<String> {
    let program = rng.below(plan.programs.len());
    let at = rng.below(plan.programs[program].steps.len());
    let name = format!("{kind}, {} #{at}", plan.programs[program].name);
    let what = match kind {
        "move port" | "move weight" | "move state" | "part" | "packing" | "shrink scratch" | "shrink io" => {
            declaration(plan, kind, rng)?
        }
        "move buffer" | "swap offsets" => buffers(plan, program, kind, rng)?,
        "drop barrier" | "add barrier" | "swap neighbours" | "move step" | "drop step" | "twice"
        | "tokens" => order(plan, program, at, kind, rng)?,
        _ => step(plan, program, at, kind, rng)?,
    };
    Some(format!("{name}: {what}"))
}

/// Changes in the order of steps.
fn order(plan: &mut Plan, program: usize, at: usize, kind: &str, rng: &mut Rng) -> Option<String> {
    let it = &mut plan.programs[program];
    let steps = &mut it.steps;
    match kind {
        "drop barrier" | "add barrier" => {
            let is_there = kind == "drop barrier";
            let ats: Vec<usize> = (0..steps.len()).filter(|at| steps[*at].barrier == is_there).collect();
            let at = ats[rng.below(ats.len())];
            steps[at].barrier = !is_there;
            return Some(format!("before #{at}"));
        }
        "swap neighbours" => {
            if at + 1 == steps.len() {
                return None;
            }
            // The barrier stays where it is in time.
            steps.swap(at, at + 1);
            let first = steps[at].barrier;
            steps[at].barrier = steps[at + 1].barrier;
            steps[at + 1].barrier = first;
        }
        "move step" => {
            let to = rng.below(steps.len());
            let step = steps.remove(at);
            steps.insert(to, Step { barrier: true, ..step });
            if let Some(next) = steps.get_mut(to + 1) {
                next.barrier = true;
            }
            return Some(format!("to #{to}"));
        }
        "drop step" => drop(steps.remove(at)),
        "twice" => {
            let copy = steps[at].clone();
            steps.insert(at + 1, Step { barrier: true, ..copy });
        }
        _ => {
            let was = it.tokens;
            it.tokens = if rng.below(2) == 0 { was + 1 } else { was - 1 };
            return Some(format!("{was} → {}", it.tokens));
        }
    }
    Some(String::new())
}

/// Changes in one step.
fn step(plan: &mut Plan, program: usize, at: usize, kind: &str, rng: &mut Rng) -> Option<String> {
    let (n_weights, n_states) = (plan.weights.len(), plan.states.len());
    let ports: Vec<u64> = plan.ports.iter().map(|it| it.offset).collect();
    let tokens = plan.programs[program].tokens;
    let step = &mut plan.programs[program].steps[at];
    if kind == "attribute" {
        return attribute(&mut step.kind, rng);
    }
    if kind == "tile" {
        let was = step.tile;
        let cols = step.writes[0].cols;
        step.tile.rows = u32::try_from(1 + rng.below(20)).unwrap();
        let can_cut = matches!(
            step.kind,
            StepKind::Linear { .. } | StepKind::Add | StepKind::Mul | StepKind::Glu { .. }
        );
        if can_cut && rng.below(2) == 0 {
            step.tile.cols = if rng.below(2) == 0 { cols } else { 16 * was.cols.div_ceil(32) };
        }
        return Some(format!("{was:?} → {:?}", step.tile));
    }
    let is_write = kind == "nudge write" || (kind != "nudge read" && rng.below(3) == 0);
    let slot = rng.below(if is_write { 1 } else { step.reads.len() });
    let it: &mut Operand = if is_write { &mut step.writes[0] } else { &mut step.reads[slot] };
    let was = *it;
    let fits = match (kind, it.place) {
        ("weight", Place::Weight(_)) => {
            it.place = Place::Weight(u32::try_from(rng.below(n_weights)).unwrap());
            true
        }
        ("state", Place::State(_)) => {
            it.place = Place::State(u32::try_from(rng.below(n_states)).unwrap());
            true
        }
        ("port", Place::Io(_)) => {
            it.place = Place::Io(rng.pick(&ports));
            true
        }
        ("weight" | "state" | "port", _) | (_, Place::Weight(_) | Place::State(_)) => false,
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
            it.rows = rng.pick(&[
                Rows::Tokens(1),
                Rows::Tokens(2),
                Rows::Want(1),
                Rows::Fixed(1),
                Rows::Fixed(tokens),
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
    if fits { Some(format!("{was:?} → {it:?}")) } else { None }
}

fn attribute(kind: &mut StepKind, rng: &mut Rng) -> Option<String> {
    let was = format!("{kind:?}");
    match kind {
        StepKind::Linear { act, .. } | StepKind::LinearGlu { act, .. } | StepKind::Glu { act, .. } => {
            *act = rng.pick(Act::ALL)
        }
        StepKind::Unary { kind } => *kind = rng.pick(UnaryKind::ALL),
        StepKind::RmsNorm { eps, .. } | StepKind::LayerNorm { eps, .. } => *eps *= 1.5,
        StepKind::RopeAngles { freqs, .. } => {
            let at = rng.below(freqs.len());
            freqs[at] *= 1.001;
        }
        StepKind::Rope { style, .. } => *style = rng.pick(RopeStyle::ALL),
        StepKind::Attention { scale, .. } => *scale *= 0.5,
        StepKind::Add => *kind = StepKind::Mul,
        StepKind::Mul => *kind = StepKind::Add,
        StepKind::Argmax => *kind = StepKind::FiniteCheck,
        StepKind::FiniteCheck => *kind = StepKind::Argmax,
        StepKind::Embed | StepKind::QuantAct { .. } | StepKind::KvAppend | StepKind::SelectRows => {
            return None;
        }
        other => unreachable!("the suite has no '{}'", other.name()),
    }
    Some(format!("{was} → {kind:?}"))
}

/// Changes in declarations and sizes.
fn declaration(plan: &mut Plan, kind: &str, rng: &mut Rng) -> Option<String> {
    let by = rng.pick(&[64, 128, 1024]);
    let nudge = |offset: &mut u64, back: bool| {
        let was = *offset;
        *offset = if back { offset.saturating_sub(by) } else { *offset + by };
        Some(format!("{was} → {offset}"))
    };
    let back = rng.below(2) == 0;
    match kind {
        "move port" => {
            let at = rng.below(plan.ports.len());
            nudge(&mut plan.ports[at].offset, back)
        }
        "move weight" => {
            let at = rng.below(plan.weights.len());
            nudge(&mut plan.weights[at].offset, back)
        }
        "move state" => {
            let at = rng.below(plan.states.len());
            nudge(&mut plan.states[at].offset, back)
        }
        "shrink scratch" => nudge(&mut plan.memory.scratch, true),
        "shrink io" => nudge(&mut plan.memory.io, true),
        "part" => {
            let at = rng.below(plan.weights.len());
            let parts = &mut plan.weights[at].parts;
            let part = rng.below(parts.len());
            if back && parts.len() > 1 {
                parts.swap(0, part.max(1));
                return Some(format!("weight {at}: order"));
            }
            parts[part].offset = parts[part].offset.saturating_sub(4);
            Some(format!("weight {at}: offset"))
        }
        _ => {
            let at = rng.below(plan.weights.len());
            let it = &mut plan.weights[at];
            it.packing = rng.pick(&waste_plan::Packing::ALL);
            Some(format!("weight {at}: {:?}", it.packing))
        }
    }
}

/// Moves or swaps whole buffers: every operand that begins in a range of scratch.
fn buffers(plan: &mut Plan, program: usize, kind: &str, rng: &mut Rng) -> Option<String> {
    let steps = &mut plan.programs[program].steps;
    let starts: Vec<u64> = steps
        .iter()
        .filter_map(|it| if let Place::Scratch(offset) = it.writes[0].place { Some(offset) } else { None })
        .collect();
    let (from, to) = (rng.pick(&starts), rng.pick(&starts));
    // The steps over which the change lasts: a whole life of a buffer at best, a part of one at worst.
    let first = rng.below(steps.len());
    let last = if rng.below(2) == 0 { steps.len() } else { (first + 1 + rng.below(8)).min(steps.len()) };
    for step in &mut steps[first..last] {
        for it in step.reads.iter_mut().chain(&mut step.writes) {
            match it.place {
                Place::Scratch(at) if at == from => it.place = Place::Scratch(to),
                Place::Scratch(at) if at == to && kind == "swap offsets" => it.place = Place::Scratch(from),
                _ => {}
            }
        }
    }
    Some(format!("{from:#x} → {to:#x} in #{first} … #{last}"))
}
