//! A page, read strictly: every element closed in order, attributes quoted, the JSON in it expanded as its script does.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};

/// An element's start.
#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) tag: String,
    pub(crate) attributes: Vec<(String, String)>,
}

/// Every element of an HTML document, in order; an error where it is not well formed.
pub(crate) fn elements(text: &str) -> Result<Vec<Element>, String> {
    const VOID: [&str; 4] = ["meta", "br", "hr", "img"];
    let mut rest = text.strip_prefix("<!doctype html>\n").ok_or("no doctype")?;
    let (mut all, mut open) = (Vec::new(), Vec::<String>::new());
    while let Some(at) = rest.find('<') {
        let between = &rest[..at];
        if between.contains('>') || (open.is_empty() && !between.trim().is_empty()) {
            return Err(format!("stray text {:?}", between.trim()));
        }
        let end = rest[at..].find('>').ok_or("a tag has no end")? + at;
        let inside = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(tag) = inside.strip_prefix('/') {
            match open.pop() {
                Some(it) if it == tag => continue,
                it => return Err(format!("</{tag}> closes {it:?}")),
            }
        }
        let element = start(inside)?;
        let tag = element.tag.clone();
        all.push(element);
        if tag == "script" || tag == "style" {
            let close = format!("</{tag}>");
            let end = rest.find(&close).ok_or_else(|| format!("<{tag}> has no end"))?;
            if rest[..end].contains("<!--") || rest[..end].contains("<script") {
                return Err(format!("<{tag}> may be read otherwise"));
            }
            rest = &rest[end + close.len()..];
        } else if !VOID.contains(&tag.as_str()) {
            open.push(tag);
        }
    }
    match (open.as_slice(), rest.trim()) {
        ([], "") => Ok(all),
        (open, rest) => Err(format!("open at the end: {open:?} {rest:?}")),
    }
}

/// `tag a="b" c`
fn start(inside: &str) -> Result<Element, String> {
    let (tag, mut rest) = inside.split_once(' ').unwrap_or((inside, ""));
    if tag.is_empty() || !tag.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit()) {
        return Err(format!("<{inside}> is no tag"));
    }
    let mut attributes = Vec::new();
    while !rest.trim().is_empty() {
        rest = rest.trim_start();
        let name_end = rest.find(['=', ' ']).unwrap_or(rest.len());
        let name = &rest[..name_end];
        if name.is_empty() || !name.bytes().all(|it| it.is_ascii_lowercase() || it == b'-') {
            return Err(format!("<{inside}>: attribute {name:?}"));
        }
        rest = &rest[name_end..];
        let value = match rest.strip_prefix("=\"") {
            Some(quoted) => {
                let (value, after) =
                    quoted.split_once('"').ok_or_else(|| format!("<{inside}>: a quote is open"))?;
                rest = after;
                value
            }
            None if rest.starts_with('=') => return Err(format!("<{inside}>: {name} is not quoted")),
            None => "",
        };
        attributes.push((name.to_owned(), value.to_owned()));
    }
    Ok(Element { tag: tag.to_owned(), attributes })
}

/// The data of a page.
pub(crate) struct Page {
    pub(crate) data: Value,
}

impl Page {
    pub(crate) fn parse(text: &str) -> Self {
        let (_, after) = text.split_once("<script type=\"application/json\" id=\"plan\">").unwrap();
        Self { data: serde_json::from_str(after.split_once("</script>").unwrap().0).unwrap() }
    }

    /// Every step of program `at`, as `model.js` sees them.
    pub(crate) fn steps(&self, at: usize) -> Vec<Value> {
        let program = &self.data["programs"][at];
        let mut steps = Vec::new();
        for layer in program["layers"].as_array().unwrap() {
            assert_eq!(layer[1], steps.len(), "where the layer begins");
            let group = &program["groups"][usize::try_from(layer[2].as_u64().unwrap()).unwrap()];
            let member = member(&group["template"], &group["bind"], layer[3].as_i64().unwrap());
            steps.extend(member.as_array().unwrap().iter().cloned());
        }
        steps
    }

    /// Element `at` of a folded list whose elements begin with a name in pieces.
    pub(crate) fn name(&self, list: &str, at: usize) -> String {
        let (groups, order) = (&self.data[list]["groups"], self.data[list]["order"].as_array().unwrap());
        let group = &groups[usize::try_from(order[at].as_u64().unwrap()).unwrap()];
        let before = order[..at].iter().filter(|it| **it == order[at]).count();
        let member = member(&group["template"], &group["bind"], i64::try_from(before).unwrap());
        let piece = |it: &Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
        member[0].as_array().unwrap().iter().map(piece).collect::<Vec<_>>().join(".")
    }
}

fn member(node: &Value, bind: &Value, at: i64) -> Value {
    match node {
        Value::Array(items) => items.iter().map(|it| member(it, bind, at)).collect(),
        Value::String(text) if text.starts_with("$$") => json!(text[1..]),
        Value::String(text) if text.starts_with('$') => match &bind[text[1..].parse::<usize>().unwrap()] {
            Value::Array(all) => all[usize::try_from(at).unwrap()].clone(),
            it => json!(it["from"].as_i64().unwrap() + at * it["by"].as_i64().unwrap()),
        },
        other => other.clone(),
    }
}
