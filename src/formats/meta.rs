//! Typed access to a model's metadata: GGUF keys, or config.json flattened to dotted keys.
//!
//! Invariants
//! - a value is checked when it is asked for: a wrong type or range is an error with key and offset,
//!   never a default;
//! - every key that was asked for counts as used, so that a front end can refuse the ones it never read;
//! - arrays of a GGUF stay in the file until asked for, so that opening allocates nothing for them.
//!
//! Deliberately absent: what any key means.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{FormatError, Item, Result, grouped, shown};
use super::source::Bytes;

/// Elements of an array that are handed out at most.
const MAX_ARRAY: usize = 1 << 24;

/// The metadata of one model.
pub struct Meta {
    file: String,
    bytes: Bytes,
    entries: BTreeMap<String, Entry>,
}

pub(crate) struct Entry {
    /// Where the value starts in the file, in bytes (0 for config.json, whose parser keeps no places).
    pub(crate) offset: u64,
    pub(crate) value: Value,
    used: AtomicBool,
}

impl Entry {
    pub(crate) fn new(offset: u64, value: Value) -> Self {
        Self { offset, value, used: AtomicBool::new(false) }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    /// A string in the file: its bytes, without the length.
    FileText(Range<usize>),
    List(Vec<Value>),
    /// An array in the file: its elements, without type and count. The elements are known to fit.
    FileList {
        elem: ElemType,
        count: usize,
        start: usize,
    },
}

/// The element types of GGUF values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElemType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    U64,
    I64,
    F64,
}

impl ElemType {
    /// Bytes of one element; for text, of the length before it.
    pub(crate) fn min_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::Text | Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Decodes a number or bool from exactly [`ElemType::min_bytes`] bytes; `None` for text and for
    /// bools other than 0 and 1.
    pub(crate) fn decode(self, src: &[u8]) -> Option<Value> {
        Some(match self {
            Self::U8 => Value::Int(src[0].into()),
            Self::I8 => Value::Int(src[0].cast_signed().into()),
            Self::U16 => Value::Int(u16::from_le_bytes(src.try_into().ok()?).into()),
            Self::I16 => Value::Int(i16::from_le_bytes(src.try_into().ok()?).into()),
            Self::U32 => Value::Int(u32::from_le_bytes(src.try_into().ok()?).into()),
            Self::I32 => Value::Int(i32::from_le_bytes(src.try_into().ok()?).into()),
            Self::U64 => Value::Int(u64::from_le_bytes(src.try_into().ok()?).into()),
            Self::I64 => Value::Int(i64::from_le_bytes(src.try_into().ok()?).into()),
            Self::F32 => Value::Float(f32::from_le_bytes(src.try_into().ok()?).into()),
            Self::F64 => Value::Float(f64::from_le_bytes(src.try_into().ok()?)),
            Self::Bool if src[0] < 2 => Value::Bool(src[0] == 1),
            Self::Bool | Self::Text => return None,
        })
    }
}

impl Meta {
    pub(crate) fn new(file: String, bytes: Bytes, entries: BTreeMap<String, Entry>) -> Self {
        Self { file, bytes, entries }
    }

    /// The file these keys come from, as error messages show it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Whether `key` is there (a JSON `null` is not). Does not count as use.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Every key, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The integer `key`, if there.
    ///
    /// # Errors
    /// If it is no integer or not in 0 ..= `u64::MAX`.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.value {
            Value::Int(n) => u64::try_from(n)
                .map(Some)
                .map_err(|_| self.bad(key, entry, format!("{n}, expected a non-negative integer"))),
            ref other => Err(self.mistyped(key, entry, other, "an integer")),
        }
    }

    /// The integer `key`.
    ///
    /// # Errors
    /// As [`Meta::get_u64`], and if it is missing.
    pub fn u64(&self, key: &str) -> Result<u64> {
        self.get_u64(key)?.ok_or_else(|| self.missing(key))
    }

    /// The integer `key` as a 32-bit count or size.
    ///
    /// # Errors
    /// As [`Meta::u64`], and above `u32::MAX`.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.get_u32(key)?.ok_or_else(|| self.missing(key))
    }

    /// The integer `key` as a 32-bit count or size, if there.
    ///
    /// # Errors
    /// As [`Meta::get_u64`], and above `u32::MAX`.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>> {
        let Some(n) = self.get_u64(key)? else { return Ok(None) };
        match u32::try_from(n) {
            Ok(n) => Ok(Some(n)),
            Err(_) => Err(self.refuse(key, format!("{n} is more than 32 bits hold"))),
        }
    }

    /// The number `key` (integers are numbers too), if there.
    ///
    /// # Errors
    /// If it is no finite number.
    pub fn get_f64(&self, key: &str) -> Result<Option<f64>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.value {
            Value::Float(x) if x.is_finite() => Ok(Some(x)),
            Value::Float(x) => Err(self.bad(key, entry, format!("{x}, expected a finite number"))),
            #[expect(clippy::cast_precision_loss, reason = "an integer where a float is meant is small")]
            Value::Int(n) => Ok(Some(n as f64)),
            ref other => Err(self.mistyped(key, entry, other, "a number")),
        }
    }

    /// The number `key`.
    ///
    /// # Errors
    /// As [`Meta::get_f64`], and if it is missing.
    pub fn f64(&self, key: &str) -> Result<f64> {
        self.get_f64(key)?.ok_or_else(|| self.missing(key))
    }

    /// The bool `key`, if there.
    ///
    /// # Errors
    /// If it is no bool.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match entry.value {
            Value::Bool(it) => Ok(Some(it)),
            ref other => Err(self.mistyped(key, entry, other, "a bool")),
        }
    }

    /// The string `key`, if there.
    ///
    /// # Errors
    /// If it is no string or not UTF-8.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match &entry.value {
            Value::Text(it) => Ok(Some(it)),
            Value::FileText(range) => {
                let text = std::str::from_utf8(&self.all()[range.clone()]);
                text.map(Some).map_err(|_| self.bad(key, entry, "the string is not UTF-8"))
            }
            other => Err(self.mistyped(key, entry, other, "a string")),
        }
    }

    /// The string `key`.
    ///
    /// # Errors
    /// As [`Meta::get_str`], and if it is missing.
    pub fn str(&self, key: &str) -> Result<&str> {
        self.get_str(key)?.ok_or_else(|| self.missing(key))
    }

    /// The strings of the array `key`, if there.
    ///
    /// # Errors
    /// If it is no array of strings, one is not UTF-8, or there are more than 16 million.
    pub fn get_strs(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match &entry.value {
            Value::FileList { elem: ElemType::Text, count, start } => {
                self.bounded(key, entry, *count)?;
                self.file_strs(key, *count, *start).map(Some)
            }
            Value::List(all) => {
                let wrong = |it| self.mistyped(key, entry, it, "a string");
                all.iter().map(|it| it.as_text().ok_or_else(|| wrong(it))).collect::<Result<_>>().map(Some)
            }
            other => Err(self.mistyped(key, entry, other, "an array of strings")),
        }
    }

    /// The integers of the array `key` (a single integer is an array of one), if there.
    ///
    /// # Errors
    /// If it is no array of integers, one does not fit, or there are more than 16 million.
    pub fn get_ints<T: TryFrom<i128>>(&self, key: &str) -> Result<Option<Vec<T>>> {
        let narrow = |value: &Value| match value {
            Value::Int(n) => T::try_from(*n).ok(),
            Value::Bool(it) => T::try_from(i128::from(*it)).ok(),
            _ => None,
        };
        self.get_list(key, narrow, "an array of integers in range")
    }

    /// The numbers of the array `key`, if there.
    ///
    /// # Errors
    /// If it is no array of finite numbers, or there are more than 16 million.
    pub fn get_floats(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let widen = |value: &Value| match value {
            Value::Float(x) if x.is_finite() => Some(*x),
            #[expect(clippy::cast_precision_loss, reason = "an integer where a float is meant is small")]
            Value::Int(n) => Some(*n as f64),
            _ => None,
        };
        self.get_list(key, widen, "an array of finite numbers")
    }

    /// The number of elements of the array `key`, if there. Does not count as use.
    #[must_use]
    pub fn array_len(&self, key: &str) -> Option<usize> {
        match &self.entries.get(key)?.value {
            Value::FileList { count, .. } => Some(*count),
            Value::List(all) => Some(all.len()),
            _ => None,
        }
    }

    /// Counts `key` as used, because the caller knows that it changes nothing.
    pub fn ignore(&self, key: &str) {
        let _ = self.entry(key);
    }

    /// The keys nobody asked for, sorted.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let idle = self.entries.iter().filter(|(_, entry)| !entry.used.load(Ordering::Relaxed));
        idle.map(|(key, _)| key.as_str())
    }

    /// An error that refuses `key` by name, at its place: for values and keys that change the maths
    /// and are not understood.
    #[must_use]
    pub fn refuse(&self, key: &str, reason: impl Into<String>) -> FormatError {
        let offset = self.entries.get(key).map_or(0, |entry| entry.offset);
        FormatError::Malformed {
            file: self.file.clone(),
            item: Item::key(key),
            offset,
            reason: reason.into(),
        }
    }

    /// An error that says that `key` is missing.
    #[must_use]
    pub fn missing(&self, key: &str) -> FormatError {
        FormatError::Missing { file: self.file.clone(), item: Item::key(key), hint: String::new() }
    }

    fn get_list<T>(
        &self,
        key: &str,
        convert: impl Fn(&Value) -> Option<T>,
        what: &'static str,
    ) -> Result<Option<Vec<T>>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let bad = |value: &Value| self.mistyped(key, entry, value, what);
        match &entry.value {
            Value::List(all) => {
                all.iter().map(|it| convert(it).ok_or_else(|| bad(it))).collect::<Result<_>>().map(Some)
            }
            Value::FileList { elem, count, start } if *elem != ElemType::Text => {
                self.bounded(key, entry, *count)?;
                let size = elem.min_bytes();
                let elems = self.all()[*start..*start + size * *count].chunks_exact(size);
                let each = elems.map(|src| elem.decode(src).as_ref().and_then(&convert));
                each.map(|it| it.ok_or_else(|| bad(&entry.value))).collect::<Result<_>>().map(Some)
            }
            single => Ok(Some(vec![convert(single).ok_or_else(|| bad(single))?])),
        }
    }

    fn file_strs(&self, key: &str, count: usize, start: usize) -> Result<Vec<&str>> {
        let mut at = start;
        let mut out = Vec::with_capacity(count);
        for idx in 0..count {
            let (len, rest) =
                self.all()[at..].split_first_chunk::<8>().expect("walked once when the file was opened");
            let len = usize::try_from(u64::from_le_bytes(*len)).expect("bounded by the file");
            let text = std::str::from_utf8(&rest[..len]).map_err(|_| FormatError::Malformed {
                file: self.file.clone(),
                item: Item::key(key),
                offset: at as u64,
                reason: format!("element {idx} is not UTF-8"),
            })?;
            out.push(text);
            at += 8 + len;
        }
        Ok(out)
    }

    fn all(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        let entry = self.entries.get(key)?;
        entry.used.store(true, Ordering::Relaxed);
        Some(entry)
    }

    fn bounded(&self, key: &str, entry: &Entry, count: usize) -> Result<()> {
        if count <= MAX_ARRAY {
            return Ok(());
        }
        let most = grouped(MAX_ARRAY as u64);
        Err(self.bad(key, entry, format!("an array of {} elements, at most {most}", grouped(count as u64))))
    }

    fn mistyped(&self, key: &str, entry: &Entry, found: &Value, expected: &str) -> FormatError {
        self.bad(key, entry, format!("{}, expected {expected}", found.described()))
    }

    fn bad(&self, key: &str, entry: &Entry, reason: impl Into<String>) -> FormatError {
        FormatError::Malformed {
            file: self.file.clone(),
            item: Item::key(key),
            offset: entry.offset,
            reason: reason.into(),
        }
    }
}

impl Value {
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn described(&self) -> String {
        match self {
            Self::Int(n) => format!("the integer {n}"),
            Self::Float(x) => format!("the number {x}"),
            Self::Bool(it) => format!("the bool {it}"),
            Self::Text(it) => format!("the string '{}'", shown(it)),
            Self::FileText(range) => format!("a string of {} bytes", range.len()),
            Self::List(all) => format!("an array of {}", all.len()),
            Self::FileList { elem, count, .. } => format!("an array of {count} {elem:?}"),
        }
    }
}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.entries.iter().map(|(key, entry)| (key, entry.value.described()));
        f.debug_map().entries(values).finish()
    }
}
