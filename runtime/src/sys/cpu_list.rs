//! Lists of processors as the kernel writes them.

use std::collections::BTreeSet;

/// More processors than any kernel is built for.
const MAX_CPUS: usize = 8192;

/// Parses `0-3,8,10-11`; `None` for anything else, an empty list included.
pub(super) fn parse_cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut res = BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |it: &str| it.parse::<usize>().ok().filter(|it| *it < MAX_CPUS);
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return None;
        }
        res.extend(first..=last);
    }
    Some(res)
}
