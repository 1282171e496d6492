"""The modules of a model for multi-token prediction, one per further token.

Module l (0, 1, ...) reads, for every token i of the text, the state of module l-1 there (the target's own for the
first) and token i+l+1, and predicts token i+l+2 (DeepSeek-V3, arXiv:2412.19437, section 2.2). A row of module l
stays right as long as the text up to token i+l+1 does: what is kept of its cache is counted by that.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specviz.decoding.device import to_device
from specviz.decoding.draft import common_prefix
from specviz.drafters.method import Part
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import Attached, list_keys

_attached = Attached()


class Modules:
    """The modules of one text, behind the interface of a CachedLM: `forward` runs the first, each `extend` the next.

    Each module feeds the rows that it lacks alone, so that one that was not asked for a while catches up once.
    """

    def __init__(self, model: nn.Module, vocab_size: int, context_limit: int) -> None:
        from transformers.cache_utils import MtpCache

        self._model, self._new_cache = model, MtpCache
        self.vocab_size, self.context_limit = vocab_size, context_limit
        self.depth = len(model.layers)
        self.calls = self.fed = 0
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._text, self._length = tokens, 0
        self._settled: tuple[
            int, ...
        ] = ()  # the tokens behind the first `length` that the rows were made with
        self._drafted: list[Tensor] = []
        self._cache = self._new_cache()
        self._states: list[Tensor | None] = [
            None
        ] * self.depth  # per module [rows, H], what the next one reads
        self._num_rows = [0] * self.depth

    def see(self, hidden: Tensor) -> None:
        """The target's states [n, H] behind all tokens of the next text but its last."""
        self._hidden = hidden

    def missing(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[-1:]

    def forward(self, tokens: Sequence[int]) -> Tensor:
        """Logits [1, V] of the token after the text, by the first module."""
        self._follow(tokens)
        return self._run(0)[None]

    def extend(self, token: Tensor) -> Tensor:
        """Logits [V] after one more token [], by the next module; its id may still be on the device."""
        self._drafted.append(token)
        return self._run(len(self._drafted))

    def settle(self, ids: Sequence[int]) -> None:
        self._settled = tuple(ids[: len(self._drafted)])

    def _follow(self, tokens: Sequence[int]) -> None:
        """Keeps of every module the rows whose tokens the text still has; the last row is always computed again."""
        if tokens is not self._text:
            self._reset(tokens)
        limit, new = len(tokens), tokens[self._length :]
        known = self._length + common_prefix(self._settled, new, min(len(self._settled), len(new)))
        self._num_rows = [
            max(0, min(n, known - index - 1, limit - 2)) for index, n in enumerate(self._num_rows)
        ]
        self._length, self._settled, self._drafted = limit, (), []

    def _run(self, index: int) -> Tensor:
        rows, length = self._num_rows[index], len(self._hidden)
        for layer in self._cache.layers[index : index + 1]:
            if layer.is_initialized:
                layer.keys, layer.values = layer.keys[..., :rows, :], layer.values[..., :rows, :]
        before = self._hidden if index == 0 else self._states[index - 1]
        ids = to_device(self._text[rows + index + 1 :], torch.long, before.device)
        ids = torch.cat([ids, *(token.reshape(1) for token in self._drafted)])[None]  # [1, M]
        positions = torch.arange(rows + index + 1, length + index + 1, device=before.device)[None]
        states = self._model.forward_layer(
            index, before[None, rows:], positions, self._cache, input_ids=ids
        )[0]
        self._states[index] = (
            states if rows == 0 else torch.cat([self._states[index][:rows], states])
        )
        self._num_rows[index] = length
        self.calls += 1
        self.fed += ids.shape[1]
        return self.logits(states[-1:])[0]

    def logits(self, states: Tensor) -> Tensor:
        """A module's states [R, H] -> logits [R, V]."""
        return self._model._project_to_logits(states[None])[0]

    def along(self, tokens: Tensor, states: Tensor) -> list[Tensor]:
        """Of each module its states behind every token of a text [T] that the target has read [T, H]; each is a row
        shorter than the one before."""
        cache, found, before = self._new_cache(), [], states
        for index in range(min(self.depth, len(tokens) - 1)):
            ids, positions = (
                tokens[index + 1 :],
                torch.arange(index + 1, len(tokens), device=tokens.device),
            )
            before = self._model.forward_layer(
                index, before[None, :-1], positions[None], cache, input_ids=ids[None]
            )[0]
            found.append(before)
        return found


def modules_of(part: Part) -> nn.Module:
    """The modules of a loaded model, read from its own checkpoint once. SpecvizError where there are none."""
    model = part.lm.model
    if not getattr(model.config.get_text_config(decoder=True), "num_mtp_layers", None):
        raise SpecvizError(
            f"{part.name} has no modules for multi-token prediction (its configuration names no num_mtp_layers); "
            "choose another method, or a model that brings them along"
        )
    return _attached.get(model, None, lambda: _load(model, part.name))


def _load(model: nn.Module, name: str) -> nn.Module:
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError:
        MtpModel = None
    if not hasattr(MtpModel, "forward_layer"):
        raise SpecvizError(
            "this version of transformers cannot run modules for multi-token prediction one by one (5.23 can); install "
            "a later one, or choose another method"
        )

    class Whole(MtpModel):
        """Refuses also tensors that nothing uses, which transformers passes over."""

        __module__ = (
            MtpModel.__module__
        )  # by module and name transformers knows what a checkpoint's tensors are called

        def _adjust_missing_and_unexpected_keys(self, loading_info) -> None:
            super()._adjust_missing_and_unexpected_keys(loading_info)
            if missing := loading_info.missing_keys:
                raise SpecvizError(f"the checkpoint lacks {list_keys(sorted(missing))}")
            if unknown := loading_info.unexpected_keys:
                raise SpecvizError(
                    f"it holds {list_keys(sorted(unknown))} that nothing uses: their layout is another one"
                )

    Whole.__name__ = MtpModel.__name__
    try:
        modules = Whole.from_pretrained(
            model, device_map={"": model.get_output_embeddings().weight.device}
        )
    except Exception as error:  # anything, from untrusted files
        lines = str(error).strip().splitlines()
        reason = (
            lines[0].replace(str(model.config.name_or_path) or "\0", name)
            if lines
            else type(error).__name__
        )
        raise SpecvizError(
            f"the modules of {name} for multi-token prediction could not be loaded: {reason}"
        ) from error
    return modules.eval().requires_grad_(False)
