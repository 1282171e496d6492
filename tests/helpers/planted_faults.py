"""Faults that are planted in copies of sound drafts and heads; run as a program: what the lab names first in each.

`python -m tests.helpers.planted_faults [NAME ...]` prints a row per fault: what is named first, whether that is right,
the points that it explains, and the processor time of the search.
"""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from specviz.alignment.causes import probes
from specviz.alignment.summary import Examined
from specviz.alignment.types import PromptRow, Shard
from specviz.models.catalog import resolve
from specviz.models.pool import ModelPool
from specviz.prompts import prompts_file
from specviz.request import Request

NUM_TEXTS, NUM_TOKENS = 24, 64
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Fault:
    """A fault: what it does to the tensors and settings of a draft's files, and how it should be named."""

    name: str
    plant: Callable[[State, dict[str, Any]], None]
    kinds: tuple[str, ...]
    """The kinds of finding that are right; none: the fault has no exact inverse, so that silence is right."""
    words: str = ""
    """What the finding must say, besides."""
    base: str = "fable-draft"
    target: str = "fable-target"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def matrices(state: State, part: str = "_proj.weight", layer: str = "") -> Iterator[str]:
    return (name for name in list(state) if part in name and layer in name and state[name].ndim == 2)


def scaled(factor: float, part: str = "_proj.weight", layer: str = "") -> Callable:
    def plant(state, config):
        for name in matrices(state, part, layer):
            state[name] = state[name] * factor

    return plant


def norms_plus(step: float, part: str = "norm", layer: str = "") -> Callable:
    def plant(state, config):
        for name in state:
            if part in name and layer in name:
                state[name] = (state[name].float() + step).to(state[name])

    return plant


def exchanged(first: str, second: str, layer: str = "") -> Callable:
    def plant(state, config):
        for name in list(state):
            other = name.replace(first, second)
            if first in name and layer in name and state[name].shape == state[other].shape:
                state[name], state[other] = state[other], state[name]

    return plant


def transposed(part: str) -> Callable:
    def plant(state, config):
        for name in matrices(state, part):
            state[name] = state[name].T.contiguous()

    return plant


def other_rope(*, to_pairs: bool) -> Callable:
    def plant(state, config):
        size = config["hidden_size"] // config["num_attention_heads"]
        for name in state:
            if "q_proj" in name or "k_proj" in name:
                heads = state[name].unflatten(0, (-1, 2, size // 2) if to_pairs else (-1, size // 2, 2))
                state[name] = heads.transpose(1, 2).reshape(state[name].shape).contiguous()

    return plant


def moved_rows(begin: int, step: int) -> Callable:
    def plant(state, config):
        table = state["model.embed_tokens.weight"]
        table[begin:] = table[begin:].roll(step, 0)

    return plant


def permuted(state, config):
    table = state["model.embed_tokens.weight"]
    rows = torch.randperm(4096, generator=generator())[:400]
    table[rows] = table[rows[torch.randperm(400, generator=generator(1))]]


def untied(change: Callable[[State], None]) -> Callable:
    """The output matrix stands beside the embedding, and one of the two is changed."""

    def plant(state, config):
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
        config["tie_word_embeddings"] = False
        change(state)

    return plant


def times(name: str, factor: float) -> Callable[[State], None]:
    def change(state):
        state[name] = (state[name].float() * factor).to(state[name])

    return change


def layers_in_order(order: list[int]) -> Callable:
    def plant(state, config):
        old = dict(state)
        for name in [name for name in state if ".layers." in name]:
            del state[name]
        for place, source in enumerate(order):
            for name, value in old.items():
                if f".layers.{source}." in name:
                    state[name.replace(f".layers.{source}.", f".layers.{place}.")] = value.clone()
        config["num_hidden_layers"] = len(order)

    return plant


def filled(part: str, value: float) -> Callable:
    def plant(state, config):
        for name in state:
            if part in name:
                state[name] = torch.full_like(state[name], value)

    return plant


def noised(spreads: float, layer: str = "layers.1.") -> Callable:
    def plant(state, config):
        for name in state:
            if layer in name:
                value = state[name].float()
                noise = torch.randn(value.shape, generator=generator())
                state[name] = (value + spreads * value.std() * noise).to(state[name])

    return plant


def low_rank(state, config):
    """A low-rank change that was added to every query and value matrix twice too often."""
    for name in state:
        if "q_proj" in name or "v_proj" in name:
            value = state[name].float()
            left = torch.randn(len(value), 8, generator=generator(len(name)))
            right = torch.randn(8, value.shape[1], generator=generator(len(name) + 1))
            change = left @ right
            state[name] = (value + 0.6 * value.norm() / change.norm() * change).to(state[name])


def rounded(bits: int, block: int = 64, zero_point: float = 0.0, roll: int = 0) -> Callable:
    """Rounds to so many bits, with a scale per block; reads with another zero point, or with moved scales."""

    def plant(state, config):
        for name in matrices(state):
            blocks = state[name].float().unflatten(1, (-1, block))
            scales = blocks.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
            numbers = (blocks / scales).round() + zero_point
            state[name] = (numbers * scales.roll(roll, 1)).view_as(state[name]).float()

    return plant


def settings(**values: Any) -> Callable:
    def plant(state, config):
        config.update(values)

    return plant


def rope(**values: Any) -> Callable:
    return settings(rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, **values})


def both(*plants: Callable) -> Callable:
    def plant(state, config):
        for each in plants:
            each(state, config)

    return plant


SCALE, EXCHANGE, NORM, TENSORS = ("scale",), ("exchange",), ("norm",), ("tensors",)
IDS, ROPE, SETTING, ZERO = ("token ids",), ("rope",), ("setting",), ("zero point",)
NO_INVERSE: tuple[str, ...] = ()
OF_DRAFTS = (
    Fault("all matrices x2", scaled(2), SCALE, "all matrices"),
    Fault("all matrices /2 (e4m3fnuz)", scaled(0.5), SCALE, "all matrices"),
    Fault("all matrices x8", scaled(8), SCALE, "all matrices"),
    Fault("mlp x1.4", scaled(1.4, "mlp"), SCALE, "MLP"),
    Fault("queries x8", scaled(8, "q_proj"), SCALE, "q_proj"),
    Fault("o_proj /4", scaled(0.25, "o_proj"), SCALE, "o_proj"),
    Fault("down_proj x4 in layer 2", scaled(4, "down_proj", "layers.1."), SCALE, "down_proj"),
    Fault("norms -1", norms_plus(-1), NORM, "1 added"),
    Fault("norms +1", norms_plus(1), NORM, "1 taken"),
    Fault("post-attention norms -1", norms_plus(-1, "post_attention"), NORM, "post_attention"),
    Fault("norms of layer 1 -1", norms_plus(-1, "norm", "layers.0."), NORM, "layer 1"),
    Fault("rope in pairs", other_rope(to_pairs=True), ("layout",)),
    Fault("rope in halves", other_rope(to_pairs=False), ("layout",)),
    Fault("k and v", exchanged("k_proj", "v_proj"), EXCHANGE, "k_proj and v_proj"),
    Fault("q and k", exchanged("q_proj", "k_proj"), EXCHANGE, "q_proj and k_proj"),
    Fault("gate and up", exchanged("gate_proj", "up_proj"), EXCHANGE, "gate_proj and up_proj"),
    Fault("gate and up in layer 1", exchanged("gate_proj", "up_proj", "layers.0."), EXCHANGE, "up_proj in layer 1"),
    Fault("norms exchanged", exchanged("input_layernorm", "post_attention_layernorm"), EXCHANGE, "layernorm"),
    Fault("o_proj transposed", transposed("o_proj"), EXCHANGE, "o_proj"),
    Fault("v_proj transposed", transposed("v_proj"), EXCHANGE, "v_proj"),
    Fault("rows from 20", moved_rows(20, 1), IDS, "from about"),
    Fault("rows from 600 back", moved_rows(600, -1), IDS, "from about"),
    Fault("rows from 1500 by 3", moved_rows(1500, 3), IDS, "3 rows"),
    Fault("400 rows", permuted, (*IDS, "unlearned ids")),
    Fault("embedding x sqrt(H)", untied(times("model.embed_tokens.weight", 192**0.5)), SCALE, "embedding"),
    Fault("embedding / sqrt(H)", untied(times("model.embed_tokens.weight", 192**-0.5)), (*SCALE, *SETTING),
          "embedding"),
    Fault("output matrix x1.7", untied(times("lm_head.weight", 1.7)), ("temperature",)),
    Fault("output matrix x.5", untied(times("lm_head.weight", 0.5)), ("temperature",)),
    Fault("output rows from 100", untied(lambda state: state.update(
        {"lm_head.weight": torch.cat([state["lm_head.weight"][:100], state["lm_head.weight"][100:].roll(1, 0)])})),
        (*IDS, *SETTING)),
    Fault("output matrix lost", untied(lambda state: state.update(
        {"lm_head.weight": torch.randn(4096, 192, generator=generator()) * 0.05})), SETTING, "tie_word"),
    Fault("theta 500,000", rope(rope_theta=500_000.0), ROPE),
    Fault("positions / 4", rope(rope_type="linear", factor=4.0), ROPE),
    Fault("yarn", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=512), ROPE),
    Fault("window of 8", settings(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=8),
          ("narrow window",)),
    Fault("relu", settings(hidden_act="relu"), SETTING),
    Fault("epsilon 1", settings(rms_norm_eps=1.0), SETTING),
    Fault("layers exchanged", layers_in_order([1, 0]), ("order",)),
    Fault("one layer more in the file", both(settings(), lambda state, config: config.update(num_hidden_layers=1)),
          TENSORS, "1 layer more"),
    Fault("a layer copied", layers_in_order([0, 0, 1]), TENSORS, "exact copy"),
    Fault("down_proj of zeros", filled("layers.1.mlp.down_proj", 0.0), TENSORS, "down_proj"),
    Fault("a norm of ones", filled("layers.1.post_attention_layernorm", 1.0), TENSORS, "post_attention_layernorm"),
    Fault("int4, zero point", rounded(4, zero_point=1.0), ZERO),
    Fault("int4, zero point 8", rounded(4, zero_point=8.0), ZERO),
    Fault("int4, scales of other blocks", rounded(4, roll=1), ZERO),
    Fault("rounded to 3 bits", rounded(3), ("bits",)),
    Fault("hot, and gate and up", both(untied(times("lm_head.weight", 1.7)), exchanged("gate_proj", "up_proj")),
          EXCHANGE, "gate_proj and up_proj"),
    Fault("norms -1 and k and v", both(norms_plus(-1), exchanged("k_proj", "v_proj")), (*NORM, *EXCHANGE)),
    Fault("noise in layer 2", noised(1.0), ("layer",)),
    Fault("half the noise in layer 2", noised(0.5), ("layer",)),
    Fault("noise everywhere", noised(0.4, "layers"), NO_INVERSE),
    Fault("a low-rank change", low_rank, NO_INVERSE),
    Fault("12 layers: two exchanged", layers_in_order([0, 1, 2, 3, 4, 6, 5, 7, 8, 9, 10, 11]), ("order",),
          base="fable-target"),
    Fault("12 layers: gate and up in layer 7", exchanged("gate_proj", "up_proj", "layers.6."), EXCHANGE, "layer 7",
          base="fable-target"),
    Fault("12 layers: norms of layer 4 -1", norms_plus(-1, "norm", "layers.3."), NORM, "layer 4", base="fable-target"),
    Fault("12 layers: matrices x2", scaled(2), SCALE, "all matrices", base="fable-target"),
)  # fmt: skip


# ---- heads -----------------------------------------------------------------------------------------------------------


def halves_exchanged(*parts: str) -> Callable:
    def plant(state, config):
        for name in (name for part in parts for name in matrices(state, part)):
            state[name] = state[name].roll(state[name].shape[1] // 2, 1).contiguous()

    return plant


def ids_moved(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable:
    """Changes the target's ids that d2t leads to."""

    def plant(state, config):
        count = torch.arange(len(state["d2t"]))
        state["d2t"] = change(state["d2t"] + count) - count
        state.pop("t2d", None)

    return plant


def other_layers(step: int) -> Callable:
    def plant(state, config):
        for values in (config, config.get("eagle_config", {})):
            name = "eagle_aux_hidden_state_layer_ids"
            if name in values:
                values[name] = [layer + step for layer in values[name]]

    return plant


def states_in_order(order: list[int]) -> Callable:
    def plant(state, config):
        (name,) = matrices(state, "fc.weight")
        parts = state[name].chunk(3, 1)
        state[name] = torch.cat([parts[place] for place in order], 1).contiguous()

    return plant


FABLE_EAGLE = {"base": "fable-eagle"}
MEDUSA = {"base": "fable-medusa"}
SMOL = {"base": "smol-eagle", "target": "smollm2"}
OF_HEADS = (
    Fault("eagle: inputs of fc", halves_exchanged("fc.weight"), EXCHANGE, "fc", **FABLE_EAGLE),
    Fault("eagle: gate and up", exchanged("gate_proj", "up_proj"), EXCHANGE, "gate_proj", **FABLE_EAGLE),
    Fault("eagle: k and v", exchanged("k_proj", "v_proj"), EXCHANGE, "k_proj", **FABLE_EAGLE),
    Fault("eagle: rope in pairs", other_rope(to_pairs=True), ("layout",), **FABLE_EAGLE),
    Fault("eagle: matrices x2", scaled(2), SCALE, "all matrices", **FABLE_EAGLE),
    Fault("eagle: fc x2", scaled(2, "fc.weight"), SCALE, "fc", **FABLE_EAGLE),
    Fault("eagle: norm -1", norms_plus(-1), NORM, **FABLE_EAGLE),
    Fault("eagle: down_proj of zeros", filled("down_proj", 0.0), TENSORS, "down_proj", **FABLE_EAGLE),
    Fault("eagle: theta 500,000", settings(rope_theta=500_000.0), ROPE, **FABLE_EAGLE),
    Fault("eagle: noise", noised(0.7, "proj"), NO_INVERSE, **FABLE_EAGLE),
    Fault("medusa: blocks x2", scaled(2, "linear.weight"), SCALE, **MEDUSA),
    Fault("medusa: blocks transposed", transposed("linear.weight"), EXCHANGE, **MEDUSA),
    Fault("medusa: output x2", lambda state, config: state.update(
        {name: value * 2 for name, value in state.items() if "linear" not in name}),
        ("temperature", *SCALE), **MEDUSA),
    Fault("eagle-3: inputs of the first layer", halves_exchanged("q_proj", "k_proj", "v_proj"), EXCHANGE,
          "first layer", **SMOL),
    Fault("eagle-3: norms of the inputs", exchanged("input_layernorm", "hidden_norm"), EXCHANGE, "hidden_norm", **SMOL),
    Fault("eagle-3: states in reverse", states_in_order([2, 1, 0]), ("feature",), **SMOL),
    Fault("eagle-3: d2t one id higher", ids_moved(lambda ids: (ids + 1).clamp_max(49_151)), ("ids of a head",), **SMOL),
    Fault("eagle-3: d2t rolled", ids_moved(lambda ids: ids.roll(1)), ("ids of a head",), **SMOL),
    Fault("eagle-3: gate and up", exchanged("gate_proj", "up_proj"), EXCHANGE, "gate_proj", **SMOL),
    Fault("eagle-3: rope in pairs", other_rope(to_pairs=True), ("layout",), **SMOL),
)  # fmt: skip


# ---- sound drafts: nothing may be named ------------------------------------------------------------------------------


def unchanged(state, config):
    pass


def as_bfloat16(state, config):
    for name, value in state.items():
        if value.is_floating_point():
            state[name] = value.to(torch.bfloat16).float()


SOUND = (
    *(Fault(f"sound: {name}", unchanged, NO_INVERSE, base=name) for name in (
        "fable-draft", "fable-draft-tiny", "fable-draft-undistilled", "fable-target", "fable-eagle", "fable-medusa")),
    *(Fault(f"sound: {name}", unchanged, NO_INVERSE, base=name, target="smollm2") for name in (
        "smol-draft", "smol-eagle")),
    Fault("sound: bfloat16", as_bfloat16, NO_INVERSE),
    Fault("sound: a head in bfloat16", as_bfloat16, NO_INVERSE, **FABLE_EAGLE),
    Fault("sound: int8", rounded(8), NO_INVERSE),
    Fault("sound: a head in int8", lambda state, config: rounded(8)(state, config), NO_INVERSE, **FABLE_EAGLE),
    Fault("sound: moved by 2 %", noised(0.02, "layers"), NO_INVERSE),
    Fault("sound: tiny, moved by 2 %", noised(0.02, "layers"), NO_INVERSE, base="fable-draft-tiny"),
)  # fmt: skip
FAULTS = {fault.name: fault for fault in (*OF_DRAFTS, *OF_HEADS, *SOUND)}


def planted(fault: Fault, folder: Path) -> Path:
    """A copy of the fault's draft with the fault in its files."""
    copied = folder / re.sub(r"\W+", "-", fault.name)
    shutil.copytree(resolve(fault.base), copied)
    files = sorted(copied.glob("*.safetensors"))
    state = {name: value.float() if value.is_floating_point() else value
             for file in files for name, value in load_file(file).items()}  # fmt: skip
    config = json.loads((copied / "config.json").read_text())
    fault.plant(state, config)
    for file in [*files[1:], *copied.glob("*.index.json")]:
        file.unlink()
    whole = files[0] if len(files) == 1 else copied / "model.safetensors"
    files[0].unlink()
    save_file({name: value.contiguous() for name, value in state.items()}, whole, metadata={"format": "pt"})
    (copied / "config.json").write_text(json.dumps(config))
    return copied


def rows(num: int = NUM_TEXTS) -> tuple[PromptRow, ...]:
    kinds = [each["text"] for kind in prompts_file()["kinds"] for each in kind["prompts"]]
    return tuple(
        PromptRow(place, place + 1, str(place), prompt=f"{kinds[place % len(kinds)]}{' ' * (place // len(kinds))}")
        for place in range(num)
    )


def examine(pool: ModelPool, draft: str, target: str) -> Examined:
    """What the lab finds in one draft."""
    request = Request(prompt="x", target=target, max_new_tokens=NUM_TOKENS)
    return probes.look(Shard(request, (draft,), rows(), {}), pool)


def verdict(fault: Fault, found: Examined) -> str:
    """Whether the first finding is the planted fault: right, wrong or silent."""
    if not found.findings:
        return "silent" if fault.kinds else "right"
    first = found.findings[0]
    return "right" if first.kind in fault.kinds and fault.words in first.words else "wrong"


def main(names: list[str]) -> None:
    print("| planted | verdict | first finding | explains | CPU s |\n|---|---|---|---|---|")
    for name, fault in FAULTS.items():
        if names and name not in names:
            continue
        pool = ModelPool(allow_any=True)
        with TemporaryDirectory() as folder:
            path = planted(fault, Path(folder))
            began = time.process_time()
            found = examine(pool, str(path), fault.target)
            seconds = time.process_time() - began
        words = "; ".join(f"{each.kind}: {each.words}" for each in found.findings) or "-"
        explained = found.findings[0].numbers.get("explained") if found.findings else None
        points = "-" if explained is None else f"{100 * explained:.1f}"
        print(f"| {name} | {verdict(fault, found)} | {words} | {points} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
