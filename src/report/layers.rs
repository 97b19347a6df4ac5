//! Which layer of the model each step of a plan belongs to.
//!
//! A plan knows no layers; its names do: a step belongs to the layer whose number stands in the name of a weight or state that it
//! touches, or of its bank of experts. A step that touches none of these stays where the step before it is. What comes before the
//! first numbered step is the *beginning*; what comes after the last number, from the first unnumbered weight or the choice of rows
//! on, the *end*.

use waste_plan::schema::{Place, Plan, Program, Step, StepKind};

/// A run of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Embedding and what all layers share.
    Begin,
    /// A numbered layer.
    Number(u32),
    /// Final norm, head, choice of the token.
    End,
}

/// The layer of each step of `program`.
#[must_use]
pub fn layers(plan: &Plan, program: &Program) -> Vec<Layer> {
    let mut marks: Vec<Mark> = program.steps.iter().map(|it| mark(plan, it)).collect();
    // A guess about the next layer uses its router, and stands in this one.
    for at in (0..marks.len()).rev().filter(|it| is_guess(&program.steps[*it])) {
        marks[at.saturating_sub(2)..=at].fill_with(|| Mark::Nothing);
    }
    let last = marks.iter().rposition(|it| matches!(it, Mark::Number(_)));
    let mut here = Layer::Begin;
    let place = |(at, mark): (usize, &Mark)| {
        here = match (mark, last) {
            (Mark::Number(n), _) => Layer::Number(*n),
            (Mark::Unnumbered, Some(last)) if last < at => Layer::End,
            (Mark::Unnumbered | Mark::Nothing, _) => here,
        };
        here
    };
    marks.iter().enumerate().map(place).collect()
}

/// The number of the layer in `name`, the first component that is one: `blk.7.attn_q.weight`, `model.layers.7.mlp`, `k.7`.
#[must_use]
pub fn number_in(name: &str) -> Option<u32> {
    name.split('+').next()?.split('.').find_map(|it| it.parse().ok())
}

/// Whether it ends a guess: a linear, a choice, an announcement.
const fn is_guess(step: &Step) -> bool {
    matches!(step.kind, StepKind::ExpertPrefetch { speculative: true, .. })
}

enum Mark {
    Number(u32),
    Unnumbered,
    Nothing,
}

fn mark(plan: &Plan, step: &Step) -> Mark {
    if let StepKind::ExpertPrefetch { bank, .. }
    | StepKind::ExpertWindow { bank, .. }
    | StepKind::ExpertRelease { bank, .. } = step.kind
    {
        return plan.banks.get(bank as usize).map_or(Mark::Nothing, |it| Mark::Number(it.layer));
    }
    if step.kind == StepKind::SelectRows {
        return Mark::Unnumbered;
    }
    let name = |place: Place| match place {
        Place::Weight(id) => plan.weights.get(id as usize).map(|it| it.name.as_str()),
        Place::State(id) => plan.states.get(id as usize).map(|it| it.name.as_str()),
        Place::Scratch(_) | Place::Io(_) => None,
    };
    let mut names = step.reads.iter().chain(&step.writes).filter_map(|it| name(it.place)).peekable();
    if names.peek().is_none() {
        return Mark::Nothing;
    }
    names.find_map(number_in).map_or(Mark::Unnumbered, Mark::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_components() {
        assert_eq!(number_in("blk.7.attn_q.weight+blk.7.attn_k.weight"), Some(7));
        assert_eq!(number_in("model.layers.12.mlp.experts.3.up_proj.weight"), Some(12));
        assert_eq!(number_in("k.0"), Some(0));
        assert_eq!(number_in("token_embd.weight"), None);
        assert_eq!(number_in("lm_head2.weight"), None);
    }
}
