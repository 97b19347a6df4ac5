"""Hidden states of a random Llama as `waste bisect --against FILE.npz` reads them: float64 on the stored weights, in NumPy, rounded to
float32 once. Needs numpy only."""

import json
import pathlib
import struct

import numpy as np

HERE = pathlib.Path(__file__).parent
MODEL = "llama-rand-gqa-untied-f32"
FOLDER = HERE.parent / "models" / MODEL


def weights():
    data = (FOLDER / "model.safetensors").read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    table = json.loads(data[8 : 8 + n])
    table.pop("__metadata__", None)
    out = {}
    for name, row in table.items():
        begin, end = row["data_offsets"]
        values = np.frombuffer(data[8 + n + begin : 8 + n + end], "<f4")
        out[name] = values.astype(np.float64).reshape(row["shape"])
    return out


def norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rotated(x, theta):
    """Pairs (i, i + d/2) of each head turn by position · theta^(-2i/d)."""
    t, _, d = x.shape
    angle = np.arange(t)[:, None, None] * theta ** (-np.arange(0, d, 2) / d)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def attention(q, k, v):
    """q: [T, heads, d], k and v: [T, groups, d]; every token sees itself and those before it."""
    t, heads, d = q.shape
    k, v = (np.repeat(it, heads // it.shape[1], 1) for it in (k, v))
    score = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d)
    score = np.where(np.tri(t, dtype=bool), score, -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(t, heads * d)


def run(ids):
    config, w = json.loads((FOLDER / "config.json").read_text()), weights()
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    eps, theta = config["rms_norm_eps"], config["rope_theta"]
    x = w["model.embed_tokens.weight"][ids]
    hidden = [x]
    for layer in range(config["num_hidden_layers"]):
        m = lambda name: w[f"model.layers.{layer}.{name}.weight"]
        h = norm(x, m("input_layernorm"), eps)
        q, k, v = ((h @ m(f"self_attn.{name}_proj").T).reshape(len(ids), n, -1) for name, n in (("q", heads), ("k", groups), ("v", groups)))
        x = x + attention(rotated(q, theta), rotated(k, theta), v) @ m("self_attn.o_proj").T
        h = norm(x, m("post_attention_layernorm"), eps)
        gate = h @ m("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ m("mlp.up_proj").T)) @ m("mlp.down_proj").T
        hidden.append(x)
    hidden.append(norm(x, w["model.norm.weight"], eps))
    return hidden, hidden[-1] @ w["lm_head.weight"].T


ids = json.loads((FOLDER / "oracle.json").read_text())["prompts"][1]["ids"]
hidden, logits = run(ids)
arrays = {f"hidden.{k}": it.astype("<f4") for k, it in enumerate(hidden)}
np.savez_compressed(HERE / f"{MODEL}.npz", ids=np.array(ids), logits=logits.astype("<f4"), **arrays)
