//! Operands of the kinds that recurrent layers, latent attention and experts need.

use super::step::{Operands, produced};
use super::{Checked, ensure};
use crate::schema::{MAX_HEAD_COLS, Operand, Place, PortName, Rows, StateKind, StepKind};
use crate::vq::{VEC_DIM, VqCode};
use crate::{DType, Packing};

/// Most experts chosen for a token: bounds small arrays of the executor.
const MAX_TOP_K: u32 = 64;

impl Operands<'_> {
    pub(super) fn family(&self) -> Checked {
        match &self.step.kind {
            StepKind::Concat => {
                let (lhs, rhs) = (self.f32(0)?, self.f32(1)?);
                ensure(lhs.rows == rhs.rows, || "operands of different rows".into())?;
                self.result(DType::F32, lhs.rows, u64::from(lhs.cols) + u64::from(rhs.cols))
            }
            StepKind::ShortConv { .. } => self.short_conv(),
            StepKind::L2Norm { dim, eps, scale } => {
                finite(&[("eps", *eps), ("scale", *scale)])?;
                self.per_head(*dim)
            }
            StepKind::KdaGate { lower_bound } => {
                finite(&[("lower_bound", *lower_bound)])?;
                let (z, a_log) = (self.f32(0)?, self.weight(1)?);
                self.vector(1, a_log.cols)?;
                self.vector(2, z.cols.into())?;
                let is_heads = u64::from(z.cols).is_multiple_of(a_log.cols);
                ensure(is_heads, || format!("{} columns for {} heads", z.cols, a_log.cols))?;
                self.result(DType::F32, z.rows, z.cols.into())
            }
            StepKind::KdaStep => self.kda_step(),
            StepKind::GatedRmsNorm { eps } => {
                finite(&[("eps", *eps)])?;
                let (x, gate, w) = (self.f32(0)?, self.f32(1)?, self.weight(2)?);
                self.vector(2, w.cols)?;
                ensure((x.rows, x.cols) == (gate.rows, gate.cols), || "a gate of another shape".into())?;
                let dim = u32::try_from(w.cols).map_err(|_| "a norm of too many columns".to_owned())?;
                self.per_head(dim)
            }
            StepKind::HeadLinear | StepKind::HeadLinearT => self.head_linear(),
            StepKind::LatentAttention { scale, heads, rope } => self.latent_attention(*scale, *heads, *rope),
            StepKind::AttnResMix { eps, blocks } => {
                finite(&[("eps", *eps)])?;
                let x = self.f32(0)?;
                self.vector(1, x.cols.into())?;
                self.vector(2, x.cols.into())?;
                if *blocks {
                    let it = self.f32(3)?;
                    let fits = it.rows == x.rows && it.cols.is_multiple_of(x.cols);
                    ensure(fits, || format!("blocks of {} columns for {}", it.cols, x.cols))?;
                }
                self.result(DType::F32, x.rows, x.cols.into())
            }
            _ => self.experts(),
        }
    }

    fn short_conv(&self) -> Checked {
        let (x, w) = (self.f32(0)?, self.weight(1)?);
        self.port(2, PortName::Row)?;
        self.port(3, PortName::Pos)?;
        let is_plain = (w.packing, w.dtype, w.bank) == (Packing::Plain, DType::F32, 1);
        ensure(is_plain && w.rows == u64::from(x.cols), || {
            "taps that are no plain f32[columns, taps]".into()
        })?;
        let ring = self.recurrent(&self.step.writes[1])?;
        let expected = [1, w.cols.saturating_sub(1), u64::from(x.cols)];
        let found = [ring[0], ring[1], ring[2]].map(u64::from);
        ensure(found == expected, || format!("a ring of {found:?}, expected {expected:?}"))?;
        self.tokens(x)?;
        self.result(DType::F32, x.rows, x.cols.into())
    }

    fn kda_step(&self) -> Checked {
        let [heads, keys, values] = self.recurrent(&self.step.writes[1])?;
        let wide = |n: u32| u64::from(heads) * u64::from(n);
        for (slot, cols) in
            [(0, wide(keys)), (1, wide(keys)), (2, wide(values)), (3, wide(keys)), (4, wide(1))]
        {
            let it = self.f32(slot)?;
            self.tokens(it)?;
            ensure(u64::from(it.cols) == cols, || {
                format!("read {slot} of {} columns, expected {cols}", it.cols)
            })?;
        }
        self.port(5, PortName::Row)?;
        self.port(6, PortName::Pos)?;
        self.result(DType::F32, Rows::Tokens(1), wide(values))
    }

    /// A result of the shape of read 0, head by head.
    fn per_head(&self, dim: u32) -> Checked {
        let x = self.f32(0)?;
        ensure(dim <= MAX_HEAD_COLS, || format!("heads of {dim}, at most {MAX_HEAD_COLS}"))?;
        ensure(dim > 0 && x.cols.is_multiple_of(dim), || {
            format!("{} columns are no heads of {dim}", x.cols)
        })?;
        self.result(DType::F32, x.rows, x.cols.into())
    }

    /// Row r of x meets matrix r mod H of the bank.
    fn head_linear(&self) -> Checked {
        let is_transposed = matches!(self.step.kind, StepKind::HeadLinearT);
        let (x, bank, cols) = if is_transposed {
            let (x, it) = (self.f32(0)?, self.weight(1)?);
            let is_plain = it.packing == Packing::Plain && it.dtype.is_float();
            ensure(is_plain, || format!("a bank of {} packed as {}", it.dtype.name(), it.packing.name()))?;
            ensure(u64::from(x.cols) == it.rows, || format!("{} columns times {} rows", x.cols, it.rows))?;
            (x, it.bank, it.cols)
        } else {
            let it = self.bank(0, 1)?;
            (&self.step.reads[0], it.bank, it.rows)
        };
        let is_heads = matches!(x.rows, Rows::Tokens(n) if n.is_multiple_of(bank));
        ensure(is_heads, || format!("{:?} rows over {bank} heads", x.rows))?;
        // Rows of one head are taken together, so the result's rows must follow each other without gaps.
        dense(self.y)?;
        self.result(DType::F32, x.rows, cols)
    }

    fn latent_attention(&self, scale: f32, heads: u32, rope: bool) -> Checked {
        finite(&[("scale", scale)])?;
        let q = self.f32(0)?;
        let cache = self.state(&self.step.reads[1])?;
        self.port(2, PortName::Row)?;
        self.port(3, PortName::Pos)?;
        let turned = if rope { self.f32(4)?.cols } else { 0 };
        let is_cache = cache.kind == StateKind::Keys && cache.shape[2] == 1;
        ensure(is_cache, || "a cache that holds no latents".into())?;
        let width = u64::from(q.cols) + u64::from(turned);
        ensure(width == u64::from(cache.shape[3]), || {
            format!("queries of {width} over latents of {}", cache.shape[3])
        })?;
        let is_heads = heads > 0 && q.rows == Rows::Tokens(heads);
        let same_rows = !rope || self.step.reads[4].rows == q.rows;
        ensure(is_heads && same_rows, || format!("{:?} rows of queries for {heads} heads", q.rows))?;
        self.result(DType::F32, q.rows, q.cols.into())
    }

    fn experts(&self) -> Checked {
        match &self.step.kind {
            StepKind::RouteTopK { groups, keep, scale, bias, .. } => {
                finite(&[("scale", *scale)])?;
                let logits = self.f32(0)?;
                if *bias {
                    self.vector(1, logits.cols.into())?;
                }
                let is_grouped = *groups > 0 && logits.cols.is_multiple_of(*groups);
                ensure(is_grouped && (1..=*groups).contains(keep), || {
                    format!("{keep} of {groups} groups of {} experts", logits.cols)
                })?;
                let k = self.y.cols;
                let most = (logits.cols / groups * keep).min(MAX_TOP_K);
                ensure((1..=most).contains(&k), || format!("chooses {k} experts of {most}"))?;
                self.tokens(logits)?;
                self.result(DType::I32, logits.rows, k.into())?;
                Self::is_result(&self.step.writes[1], DType::F32, logits.rows, k.into())
            }
            StepKind::ExpertSort { experts } => {
                let ids = &self.step.reads[0];
                strided(ids, DType::I32, ids.rows, ids.cols)?;
                self.tokens(ids)?;
                ensure(*experts > 0 && ids.cols <= MAX_TOP_K, || {
                    format!("{} of {experts} experts", ids.cols)
                })?;
                let pairs = Rows::Tokens(ids.cols);
                self.result(DType::I32, pairs, 1)?;
                let groups = 2 * (u64::from(*experts) + 1);
                Self::is_result(&self.step.writes[1], DType::I32, Rows::Fixed(1), groups)?;
                Self::is_result(&self.step.writes[2], DType::I32, pairs, 1)?;
                dense(self.y).and_then(|()| dense(&self.step.writes[2]))
            }
            StepKind::ExpertGather => {
                let x = self.f32(0)?;
                self.tokens(x)?;
                let order = self.order(1)?;
                self.result(DType::F32, order, x.cols.into())
            }
            StepKind::ExpertLinear { gather, .. } => {
                let bank = self.bank(0, 1)?;
                let rows = self.pairs((2, 3), bank.bank, *gather)?;
                self.result(DType::F32, rows, bank.rows)
            }
            StepKind::ExpertGlu { gather, quant, .. } => {
                let (gate, up) = (self.bank(0, 1)?, self.bank(0, 2)?);
                let is_same = (up.bank, up.rows, up.dtype) == (gate.bank, gate.rows, gate.dtype);
                ensure(is_same, || "gate and up differ in size or dtype".into())?;
                let rows = self.pairs((3, 4), gate.bank, *gather)?;
                self.result(produced(*quant)?, rows, gate.rows)
            }
            StepKind::LutBuild { code, tables } => {
                let x = self.f32(0)?;
                self.books(1, *code)?;
                self.result(DType::Lut(*code, *tables), x.rows, x.cols.into())
            }
            StepKind::ExpertLut { gather } => {
                let (lut, bank) = (&self.step.reads[0], self.weight(1)?);
                let code = lut.dtype.lut().map(|it| it.code);
                let is_strided = matches!(lut.place, Place::Scratch(_));
                ensure(is_strided && code.is_some() && code == bank.dtype.vq(), || {
                    format!("{} times {}", lut.dtype.name(), bank.dtype.name())
                })?;
                ensure(bank.records.is_some(), || "read 1 is no bank of records".into())?;
                ensure(u64::from(lut.cols) == bank.cols, || {
                    format!("{} columns times matrices of {}", lut.cols, bank.cols)
                })?;
                let rows = self.pairs((2, 3), bank.bank, *gather)?;
                self.result(DType::F32, rows, bank.rows)
            }
            StepKind::ExpertVq { code, gather, .. } => {
                let (x, bank) = (self.f32(0)?, self.weight(1)?);
                let is_bank = bank.records.is_some() && bank.dtype.vq() == Some(*code);
                ensure(is_bank, || format!("read 1 is no bank of records of {}", code.name()))?;
                self.books(4, *code)?;
                ensure(u64::from(x.cols) == bank.cols, || {
                    format!("{} columns times matrices of {}", x.cols, bank.cols)
                })?;
                let rows = self.pairs((2, 3), bank.bank, *gather)?;
                self.result(DType::F32, rows, bank.rows)
            }
            StepKind::ExpertSum => {
                let (x, weights) = (self.f32(0)?, self.f32(1)?);
                let (order, slots) = (self.order(2)?, self.order(3)?);
                let is_pairs = x.rows == order && slots == order && order == Rows::Tokens(weights.cols);
                ensure(is_pairs && weights.cols <= MAX_TOP_K, || {
                    format!("{:?} rows for {} experts a token", x.rows, weights.cols)
                })?;
                self.tokens(weights)?;
                self.result(DType::F32, weights.rows, x.cols.into())
            }
            _ => unreachable!("the other kinds are checked before"),
        }
    }

    /// Read `slot` holds the codebooks of `code`, transposed.
    fn books(&self, slot: usize, code: VqCode) -> Checked {
        let it = self.weight(slot)?;
        let found = (it.dtype, u64::from(it.bank), it.rows, it.cols);
        let expected = (DType::F32, code.stages() as u64, code.entries() as u64, VEC_DIM as u64);
        ensure(found == expected && it.packing == Packing::Columns, || {
            format!("read {slot} holds no codebooks of {}", code.name())
        })
    }

    /// Reads `slots` are an order and groups over `experts`; x has a row a token or a row a pair. Returns rows of pairs.
    fn pairs(&self, (order, groups): (usize, usize), experts: u32, gather: bool) -> Result<Rows, String> {
        let pairs = self.order(order)?;
        let it = &self.step.reads[groups];
        strided(it, DType::I32, Rows::Fixed(1), experts.saturating_add(1).saturating_mul(2))?;
        let expected = if gather { Rows::Tokens(1) } else { pairs };
        let found = self.step.reads[0].rows;
        ensure(found == expected, || format!("{found:?} rows, expected {expected:?}"))?;
        Ok(pairs)
    }

    /// Read `slot` is a number a pair; returns rows of pairs.
    fn order(&self, slot: usize) -> Result<Rows, String> {
        let it = &self.step.reads[slot];
        strided(it, DType::I32, it.rows, 1)?;
        dense(it)?;
        ensure(matches!(it.rows, Rows::Tokens(n) if n <= MAX_TOP_K), || format!("{:?} pairs", it.rows))?;
        Ok(it.rows)
    }

    fn tokens(&self, it: &Operand) -> Checked {
        ensure(it.rows == Rows::Tokens(1), || format!("{:?} rows, expected one a token", it.rows))
    }

    /// The dimensions of a recurrent state, after its rows.
    fn recurrent(&self, it: &Operand) -> Result<[u32; 3], String> {
        let state = self.state(it)?;
        ensure(state.kind == StateKind::Recurrent, || format!("a state of {}", state.kind.name()))?;
        let [_, a, b, c] = state.shape;
        Ok([a, b, c])
    }
}

pub(super) fn strided(it: &Operand, dtype: DType, rows: Rows, cols: u32) -> Checked {
    let is_strided = matches!(it.place, Place::Scratch(_) | Place::Io(_));
    ensure(is_strided && (it.dtype, it.rows, it.cols) == (dtype, rows, cols), || {
        format!(
            "{} of {:?} × {}, expected {} of {rows:?} × {cols}",
            it.dtype.name(),
            it.rows,
            it.cols,
            dtype.name()
        )
    })
}

/// Rows without gaps.
fn dense(it: &Operand) -> Checked {
    ensure(it.row_bytes() == Some(it.stride), || "rows that do not follow each other".into())
}

fn finite(values: &[(&str, f32)]) -> Checked {
    match values.iter().find(|it| !it.1.is_finite()) {
        Some((name, value)) => Err(format!("{name} = {value}")),
        None => Ok(()),
    }
}
