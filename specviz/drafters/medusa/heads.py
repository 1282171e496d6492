"""Medusa's heads (arXiv:2401.10774, section 2.1) and their reader: our layout, that of the public checkpoints, vLLM's.

Keys `<head>.<block>.linear.weight` and `.bias`, then `<head>.<number of blocks>.weight`, also behind `medusa_head.`;
in vLLM's layout `blocks.<head>.layers.<block>.weight` and `lm_heads.<head>.weight`, also behind `medusa_heads.`. The
heads are counted by their keys: the settings of public checkpoints name fewer than their files hold.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from specviz.decoding.device import exact_dtype
from specviz.decoding.sampling import HEADS, fetch_tokens
from specviz.drafters.heads import check_ids, check_sizes, read_size
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import LoadReport, fill
from specviz.models.pool import LoadedModel

MOST_HEADS, MOST_BLOCKS = 32, 8
IGNORED = r"(model|lm_head)\..*"
"""Names of tensors that nothing needs: of the model that some heads were saved with."""
_PREFIX, _VLLM_PREFIX = "medusa_head.", "medusa_heads."
_KEY = re.compile(r"(?:medusa_head\.)?([0-9]{1,3})\.[0-9]{1,3}\.(?:linear\.)?(?:weight|bias)")
_VLLM_KEY = re.compile(
    r"(?:medusa_heads\.)?blocks\.([0-9]{1,3})\.layers\.[0-9]{1,3}\.(?:weight|bias)"
)


class ResidualBlock(nn.Module):
    """x + silu(W x + b)."""

    def __init__(self, hidden_size: int, has_bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size, bias=has_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + silu(self.linear(hidden))


class MedusaHeads(nn.ModuleList):
    """Head j (0, 1, ...) sees the target's last state at t, after the final norm, and predicts token t+2+j.

    ids: the target's ids [D] that the heads can propose; None: all.
    """

    hidden_layers = (-1,)
    ids: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_heads: int,
        num_blocks: int = 1,
        own_output: bool = True,
        *,
        has_bias: bool = True,
    ) -> None:
        super().__init__(
            nn.Sequential(
                *(ResidualBlock(hidden_size, has_bias) for _ in range(num_blocks)),
                *(nn.Linear(hidden_size, vocab_size, bias=False) for _ in range(own_output)),
            )
            for _ in range(num_heads)
        )
        self.own_output, self._vocab_size = own_output, vocab_size
        self.register_buffer("ids", None)

    @property
    def num_choices(self) -> int:
        """How many tokens they can propose."""
        return self._vocab_size if self.ids is None else len(self.ids)

    def forward(self, hidden: Tensor, output: nn.Module) -> list[Tensor]:
        """States [..., H] -> one [..., V] of logits per head. output: the target's own, for heads without one."""
        return [self.one(index, hidden, output) for index in range(len(self))]

    def one(self, index: int, hidden: Tensor, output: nn.Module) -> Tensor:
        """The logits of one head alone, as `forward` gives them."""
        row = self[index](hidden)
        if self.ids is None:
            return row if self.own_output else output(row).to(row.device)
        return row.new_full((*row.shape[:-1], output.out_features), -torch.inf).index_copy(
            -1, self.ids, row
        )

    def guess(
        self, hidden: Tensor, output: nn.Module, depth: int, most: int
    ) -> tuple[Tensor, list[list[int]], list[list[float]]]:
        """The logits [depth, V] of the first heads behind a state [H], and per head its `most` likeliest ids and their
        probabilities, the likeliest first. One transfer."""
        logits = torch.stack([self.one(head, hidden, output) for head in range(depth)])
        chances, ids = (
            logits.to(exact_dtype(logits.device)).softmax(-1).topk(min(most, self.num_choices))
        )
        return logits, *fetch_tokens(ids, chances, HEADS)


def read(
    config: Mapping[str, object], state: Mapping[str, Tensor], target: LoadedModel
) -> tuple[nn.Module, LoadReport]:
    """Heads for `target` from a checkpoint's settings and tensors. Raises SpecvizError for what does not fit it."""
    if any(map(_VLLM_KEY.fullmatch, state)):
        return _read_vllm(config, state, target)
    like = (
        target.model.get_input_embeddings().weight
    )  # where states are, also of a target over several GPUs
    vocab_size, hidden_size = (
        target.info.vocab_size,
        target.model.config.get_text_config(decoder=True).hidden_size,
    )
    num_heads = _count_heads(state, _KEY, read_size(config, "medusa_num_heads", 1, MOST_HEADS))
    num_blocks = read_size(config, "medusa_num_layers", 1, MOST_BLOCKS)
    _check_shapes(state, num_blocks, target)
    with torch.device("meta"):
        own_output = config.get("medusa_own_output", True) is not False
        module = MedusaHeads(hidden_size, vocab_size, num_heads, num_blocks, own_output)
    prefix = _PREFIX if any(key.startswith(_PREFIX) for key in state) else ""
    return module, fill(
        module, state, like, {f"{prefix}{name}": name for name in module.state_dict()}
    )


def _read_vllm(
    config: Mapping[str, object], state: Mapping[str, Tensor], target: LoadedModel
) -> tuple[nn.Module, LoadReport]:
    """vLLM's layout. `original_lm_head`: the heads share one output; `token_map`: the few ids that they propose."""
    like, hidden_size = target.model.get_input_embeddings().weight, read_size(config, "hidden_size")
    check_sizes(target, hidden=hidden_size, vocabulary=read_size(config, "vocab_size"))
    num_heads = _count_heads(state, _VLLM_KEY, read_size(config, "num_heads", 1, MOST_HEADS))
    num_blocks = read_size(config, "num_hidden_layers", 1, MOST_BLOCKS)
    prefix = _VLLM_PREFIX if any(key.startswith(_VLLM_PREFIX) for key in state) else ""
    ids = state.get(f"{prefix}token_map")
    rows = (
        target.info.vocab_size
        if ids is None
        else len(check_ids("token_map", ids, target.info.vocab_size))
    )
    with torch.device("meta"):
        module = MedusaHeads(
            hidden_size, rows, num_heads, num_blocks, has_bias=config.get("medusa_fc_bias") is True
        )
    is_shared = config.get("original_lm_head") is True
    keys = {f"{prefix}{_vllm_name(name, num_blocks)}": name for name in module.state_dict()}
    if is_shared and f"{prefix}lm_head.weight" in state:
        keys[f"{prefix}lm_head.weight"] = keys.pop(f"{prefix}lm_heads.0.weight")
    if ids is not None:
        module.ids, keys[f"{prefix}token_map"] = (
            torch.empty_like(ids, dtype=torch.long, device="meta"),
            "ids",
        )
    report = fill(module, state, like, keys)
    if not is_shared:
        return module, report
    for head in list(module)[1:]:
        head[num_blocks].weight = module[0][num_blocks].weight
    missing = (
        key for key in report.missing if not re.fullmatch(r".*lm_heads\.[1-9][0-9]*\.weight", key)
    )
    return module, replace(report, missing=tuple(missing))


def _vllm_name(name: str, num_blocks: int) -> str:
    head, block, rest = name.split(".", 2)
    return (
        f"lm_heads.{head}.{rest}"
        if int(block) == num_blocks
        else f"blocks.{head}.layers.{block}.{rest[7:]}"
    )


def _count_heads(state: Mapping[str, Tensor], names: re.Pattern[str], named: int) -> int:
    found = [int(match[1]) + 1 for key in state if (match := names.fullmatch(key))]
    if not found:
        raise SpecvizError(
            "its weights hold no Medusa heads (no tensor is called like 0.0.linear.weight)"
        )
    number = max(*found, named)
    if number > MOST_HEADS:
        raise SpecvizError(f"it must have at most {MOST_HEADS} heads (got {number})")
    return number


def _check_shapes(state: Mapping[str, Tensor], num_blocks: int, target: LoadedModel) -> None:
    """The two mistakes that people make, in words; any other wrong shape is named with its tensor by `fill`."""
    for key, tensor in state.items():
        place = key.removeprefix(_PREFIX) if tensor.ndim == 2 else ""
        if place == "0.0.linear.weight":
            check_sizes(target, hidden=tensor.shape[-1])
        if place == f"0.{num_blocks}.weight":
            check_sizes(target, vocabulary=tensor.shape[0])
