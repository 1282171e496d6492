"""Tiny EAGLE heads in the public layouts, with a slow head to hold them against."""

import math

import torch

from specviz.models.pool import LoadedModel
from specviz.trace import ModelInfo
from tests.helpers.tiny_models import tiny

HIDDEN = 16


SIZES = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}


ATTENTION = {"q": HIDDEN, "k": HIDDEN // 2, "v": HIDDEN // 2}


def loaded(model, name="big"):
    """A model as the library hands it out, but for its tokenizer."""
    size = model.get_output_embeddings().weight.shape[0]
    info = ModelInfo(name, None, 0, str(model.dtype).removeprefix("torch."), "cpu", size, 256, "")
    return LoadedModel(name, model, None, info, None)


def target_of(layers=2, vocab_size=12, dtype=torch.float64, **config):
    return loaded(tiny("llama", vocab_size=vocab_size, layers=layers, hidden=HIDDEN, seed=3, **config).to(dtype))


def eagle(target, *, bias=True, qkv_bias=False, table=None, seed=5):
    """(config, state) as the public EAGLE-1 and -2 checkpoints have them; table: their copy of the embeddings."""
    random = _random(seed)
    state = {"fc.weight": random(HIDDEN, 2 * HIDDEN), **_layer("layers.0.", HIDDEN, random)}
    state |= {"fc.bias": random(HIDDEN)} if bias else {}
    state |= {} if table is None else {"embed_tokens.weight": table}
    if qkv_bias:
        state |= {f"layers.0.self_attn.{name}_proj.bias": random(size) for name, size in ATTENTION.items()}
    config = {**SIZES, "num_hidden_layers": 1, "vocab_size": target.info.vocab_size, "bias": bias}
    return {**config, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "hidden_act": "silu", "qkv_bias": qkv_bias}, state


def eagle3(target, ids, *, seed=6):
    """(config, state) as the public EAGLE-3 checkpoints have them; ids: the target's that the head can propose."""
    random = _random(seed)
    norms = ("midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight", "norm.weight")
    state = {"fc.weight": random(HIDDEN, 3 * HIDDEN), **_layer("midlayer.", 2 * HIDDEN, random)}
    state |= {name: 1 + random(HIDDEN) for name in norms} | {"lm_head.weight": random(len(ids), HIDDEN)}
    state |= {"d2t": torch.tensor(ids) - torch.arange(len(ids))}
    state |= {"t2d": torch.isin(torch.arange(target.info.vocab_size), torch.tensor(ids))}
    config = {**SIZES, "num_hidden_layers": 1, "vocab_size": target.info.vocab_size, "draft_vocab_size": len(ids)}
    return {**config, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "hidden_act": "silu", "pad_token_id": 0}, state


def widen(monkeypatch):
    """Gives the heads and targets that are made from here on widths that compiled code reads."""
    size = HIDDEN * 8
    monkeypatch.setitem(globals(), "HIDDEN", size)
    monkeypatch.setitem(SIZES, "hidden_size", size)
    monkeypatch.setitem(SIZES, "intermediate_size", 96)
    for name, share in {"q": 1, "k": 2, "v": 2}.items():
        monkeypatch.setitem(ATTENTION, name, size // share)


def _random(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: 1.6 * HIDDEN**-0.5 * torch.randn(*shape, generator=generator)


def _layer(prefix, width, random):
    state = {f"{prefix}self_attn.{name}_proj.weight": random(size, width) for name, size in ATTENTION.items()}
    state[f"{prefix}self_attn.o_proj.weight"] = random(HIDDEN, HIDDEN)
    state |= {f"{prefix}mlp.{name}_proj.weight": random(SIZES["intermediate_size"], HIDDEN) for name in ("gate", "up")}
    state[f"{prefix}mlp.down_proj.weight"] = random(HIDDEN, SIZES["intermediate_size"])
    return state | {f"{prefix}post_attention_layernorm.weight": 1 + random(HIDDEN)}


class SlowHead:
    """The papers' formulas, a row at a time, in float64. A chain of (feature, token) pairs -> the last next feature."""

    def __init__(self, config, state, target):
        self.config, self.is_third = config, "midlayer.hidden_norm.weight" in state
        self.state = {name: tensor.double() for name, tensor in state.items()}
        self.prefix = "midlayer." if self.is_third else "layers.0."
        self.target = target
        table = self.state.get("embed_tokens.weight")
        self.table = target.model.get_input_embeddings().weight.double() if table is None else table

    def fuse(self, states):
        return states.double() @ self.state["fc.weight"].T if self.is_third else states.double()

    def next_feature(self, features, tokens):
        """features [n, H], tokens: n ids, of which the i-th follows the i-th feature and stands at position i+1."""
        inputs = [self._input(*pair) for pair in zip(features, tokens, strict=True)]
        keys, values = ([self._project(name, row) for row in inputs] for name in "kv")
        keys = [[_rotated(part, i, self.config["rope_theta"]) for part in row] for i, row in enumerate(keys)]
        query = [_rotated(part, len(inputs) - 1, self.config["rope_theta"]) for part in self._project("q", inputs[-1])]
        mixed = []
        for head, part in enumerate(query):
            group = head // 2
            weights = torch.stack([part @ row[group] / math.sqrt(len(part)) for row in keys]).softmax(0)
            mixed.append(sum(weight * row[group] for weight, row in zip(weights, values, strict=True)))
        residual = features[-1] if self.is_third else inputs[-1]
        hidden = residual + self._matrix("self_attn.o_proj") @ torch.cat(mixed)
        normed = self._normed(hidden, f"{self.prefix}post_attention_layernorm")
        gate = self._matrix("mlp.gate_proj") @ normed
        return hidden + self._matrix("mlp.down_proj") @ (gate * gate.sigmoid() * (self._matrix("mlp.up_proj") @ normed))

    def logits(self, feature):
        """Over the target's ids; -inf for what the head cannot propose."""
        if not self.is_third:
            return self.target.model.get_output_embeddings().weight.double() @ feature
        rows = self.state["lm_head.weight"] @ self._normed(feature, "norm")
        wide = torch.full((self.target.info.vocab_size,), -math.inf, dtype=torch.float64)
        for own, row in enumerate(rows):
            wide[own + int(self.state["d2t"][own])] = row
        return wide

    def _input(self, feature, token):
        embedded = self.table[token]
        if self.is_third:
            normed = self._normed(embedded, "midlayer.input_layernorm")
            return torch.cat([normed, self._normed(feature, "midlayer.hidden_norm")])
        return self.state["fc.weight"] @ torch.cat([embedded, feature]) + self.state.get("fc.bias", 0)

    def _project(self, name, row):
        bias = self.state.get(f"{self.prefix}self_attn.{name}_proj.bias", 0)
        return (self._matrix(f"self_attn.{name}_proj") @ row + bias).split(HIDDEN // SIZES["num_attention_heads"])

    def _matrix(self, name):
        return self.state[f"{self.prefix}{name}.weight"]

    def _normed(self, row, name):
        return row / (row.square().mean() + self.config["rms_norm_eps"]).sqrt() * self.state[f"{name}.weight"]


def _rotated(part, position, theta):
    half = len(part) // 2
    angles = torch.tensor([position * theta ** (-i / half) for i in range(half)], dtype=torch.float64)
    turned = torch.complex(part[:half], part[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag])


def texts(length, vocab_size, seed=1):
    return torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
