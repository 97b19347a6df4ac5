//! The weights of a random module, and their bytes.

use waste_plan::vq::VEC_DIM;
use waste_plan::{DType, VqCode};

use super::{Config, POSITIONS, ROWS, Rng};
use crate::graph::{Module, StateDecl, StateId, StateKind, WeightId, WeightInit};
use crate::types::{Dim, TensorType};

/// Blocks of a weight before they repeat: a prime, so that rows differ.
const DISTINCT: u32 = 509;

/// Weights of a norm: w, and b of a layer norm.
pub(super) type Norm = (WeightId, Option<WeightId>);
/// Weights of a linear: w and bias.
pub(super) type Linear = (WeightId, Option<WeightId>);

pub(super) struct Layer {
    pub(super) attn_norm: Norm,
    pub(super) qkv: Vec<Linear>,
    pub(super) qk_norm: Option<(WeightId, WeightId)>,
    pub(super) out: Linear,
    pub(super) ff_norm: Norm,
    pub(super) ff: Vec<Linear>,
    pub(super) router: Option<WeightId>,
    pub(super) cache: (StateId, StateId),
}

pub(super) struct Model {
    pub(super) embed: WeightId,
    pub(super) positions: Option<WeightId>,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Norm,
    pub(super) head: WeightId,
}

/// Declares weights and makes up their bytes.
pub(super) struct Weights {
    pub(super) rng: Rng,
    pub(super) module: Module,
    pub(super) bytes: Vec<u8>,
}

impl Weights {
    /// A weight of `dims`; `stored` may be a narrower float than the declared `dtype`.
    fn add(&mut self, name: &str, dtype: DType, dims: &[u32], stored: DType, transposed: bool) -> WeightId {
        let offset = self.elements(name, stored, dims.iter().product());
        let dims: Vec<Dim> = dims.iter().copied().map(Dim::Const).collect();
        let source = self.module.sources.keys().next().expect("the one source");
        let init = match transposed {
            true => WeightInit::Transposed { source, offset, stored },
            false => WeightInit::Stored { source, offset, stored },
        };
        self.module.add_weight(name, TensorType::new(dtype, &dims), init)
    }

    /// Makes up `n` elements: the place of their first byte.
    fn elements(&mut self, name: &str, stored: DType, n: u32) -> u64 {
        let offset = self.bytes.len() as u64;
        let n_blocks = n / stored.block().expect("a weight dtype").elems;
        let start = self.bytes.len();
        for _ in 0..n_blocks.min(DISTINCT) {
            self.block(stored, !name.contains("norm.weight"));
        }
        for done in (DISTINCT..n_blocks).step_by(DISTINCT as usize) {
            let bytes = (self.bytes.len() - start) / done as usize * DISTINCT.min(n_blocks - done) as usize;
            self.bytes.extend_from_within(start..start + bytes);
        }
        self.bytes.resize(self.bytes.len().next_multiple_of(32), 0);
        offset
    }

    /// One block with magnitudes around 0.1; around 1 and positive if not `centred`.
    fn block(&mut self, stored: DType, centred: bool) {
        let value = if centred { 0.2 * self.rng.signed() } else { 1.0 + 0.3 * self.rng.signed() };
        match stored {
            DType::F32 => self.bytes.extend(value.to_le_bytes()),
            DType::BF16 => self.bytes.extend(&value.to_le_bytes()[2..]),
            DType::F16 => self.bytes.extend(f16_bits(value).to_le_bytes()),
            DType::Q8_0 => {
                self.bytes.extend(f16_bits(value / 100.0).to_le_bytes());
                self.fill(32);
            }
            DType::Q4_0 => {
                self.bytes.extend(f16_bits(value / 8.0).to_le_bytes());
                self.fill(16);
            }
            DType::Q4_1 => {
                self.bytes.extend(f16_bits(value / 8.0).to_le_bytes());
                self.bytes.extend(f16_bits(-value).to_le_bytes());
                self.fill(16);
            }
            DType::Q5_0 | DType::Iq4Nl => self.halves_first(stored, &[value / 16.0]),
            DType::Q5_1 => self.halves_first(stored, &[value / 16.0, -value]),
            DType::Q4K | DType::Q5K => self.halves_first(stored, &[value / 256.0, value / 32.0]),
            DType::Iq4Xs => self.halves_first(stored, &[value / 1024.0]),
            DType::Q2K => self.halves_last(stored, &[value / 16.0, value / 16.0]),
            DType::Q3K => self.halves_last(stored, &[value / 32.0]),
            DType::Q6K => self.halves_last(stored, &[value / 1024.0]),
            DType::Mxfp4 => {
                self.bytes.push(118);
                self.fill(16);
            }
            DType::Vq3r | DType::Vq2r | DType::Vq4p | DType::Lut(..) => unreachable!("not drawn"),
            DType::Q8G | DType::Q4G | DType::Q3G => unreachable!("not drawn"),
            DType::I32 | DType::Fx24 | DType::Fx16 | DType::Fx8 => unreachable!("no weight dtype"),
        }
    }

    /// A block that begins with f16 numbers.
    fn halves_first(&mut self, stored: DType, halves: &[f32]) {
        halves.iter().for_each(|it| self.bytes.extend(f16_bits(*it).to_le_bytes()));
        self.fill(stored.block().expect("a weight dtype").bytes as usize - 2 * halves.len());
    }

    /// A block that ends with f16 numbers.
    fn halves_last(&mut self, stored: DType, halves: &[f32]) {
        self.fill(stored.block().expect("a weight dtype").bytes as usize - 2 * halves.len());
        halves.iter().for_each(|it| self.bytes.extend(f16_bits(*it).to_le_bytes()));
    }

    fn fill(&mut self, n: usize) {
        for _ in 0..n {
            self.bytes.push(self.rng.bits().to_le_bytes()[7]);
        }
    }

    pub(super) fn matrix(&mut self, name: &str, rows: u32, cols: u32) -> WeightId {
        self.matrices(name, &[rows, cols])
    }

    /// Any weight dtype that fits rows of `cols`.
    fn weight_dtype(&mut self, cols: u32) -> DType {
        let all = [
            [DType::F32, DType::F16, DType::BF16].as_slice(),
            &[DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Iq4Nl, DType::Mxfp4],
            &[DType::Q2K, DType::Q3K, DType::Q4K, DType::Q5K, DType::Q6K, DType::Iq4Xs],
        ]
        .concat();
        let fitting = match cols {
            cols if cols.is_multiple_of(256) => all.len(),
            cols if cols.is_multiple_of(32) => 10,
            _ => 3,
        };
        self.rng.pick(&all[..fitting])
    }

    /// A matrix, or a bank of them, of any weight dtype that fits its columns.
    fn matrices(&mut self, name: &str, dims: &[u32]) -> WeightId {
        let dtype = self.weight_dtype(*dims.last().expect("a matrix"));
        let transposed = dims.len() == 2 && dtype.is_float() && self.rng.below(4) == 0;
        self.add(name, dtype, dims, dtype, transposed)
    }

    /// A bank whose matrices lie apart, the last one first.
    pub(super) fn bank(&mut self, name: &str, count: u32, rows: u32, cols: u32) -> WeightId {
        let dtype = self.weight_dtype(cols);
        let source = self.module.sources.keys().next().expect("the one source");
        let place = |this: &mut Self| {
            let offset = this.elements(name, dtype, rows * cols);
            this.bytes.resize(this.bytes.len() + 32, 0xff);
            (source, offset)
        };
        let mut parts: Vec<_> = (0..count).map(|_| place(self)).collect();
        parts.reverse();
        let ty = TensorType::new(dtype, &[count, rows, cols].map(Dim::Const));
        self.module.add_weight(name, ty, WeightInit::Bank { stored: dtype, parts })
    }

    /// A matrix of f32 that is stored as any float.
    pub(super) fn float_matrix(&mut self, name: &str, rows: u32, cols: u32) -> WeightId {
        let stored = self.rng.pick(&[DType::F32, DType::F16, DType::BF16]);
        self.add(name, DType::F32, &[rows, cols], stored, false)
    }

    /// Vector-quantised banks of `n` matrices of these names, rows and columns, each with codebooks of its own. An expert's matrices
    /// lie in one record: all index streams, then all scales. Every byte is an index.
    pub(super) fn coded_banks(
        &mut self,
        n: u32,
        matrices: &[(String, u32, u32)],
        code: VqCode,
    ) -> Vec<WeightId> {
        let books: Vec<WeightId> = matrices.iter().map(|it| self.books(&it.0, code)).collect();
        let source = self.module.sources.keys().next().expect("the one source");
        let first = self.bytes.len() as u64;
        let index_bytes = |(_, rows, cols): &(String, u32, u32)| {
            code.index_bytes(u64::from(*rows), u64::from(*cols)).expect("whole positions")
        };
        for _ in 0..n {
            for it in matrices {
                self.fill(usize::try_from(index_bytes(it)).expect("a small matrix"));
            }
            for (_, rows, _) in matrices {
                self.blocks(DType::F16, *rows);
            }
        }
        let stride = (self.bytes.len() as u64 - first) / u64::from(n);
        self.bytes.resize(self.bytes.len().next_multiple_of(32), 0);
        let dtype = DType::ALL.into_iter().find(|it| it.vq() == Some(code)).expect("each code has a dtype");
        let (mut indices, mut scales) = (0, matrices.iter().map(index_bytes).sum());
        let mut banks = Vec::new();
        for (it, books) in matrices.iter().zip(books) {
            let (name, rows, cols) = it;
            let init = WeightInit::Records { source, first, stride, indices, scales };
            let ty = TensorType::new(dtype, &[n, *rows, *cols].map(Dim::Const));
            banks.push(self.module.add_vq_bank(name, ty, init, books));
            indices += index_bytes(it);
            scales += 2 * u64::from(*rows);
        }
        banks
    }

    /// The codebooks of a bank, each stage somewhere in the source.
    fn books(&mut self, name: &str, code: VqCode) -> WeightId {
        let size = |it: usize| u32::try_from(it).expect("a few hundred");
        let (books, first) = ([code.stages(), code.entries(), VEC_DIM].map(size), self.bytes.len() as u64);
        let source = self.module.sources.keys().next().expect("the one source");
        self.blocks(DType::F16, books.iter().product());
        let book_bytes = u64::from(2 * books[1] * books[2]);
        let parts = (0..u64::from(books[0])).map(|it| (source, first + it * book_bytes)).collect();
        let ty = TensorType::new(DType::F32, &books.map(Dim::Const));
        let init = WeightInit::Bank { stored: DType::F16, parts };
        self.module.add_weight(&format!("{name}.books"), ty, init)
    }

    fn blocks(&mut self, stored: DType, n: u32) {
        for _ in 0..n {
            self.block(stored, true);
        }
    }

    pub(super) fn vector(&mut self, name: &str, n: u32) -> WeightId {
        let stored = self.rng.pick(&[DType::F32, DType::F16, DType::BF16]);
        self.add(name, DType::F32, &[n], stored, false)
    }

    fn linear(&mut self, name: &str, rows: u32, cols: u32, bias: bool) -> Linear {
        let w = self.matrix(&format!("{name}.weight"), rows, cols);
        (w, bias.then(|| self.vector(&format!("{name}.bias"), rows)))
    }

    fn norm(&mut self, name: &str, cx: &Config) -> Norm {
        let w = self.vector(&format!("{name}.weight"), cx.hidden);
        let bias = cx.layer_norm && self.rng.coin();
        (w, bias.then(|| self.vector(&format!("{name}.bias"), cx.hidden)))
    }

    fn state(&mut self, name: String, kind: StateKind, cx: &Config) -> StateId {
        let dims = [ROWS, POSITIONS, cx.kv_heads, cx.head_dim].map(Dim::Const);
        self.module.states.push(StateDecl { name, ty: TensorType::new(DType::F32, &dims), kind })
    }

    pub(super) fn model(&mut self, cx: &Config, n_layers: usize, tied: bool) -> Model {
        let embed = self.matrix("token_embd.weight", cx.vocab, cx.hidden);
        let learned = cx.rope.is_none();
        Model {
            embed,
            positions: learned.then(|| self.matrix("position_embd.weight", POSITIONS, cx.hidden)),
            layers: (0..n_layers).map(|i| self.layer(i, cx)).collect(),
            norm: self.norm("output_norm", cx),
            head: if tied { embed } else { self.matrix("output.weight", cx.vocab, cx.hidden) },
        }
    }

    fn layer(&mut self, i: usize, cx: &Config) -> Layer {
        let at = |part: &str| format!("blk.{i}.{part}");
        let (q, kv) = (cx.heads * cx.head_dim, cx.kv_heads * cx.head_dim);
        let qkv = match cx.merged_qkv {
            true => vec![self.linear(&at("attn_qkv"), q + 2 * kv, cx.hidden, cx.biases)],
            false => [("attn_q", q), ("attn_k", kv), ("attn_v", kv)]
                .map(|(name, rows)| self.linear(&at(name), rows, cx.hidden, cx.biases))
                .into(),
        };
        let ups: &[&str] = if cx.gated { &["ffn_gate", "ffn_up"] } else { &["ffn_up"] };
        let ff = match cx.experts {
            Some(n) => {
                let code = self.rng.pick(&[None, Some(VqCode::Vq3r), Some(VqCode::Vq2r), Some(VqCode::Vq4p)]);
                let mut shapes: Vec<_> = ups.iter().map(|it| (at(it), cx.ff, cx.hidden)).collect();
                shapes.push((at("ffn_down"), cx.hidden, cx.ff));
                let banks: Vec<WeightId> = match code {
                    Some(code) => self.coded_banks(n, &shapes, code),
                    None => shapes.iter().map(|it| self.matrices(&it.0, &[n, it.1, it.2])).collect(),
                };
                banks.into_iter().map(|it| (it, None)).collect()
            }
            None => {
                let mut linears: Vec<Linear> =
                    ups.iter().map(|it| self.linear(&at(it), cx.ff, cx.hidden, cx.biases)).collect();
                linears.push(self.linear(&at("ffn_down"), cx.hidden, cx.ff, cx.biases));
                linears
            }
        };
        Layer {
            attn_norm: self.norm(&at("attn_norm"), cx),
            qkv,
            qk_norm: cx.qk_norm.then(|| {
                let mut norm = |name| self.vector(&at(name), cx.head_dim);
                (norm("attn_q_norm.weight"), norm("attn_k_norm.weight"))
            }),
            out: self.linear(&at("attn_output"), cx.hidden, q, cx.biases),
            ff_norm: self.norm(&at("ffn_norm"), cx),
            ff,
            router: cx.experts.map(|n| self.matrix(&at("ffn_gate_inp.weight"), n, cx.hidden)),
            cache: (
                self.state(format!("k.{i}"), StateKind::Keys, cx),
                self.state(format!("v.{i}"), StateKind::Values, cx),
            ),
        }
    }
}

/// The f16 nearest to zero from `value`, which must be 0 or of normal magnitude below 65504.
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let exponent = (bits >> 23 & 0xff).saturating_sub(112);
    let magnitude = if exponent == 0 { 0 } else { exponent << 10 | bits >> 13 & 0x3ff };
    u16::try_from(bits >> 16 & 0x8000 | magnitude).expect("16 bits")
}
