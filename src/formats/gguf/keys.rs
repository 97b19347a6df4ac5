//! GGUF metadata values.

use crate::formats::cursor::Cursor;
use crate::formats::error::Result;
use crate::formats::meta::{ElemType, Entry, Value};

const ARRAY: u32 = 9;

/// Reads a value: its type, then its bytes. Arrays and strings are walked, not copied.
pub(super) fn value(cur: &mut Cursor<'_>) -> Result<Entry> {
    let type_at = cur.at();
    let code = cur.u32()?;
    let start = cur.at();
    let value = if code == ARRAY {
        array(cur)?
    } else {
        let Some(elem) = elem_type(code) else {
            return Err(cur.malformed(type_at, format!("value type {code} does not exist")));
        };
        single(cur, elem)?
    };
    Ok(Entry::new(start as u64, value))
}

fn single(cur: &mut Cursor<'_>, elem: ElemType) -> Result<Value> {
    if elem == ElemType::Text {
        let len = cur.u64()?;
        let start = cur.at();
        cur.take(len)?;
        return Ok(Value::FileText(start..cur.at()));
    }
    let start = cur.at();
    let src = cur.take(elem.min_bytes() as u64)?;
    elem.decode(src).ok_or_else(|| cur.malformed(start, format!("{src:?} is no {elem:?}")))
}

fn array(cur: &mut Cursor<'_>) -> Result<Value> {
    let type_at = cur.at();
    let code = cur.u32()?;
    if code == ARRAY {
        return Err(cur.unsupported(type_at, "an array of arrays", "arrays of plain values are"));
    }
    let Some(elem) = elem_type(code) else {
        return Err(cur.malformed(type_at, format!("element type {code} does not exist")));
    };
    let count = cur.count("elements", elem.min_bytes() as u64, u64::MAX)?;
    let start = cur.at();
    if elem == ElemType::Text {
        for _ in 0..count {
            let len = cur.u64()?;
            cur.take(len)?;
        }
    } else {
        cur.take((count * elem.min_bytes()) as u64)?;
    }
    Ok(Value::FileList { elem, count, start })
}

fn elem_type(code: u32) -> Option<ElemType> {
    Some(match code {
        0 => ElemType::U8,
        1 => ElemType::I8,
        2 => ElemType::U16,
        3 => ElemType::I16,
        4 => ElemType::U32,
        5 => ElemType::I32,
        6 => ElemType::F32,
        7 => ElemType::Bool,
        8 => ElemType::Text,
        10 => ElemType::U64,
        11 => ElemType::I64,
        12 => ElemType::F64,
        _ => return None,
    })
}
