//! `tojson` as templates expect it: Python's `json.dumps`, which puts a space after commas and colons and keeps the order of keys.
//!
//! Source: `_compile_jinja_template` of transformers' chat_template_utils.py for the arguments and their defaults; CPython's
//! Lib/json/encoder.py for the layout.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::Formatter;

/// Levels of lists and maps at most: writing one takes more of the stack than anything else that is done with it.
const MAX_DEPTH: usize = 500;

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(it) if it.is_none() || it.is_undefined() => None,
        Some(it) => Some(indent_of(&it)?),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let [item, key] = match separators.as_deref() {
        None if indent.is_some() => [",", ": "].map(str::to_owned),
        None => [", ", ": "].map(str::to_owned),
        Some([item, key]) => [item.clone(), key.clone()],
        Some(_) => return Err(invalid("separators are two strings")),
    };
    let value = if sorted { sort_keys(value, 0)? } else { value.clone() };
    let mut out = Vec::new();
    let layout = Layout { item, key, indent, ascii, depth: 0, is_empty: false };
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, layout);
    value.serialize(&mut serializer).map_err(|err| invalid(&format!("cannot write JSON: {err}")))?;
    String::from_utf8(out).map(Value::from_safe_string).map_err(|err| invalid(&err.to_string()))
}

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {reason}"))
}

/// Spaces of one level; Python takes a text too.
fn indent_of(value: &Value) -> Result<String, Error> {
    const MOST: usize = 64;
    if let Some(text) = value.as_str().filter(|it| it.len() <= MOST) {
        return Ok(text.to_owned());
    }
    let spaces = value.as_usize().filter(|it| *it <= MOST);
    spaces.map(|it| " ".repeat(it)).ok_or_else(|| invalid("indent is a number up to 64, or a short text"))
}

fn sort_keys(value: &Value, depth: usize) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(&too_deep()));
    }
    Ok(match value.kind() {
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            keys.sort();
            let entry =
                |key: Value| Ok::<_, Error>((key.clone(), sort_keys(&value.get_item(&key)?, depth + 1)?));
            keys.into_iter().map(entry).collect::<Result<Value, _>>()?
        }
        ValueKind::Seq => {
            value.try_iter()?.map(|it| sort_keys(&it, depth + 1)).collect::<Result<Value, _>>()?
        }
        _ => value.clone(),
    })
}

fn too_deep() -> String {
    format!("it is nested more than {MAX_DEPTH} levels deep")
}

/// Python's layout.
struct Layout {
    item: String,
    key: String,
    /// `None`: all on one line.
    indent: Option<String>,
    ascii: bool,
    depth: usize,
    /// Whether nothing was written since the last bracket.
    is_empty: bool,
}

impl Layout {
    fn open(&mut self, out: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(io::Error::other(too_deep()));
        }
        self.is_empty = true;
        out.write_all(bracket)
    }

    fn close(&mut self, out: &mut (impl Write + ?Sized), bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.line(out)?;
        }
        self.is_empty = false;
        out.write_all(bracket)
    }

    fn next(&mut self, out: &mut (impl Write + ?Sized), first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.is_empty = false;
        self.line(out)
    }

    fn line(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(indent.as_bytes()))
    }
}

impl Formatter for Layout {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    /// Python gives an exponent its sign and two digits at least: `1e+16`, `1e-07`.
    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        let text = serde_json::to_string(&value)?;
        let Some((mantissa, exponent)) = text.split_once('e') else { return out.write_all(text.as_bytes()) };
        let (sign, digits) =
            exponent.strip_prefix('-').map_or(('+', exponent.trim_start_matches('+')), |it| ('-', it));
        let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
        write!(out, "{mantissa}e{sign}{digits:0>2}")
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        if !self.ascii {
            return out.write_all(text.as_bytes());
        }
        let mut units = [0; 2];
        text.chars().try_for_each(|c| match c {
            '\u{0}'..='\u{7f}' => out.write_all(&[c as u8]),
            _ => c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}")),
        })
    }
}
