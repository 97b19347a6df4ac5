//! Mutants: one change to a valid plan, of the kinds that a wrong planner would make.

use waste_plan::schema::{Place, Plan, Step, StepKind};

use super::mutate_declaration::declaration;
use super::mutate_step::step;

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
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
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
    "tile of few",
    "weight",
    "state",
    "attribute",
    "attribute of few",
    "swap results",
    "swap reads",
    "port",
    "move port",
    "move weight",
    "move state",
    "move buffer",
    "swap offsets",
    "part",
    "packing",
    "bank",
    "records",
    "tokens",
    "window",
    "edge",
    "loop barrier",
];

/// Changes `plan` by `kind`; says what was changed, or nothing if the plan has no place for it.
pub(crate) fn mutate(plan: &mut Plan, kind: &str, rng: &mut Rng) -> Option<String> {
    let program = rng.below(plan.programs.len());
    let at = match kind {
        "tile of few" | "attribute of few" => few(plan, program, rng)?,
        _ => rng.below(plan.programs[program].steps.len()),
    };
    let name = format!("{kind}, {} #{at}", plan.programs[program].name);
    let what = match kind {
        "move port" | "move weight" | "move state" | "part" | "packing" | "bank" | "records"
        | "shrink scratch" | "shrink io" => declaration(plan, kind, rng)?,
        "move buffer" | "swap offsets" => buffers(plan, program, kind, rng)?,
        "drop barrier" | "add barrier" | "swap neighbours" | "move step" | "drop step" | "twice"
        | "tokens" => order(plan, program, at, kind, rng)?,
        "window" | "edge" | "loop barrier" => loops(plan, program, kind, rng)?,
        _ => step(plan, program, at, kind, rng)?,
    };
    Some(format!("{name}: {what}"))
}

/// A step of a kind that dense decoders do not have.
fn few(plan: &Plan, program: usize, rng: &mut Rng) -> Option<usize> {
    let steps = &plan.programs[program].steps;
    let is_few = |it: &Step| {
        it.kind.n_writes() > 1
            || matches!(
                it.kind,
                StepKind::L2Norm { .. }
                    | StepKind::KdaGate { .. }
                    | StepKind::GatedRmsNorm { .. }
                    | StepKind::HeadLinear
                    | StepKind::HeadLinearT
                    | StepKind::LatentAttention { .. }
                    | StepKind::AttnResMix { .. }
                    | StepKind::Concat
                    | StepKind::ExpertGather
                    | StepKind::ExpertLinear { .. }
                    | StepKind::ExpertGlu { .. }
                    | StepKind::ExpertLut { .. }
                    | StepKind::ExpertVq { .. }
                    | StepKind::ExpertSum
                    | StepKind::LutBuild { .. }
            )
    };
    let ats: Vec<usize> = (0..steps.len()).filter(|at| is_few(&steps[*at])).collect();
    if ats.is_empty() { None } else { Some(rng.pick(&ats)) }
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

/// Changes in a loop over experts: what is in it, where it begins and ends, who meets there.
fn loops(plan: &mut Plan, program: usize, kind: &str, rng: &mut Rng) -> Option<String> {
    let n_banks = u32::try_from(plan.banks.len()).unwrap();
    let steps = &mut plan.programs[program].steps;
    let ats: Vec<usize> =
        (0..steps.len()).filter(|at| matches!(steps[*at].kind, StepKind::ExpertWindow { .. })).collect();
    let first = if ats.is_empty() { return None } else { rng.pick(&ats) };
    let StepKind::ExpertWindow { bank, body } = steps[first].kind else { unreachable!("found above") };
    let last = first + body as usize;
    match kind {
        "loop barrier" => {
            let at = rng.pick(&[first, first + 1, last, last + 1]);
            let step = steps.get_mut(at)?;
            step.barrier = !step.barrier;
            Some(format!("before #{at}"))
        }
        "edge" => {
            // The edge trades places with the step beside it; both ends are told.
            let (at, other) =
                rng.pick(&[(first, first - 1), (first, first + 1), (last, last - 1), (last, last + 1)]);
            if other == steps.len() {
                return None;
            }
            steps.swap(at, other);
            let (first, last) = if at == first { (other, last) } else { (first, other) };
            let body = u32::try_from(last.checked_sub(first)?).unwrap();
            steps[first].kind = StepKind::ExpertWindow { bank, body };
            steps[last].kind = StepKind::ExpertRelease { bank, body };
            for (i, step) in steps.iter_mut().enumerate() {
                step.window = i > first && i < last;
                step.barrier |= (first..=last + 1).contains(&i);
            }
            Some(format!("#{at} and #{other}"))
        }
        _ => {
            let at = rng.pick(&[first, first + 1, last - 1, last, last + 1]);
            let by = rng.below(2);
            match steps.get_mut(at).map(|it| (&mut it.kind, &mut it.window))? {
                (StepKind::ExpertWindow { bank, body } | StepKind::ExpertRelease { bank, body }, _) => {
                    if by == 0 { *body += 1 } else { *bank = (*bank + 1) % n_banks.max(2) }
                }
                (_, window) => *window = !*window,
            }
            Some(format!("at #{at}"))
        }
    }
}

/// Moves or swaps whole buffers: every operand that begins in a range of scratch.
fn buffers(plan: &mut Plan, program: usize, kind: &str, rng: &mut Rng) -> Option<String> {
    let steps = &mut plan.programs[program].steps;
    let place = |it: &waste_plan::schema::Operand| {
        if let Place::Scratch(offset) = it.place { Some(offset) } else { None }
    };
    let starts: Vec<u64> = steps.iter().flat_map(|it| &it.writes).filter_map(place).collect();
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
