"""Medusa's heads (arXiv:2401.10774, section 2.1) and a reader for our, the public checkpoints' and vLLM's layout.

Keys: `<head>.<block>.linear.weight` and `.bias`, then `<head>.<number of blocks>.weight`, also after `medusa_head.`.
vLLM's: `blocks.<head>.layers.<block>.weight` and `lm_heads.<head>.weight`, also after `medusa_heads.`. The keys tell
how many heads there are: the settings of public checkpoints name fewer than their files hold. A Markov bias, which is
ours: `markov.embed.weight` [V, r] and `markov.<head>.weight` [V, r], or `markov.0.weight` alone for all heads.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from specviz.drafters.heads import check_ids, check_sizes, read_size
from specviz.drafters.markov import PREFIX as MARKOV
from specviz.drafters.markov import MarkovBias, bias_sizes
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import LoadReport, fill
from specviz.models.pool import LoadedModel

MOST_HEADS = 32
MOST_BLOCKS = 8
IGNORED = r"(model|lm_head)\..*"
"""Names of tensors that nothing needs: some heads were saved together with their model."""
_PREFIX = "medusa_head."
_VLLM_PREFIX = "medusa_heads."
_KEY = re.compile(r"(?:medusa_head\.)?([0-9]{1,3})\.[0-9]{1,3}\.(?:linear\.)?(?:weight|bias)")
_VLLM_KEY = re.compile(
    r"(?:medusa_heads\.)?blocks\.([0-9]{1,3})\.layers\.[0-9]{1,3}\.(?:weight|bias)"
)


class ResidualBlock(nn.Module):
    """A residual layer: x + silu(W x + b)."""

    def __init__(self, hidden_size: int, has_bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size, bias=has_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + silu(self.linear(hidden))


class MedusaHeads(nn.Module):
    """Medusa's heads. Head j (0, 1, ...) reads the target's normalised last state at t and predicts token t+2+j.

    Head j is the module named j.
    """

    hidden_layers = (-1,)
    ids: Tensor | None
    """The target's ids [D] that the heads can propose; None: all."""
    markov: MarkovBias | None
    """The bias that was trained for their logits, which they leave to the caller; None: there is none."""

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
        super().__init__()
        for index in range(num_heads):
            head = nn.Sequential(*(ResidualBlock(hidden_size, has_bias) for _ in range(num_blocks)))
            if own_output:
                head.append(nn.Linear(hidden_size, vocab_size, bias=False))
            self.add_module(str(index), head)
        self.own_output = own_output
        self._num_heads = num_heads
        self._vocab_size = vocab_size
        self.register_buffer("ids", None)
        self.register_module("markov", None)

    def __len__(self) -> int:
        return self._num_heads

    def __getitem__(self, index: int) -> nn.Sequential:
        return self._modules[str(range(self._num_heads)[index])]

    @property
    def num_choices(self) -> int:
        """How many tokens they can propose."""
        return self._vocab_size if self.ids is None else len(self.ids)

    def forward(self, hidden: Tensor, output: nn.Module) -> list[Tensor]:
        """States [..., H] -> logits [..., V] per head. output: the target's output matrix, for heads without one."""
        return [self.one(index, hidden, output) for index in range(len(self))]

    def one(self, index: int, hidden: Tensor, output: nn.Module) -> Tensor:
        """The logits of one head alone, as `forward` gives them."""
        row = self[index](hidden)  # [..., D], or [..., H] for a head without an output matrix
        if self.ids is None:
            return row if self.own_output else output(row).to(row.device)
        wide = row.new_full((*row.shape[:-1], output.out_features), -torch.inf)
        return wide.index_copy(-1, self.ids, row)

    def logits(self, hidden: Tensor, output: nn.Module, depth: int) -> Tensor:
        """The first heads' logits [depth, V] from a state [H]."""
        return torch.stack([self.one(head, hidden, output) for head in range(depth)])


def read(
    config: Mapping[str, object], state: Mapping[str, Tensor], target: LoadedModel
) -> tuple[nn.Module, LoadReport]:
    """Makes heads for `target` from a checkpoint's settings and tensors. Raises SpecvizError if they do not fit it."""
    if any(map(_VLLM_KEY.fullmatch, state)):
        return _read_vllm(config, state, target)
    # states lie on the embedding's device, also for a target over several GPUs
    like = target.model.get_input_embeddings().weight
    vocab_size = target.info.vocab_size
    hidden_size = target.model.config.get_text_config(decoder=True).hidden_size
    num_heads = _count_heads(state, _KEY, read_size(config, "medusa_num_heads", 1, MOST_HEADS))
    num_blocks = read_size(config, "medusa_num_layers", 1, MOST_BLOCKS)
    _check_shapes(state, num_blocks, target)
    own_output = config.get("medusa_own_output", True) is not False
    with torch.device("meta"):
        module = MedusaHeads(hidden_size, vocab_size, num_heads, num_blocks, own_output)
        if any(key.startswith(MARKOV) for key in state):
            shapes = {key: tensor.shape for key, tensor in state.items()}
            module.markov = MarkovBias(vocab_size, *bias_sizes(shapes, vocab_size, num_heads))
    prefix = _PREFIX if any(key.startswith(_PREFIX) for key in state) else ""
    keys = {
        name if name.startswith(MARKOV) else f"{prefix}{name}": name for name in module.state_dict()
    }
    return module, fill(module, state, like, keys)


def _read_vllm(
    config: Mapping[str, object], state: Mapping[str, Tensor], target: LoadedModel
) -> tuple[nn.Module, LoadReport]:
    """Reads vLLM's layout. `original_lm_head`: the heads share one output; `token_map`: the few ids they propose."""
    like = target.model.get_input_embeddings().weight
    hidden_size = read_size(config, "hidden_size")
    check_sizes(target, hidden=hidden_size, vocabulary=read_size(config, "vocab_size"))
    num_heads = _count_heads(state, _VLLM_KEY, read_size(config, "num_heads", 1, MOST_HEADS))
    num_blocks = read_size(config, "num_hidden_layers", 1, MOST_BLOCKS)
    prefix = _VLLM_PREFIX if any(key.startswith(_VLLM_PREFIX) for key in state) else ""
    ids = state.get(f"{prefix}token_map")
    num_rows = target.info.vocab_size
    if ids is not None:
        num_rows = len(check_ids("token_map", ids, target.info.vocab_size))
    has_bias = config.get("medusa_fc_bias") is True
    with torch.device("meta"):
        module = MedusaHeads(hidden_size, num_rows, num_heads, num_blocks, has_bias=has_bias)
    is_shared = config.get("original_lm_head") is True
    keys = {f"{prefix}{_vllm_name(name, num_blocks)}": name for name in module.state_dict()}
    if is_shared and f"{prefix}lm_head.weight" in state:
        keys[f"{prefix}lm_head.weight"] = keys.pop(f"{prefix}lm_heads.0.weight")
    if ids is not None:
        module.ids = torch.empty_like(ids, dtype=torch.long, device="meta")
        keys[f"{prefix}token_map"] = "ids"
    report = fill(module, state, like, keys)
    if not is_shared:
        return module, report
    for head in list(module)[1:]:
        head[num_blocks].weight = module[0][num_blocks].weight
    other_outputs = re.compile(r".*lm_heads\.[1-9][0-9]*\.weight")
    missing = tuple(key for key in report.missing if not other_outputs.fullmatch(key))
    return module, replace(report, missing=missing)


def _vllm_name(name: str, num_blocks: int) -> str:
    head, block, rest = name.split(".", 2)
    if int(block) == num_blocks:
        return f"lm_heads.{head}.{rest}"
    return f"blocks.{head}.layers.{block}.{rest.removeprefix('linear.')}"


def _count_heads(state: Mapping[str, Tensor], names: re.Pattern[str], named: int) -> int:
    """How many heads the keys or the settings name, whichever is more."""
    matches = list(filter(None, map(names.fullmatch, state)))
    if not matches:
        raise SpecvizError(
            "its weights hold no Medusa heads (no tensor is called like 0.0.linear.weight)"
        )
    number = max(named, *(int(match[1]) + 1 for match in matches))
    if number > MOST_HEADS:
        raise SpecvizError(f"it must have at most {MOST_HEADS} heads (got {number})")
    return number


def _check_shapes(state: Mapping[str, Tensor], num_blocks: int, target: LoadedModel) -> None:
    """Explains the two mistakes that people make; `fill` names the tensor of any other wrong shape."""
    for key, tensor in state.items():
        place = key.removeprefix(_PREFIX) if tensor.ndim == 2 else ""
        if place == "0.0.linear.weight":
            check_sizes(target, hidden=tensor.shape[-1])
        if place == f"0.{num_blocks}.weight":
            check_sizes(target, vocabulary=tensor.shape[0])
