//! Missed fusions, so that a person can act on them: how often, where first, what each costs, and what would have to change.

use std::fmt::Write as _;

use super::passes::{Missed, PassLine};
use super::units::bytes;
use crate::formats::grouped;

/// What is known about a reason.
struct Advice {
    /// Text by which the reason is known.
    reason: &'static str,
    /// What would have to change.
    change: &'static str,
}

/// What a refusal of a pass costs.
struct Price {
    pass: &'static str,
    /// Steps more, each time.
    steps: u64,
    /// How often the result is written or read more, each time.
    passes: u64,
    /// What else.
    also: &'static str,
}

const PRICES: [Price; 8] = [
    Price { pass: "fuse-glu", steps: 2, passes: 4, also: "x is read twice" },
    Price { pass: "merge-linears", steps: 1, passes: 0, also: "x is read once more" },
    Price { pass: "fuse-epilogue", steps: 1, passes: 2, also: "" },
    Price { pass: "fuse-conv-act", steps: 1, passes: 2, also: "" },
    Price { pass: "fuse-quant", steps: 1, passes: 2, also: "" },
    Price {
        pass: "hoist-lut",
        steps: 0,
        passes: 0,
        also: "tables are built once an expert, not once a token",
    },
    Price {
        pass: "lookahead-experts",
        steps: 0,
        passes: 0,
        also: "the next layer's experts are read when its own router names them",
    },
    Price { pass: "legalize-vq", steps: 0, passes: 0, also: "the plan cannot be made" },
];

const ADVICE: [Advice; 27] = [
    Advice {
        reason: "second use",
        change: "another op reads the value in between, so it must exist: let that op read the fused result, or drop the use in the front end",
    },
    Advice {
        reason: "different inputs",
        change: "both matrices must multiply one value: let the front end build gate and up from the same normed x, or let cse see that they are equal",
    },
    Advice {
        reason: "gate and up differ in type",
        change: "store both matrices in one format when the file is quantised",
    },
    Advice {
        reason: "gate or up has a bias or an epilogue",
        change: "no kernel adds a bias inside a gated product: a new row of the kernel table would",
    },
    Advice {
        reason: "multiplied by lookup tables",
        change: "tables are summed by a kernel of their own, which gates nothing: nothing is lost that a linear would have saved",
    },
    Advice {
        reason: "slices of one product",
        change: "gate and up were merged into one linear before: keep merge-linears after fuse-glu",
    },
    Advice {
        reason: "'legalize-vq' did not run",
        change: "the pass is mandatory and stands before this one: give the whole pipeline",
    },
    Advice {
        reason: "has an activation already",
        change: "a step applies one activation: the second needs its own step",
    },
    Advice {
        reason: "has a residual already",
        change: "a step adds one residual: sum the other two first, or let the next linear take one",
    },
    Advice {
        reason: "has an epilogue already",
        change: "merge-linears must stand before fuse-epilogue for this linear, or its neighbours must have the same epilogue",
    },
    Advice {
        reason: "no epilogue of a linear",
        change: "the kernels know silu, relu and both gelu: a new activation is a new row of the kernel table",
    },
    Advice {
        reason: "no activation of a convolution",
        change: "the kernels know silu, relu and both gelu: a new activation is a new row of the kernel table",
    },
    Advice {
        reason: "the weight dtypes differ",
        change: "store the matrices that read one input in one format when the file is quantised: mixtures often give attn_v more bits",
    },
    Advice {
        reason: "only some have a bias",
        change: "give the others a bias of zeros in the front end, if a merged step is worth its bytes",
    },
    Advice {
        reason: "the bias is no weight",
        change: "a computed bias cannot be concatenated at compile: fold it into a weight in the front end",
    },
    Advice {
        reason: "is reshaped, which wants contiguous rows",
        change: "the result is a slice of a wider row after merging, which a reshape cannot view: let the reader take heads with a stride, or norm before the reshape",
    },
    Advice {
        reason: "the weight was merged before",
        change: "nothing: its rows already stand in a wider matrix",
    },
    Advice {
        reason: "a weight is read elsewhere too",
        change: "a tied matrix keeps its own rows: merging would store it twice",
    },
    Advice {
        reason: "the weight is an expert's",
        change: "matrices of experts stay in their records: only gate and up of one expert are multiplied together",
    },
    Advice {
        reason: "the rows together exceed 32 bits",
        change: "nothing: such a matrix has no place in a plan",
    },
    Advice {
        reason: "the producer is outside the region",
        change: "move the quantisation out of the loop over experts, or hoist its producer",
    },
    Advice {
        reason: "more than three values",
        change: "the loop would gather more values an expert than its step reads: share tables between matrices with one codebook",
    },
    Advice {
        reason: "few tokens share an expert",
        change: "nothing, or a larger --chunk: with four tokens and more for each expert their tables are made where they are used",
    },
    Advice {
        reason: "which tables do not add",
        change: "move the bias or activation behind the sum of the experts, or store these matrices plainly",
    },
    Advice {
        reason: "router is no linear of its own",
        change: "the router stands in a merged matrix: another input through it would compute its neighbours' rows too; disable merge-linears to guess",
    },
    Advice {
        reason: "router reads another kind of activations",
        change: "the layers' routers read inputs of two dtypes: store both routers in one kind of numbers",
    },
    Advice {
        reason: "adds or ranks by what is no weight",
        change: "a guess has the weights of the next router alone: what is computed between the layers is not there yet",
    },
];

/// What would have to change for the refusal `reason` to go away, if that is known.
#[must_use]
pub fn change(reason: &str) -> Option<&'static str> {
    ADVICE.iter().find(|it| reason.contains(it.reason)).map(|it| it.change)
}

/// All refusals of `passes`, the most frequent first; `graphs` programs share their counts.
#[must_use]
pub fn report(passes: &[PassLine], graphs: usize) -> String {
    let mut all: Vec<(&str, &Missed)> =
        passes.iter().flat_map(|pass| pass.missed.iter().map(|it| (pass.name.as_str(), it))).collect();
    all.sort_by_key(|it| std::cmp::Reverse(it.1.count));
    if all.is_empty() {
        return "no fusion was nearly made and refused\n".into();
    }
    let mut out = String::from("missed fusions\n");
    for (pass, it) in all {
        let a_graph = it.count / graphs.max(1) as u64;
        let layer = it.layer().map(|it| format!(", layer {it}")).unwrap_or_default();
        let place = it.first.split_once(' ').map_or(it.first.as_str(), |it| it.1);
        writeln!(out, "\n{pass}: {}", it.reason).expect("writing to a string");
        let mut line = |name: &str, text: &str| {
            writeln!(out, "  {name:<10} {text}").expect("writing to a string");
        };
        line("how often", &format!("{}, {} in each of {graphs} graphs", grouped(it.count), grouped(a_graph)));
        line("first", &format!("{}{layer}: {place}", it.graph()));
        line("costs", &price(pass, it, graphs));
        line("change", change(&it.reason).unwrap_or("not known: see the pass"));
    }
    out
}

/// What refusals like `missed` cost a token, if `graphs` programs share their count.
#[must_use]
pub fn price(pass: &str, missed: &Missed, graphs: usize) -> String {
    let count = missed.count / graphs.max(1) as u64;
    let Some(price) = PRICES.iter().find(|it| it.pass == pass) else { return "not known".into() };
    let mut parts = Vec::new();
    if price.steps > 0 {
        parts.push(format!("{} steps", grouped(price.steps * count)));
    }
    if let Some(size) = missed.result_bytes().filter(|_| price.passes > 0) {
        let moved = size.saturating_mul(price.passes).saturating_mul(count);
        parts.push(format!("{} of activations a token, if all are like the first", bytes(moved)));
    }
    if !price.also.is_empty() {
        parts.push(price.also.to_owned());
    }
    parts.join("; ")
}
