"""Tiny random draft heads in the formats that training tools write, and a plain forward for them.

`SAMPLES` holds one checkpoint of each format of the documents' table, read or refused, under the format's name there.
"""

import json
import math

import torch
from safetensors.torch import save_file

from specviz.models.pool import ModelPool
from tests.helpers import eagle_heads
from tests.helpers.eagle_heads import HIDDEN, SIZES, _random, eagle, eagle3
from tests.helpers.tiny_models import tiny_tokenizer

HEAD = 8  # the size of an attention head of the Qwen3 heads, not HIDDEN / heads
IDS = [1, 2, 5, 7, 11]
VERIFIER = {"name_or_path": None, "architectures": ["LlamaForCausalLM"]}


def folder_of(path, config, state):
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path / "model.safetensors")
    return str(path)


def widen(monkeypatch):
    """The same as eagle_heads.widen, for these heads too."""
    eagle_heads.widen(monkeypatch)
    monkeypatch.setitem(globals(), "HIDDEN", eagle_heads.HIDDEN)
    monkeypatch.setitem(globals(), "HEAD", 32)


def layer(prefix, random, *, times=1, has_norms=True, size=None, bias=False):
    """A decoder layer's tensors; times: how many hidden states its attention reads side by side."""
    size = size or HEAD
    rows = {"q": 4 * size, "k": 2 * size, "v": 2 * size}
    state = {f"{prefix}self_attn.{name}_proj.weight": random(count, times * HIDDEN) for name, count in rows.items()}
    state[f"{prefix}self_attn.o_proj.weight"] = random(HIDDEN, 4 * size)
    if bias:
        state |= {f"{prefix}self_attn.{name}_proj.bias": random(count) for name, count in rows.items()}
        state[f"{prefix}self_attn.o_proj.bias"] = random(HIDDEN)
    if has_norms:
        state |= {f"{prefix}self_attn.{name}_norm.weight": 1 + random(size) for name in "qk"}
    state |= {f"{prefix}mlp.{name}_proj.weight": random(SIZES["intermediate_size"], HIDDEN) for name in ("gate", "up")}
    state[f"{prefix}mlp.down_proj.weight"] = random(HIDDEN, SIZES["intermediate_size"])
    norms = ("input_layernorm", "post_attention_layernorm")
    return state | {f"{prefix}{name}.weight": 1 + random(HIDDEN) for name in norms}


def settings(target, algorithm, model="qwen3", layers=1, **more):
    """config.json as speculators writes it: sizes inside, those that are a Qwen3's own left out."""
    inner = {"model_type": model, **SIZES, "num_hidden_layers": layers, "vocab_size": target.info.vocab_size}
    inner |= {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    inner |= {"head_dim": HEAD} if model == "qwen3" else {}
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
    about = {"algorithm": algorithm, "default_proposal_method": "greedy", "proposal_methods": [proposal]}
    return {
        "speculators_model_type": algorithm,
        "transformer_layer_config": inner,
        "speculators_config": {**about, "verifier": VERIFIER},
        **more,
    }


def speculators_eagle3(
    target, algorithm="eagle3", *, model="qwen3", layers=1, aux=(2, 4, 5), own_output=True, seed=7, bias=False, **flags
):
    """(config, state) of speculators eagle3 or peagle; flags: those of EAGLE-3.1."""
    random = _random(seed)
    options = {"has_norms": model == "qwen3", "size": HEAD if model == "qwen3" else HIDDEN // 4, "bias": bias}
    state = {"fc.weight": random(HIDDEN, len(aux) * HIDDEN), **layer("layers.0.", random, times=2, **options)}
    for number in range(1, layers):
        state |= layer(f"layers.{number}.", random, **options)
    state |= {"layers.0.hidden_norm.weight": 1 + random(HIDDEN), "norm.weight": 1 + random(HIDDEN)}
    every = torch.arange(target.info.vocab_size)
    state |= {"d2t": torch.tensor(IDS) - every[: len(IDS)], "t2d": torch.isin(every, torch.tensor(IDS))}
    state |= {"lm_head.weight": random(len(IDS), HIDDEN)} if own_output else {}
    state |= {"embed_tokens.weight": random(len(every), HIDDEN)}
    state |= {"input_norm.weight": 1 + random(len(aux) * HIDDEN)} if flags.get("norm_before_fc") else {}
    if flags.get("fc_norm"):
        state |= {f"fc_norm.{place}.weight": 1 + random(HIDDEN) for place in range(len(aux))}
    flags = {"draft_vocab_size": len(IDS), "eagle_aux_hidden_state_layer_ids": list(aux), **flags}
    config = settings(target, algorithm, model, layers, **flags)
    config["transformer_layer_config"]["attention_bias"] = bias
    return config, state


def speculators_peagle(target, **flags):
    config, state = speculators_eagle3(target, "peagle", mask_token_id=3, **flags)
    return config, state | {"mask_hidden": _random(8)(1, 1, state["fc.weight"].shape[1])}


def peagle_outside(config, state, mask="pard_token"):
    """The same head as vLLM and NeMo AutoModel hold it: settings in one place, the mask's feature in two dimensions."""
    inner = {**config["transformer_layer_config"], "architectures": ["PEagleDraftModel"]}
    flags = {name: each for name, each in config.items() if name.startswith(("norm", "fc_norm", "eagle", "draft"))}
    return {**inner, **flags, mask: config["mask_token_id"]}, {**state, "mask_hidden": state["mask_hidden"][0]}


def deepspec_eagle3(target):
    """A Qwen3Eagle3Model: settings as a Qwen3 has them, five states named by the layers behind which they stand."""
    config, state = speculators_eagle3(target, aux=(0, 1, 3, 5, 6))
    whole = {"lm_head.weight": _random(5)(target.info.vocab_size, HIDDEN)}
    state = {name: each for name, each in state.items() if name not in ("d2t", "t2d")} | whole
    about = {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [0, 1, 3, 5, 6], "num_target_layers": 8}
    return {**config["transformer_layer_config"], **about}, state


def speculators_mtp(target, seed=9):
    random = _random(seed)
    norms = ("hidden_layernorm", "token_layernorm", "final_layernorm")
    state = layer("mtp_layers.0.", random) | {f"mtp_layers.0.{name}.weight": 1 + random(HIDDEN) for name in norms}
    state["mtp_layers.0.input_proj.weight"] = random(HIDDEN, 2 * HIDDEN)
    return settings(target, "mtp", num_nextn_predict_layers=1), state


def wrapped_eagle(target, *, norms=False):
    """EAGLE-1 as vLLM wraps it: the layer's settings in `model`, the tensors behind `model.`."""
    config, state = eagle(target, bias=False)
    config.pop("bias")
    random = _random(4)
    named = ("embedding_layernorm", "hidden_states_layernorm") if norms else ()
    state |= {f"{name}.weight": 1 + random(HIDDEN) for name in named}
    about = {"model_type": "eagle", "architectures": ["EAGLEModel"], "add_para_norm": norms}
    return {**about, "model": {"model_type": "llama", **config}}, {
        f"model.{name}": each for name, each in state.items()
    }


def vllm_medusa(target, *, heads=3, layers=2, bias=False, shared=False, ids=None, prefix=""):
    random, vocab = _random(6), target.info.vocab_size
    rows = len(ids) if ids else vocab
    state = {}
    for head in range(heads):
        for number in range(layers):
            state[f"blocks.{head}.layers.{number}.weight"] = random(HIDDEN, HIDDEN)
            state |= {f"blocks.{head}.layers.{number}.bias": random(HIDDEN)} if bias else {}
        state |= {} if shared else {f"lm_heads.{head}.weight": random(rows, HIDDEN)}
    state |= {"lm_heads.0.weight": random(rows, HIDDEN)} if shared else {}
    state |= {"token_map": torch.tensor(ids)} if ids else {}
    config = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": HIDDEN, "vocab_size": vocab}
    config |= {"num_heads": heads, "num_hidden_layers": layers, "medusa_fc_bias": bias, "original_lm_head": shared}
    return {**config, "truncated_vocab_size": rows}, {f"{prefix}{name}": each for name, each in state.items()}


def medusa(target):
    random, vocab = _random(6), target.info.vocab_size
    return {"medusa_num_heads": 1}, {
        "0.0.linear.weight": random(HIDDEN, HIDDEN),
        "0.0.linear.bias": random(HIDDEN),
        "0.1.weight": random(vocab, HIDDEN),
    }


BLOCK_LAYERS = (1, 3)  # of the target, counted from 0
BLOCK = {"block_size": 5, "mask_token_id": 3}


def dflash(target, seed=11):
    """z-lab's layout: the target's own table and output matrix."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **SIZES,
        "head_dim": HEAD,
        "num_hidden_layers": 2,
        "num_target_layers": 8,
        "vocab_size": target.info.vocab_size,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "block_size": BLOCK["block_size"],
        "dflash_config": {"mask_token_id": BLOCK["mask_token_id"], "target_layer_ids": list(BLOCK_LAYERS)},
    }
    return config, _block_state(seed)


def _block_state(seed):
    random = _random(seed)
    state = {"fc.weight": random(HIDDEN, len(BLOCK_LAYERS) * HIDDEN)}
    state |= {f"{name}.weight": 1 + random(HIDDEN) for name in ("hidden_norm", "norm")}
    return state | layer("layers.0.", random) | layer("layers.1.", random)


def speculators_dflash(target, seed=11):
    """The same head as speculators writes it, for every token of the target."""
    config = settings(target, "dflash", layers=2, draft_vocab_size=target.info.vocab_size, **BLOCK)
    return {**config, "aux_hidden_state_layer_ids": [each + 1 for each in BLOCK_LAYERS]}, _block_state(seed)


def transformers_dflash(target, seed=11):
    """The same head as transformers' own assistants are stored."""
    config, state = dflash(target, seed)
    config = {**config, **BLOCK, "model_type": "muse_glimmer_assistant", "architectures": ["MuseGlimmerAssistantModel"]}
    config["target_layer_ids"] = config.pop("dflash_config")["target_layer_ids"]
    state["encoder.fc.weight"] = state.pop("fc.weight")
    state["encoder.output_norm_enc.weight"] = state.pop("hidden_norm.weight")
    return config, state


def dspark(target, seed=11, rank=4):
    """DeepSpec's layout: the first drafted token is read at the anchor's own place."""
    config, state = dflash(target, seed)
    config = {
        **config,
        **BLOCK,
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": rank,
        "markov_head_type": "vanilla",
    }
    config["target_layer_ids"] = config.pop("dflash_config")["target_layer_ids"]
    return config, state | _markov_state(target, seed, rank)


def speculators_dspark(target, seed=11, rank=4):
    config, state = speculators_dflash(target, seed)
    config |= {"speculators_model_type": "dspark", "markov_rank": rank, "sample_from_anchor": True}
    return config, state | _markov_state(target, seed, rank)


def _markov_state(target, seed, rank):
    random = _random(seed + 1)
    names = ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight")
    return {name: random(target.info.vocab_size, rank) for name in names} | {
        "confidence_head.proj.weight": random(1, HIDDEN + rank),
        "confidence_head.proj.bias": random(1),
    }


def gated(config, state, rank=4):
    """The same DSpark head with a gate at its bias."""
    random = _random(21)
    more = {"gate_proj.weight": random(rank, HIDDEN + rank), "gate_proj.bias": random(rank)}
    return {**config, "markov_head_type": "gated"}, state | {f"markov_head.{name}": each for name, each in more.items()}


def recurrent(config, state, rank=4):
    """The same DSpark head with a state in its bias."""
    random = _random(22)
    more = {"joint_proj.weight": random(3 * rank, HIDDEN + 2 * rank), "joint_proj.bias": random(3 * rank)}
    return {**config, "markov_head_type": "rnn"}, state | {f"markov_head.{name}": each for name, each in more.items()}


DFLASH2 = {"conv_kernel_size": 3, "conv_group_size": 4, "selector_rank": 5, "selector_top_k": 3}


def dflash2(target, seed=11, **changes):
    """z-lab's DFlash2."""
    config, state = dflash(target, seed)
    random = _random(seed + 2)
    for number in range(2):
        for part in ("attention_conv", "mlp_conv"):
            name = f"layers.{number}.{part}"
            taps = DFLASH2["conv_kernel_size"]
            state[f"{name}.base_kernel"] = random(2, taps, HIDDEN)
            num_kernels = 2 * taps * HIDDEN // DFLASH2["conv_group_size"]
            state[f"{name}.kernel_projection.weight"] = random(num_kernels, HIDDEN)
    rank = DFLASH2["selector_rank"]
    state["candidate_selector.hidden_projection.weight"] = random(rank, HIDDEN)
    for name in ("predecessor_codebook", "successor_codebook"):
        state[f"candidate_selector.{name}"] = random(target.info.vocab_size, rank)
    config["architectures"] = ["DFlash2DraftModel"]
    config["dflash_config"] = {**config["dflash_config"], **DFLASH2, **BLOCK, **changes}
    return {**config, "is_causal": False}, state


def speculators_dflash2(target, seed=11):
    config, _ = speculators_dflash(target, seed)
    _, state = dflash2(target, seed)
    return {**config, **DFLASH2, "speculators_model_type": "dflash2", "sample_from_anchor": False}, state


def open_spec(target, seed=11, first=0):
    """z-lab's head in the Open Spec Config, in its flat dialect. first: how layers are counted."""
    config, state = dflash(target, seed)
    spec = {
        "method": "dflash",
        "speculative_tokens": config.pop("block_size") - 1,
        "target_layer_ids": [layer + first for layer in BLOCK_LAYERS],
        "target_layer_start_idx": first,
        "sample_from_anchor": False,
        "mask_token_id": config.pop("dflash_config")["mask_token_id"],
        "sliding_window_non_causal": False,
    }
    about = {"open_spec_config_version": "0.0.0", "architectures": ["DflashDraftModel"]}
    return {**config, **about, "speculative_config": spec}, state


def open_spec_of_another_method(target):
    config, state = open_spec(target)
    return {**config, "speculative_config": {**config["speculative_config"], "method": "eagle9"}}, state


def open_spec_nested(target, seed=11):
    """The same in the older dialect."""
    config, state = open_spec(target, seed)
    spec = config["speculative_config"]
    names = ("sample_from_anchor", "mask_token_id", "sliding_window_non_causal")
    return {**config, "speculative_config": {**spec, "dflash_config": {name: spec.pop(name) for name in names}}}, state


class PlainHead:
    """The formats' definitions as one pass over whole matrices, in float64, without a cache."""

    def __init__(self, config, state, target):
        self.config, self.layer = config, config["transformer_layer_config"]
        self.state = {name: tensor.double() for name, tensor in state.items()}
        self.target = target
        self.is_mtp = config["speculators_model_type"] == "mtp"
        self.table = self.state.get("embed_tokens.weight", target.model.get_input_embeddings().weight.double())

    def fuse(self, states):
        if self.is_mtp:
            return states
        if self.config.get("norm_before_fc"):
            states = self._normed(states, "input_norm")
        if self.config.get("fc_norm"):
            parts = states.split(HIDDEN, dim=-1)
            states = torch.cat([self._normed(part, f"fc_norm.{place}") for place, part in enumerate(parts)], dim=-1)
        return states @ self.state["fc.weight"].T

    def forward(self, features, ids):
        """features [n, H], ids: the tokens behind them -> the next features [n, H]; row i sees the rows up to i."""
        embedded = self.table[torch.tensor(ids)]
        if self.is_mtp:
            place = "mtp_layers.0."
            inputs = torch.cat(
                [self._normed(embedded, f"{place}token_layernorm"), self._normed(features, f"{place}hidden_layernorm")],
                dim=-1,
            )
            hidden = self._block(place, inputs @ self.state[f"{place}input_proj.weight"].T)
            return self._normed(hidden, f"{place}final_layernorm")
        normed = self._normed(features, "layers.0.hidden_norm")
        residual = normed if self.config.get("norm_before_residual") else features
        inputs = torch.cat([self._normed(embedded, "layers.0.input_layernorm"), normed], dim=-1)
        hidden = self._behind("layers.0.", residual + self._attention("layers.0.", inputs))
        for number in range(1, self.layer["num_hidden_layers"]):
            hidden = self._block(f"layers.{number}.", hidden)
        return self._normed(hidden, "norm") if self.config.get("norm_output") else hidden

    def logits(self, features):
        output = self.target.model.get_output_embeddings().weight.double()
        if self.is_mtp:
            return features @ output.T
        rows = features if self.config.get("norm_output") else self._normed(features, "norm")
        own = rows @ self.state.get("lm_head.weight", output[IDS]).T
        return torch.full((len(rows), 12), -math.inf, dtype=torch.float64).index_copy(1, torch.tensor(IDS), own)

    def rollout(self, states, tokens, drafted):
        """Logits of each depth behind the text `tokens`, whose states but the last token's are `states`."""
        features, ids, said = self.fuse(states), list(tokens[1:]), []
        for token in [*drafted, None]:
            hidden = self.forward(features, ids)
            said.append(self.logits(hidden[-1:])[0])
            features, ids = torch.cat([features, hidden[-1:]]), [*ids, token]
        return torch.stack(said)

    def _block(self, place, hidden):
        return self._behind(place, hidden + self._attention(place, self._normed(hidden, f"{place}input_layernorm")))

    def _behind(self, place, hidden):
        normed = self._normed(hidden, f"{place}post_attention_layernorm")
        gate, up = (normed @ self.state[f"{place}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return hidden + (gate * gate.sigmoid() * up) @ self.state[f"{place}mlp.down_proj.weight"].T

    def _attention(self, place, inputs):
        size = self.layer.get("head_dim", HIDDEN // 4)
        query, key, value = (self._heads(place, name, inputs, size) for name in "qkv")
        query, key = self._turned(query), self._turned(key)
        mixed = []
        for head in range(4):
            scores = query[:, head] @ key[:, head // 2].T / math.sqrt(size)
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
            mixed.append(scores.softmax(-1) @ value[:, head // 2])
        out = torch.cat(mixed, dim=-1) @ self.state[f"{place}self_attn.o_proj.weight"].T
        return out + self.state.get(f"{place}self_attn.o_proj.bias", 0)

    def _heads(self, place, name, inputs, size):
        rows = inputs @ self.state[f"{place}self_attn.{name}_proj.weight"].T
        rows = (rows + self.state.get(f"{place}self_attn.{name}_proj.bias", 0)).unflatten(-1, (-1, size))
        norm = f"{place}self_attn.{name}_norm"
        return self._normed(rows, norm) if f"{norm}.weight" in self.state else rows

    def _turned(self, rows, first=1):
        """Rotary angles of the places first, first + 1, ..."""
        half, theta = rows.shape[-1] // 2, self.layer["rope_parameters"]["rope_theta"]
        speeds = theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(first, first + len(rows), dtype=torch.float64)[:, None, None] * speeds
        left, right = rows[..., :half], rows[..., half:]
        turned = [left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()]
        return torch.cat(turned, dim=-1)

    def _normed(self, rows, name):
        eps = self.layer["rms_norm_eps"]
        return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt() * self.state[f"{name}.weight"]


class PlainBlock(PlainHead):
    """A block's head by its papers: the whole text and one block in one pass, in float64, place by place.

    sees: (layer, place of the block, place it looks at, whether that is one of the block) -> whether it does; places
    are counted in the text.
    """

    def __init__(self, config, state, target, sees):
        layer = config.get("transformer_layer_config", {**config, "rope_parameters": {"rope_theta": 500.0}})
        super().__init__({"speculators_model_type": "", "transformer_layer_config": layer}, state, target)
        self.settings = {**config, **config.get("dflash_config", {})}
        self.sees = sees

    def forward(self, states, last):
        """The features [B, H] of a block whose first token is `last`, behind texts' states [n, C]."""
        context = self._normed(states @ self.state["fc.weight"].T, "hidden_norm")
        size = self.settings["block_size"]
        scale = self.settings.get("input_embedding_scale", 1.0)
        x = self.table[torch.tensor([last, *[self.settings["mask_token_id"]] * (size - 1)])] * scale
        for number in range(self.layer["num_hidden_layers"]):
            place = f"layers.{number}."
            inputs = self._normed(x, f"{place}input_layernorm")
            kernels = self._kernels(f"{place}attention_conv", inputs)
            x = x + self._convolved(self._over(number, self._convolved(inputs, kernels, 0), context), kernels, 1)
            inputs = self._normed(x, f"{place}post_attention_layernorm")
            kernels = self._kernels(f"{place}mlp_conv", inputs)
            out = self._convolved(inputs, kernels, 0)
            gate, up = (out @ self.state[f"{place}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            out = (gate * gate.sigmoid() * up) @ self.state[f"{place}mlp.down_proj.weight"].T
            x = x + self._convolved(out, kernels, 1)
        return self._normed(x, "norm")

    def output(self, features):
        rows = features @ self.target.model.get_output_embeddings().weight.double().T
        rows = rows * self.settings.get("output_multiplier", 1.0)
        bound = self.settings.get("final_logit_softcapping")
        return bound * (rows / bound).tanh() if bound else rows

    def _over(self, number, inputs, context):
        place, size, num_before = f"layers.{number}.", self.layer.get("head_dim", HEAD), len(context)
        query = self._turned(self._heads(place, "q", inputs, size), num_before)
        key, value = (self._heads(place, name, torch.cat([context, inputs]), size) for name in "kv")
        key = self._turned(key, 0)
        mask = torch.ones(len(inputs), len(key), dtype=torch.bool)
        for row in range(len(inputs)):
            for column in range(len(key)):
                mask[row, column] = self.sees(number, num_before + row, column, column >= num_before)
        mixed = []
        for head in range(4):
            scores = query[:, head] @ key[:, head // 2].T / math.sqrt(size)
            mixed.append(scores.masked_fill(~mask, -math.inf).softmax(-1) @ value[:, head // 2])
        return torch.cat(mixed, dim=-1) @ self.state[f"{place}self_attn.o_proj.weight"].T

    def _kernels(self, name, inputs):
        """Kernels [place, side, tap, channel]; None without a convolution."""
        if f"{name}.base_kernel" not in self.state:
            return None
        base = self.state[f"{name}.base_kernel"]
        group = self.settings["conv_group_size"]
        added = inputs @ self.state[f"{name}.kernel_projection.weight"].T
        added = added.view(len(inputs), 2, base.shape[1], -1)
        kernels = torch.empty(len(inputs), *base.shape, dtype=torch.float64)
        for channel in range(base.shape[2]):
            kernels[..., channel] = base[..., channel] + added[..., channel // group]
        return kernels

    def _convolved(self, rows, kernels, side):
        if kernels is None:
            return rows
        out = torch.zeros_like(rows)
        for place in range(len(rows)):
            for tap in range(min(kernels.shape[2], place + 1)):
                out[place] += kernels[place, side, tap] * rows[place - tap]
        return out


def _foreign(config, *names):
    """A checkpoint of which only settings and names matter."""
    return lambda target: (config, {name: torch.ones(2, 2) for name in names})


def gemma_target(target):
    """A Gemma 4 with as many tokens as the target."""
    from tests.helpers.gemma_assistants import tiny_target  # skips where this transformers knows no assistant

    model = tiny_target(vocab_size=target.info.vocab_size)
    return ModelPool(allow_any=True).load((model, tiny_tokenizer(320)))


def gemma_assistant(target):
    """For `gemma_target`."""
    from tests.helpers.gemma_assistants import settings_of, tiny_assistant

    model = gemma_target(target).model
    state = tiny_assistant(model).state_dict()
    return settings_of(model), {name: each for name, each in state.items() if name != "lm_head.weight"}


EAGLE3_NORMS = {"norm_before_residual": True, "fc_norm": True, "norm_output": True}
SAMPLES = {
    "EAGLE-1, EAGLE-2": eagle,
    "EAGLE-3": lambda target: eagle3(target, IDS),
    "EAGLE-1, wrapped": wrapped_eagle,
    "speculators `eagle3`": lambda target: speculators_eagle3(target, layers=2, aux=(0, 3, 4, 7), **EAGLE3_NORMS),
    "speculators `peagle`": speculators_peagle,
    "speculators `mtp`": speculators_mtp,
    "Medusa": medusa,
    "Medusa, vLLM": vllm_medusa,
    "speculators `dflash`": speculators_dflash,
    "speculators `dspark`": speculators_dspark,
    "EAGLE-3, DeepSpec": deepspec_eagle3,
    "P-EAGLE": lambda target: peagle_outside(*speculators_peagle(target)),
    "DFlash, transformers": transformers_dflash,
    "DFlash, Open Spec Config": open_spec,
    "DFlash2, z-lab": dflash2,
    "speculators `dflash2`": speculators_dflash2,
    "DSpark, DeepSpec": dspark,
    "Gemma 4's assistant": gemma_assistant,
    "DFlash, z-lab": dflash,
    "MTP in the model": _foreign({"num_nextn_predict_layers": 1}, "model.layers.0.mlp.weight", "mtp.fc.weight"),
}
