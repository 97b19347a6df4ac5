//! The pass report as a plan carries it: comments at the end of its `ir` section, read back.

use crate::report::layers::number_in;

/// What one run of one pass did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassLine {
    /// The pass.
    pub name: String,
    /// How many rewrites it made.
    pub rewrites: u64,
    /// Why it made no more.
    pub missed: Vec<Missed>,
}

/// A reason for which a pass left something as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The condition that failed.
    pub reason: String,
    /// How often, in all graphs.
    pub count: u64,
    /// The first op concerned, printed: `@decode v3: f32[T, 64] = linear v2, w"blk.0.attn_q.weight"`.
    pub first: String,
}

impl Missed {
    /// The names of the weights that the first op reads.
    pub fn weights(&self) -> impl Iterator<Item = &str> {
        self.first.split("w\"").skip(1).filter_map(|it| it.split('"').next())
    }

    /// The graph of the first op.
    #[must_use]
    pub fn graph(&self) -> &str {
        self.first.strip_prefix('@').and_then(|it| it.split(' ').next()).unwrap_or_default()
    }

    /// Its layer, if the name of a weight tells.
    #[must_use]
    pub fn layer(&self) -> Option<u32> {
        self.weights().find_map(number_in)
    }

    /// Bytes of its result for one token: f32 or, where it is quantised, about that.
    #[must_use]
    pub fn result_bytes(&self) -> Option<u64> {
        let (_, ty) = self.first.split_once(": ")?;
        let dims = ty.split_once('[')?.1.split_once(']')?.0;
        let known = dims.split(", ").filter_map(|it| it.parse::<u64>().ok());
        known.reduce(u64::saturating_mul).map(|it| it.saturating_mul(4))
    }
}

/// The comments at the end of an `ir` section, without their marks.
#[must_use]
pub fn comments(ir: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = ir.lines().rev().map_while(|it| it.strip_prefix(';')).collect();
    lines.reverse();
    lines.into_iter().map(|it| it.strip_prefix(' ').unwrap_or(it)).collect()
}

/// Reads the lines of a report; what is no pass and no refusal is passed over.
#[must_use]
pub fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<PassLine> {
    let mut passes: Vec<PassLine> = Vec::new();
    for line in lines {
        match (missed(line), passes.last_mut()) {
            (Some(it), Some(pass)) => pass.missed.push(it),
            _ => passes.extend(pass(line)),
        }
    }
    passes
}

/// `fuse-glu    60 1034 -> 914`
fn pass(line: &str) -> Option<PassLine> {
    let mut words = line.split_whitespace();
    let (name, rewrites) = (words.next()?, words.next()?.parse().ok()?);
    Some(PassLine { name: name.to_owned(), rewrites, missed: Vec::new() })
}

/// `  missed 4 x: REASON; first at: PLACE`
fn missed(line: &str) -> Option<Missed> {
    let (count, rest) = line.strip_prefix("  missed ")?.split_once(" x: ")?;
    let (reason, first) = rest.split_once("; first at: ")?;
    Some(Missed { reason: reason.to_owned(), count: count.parse().ok()?, first: first.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IR: &str = "module \"m\" {\n}\n; pass             rewrites           ops\n; fuse-glu               2      46 -> 42\n\
        ; merge-linears          0            46\n;   missed 6 x: the weight dtypes differ; first at: @decode v3: f32[B, 32] = \
        linear v2, w\"blk.7.attn_q.weight\", bias=w\"blk.7.attn_q.bias\"\n;\n; lut_build a token: 3 -> 1\n";

    #[test]
    fn a_report_is_read_back() {
        let passes = read(comments(IR));
        assert_eq!(
            passes.iter().map(|it| (it.name.as_str(), it.rewrites)).collect::<Vec<_>>(),
            [("fuse-glu", 2), ("merge-linears", 0)]
        );
        let missed = &passes[1].missed[0];
        assert_eq!(
            (missed.count, missed.reason.as_str(), missed.graph()),
            (6, "the weight dtypes differ", "decode")
        );
        assert_eq!((missed.layer(), missed.result_bytes()), (Some(7), Some(128)));
        assert_eq!(missed.weights().collect::<Vec<_>>(), ["blk.7.attn_q.weight", "blk.7.attn_q.bias"]);
    }
}
