//! config.json and generation_config.json as [`Meta`]: nested objects become dotted keys
//! (`rope_scaling.factor`), arrays of plain values stay arrays, `null` is absence.
//!
//! Invariants
//! - nesting is bounded by the JSON parser (128) and walked with a list, not by recursion.
//!
//! Deliberately absent: what any key means.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::error::{FormatError, Item, shown};
use super::meta::{Entry, Meta, Value};

/// Bytes of a dotted key at most.
const MAX_KEY: usize = 256;

/// Parses the text of a configuration file called `file` in messages.
///
/// # Errors
/// If it is no JSON object.
pub fn parse_config(file: &str, text: &[u8]) -> Result<Meta, FormatError> {
    let malformed = |offset: u64, reason: String| FormatError::Malformed {
        file: file.to_owned(),
        item: Item::Header,
        offset,
        reason,
    };
    let parsed = serde_json::from_slice(text)
        .map_err(|err| malformed(json_offset(text, &err), format!("not valid JSON: {err}")))?;
    let Json::Object(root) = parsed else {
        return Err(malformed(0, "expected a JSON object".to_owned()));
    };
    let mut entries = BTreeMap::new();
    let mut open: Vec<(String, Json)> = root.into_iter().collect();
    while let Some((key, json)) = open.pop() {
        if key.len() > MAX_KEY {
            return Err(malformed(
                0,
                format!("a key path of {} bytes, at most {MAX_KEY} are allowed", key.len()),
            ));
        }
        match json {
            Json::Object(map) => open.extend(map.into_iter().map(|(name, it)| (format!("{key}.{name}"), it))),
            Json::Array(all) if all.iter().any(|it| it.is_object() || it.is_array()) => {
                let parts = all.into_iter().enumerate();
                open.extend(parts.map(|(idx, it)| (format!("{key}.{idx}"), it)));
            }
            Json::Array(all) => {
                let list = Value::List(all.into_iter().filter_map(plain).collect());
                insert(&mut entries, key, list).map_err(|reason| malformed(0, reason))?;
            }
            other => {
                if let Some(value) = plain(other) {
                    insert(&mut entries, key, value).map_err(|reason| malformed(0, reason))?;
                }
            }
        }
    }
    Ok(Meta::new(file.to_owned(), Arc::new(Vec::new()), entries))
}

fn insert(entries: &mut BTreeMap<String, Entry>, key: String, value: Value) -> Result<(), String> {
    let reason = format!("key '{}' occurs twice", shown(&key));
    entries.insert(key, Entry::new(0, value)).map_or(Ok(()), |_| Err(reason))
}

fn plain(json: Json) -> Option<Value> {
    match json {
        Json::Bool(it) => Some(Value::Bool(it)),
        Json::String(it) => Some(Value::Text(it)),
        Json::Number(it) => {
            let int = it.as_i64().map(i128::from).or_else(|| it.as_u64().map(i128::from));
            int.map(Value::Int).or_else(|| it.as_f64().map(Value::Float))
        }
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

/// The byte offset of a JSON error in `text`.
pub(crate) fn json_offset(text: &[u8], err: &serde_json::Error) -> u64 {
    let before: usize =
        text.split_inclusive(|&b| b == b'\n').take(err.line().saturating_sub(1)).map(<[u8]>::len).sum();
    (before + err.column().saturating_sub(1)).min(text.len()) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn config(text: &str) -> Result<Meta, FormatError> {
        parse_config("config.json", text.as_bytes())
    }

    #[test]
    fn nested_objects_become_dotted_keys() {
        let meta =
            config(r#"{"a": {"b": {"c": 3}, "d": [1.5, 2]}, "e": null, "f": "x", "g": true}"#).unwrap();
        assert_eq!(meta.keys().collect::<Vec<_>>(), ["a.b.c", "a.d", "f", "g"]);
        assert_eq!(meta.u64("a.b.c").unwrap(), 3);
        assert_eq!(meta.get_floats("a.d").unwrap(), Some(vec![1.5, 2.0]));
        assert_eq!(meta.get_u64("e").unwrap(), None);
        assert_eq!(meta.unused().collect::<Vec<_>>(), ["f", "g"]);
    }

    #[test]
    fn one_id_is_a_list_of_one() {
        let meta = config(r#"{"one": 7, "two": [7, 8], "neg": [-1]}"#).unwrap();
        assert_eq!(meta.get_ints::<u32>("one").unwrap(), Some(vec![7]));
        assert_eq!(meta.get_ints::<u32>("two").unwrap(), Some(vec![7, 8]));
        let err = meta.get_ints::<u32>("neg").unwrap_err().to_string();
        assert!(err.contains("key 'neg'") && err.contains("integer -1"), "{err}");
    }

    #[test]
    fn wrong_types_are_refused_by_key() {
        let meta = config(r#"{"n": "12", "h": 1e999, "m": -4}"#);
        assert!(meta.unwrap_err().to_string().contains("number out of range"));
        let meta = config(r#"{"n": "12", "m": -4}"#).unwrap();
        for (err, want) in
            [(meta.u64("n"), "the string '12'"), (meta.u64("m"), "-4"), (meta.u64("x"), "missing")]
        {
            let err = err.unwrap_err().to_string();
            assert!(err.starts_with("config.json: key '") && err.contains(want), "{err}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_crash() {
        let text = "{\"a\":".repeat(100_000);
        assert!(config(&text).unwrap_err().to_string().contains("recursion limit"));
    }

    #[test]
    fn json_errors_carry_a_byte_offset() {
        let text = b"{\n \"a\": 1,\n \"b\": ]\n}";
        let err = parse_config("config.json", text).unwrap_err();
        let FormatError::Malformed { offset, .. } = err else { panic!("{err}") };
        assert_eq!(text[usize::try_from(offset).unwrap()], b']');
    }
}
