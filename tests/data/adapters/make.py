"""Adapters with random factors, as PEFT stores them, and the matrices of the base after merging them, in NumPy: float64, rounded to
float32 once. Needs numpy only."""

import json
import math
import pathlib
import struct

import numpy as np

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parent / "models"
rng = np.random.default_rng(20261130)


def widen(kind, raw):
    if kind == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[kind])


def read(path):
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    table = json.loads(data[8 : 8 + n])
    table.pop("__metadata__", None)
    out = {}
    for name, row in table.items():
        begin, end = row["data_offsets"]
        raw = data[8 + n + begin : 8 + n + end]
        out[name] = widen(row["dtype"], raw).astype(np.float64).reshape(row["shape"])
    return out


def write(path, tensors):
    table, data = {}, b""
    for name, (kind, shape, raw) in sorted(tensors.items()):
        table[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def stored(kind, values):
    """The bytes of random factors, and what they mean."""
    values = values.astype("<f4")
    if kind == "BF16":
        raw = (values.view("<u4") >> 16).astype("<u2").tobytes()  # truncated: any bf16 will do
    else:
        raw = values.astype({"F32": "<f4", "F16": "<f2"}[kind]).tobytes()
    return raw, widen(kind, raw).astype(np.float64).reshape(values.shape)


def adapter(name, base, modules, kind, r, alpha, rank_pattern=None, alpha_pattern=None, rslora=False, conv1d=False):
    """Writes the adapter and adds it to the matrices in `base`; returns the names of those."""
    rank_pattern, alpha_pattern = rank_pattern or {}, alpha_pattern or {}
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    ends = lambda module, key: module == key or module.endswith("." + key)
    tensors, names = {}, []
    for module in modules:
        weight = module + ".weight" if module + ".weight" in base else module.removeprefix("transformer.") + ".weight"
        shape = base[weight].shape[::-1] if conv1d else base[weight].shape
        rank = next((it for key, it in rank_pattern.items() if ends(module, key)), r)
        top = next((it for key, it in alpha_pattern.items() if ends(module, key)), alpha)
        a_raw, a = stored(kind, rng.normal(0, shape[1] ** -0.5, (rank, shape[1])))
        b_raw, b = stored(kind, rng.normal(0, 0.2, (shape[0], rank)))
        tensors[f"base_model.model.{module}.lora_A.weight"] = (kind, [rank, shape[1]], a_raw)
        tensors[f"base_model.model.{module}.lora_B.weight"] = (kind, [shape[0], rank], b_raw)
        delta = (b @ a) * (top / (math.sqrt(rank) if rslora else rank))
        base[weight] = base[weight] + (delta.T if conv1d else delta)
        names.append(weight)
    write(folder / "adapter_model.safetensors", tensors)
    config = {
        "alpha_pattern": alpha_pattern,
        "auto_mapping": None,
        "base_model_name_or_path": "random",
        "bias": "none",
        "fan_in_fan_out": conv1d,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_to_transform": None,
        "loftq_config": {},
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": r,
        "rank_pattern": rank_pattern,
        "revision": None,
        "target_modules": sorted({module.split(".")[-1] for module in modules}),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": rslora,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    return names


def merged(name, base, names):
    write(HERE / name, {it: ("F32", list(base[it].shape), base[it].astype("<f4").tobytes()) for it in set(names)})


base = read(MODELS / "llama-rand-gqa-untied-f32/model.safetensors")
layer = "model.layers.{}.".format
names = adapter(
    "llama-patterns", base,
    [layer(i) + it for i in range(2) for it in ("self_attn.q_proj", "self_attn.v_proj")] + [layer(1) + "mlp.down_proj"],
    "F32", 4, 6, {"down_proj": 2}, {"layers.1.self_attn.q_proj": 9},
)
names += adapter(
    "llama-rslora", base, [layer(0) + "self_attn.q_proj", layer(2) + "self_attn.k_proj"], "BF16", 3, 2, rslora=True
)
merged("llama.safetensors", base, names)

base = read(MODELS / "gpt2-rand-f32/model.safetensors")
names = adapter(
    "gpt2", base,
    [f"transformer.h.{i}.{it}" for i in range(2) for it in ("attn.c_attn", "attn.c_proj", "mlp.c_proj")],
    "F16", 2, 4, conv1d=True,
)
merged("gpt2.safetensors", base, names)

base = read(MODELS / "llama-rand-gqa-tied-bf16/model.safetensors")
names = adapter("llama-bf16", base, [layer(1) + "self_attn.o_proj", layer(0) + "mlp.gate_proj"], "BF16", 5, 5)
merged("llama-bf16.safetensors", base, names)
