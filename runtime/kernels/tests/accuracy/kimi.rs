//! The rows that Kimi-Linear needs.

use half::{bf16, f16};
use waste_kernels::attention::{TILE, tiles};
use waste_kernels::{KernelTable, RouteRule, RowsF32, STATE_COLS, TileMut, latent_scratch_len};
use waste_plan::Scoring;

use super::common::{Rng, tables};
use super::{portable, relative, softmax_row};

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A run of tokens of one head: q, k, decay \[T, dk\], v \[T, dv\], beta \[T\].
struct Run {
    tokens: usize,
    dk: usize,
    dv: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    decay: Vec<f32>,
    v: Vec<f32>,
    beta: Vec<f32>,
}

impl Run {
    fn new(tokens: usize, dk: usize, dv: usize, rng: &mut Rng) -> Self {
        // Keys of length one, as the l2 norm leaves them: only those keep the state bounded.
        let unit = |x: Vec<f32>| -> Vec<f32> {
            let norms = x.chunks(dk).map(|x| x.iter().map(|x| x * x).sum::<f32>().sqrt());
            x.chunks(dk).zip(norms).flat_map(|(x, norm)| x.iter().map(move |x| x / norm)).collect()
        };
        Self {
            tokens,
            dk,
            dv,
            q: unit(rng.vec(tokens * dk, Rng::normal)),
            k: unit(rng.vec(tokens * dk, Rng::normal)),
            decay: rng.vec(tokens * dk, |rng| 1.0 - 0.2 * rng.unit().abs()),
            v: rng.vec(tokens * dv, Rng::normal),
            beta: rng.vec(tokens, |rng| rng.unit().abs()),
        }
    }

    /// Steps column block by column block, the tokens in pieces of `piece`: o \[T, dv\] and the state, column-blocked.
    fn steps(&self, table: &KernelTable, piece: usize, block: usize) -> (Vec<f32>, Vec<f32>) {
        let (mut o, mut state) = (vec![0.0; self.tokens * self.dv], Vec::new());
        for at in (0..self.dv).step_by(block) {
            let c = block.min(self.dv - at);
            let mut s: Option<Vec<f32>> = None;
            for t in (0..self.tokens).step_by(piece) {
                let n = piece.min(self.tokens - t);
                let [q, k, decay] = [&self.q, &self.k, &self.decay]
                    .map(|x| RowsF32::new(&x[t * self.dk..], n, self.dk, self.dk));
                let v = RowsF32::new(&self.v[t * self.dv..], n, self.dv, self.dv).columns(at..at + c);
                let mut o = TileMut::from_slice(&mut o[t * self.dv..], n, self.dv, self.dv);
                let mut to = vec![f32::NAN; self.dk * c];
                let (beta, o) = (&self.beta[t..t + n], &mut o.sub(0..n, at..at + c));
                table.kda_step(&q, &k, &v, &decay, beta, s.as_deref(), &mut to, o);
                s = Some(to);
            }
            state.extend(s.unwrap());
        }
        (o, state)
    }

    /// The same in `T` = f32 or f64 by the book: o and the state \[dk\]\[dv\].
    fn by_the_book<T>(&self, wide: fn(f32) -> T, fma: fn(T, T, T) -> T) -> (Vec<T>, Vec<T>)
    where
        T: Copy + std::ops::Mul<Output = T> + std::ops::Sub<Output = T>,
    {
        let (dk, dv, zero) = (self.dk, self.dv, wide(0.0));
        let (mut s, mut o) = (vec![zero; dk * dv], Vec::new());
        for t in 0..self.tokens {
            let row = |x: &[f32], i: usize| wide(x[t * dk + i]);
            for c in 0..dv {
                (0..dk).for_each(|i| s[i * dv + c] = s[i * dv + c] * row(&self.decay, i));
                let u = (0..dk).fold(zero, |u, i| fma(row(&self.k, i), s[i * dv + c], u));
                let d = wide(self.beta[t]) * (wide(self.v[t * dv + c]) - u);
                (0..dk).for_each(|i| s[i * dv + c] = fma(row(&self.k, i), d, s[i * dv + c]));
                o.push((0..dk).fold(zero, |o, i| fma(row(&self.q, i), s[i * dv + c], o)));
            }
        }
        (o, s)
    }
}

/// The delta rule against f64, and bit by bit against the plain loop in f32, on every tier and however it is cut.
#[test]
fn a_step_is_the_delta_rule_in_plain_order() {
    let run = Run::new(24, 48, 80, &mut Rng(23));
    let (exact, exact_state) = run.by_the_book(f64::from, |a, b, c| a * b + c);
    let (plain, plain_state) = run.by_the_book(|x| x, f32::mul_add);
    assert!(relative(&plain, &exact) < 1e-6 && relative(&plain_state, &exact_state) < 1e-6);
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (tier, table) in tables() {
        for (piece, block) in [(24, STATE_COLS), (1, STATE_COLS), (5, 16), (24, 7)] {
            let (o, state) = run.steps(&table, piece, block);
            assert_eq!(bits(&o), bits(&plain), "{tier}: {piece} tokens, {block} columns at a time");
            for (b, s) in state.chunks(run.dk * block).enumerate() {
                let c = block.min(run.dv - b * block);
                let rows = plain_state.chunks(run.dv).map(|row| &row[b * block..][..c]);
                assert!(s.chunks(c).zip(rows).all(|(s, want)| bits(s) == bits(want)), "{tier}: the state");
            }
        }
    }
}

#[test]
fn gates_and_norms_of_a_head_mean_what_they_say() {
    let (table, rng, n) = (portable(), &mut Rng(29), 128);
    let (x, w, gate) = (rng.vec(n, Rng::normal), rng.vec(n, Rng::normal), rng.vec(n, Rng::normal));
    let (xs, ws, gates, mut y) = (wide(&x), wide(&w), wide(&gate), vec![0.0; n]);
    let a = 0.4f64.exp();
    table.kda_gate(&x, &w, 0.4, 0.0, &mut y);
    let want: Vec<f64> = (0..n).map(|i| (-a * libm::log1p((xs[i] + ws[i]).exp())).exp()).collect();
    assert!(relative(&y, &want) < 1e-6, "{:e}", relative(&y, &want));
    table.kda_gate(&x, &w, 0.4, -5.0, &mut y);
    let want: Vec<f64> = (0..n).map(|i| (-5.0 * logistic(a * (xs[i] + ws[i]))).exp()).collect();
    assert!(relative(&y, &want) < 1e-6, "{:e}", relative(&y, &want));
    // Trained models reach decays that underflow: they forget, they do not fail.
    table.kda_gate(&[90.0, -90.0], &[0.0; 2], 2.0, 0.0, &mut y[..2]);
    assert_eq!(y[..2], [0.0, 1.0]);

    let squares: f64 = xs.iter().map(|x| x * x).sum();
    table.l2_norm(&x, 1e-6, 0.125, &mut y);
    let want: Vec<f64> = xs.iter().map(|x| x / (squares + 1e-6).sqrt() * 0.125).collect();
    assert!(relative(&y, &want) < 3e-7);
    table.gated_rms_norm(&x, &gate, &w, 1e-5, &mut y);
    let rms = 1.0 / (squares / n as f64 + 1e-5).sqrt();
    let want: Vec<f64> = (0..n).map(|i| xs[i] * rms * ws[i] * logistic(gates[i])).collect();
    assert!(relative(&y, &want) < 3e-7);

    for linear in [25.0, 0.0] {
        table.situ(&x, &w, 4.0, linear, &mut y);
        let l = f64::from(linear);
        let up = |u: f64| if l > 0.0 { l * (u / l).tanh() } else { u };
        let want: Vec<f64> =
            (0..n).map(|i| 4.0 * (xs[i] / 4.0).tanh() * logistic(xs[i]) * up(ws[i])).collect();
        assert!(relative(&y, &want) < 3e-7);
    }
}

/// The convolution of a whole run, token by token and in pieces: the ring carries what is missing.
#[test]
fn a_convolution_does_not_depend_on_how_a_run_is_cut() {
    let (rng, tokens, c, taps) = (&mut Rng(31), 11, 37, 4);
    let (x, w) = (rng.vec(tokens * c, Rng::normal), rng.vec(c * taps, Rng::normal));
    let start = rng.vec((taps - 1) * c, Rng::normal);
    let history = [&start[..], &x[..]].concat();
    for (tier, table) in tables() {
        for piece in [1, 2, 3, 5, 11] {
            let (mut ring, mut y) = (start.clone(), vec![0.0; tokens * c]);
            for t in (0..tokens).step_by(piece) {
                let n = piece.min(tokens - t);
                let mut next = vec![f32::NAN; ring.len()];
                let rows = RowsF32::new(&x[t * c..], n, c, c);
                let mut tile = TileMut::from_slice(&mut y[t * c..], n, c, c);
                table.short_conv(&rows, &w, taps, &ring, &mut next, &mut tile);
                ring = next;
            }
            for (i, y) in y.iter().enumerate() {
                let (t, at) = (i / c, i % c);
                let taps = (0..taps).map(|j| (w[at * taps + j], history[(t + j) * c + at]));
                let want = taps.fold(0.0f32, |sum, (w, x)| w.mul_add(x, sum));
                assert_eq!(y.to_bits(), want.to_bits(), "{tier}: token {t}, channel {at}, pieces of {piece}");
            }
            assert_eq!(ring, history[tokens * c..], "{tier}: the last inputs stay");
        }
    }
}

#[test]
fn latent_attention_is_a_softmax_over_what_is_visible() {
    let (rng, kl, r, longest) = (&mut Rng(37), 72, 16, 100);
    let d = kl + r;
    let latents = rng.vec(longest * d, Rng::normal);
    let n_pos = [1u32, 31, 32, 33, 64, 100, 100];
    let n = n_pos.len();
    let q = rng.vec(n * d, Rng::normal);
    // Positions that no query sees hold NaNs.
    let mut cache = vec![f32::NAN; tiles(longest) * d * TILE];
    for (pos, latent) in latents.chunks(d).enumerate() {
        for (i, x) in latent.iter().enumerate() {
            cache[(pos / TILE * d + i) * TILE + pos % TILE] = *x;
        }
    }
    let half: Vec<f16> = cache.iter().map(|&x| f16::from_f32(x)).collect();
    let values: Vec<f32> = latents.chunks(d).flat_map(|it| it[..kl].to_vec()).collect();
    let want: Vec<f64> = (0..n)
        .flat_map(|i| softmax_row(&q[i * d..][..d], &latents, &values, n_pos[i] as usize, kl, 0.2))
        .collect();
    let all = RowsF32::new(&q, n, d, d);
    let mut bits: Vec<Vec<u32>> = Vec::new();
    for (tier, table) in tables() {
        // Cutting the queries in any way changes nothing.
        for block in [n, 1, 3] {
            let mut out = vec![0.0; n * kl];
            for from in (0..n).step_by(block) {
                let m = block.min(n - from);
                let all = RowsF32::new(&q[from * d..], m, d, d);
                let mut tile = TileMut::from_slice(&mut out[from * kl..], m, kl, kl);
                let mut scratch = vec![f32::NAN; latent_scratch_len(m, kl)];
                let (q, q_rope, n_pos) = (all.columns(0..kl), all.columns(kl..d), &n_pos[from..from + m]);
                table.latent_attention_f32(&q, &q_rope, n_pos, &cache, 0.2, &mut scratch, &mut tile);
            }
            assert!(relative(&out, &want) < 1e-6, "{tier}: {:e}", relative(&out, &want));
            bits.push(out.iter().map(|x| x.to_bits()).collect());
        }
        let mut out = vec![0.0; n * kl];
        let mut tile = TileMut::from_slice(&mut out, n, kl, kl);
        let mut scratch = vec![0.0; latent_scratch_len(n, kl)];
        let (q, q_rope) = (all.columns(0..kl), all.columns(kl..d));
        table.latent_attention_f16(&q, &q_rope, &n_pos, &half, 0.2, &mut scratch, &mut tile);
        let error = relative(&out, &want);
        assert!(error < 5e-3 && error > 1e-6, "f16 rounds: {error:e}");
    }
    assert!(bits.iter().all(|it| *it == bits[0]));
}

#[test]
fn the_transposed_product_sums_over_rows() {
    transposed(KernelTable::head_linear_t_f32, |x| (x.to_le_bytes().to_vec(), x.into()));
    transposed(KernelTable::head_linear_t_f16, |x| {
        let x = f16::from_f32(x);
        (x.to_le_bytes().to_vec(), x.to_f64())
    });
    transposed(KernelTable::head_linear_t_bf16, |x| {
        let x = bf16::from_f32(x);
        (x.to_le_bytes().to_vec(), x.to_f64())
    });
}

/// `store`: an element's bytes and what they stand for.
fn transposed(call: fn(&KernelTable, &[u8], &[f32], &mut [f32]), store: fn(f32) -> (Vec<u8>, f64)) {
    let (rng, n, k) = (&mut Rng(41), 128, 96);
    let x = rng.vec(n, Rng::normal);
    let (bytes, w): (Vec<_>, Vec<_>) = (0..n * k).map(|_| store(rng.normal())).unzip();
    let product = |j: usize| (0..n).map(|i| f64::from(x[i]) * w[i * k + j]).sum();
    let want: Vec<f64> = (0..k).map(product).collect();
    let mut y = vec![9.0; k];
    call(&portable(), &bytes.concat(), &x, &mut y);
    assert!(relative(&y, &want) < 1e-6);
}

fn route(logits: &[f32], bias: Option<&[f32]>, rule: RouteRule, k: usize) -> (Vec<i32>, Vec<f32>) {
    let (mut ids, mut weights) = (vec![-1; k], vec![9.0; k]);
    let mut scratch = vec![9.0; 2 * logits.len()];
    portable().route_top_k(logits, bias, &rule, &mut scratch, &mut ids, &mut weights);
    (ids, weights)
}

const PLAIN: RouteRule =
    RouteRule { scoring: Scoring::Sigmoid, groups: 1, keep: 1, renorm: false, scale: 1.0 };

#[test]
fn routing_ranks_with_the_bias_and_weighs_without() {
    let logits = [0.0, 1.0, 1.0, -1.0, 2.0, f32::NAN];
    let bias = [0.0, 0.0, 0.0, 5.0, -5.0, 0.0];
    let (ids, weights) = route(&logits, Some(&bias), PLAIN, 3);
    assert_eq!(ids, [3, 1, 2], "ties go to the lower id");
    let scores = [-1.0, 1.0, 1.0].map(logistic);
    assert!(relative(&weights, &scores) < 3e-7);
    let sum: f64 = scores.iter().sum();
    let (_, weights) = route(&logits, Some(&bias), RouteRule { renorm: true, scale: 2.446, ..PLAIN }, 3);
    assert!(relative(&weights, &scores.map(|it| it / sum * 2.446)) < 3e-7);
    let (_, alone) = route(&logits, Some(&bias), RouteRule { renorm: true, ..PLAIN }, 1);
    assert!(relative(&alone, &scores[..1]) < 3e-7, "one expert keeps its score");

    let softmax = RouteRule { scoring: Scoring::Softmax, ..PLAIN };
    let (ids, weights) = route(&logits[..5], None, softmax, 2);
    let sum: f64 = wide(&logits[..5]).iter().map(|x| x.exp()).sum();
    assert_eq!(ids, [4, 1]);
    assert!(relative(&weights, &[2f64.exp() / sum, 1f64.exp() / sum]) < 3e-7);
}

#[test]
fn only_experts_of_the_best_groups_compete() {
    // Sums of the two best scores: groups 1 and 3 win, though the best expert is in group 0.
    let logits = [4.0, -9.0, -9.0, 1.0, 1.5, 0.0, -1.0, -1.0, -1.0, 2.0, 0.5, 0.0];
    let rule = RouteRule { groups: 4, keep: 2, ..PLAIN };
    assert_eq!(route(&logits, None, rule, 4).0, [9, 4, 3, 10]);
    let one_each = RouteRule { groups: 12, keep: 3, ..PLAIN };
    assert_eq!(route(&logits, None, one_each, 3).0, [0, 9, 4], "groups of one");
    // Two equal groups: the lower one is kept.
    let rule = RouteRule { groups: 2, keep: 1, ..PLAIN };
    assert_eq!(route(&[1.0, 2.0, 2.0, 1.0], None, rule, 2).0, [1, 0]);
}

#[test]
fn routing_always_names_different_experts() {
    let nan = f32::NAN;
    assert_eq!(route(&[nan, nan, nan], None, PLAIN, 3).0, [0, 1, 2]);
    assert_eq!(route(&[nan, 0.0, nan, 1.0], None, PLAIN, 3).0, [3, 1, 0]);
    let masked = [0.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0];
    assert_eq!(route(&[1.0, 5.0, 5.0, nan], Some(&masked), PLAIN, 4).0, [0, 1, 2, 3]);
    // Two candidates, four wanted: the dropped group follows.
    let rule = RouteRule { groups: 2, keep: 1, ..PLAIN };
    assert_eq!(route(&[1.0, 2.0, 3.0, 4.0], None, rule, 4).0, [3, 2, 0, 1]);
}

#[test]
fn the_residual_mixture_is_a_softmax_of_normed_scores() {
    let (table, rng, nb, h) = (portable(), &mut Rng(43), 5, 100);
    let (blocks, x) = (rng.vec(nb * h, Rng::normal), rng.vec(h, Rng::normal));
    let (norm, proj) = (rng.vec(h, Rng::normal), rng.vec(h, |rng| 0.2 * rng.normal()));
    let score = |v: &[f32]| -> f64 {
        let v = wide(v);
        let rms = 1.0 / (v.iter().map(|v| v * v).sum::<f64>() / h as f64 + 1e-5).sqrt();
        (0..h).map(|i| v[i] * rms * f64::from(norm[i]) * f64::from(proj[i])).sum()
    };
    let all: Vec<&[f32]> = blocks.chunks(h).chain([&x[..]]).collect();
    let p: Vec<f64> = all.iter().map(|v| score(v).exp()).collect();
    let sum: f64 = p.iter().sum();
    let mix = |i: usize| all.iter().zip(&p).map(|(v, p)| p / sum * f64::from(v[i])).sum();
    let want: Vec<f64> = (0..h).map(mix).collect();
    let mut y = vec![9.0; h];
    table.attn_res_mix(&blocks, &x, &norm, &proj, 1e-5, &mut y);
    assert!(relative(&y, &want) < 1e-6, "{:e}", relative(&y, &want));
    table.attn_res_mix(&[], &x, &norm, &proj, 1e-5, &mut y);
    assert_eq!(y, x, "nothing to mix with");
}
