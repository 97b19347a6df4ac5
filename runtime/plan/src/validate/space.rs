//! Where operands may lie: inside their space, inside one port, on the alignment of their dtype.

use super::{ALIGN, At, Checked, Report, ensure};
use crate::DType;
use crate::schema::{Operand, Place, Plan, Port, PortName, Program, Rows};

/// Demands that `ranges` of (offset, bytes) are aligned, inside `0 .. end`, and pairwise disjoint.
pub(super) fn disjoint(
    ranges: impl Iterator<Item = (u64, u64)>,
    end: u64,
    at: fn(usize) -> At,
    report: &mut Report,
) {
    let mut sorted: Vec<(u64, u64, usize)> = Vec::new();
    for (i, (offset, bytes)) in ranges.enumerate() {
        let fits = offset.checked_add(bytes).is_some_and(|it| it <= end);
        report.check(at(i), ensure(fits, || format!("{bytes} bytes at {offset:#x} leave a space of {end}")));
        report.check(
            at(i),
            ensure(offset.is_multiple_of(ALIGN), || format!("offset {offset:#x} is no multiple of 64")),
        );
        if fits {
            sorted.push((offset, bytes, i));
        }
    }
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        let ((offset, bytes, i), (next, _, j)) = (pair[0], pair[1]);
        let apart = ensure(offset + bytes <= next, || format!("byte {next:#x} belongs to {} too", at(i)));
        report.check(at(j), apart);
    }
}

/// Bounds one operand of a step of `program`.
pub(super) fn operand(plan: &Plan, program: &Program, it: &Operand, is_write: bool) -> Checked {
    let (Rows::Fixed(n) | Rows::Tokens(n) | Rows::Want(n)) = it.rows;
    ensure(n > 0 && it.cols > 0, || format!("an operand of {n} × {} elements", it.cols))?;
    match it.place {
        Place::Scratch(offset) => {
            let end = strided(it, offset, program)?;
            ensure(end <= plan.memory.scratch, || {
                format!("byte {end:#x} of scratch, which has {:#x}", plan.memory.scratch)
            })
        }
        Place::Io(offset) => io(plan, program, it, offset, is_write),
        Place::Weight(id) => {
            ensure(!is_write, || format!("writes weight {id}"))?;
            let weight = plan.weights.get(id as usize);
            let weight = weight.ok_or_else(|| format!("weight {id} of {}", plan.weights.len()))?;
            let rows = weight.rows.saturating_mul(u64::from(weight.bank));
            let shape = (u64::from(n), u64::from(it.cols), it.dtype, it.stride);
            let is_same = matches!(it.rows, Rows::Fixed(_)) && shape == (rows, weight.cols, weight.dtype, 0);
            ensure(is_same, || format!("weight {id} is {}[{rows}, {}]", weight.dtype.name(), weight.cols))
        }
        Place::State(id) => {
            let state = plan.states.get(id as usize);
            let state = state.ok_or_else(|| format!("state {id} of {}", plan.states.len()))?;
            let [rows, positions, heads, d] = state.shape;
            let rows = [positions, heads].iter().try_fold(rows, |n, it| n.checked_mul(*it));
            let rows = rows.ok_or_else(|| format!("state {id} has 2^32 vectors or more"))?;
            let is_same = (it.rows, it.cols, it.dtype, it.stride) == (Rows::Fixed(rows), d, state.dtype, 0);
            ensure(is_same, || format!("state {id} is {}[{rows}, {d}]", state.dtype.name()))
        }
    }
}

/// Alignment and stride of a strided operand; the end of its last row at the largest T and R.
fn strided(it: &Operand, offset: u64, program: &Program) -> Result<u64, String> {
    let unit = match it.dtype {
        DType::F32 | DType::I32 => 4,
        DType::Fx24 | DType::Fx16 | DType::Fx8 | DType::Lut(..) => ALIGN,
        DType::F16
        | DType::BF16
        | DType::Q4_0
        | DType::Q4_1
        | DType::Q8_0
        | DType::Q5_0
        | DType::Q5_1
        | DType::Q2K
        | DType::Q3K
        | DType::Q4K
        | DType::Q5K
        | DType::Q6K
        | DType::Iq4Nl
        | DType::Iq4Xs
        | DType::Mxfp4
        | DType::Vq3r
        | DType::Vq2r
        | DType::Vq4p
        | DType::Q8G
        | DType::Q4G
        | DType::Q3G => {
            return Err(format!("an activation of {}", it.dtype.name()));
        }
    };
    let aligned = offset.is_multiple_of(unit) && it.stride.is_multiple_of(unit);
    ensure(aligned, || format!("offset {offset:#x} or stride {} is no multiple of {unit}", it.stride))?;
    let row = it.row_bytes().ok_or("a row of too many bytes")?;
    ensure(it.stride >= row, || format!("stride {} is less than a row of {row} bytes", it.stride))?;
    let rows = it.rows.count(program.tokens, program.want);
    let end = it.span(rows).and_then(|span| span.checked_add(offset));
    end.ok_or_else(|| format!("{rows} rows {} bytes apart overflow", it.stride))
}

/// An operand in io: a whole input, or rows and columns inside one output.
fn io(plan: &Plan, program: &Program, it: &Operand, offset: u64, is_write: bool) -> Checked {
    let end = strided(it, offset, program)?;
    let port = plan.ports.iter().find(|port| port.offset <= offset && end <= port_end(port));
    let port = port.ok_or_else(|| format!("bytes {offset:#x} … {end:#x} of io lie in no port"))?;
    let name = port.name.name();
    let row = u64::from(port.cols) * 4;
    ensure(it.dtype == port.dtype, || {
        format!("{name} is {}, read as {}", port.dtype.name(), it.dtype.name())
    })?;
    ensure(it.stride == row, || format!("{name} has rows of {row} bytes, read every {}", it.stride))?;
    if port.name.is_input() {
        ensure(!is_write, || format!("writes the input {name}"))?;
        let rows = if port.name == PortName::Want { Rows::Want(1) } else { Rows::Tokens(1) };
        ensure(offset == port.offset && it.rows == rows && it.cols == 1, || {
            format!("a part of the input {name}")
        })?;
    }
    Ok(())
}

/// One past the last byte of a port whose place in io was checked.
fn port_end(port: &Port) -> u64 {
    port.offset.saturating_add(port.bytes())
}
