"""The modules of a model for multi-token prediction, one per further token.

For every token i of the text, module l (0, 1, ...) reads token i+l+1 and the state of module l-1 at i; the first module
reads the target's. It predicts token i+l+2 (DeepSeek-V3, arXiv:2412.19437, section 2.2). Row i of module l stays valid
while the text up to token i+l+1 stays the same.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specviz.decoding.device import to_device
from specviz.decoding.draft import common_prefix
from specviz.decoding.work import Work
from specviz.drafters.method import Part
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import Attached, list_keys

_attached = Attached()


class Modules:
    """A model's modules behind the interface of a CachedLM: `forward` runs the first module, each `extend` the next.

    Each module reads only the rows that it lacks. A module that was not used for some steps reads them all at once.
    """

    def __init__(self, model: nn.Module, vocab_size: int, context_limit: int) -> None:
        from transformers.cache_utils import MtpCache

        self._model = model
        self._new_cache = MtpCache
        self.vocab_size = vocab_size
        self.context_limit = context_limit
        self.depth = len(model.layers)
        self.work = Work()
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._text = tokens
        self._length = 0
        # the drafted tokens after the first `length` that the rows were made with
        self._settled: tuple[int, ...] = ()
        self._drafted: list[Tensor] = []
        self._cache = self._new_cache()
        # per module [rows, H], which the next module reads
        self._states: list[Tensor | None] = [None] * self.depth
        self._num_rows = [0] * self.depth

    def see(self, hidden: Tensor) -> None:
        """Takes the target's states [n, H] at all tokens of the next text but its last."""
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
        """Stores of every module only the rows whose tokens the text still has; the last row is always run again."""
        if tokens is not self._text:
            self._reset(tokens)
        length = len(tokens)
        new = tokens[self._length :]
        num_same = common_prefix(self._settled, new, min(len(self._settled), len(new)))
        known = self._length + num_same
        for index, num_rows in enumerate(self._num_rows):
            self._num_rows[index] = max(0, min(num_rows, known - index - 1, length - 2))
        self._length = length
        self._settled = ()
        self._drafted = []

    def _run(self, index: int) -> Tensor:
        num_rows = self._num_rows[index]
        length = len(self._hidden)
        for layer in self._cache.layers[index : index + 1]:
            if layer.is_initialized:
                layer.keys = layer.keys[..., :num_rows, :]
                layer.values = layer.values[..., :num_rows, :]
        before = self._hidden if index == 0 else self._states[index - 1]
        first = num_rows + index + 1
        ids = to_device(self._text[first:], torch.long, before.device)
        drafted = [token.reshape(1) for token in self._drafted]
        ids = torch.cat([ids, *drafted])[None]  # [1, M]
        positions = torch.arange(first, length + index + 1, device=before.device)[None]  # [1, M]
        states = self._model.forward_layer(
            index, before[None, num_rows:], positions, self._cache, input_ids=ids
        )[0]  # [M, H]
        if num_rows:
            self._states[index] = torch.cat([self._states[index][:num_rows], states])
        else:
            self._states[index] = states
        self._num_rows[index] = length
        self.work += Work(1, ids.shape[1])
        return self.logits(states[-1:])[0]

    def logits(self, states: Tensor) -> Tensor:
        """A module's states [R, H] -> logits [R, V]."""
        return self._model._project_to_logits(states[None])[0]

    def along(self, tokens: Tensor, states: Tensor) -> list[Tensor]:
        """Each module's states at the tokens of a known text [T], from the target's states [T, H].

        Module l's have T-1-l rows.
        """
        cache = self._new_cache()
        found: list[Tensor] = []
        before = states
        for index in range(min(self.depth, len(tokens) - 1)):
            ids = tokens[index + 1 :]
            positions = torch.arange(index + 1, len(tokens), device=tokens.device)
            before = self._model.forward_layer(
                index, before[None, :-1], positions[None], cache, input_ids=ids[None]
            )[0]
            found.append(before)
        return found


def modules_of(part: Part) -> nn.Module:
    """The modules of a loaded model, read from its checkpoint once. Raises SpecvizError where there are none."""
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
        """Modules of transformers, which also refuse a checkpoint with tensors that nothing uses."""

        # transformers finds the names of a checkpoint's tensors by the class's module and name
        __module__ = MtpModel.__module__

        def _adjust_missing_and_unexpected_keys(self, loading_info) -> None:
            super()._adjust_missing_and_unexpected_keys(loading_info)
            missing = sorted(loading_info.missing_keys)
            unknown = sorted(loading_info.unexpected_keys)
            if missing:
                raise SpecvizError(f"the checkpoint lacks {list_keys(missing)}")
            if unknown:
                raise SpecvizError(
                    f"it holds {list_keys(unknown)} that nothing uses: their layout is another one"
                )

    Whole.__name__ = MtpModel.__name__
    try:
        device = model.get_output_embeddings().weight.device
        modules = Whole.from_pretrained(model, device_map={"": device})
    except Exception as error:  # anything, from untrusted files
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        folder = str(model.config.name_or_path)
        if folder:
            reason = reason.replace(folder, name)
        raise SpecvizError(
            f"the modules of {name} for multi-token prediction could not be loaded: {reason}"
        ) from error
    return modules.eval().requires_grad_(False)
