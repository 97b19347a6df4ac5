//! What this machine could do at best, beside what it did: the roofline of each class of op.
//!
//! An op takes at least the time in which its bytes come from memory, and at least the time of its arithmetic: the larger of the two is
//! its *bound* (Williams, Waterman, Patterson 2009). Bytes are those of weights and states, which must come from memory; activations
//! stay in caches. Both roofs are measured on this machine, with the threads of the run: the reading speed over a working set of the same
//! size, and the rate of the f32 matrix kernel on operands in the first cache. Integer arithmetic can be faster than the latter: then a
//! class bound by arithmetic may pass its roof. Ops run one after the other, so a class takes at least the sum of its ops, and a call the
//! sum of all.

use super::classes::Class;
use super::cost::Cost;
use super::table::{Align, Table};
use super::units::float;

/// The roofs of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofs {
    /// Bytes a second.
    pub bytes: f64,
    /// Operations a second.
    pub flops: f64,
}

/// Which roof is the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Bytes come too slowly.
    Memory,
    /// The arithmetic takes longer.
    Arithmetic,
}

impl Bound {
    /// The word in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Arithmetic => "arithmetic",
        }
    }
}

impl Roofs {
    /// Nanoseconds that `cost` takes at least, and why.
    #[must_use]
    pub fn nanos(&self, cost: &Cost) -> (f64, Bound) {
        let memory = float(cost.memory()) / self.bytes * 1e9;
        let arithmetic = float(cost.flops) / self.flops * 1e9;
        if arithmetic <= memory { (memory, Bound::Memory) } else { (arithmetic, Bound::Arithmetic) }
    }

    /// Nanoseconds that the ops of `class` take at least, and what bounds the greater part of them.
    #[must_use]
    pub fn class_nanos(&self, class: &Class) -> (f64, Bound) {
        let of = |bound| -> f64 {
            class.each.iter().map(|it| self.nanos(it)).filter(|it| it.1 == bound).map(|it| it.0).sum()
        };
        let (memory, arithmetic) = (of(Bound::Memory), of(Bound::Arithmetic));
        let bound = if arithmetic <= memory { Bound::Memory } else { Bound::Arithmetic };
        (memory + arithmetic, bound)
    }

    /// The sum over classes.
    #[must_use]
    pub fn total(&self, classes: &[Class]) -> f64 {
        classes.iter().map(|it| self.class_nanos(it).0).sum()
    }

    /// Each class beside its roof, averages over `calls` calls; the last row is the sum.
    #[must_use]
    pub fn table(&self, classes: &[Class], calls: usize) -> Table {
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("op", Left),
            ("bound by", Left),
            ("least µs/call", Right),
            ("µs/call", Right),
            ("% of possible", Right),
        ]);
        let n = float(calls.max(1) as u64) * 1e3;
        let mut row = |name: &str, bound: &str, least: f64, nanos: u64| {
            let share = 100.0 * least / float(nanos.max(1));
            let cells = [least / n, float(nanos) / n].map(|it| format!("{it:.1}"));
            let [least, measured] = cells;
            table.row([name.to_owned(), bound.to_owned(), least, measured, format!("{share:.0}")]);
        };
        for class in classes {
            let (least, bound) = self.class_nanos(class);
            row(&class.name, bound.name(), least, class.nanos);
        }
        row("all", "", self.total(classes), classes.iter().map(|it| it.nanos).sum());
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_roof_bounds_a_class() {
        let roofs = Roofs { bytes: 10e9, flops: 100e9 };
        let cost = |weights, others, flops| Cost { weights, others, flops, ..Cost::default() };
        // 10 bytes a nanosecond, 100 operations a nanosecond; what stays in caches costs nothing.
        assert_eq!(roofs.nanos(&cost(1000, 1 << 40, 2000)), (100.0, Bound::Memory));
        assert_eq!(roofs.nanos(&cost(1000, 0, 20_000)), (200.0, Bound::Arithmetic));
        let class = |name: &str, cost, nanos| Class { name: name.into(), each: vec![cost], cost, nanos };
        let classes =
            [class("linear w8", cost(1000, 0, 2000), 125), class("attention", cost(0, 0, 20_000), 500)];
        assert_eq!(roofs.total(&classes), 300.0);
        // One op waits for memory, the other computes: neither helps the other.
        let mut mixed = class("linear w8", Cost::default(), 500);
        mixed.each = vec![cost(1000, 0, 2000), cost(0, 0, 20_000)];
        assert_eq!(roofs.class_nanos(&mixed), (300.0, Bound::Arithmetic));
        let text = roofs.table(&classes, 1).markdown();
        let rows: Vec<Vec<&str>> = text.lines().map(|it| it.split('|').map(str::trim).collect()).collect();
        assert_eq!(rows[2][1..6], ["linear w8", "memory", "0.1", "0.1", "80"]);
        assert_eq!(rows[3][1..6], ["attention", "arithmetic", "0.2", "0.5", "40"]);
        assert_eq!(rows[4][1..6], ["all", "", "0.3", "0.6", "48"]);
    }
}
