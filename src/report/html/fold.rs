//! Equal layers once: a template, and a list of what differs.
//!
//! Works on JSON. Two values have the same *shape* if they differ only in numbers. The template of a group has, in place of each
//! number that differs between its members, the string `"$i"`, and `bind[i]` gives the member's number: as a list, or as
//! `{"from": a, "by": d}` where member m has a + m · d. So sixty layers cost as much as two. A string that begins with `$` itself gets
//! another one.

use serde_json::{Value, json};

/// Members of one shape.
#[derive(Debug)]
pub(super) struct Group {
    members: Vec<Value>,
    shape: String,
}

/// Puts each of `values` into the group of its shape; gives the groups and for each value its group and place there.
pub(super) fn group(values: Vec<Value>) -> (Vec<Group>, Vec<(usize, usize)>) {
    let mut groups: Vec<Group> = Vec::new();
    let mut places = Vec::with_capacity(values.len());
    for value in values {
        let shape = shape(&value).to_string();
        let at = groups.iter().position(|it| it.shape == shape).unwrap_or_else(|| {
            groups.push(Group { members: Vec::new(), shape });
            groups.len() - 1
        });
        groups[at].members.push(value);
        places.push((at, groups[at].members.len() - 1));
    }
    (groups, places)
}

impl Group {
    /// `{"template", "bind"}`.
    pub(super) fn json(&self) -> Value {
        let mut bind: Vec<Vec<Value>> = Vec::new();
        let others: Vec<&Value> = self.members[1..].iter().collect();
        let template = template(&self.members[0], &others, &mut bind);
        let bind: Vec<Value> =
            bind.into_iter().map(|it| progression(&it).unwrap_or(Value::Array(it))).collect();
        json!({ "template": template, "bind": bind })
    }
}

/// The value with every number replaced by 0.
fn shape(value: &Value) -> Value {
    match value {
        Value::Number(_) => json!(0),
        Value::Array(items) => items.iter().map(shape).collect(),
        other => other.clone(),
    }
}

/// `first` with a placeholder wherever one of `others` differs.
fn template(first: &Value, others: &[&Value], bind: &mut Vec<Vec<Value>>) -> Value {
    match first {
        Value::Number(_) if others.iter().all(|it| *it == first) => first.clone(),
        Value::Number(_) => {
            let all: Vec<Value> = std::iter::once(first).chain(others.iter().copied()).cloned().collect();
            let at = bind.iter().position(|it| *it == all).unwrap_or_else(|| {
                bind.push(all);
                bind.len() - 1
            });
            json!(format!("${at}"))
        }
        Value::Array(items) => {
            let of = |at: usize| others.iter().filter_map(|it| it.get(at)).collect::<Vec<_>>();
            items.iter().enumerate().map(|(at, item)| template(item, &of(at), bind)).collect()
        }
        Value::String(text) if text.starts_with('$') => json!(format!("${text}")),
        other => other.clone(),
    }
}

/// Integers that grow by the same step.
fn progression(values: &[Value]) -> Option<Value> {
    let all: Vec<i64> = values.iter().map(Value::as_i64).collect::<Option<_>>()?;
    let by = all.get(1)?.checked_sub(all[0])?;
    let is_even = all.windows(2).all(|it| it[1].checked_sub(it[0]) == Some(by));
    (is_even && all.len() > 2).then(|| json!({ "from": all[0], "by": by }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the page does with a template.
    fn member(node: &Value, bind: &Value, at: usize) -> Value {
        match node {
            Value::Array(items) => items.iter().map(|it| member(it, bind, at)).collect(),
            Value::String(text) if text.starts_with("$$") => json!(text[1..]),
            Value::String(text) if text.starts_with('$') => {
                let bound = &bind[text[1..].parse::<usize>().expect("a number")];
                match bound {
                    Value::Array(all) => all[at].clone(),
                    it => {
                        json!(it["from"].as_i64().expect("from") + at as i64 * it["by"].as_i64().expect("by"))
                    }
                }
            }
            other => other.clone(),
        }
    }

    #[test]
    fn members_come_back_whole() {
        let layer = |n: i64| json!([["$norm", n, 7], ["linear", n * n, [n * 64, 5]]]);
        let values =
            vec![json!([["embed", 1]]), layer(0), layer(1), json!([["attn", 2, 3]]), layer(2), layer(3)];
        let (groups, places) = group(values.clone());
        assert_eq!(places, [(0, 0), (1, 0), (1, 1), (2, 0), (1, 2), (1, 3)]);
        for (value, (group, at)) in values.iter().zip(places) {
            let it = groups[group].json();
            assert_eq!(member(&it["template"], &it["bind"], at), *value);
        }
        let folded = groups[1].json();
        assert_eq!(folded["template"], json!([["$$norm", "$0", 7], ["linear", "$1", ["$2", 5]]]));
        assert_eq!(folded["bind"], json!([{"from": 0, "by": 1}, [0, 1, 4, 9], {"from": 0, "by": 64}]));
    }
}
