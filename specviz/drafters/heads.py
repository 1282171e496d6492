"""Draft heads that were trained on a target's states (Medusa, EAGLE, assistants), read from a checkpoint's folder.

Two runs with the same target share them. A load report names the used, ignored and missing keys. Heads with missing
tensors would only draft badly: they are refused. So are heads with tensors that their reader does not know.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from specviz.decoding.device import is_out_of_memory
from specviz.decoding.forward.products import with_products
from specviz.errors import SpecvizError
from specviz.models.catalog import without_format
from specviz.models.files.checkpoint import Attached, LoadReport, list_keys, read_tensors
from specviz.models.files.draft_formats import SPECULATORS, draft_format, format_of, read_config
from specviz.models.files.hub import Progress, fetch_heads, find, head_files, ignore_progress
from specviz.models.memory import products
from specviz.models.pool import LoadedModel, ModelPool
from specviz.settings import settings

KINDS = ("medusa", "eagle", "block", "assistant")
"""The kinds of heads. `heads.py` in the folder of a kind has `read`, which makes heads from a checkpoint, and IGNORED,
which matches the tensors that nothing needs."""
MOST_PADDING = 1024  # rows at the end of a table that belong to no token
_MOST_SIZE = 2**20  # for every size in a configuration; the largest public heads stay far below
_attached = Attached()


@dataclass(frozen=True, slots=True, eq=False)
class LoadedHeads:
    """Heads ready to draft for one target, on its device and in its number format."""

    name: str
    kind: str
    module: nn.Module
    report: LoadReport


def load_heads(
    pool: ModelPool | None,
    name: str,
    kind: str,
    target: LoadedModel,
    report: Progress = ignore_progress,
) -> LoadedHeads:
    """Loads heads of that kind by catalogue name, folder or hub id.

    pool: says whether names beyond the catalogue are allowed; None: the settings say it. Raises SpecvizError, also for
    heads of another target.
    """
    if kind not in KINDS:
        raise SpecvizError(f"heads must be of the kind {' or '.join(KINDS)} (got {kind!r:.40})")
    if without_format(name) != name:
        raise SpecvizError(
            f"draft heads are held as their file holds them: leave out the ending (got {name!r:.100})"
        )
    allow_any = settings().commands_take_any_model if pool is None else pool.allow_any
    source = find(name, allow_any=allow_any)
    key = (kind, source.key)
    if (known := _attached.find(target.model, key)) is not None:
        return known
    folder, _ = fetch_heads(source, may_download=allow_any, on_progress=report)
    return _attached.get(
        target.model, key, lambda: _load(folder, source.name, kind, target, report)
    )


def are_loaded(pool: ModelPool, name: str, kind: str, target: LoadedModel) -> bool:
    """Whether the target has these heads already, so that `load_heads` reads no file. Raises SpecvizError."""
    source = find(name, allow_any=pool.allow_any)
    return _attached.find(target.model, (kind, source.key)) is not None


def _load(folder: Path, name: str, kind: str, target: LoadedModel, report: Progress) -> LoadedHeads:
    report(f"loading {name}", None)
    reader = import_module(f"specviz.drafters.{kind}.heads")
    try:
        state = read_tensors(head_files(folder, name))
        config = read_config(folder)
        refuse_foreign(config, state)
        refuse_quantised(state)
        module, keys = reader.read(config, state, target)
    except SpecvizError as error:
        raise SpecvizError(f"{name} cannot draft for {target.name}: {error}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise SpecvizError(f"there is not enough memory for {name} beside {target.name}") from error
    if keys.missing:
        raise SpecvizError(
            f"{name} is incomplete: it lacks {list_keys(keys.missing)}, so it was not loaded"
        )
    unknown = [key for key in keys.unused if not re.fullmatch(reader.IGNORED, key)]
    if unknown:
        raise SpecvizError(
            f"{name} holds {list_keys(unknown)} that specviz has no use for: it is of another layout, so it was not "
            "loaded"
        )
    words = f"loaded {name}"
    if keys.unused:
        words += f"; nothing needs {list_keys(keys.unused)} in its file"
    report(words, 1.0)
    module = with_products(module, products())
    return LoadedHeads(name, kind, module, keys)


def kind_of(folder: Path) -> str:
    """The kind of a folder's heads, by its tensors' names or its config.json; empty for a model, or for neither.

    The EAGLE authors' own config.json does not tell: it names a LlamaForCausalLM.
    """
    if (known := format_of(folder)) is not None:
        return known.method
    try:
        config = read_config(folder)
    except SpecvizError:
        return ""
    values = [str(config.get(name, "")) for name in ("architectures", "model_type")]
    words = " ".join([*values, *config]).lower()
    return next((kind for kind in KINDS if kind in words), "")


def refuse_foreign(config: Mapping[str, object], names: Collection[str]) -> None:
    """Raises SpecvizError, with advice, for a checkpoint format that no kind of heads reads."""
    known = draft_format(config, names)
    if known is not None and not known.method:
        raise SpecvizError(
            f"it is {known.name}, which specviz does not run: choose a head of another format that was trained for the "
            f"same target, as speculators {', '.join(SPECULATORS)}"
        )
    if known is None and any(name.startswith(("mtp.", "model.mtp")) for name in names):
        raise SpecvizError(
            "it is a model with modules for multi-token prediction of its own: name it as the target and choose the "
            "method mtp"
        )


def refuse_quantised(state: Mapping[str, Tensor]) -> None:
    """Raises SpecvizError with the name of a weight stored in fewer bits: heads are read in full precision only."""
    for name, tensor in state.items():
        if tensor.is_floating_point():
            is_quantised = tensor.itemsize == 1
        else:
            is_quantised = tensor.ndim > 1 and tensor.dtype != torch.bool
        if is_quantised:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise SpecvizError(
                f"its weights are quantised ({name!r:.80} holds {dtype}): choose the head in bfloat16, float16 or "
                "float32"
            )


def check_ids(name: str, ids: Tensor, vocab_size: int) -> Tensor:
    """Checks ids [D] of the target's tokens from an untrusted file: each once. Raises SpecvizError."""
    if ids.ndim != 1 or ids.is_floating_point() or not len(ids):
        raise SpecvizError(
            f"{name} must hold whole numbers in one row (got {ids.dtype}, {list(ids.shape)!s:.60})"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(ids.unique()) < len(ids):
        raise SpecvizError(
            f"its {name} must lead to {len(ids)} different ids of the target, all below {vocab_size}"
        )
    return ids


def read_size(
    config: Mapping[str, object],
    name: str,
    default: int | None = None,
    most: int = _MOST_SIZE,
    least: int = 1,
) -> int:
    """A whole number from `least` to `most` in a checkpoint's settings. Raises SpecvizError."""
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SpecvizError(
            f"{name} in its config.json must be a whole number from {least} to {most} (got {value!r:.40})"
        )
    return value


def check_sizes(
    target: LoadedModel, *, hidden: int | None = None, vocabulary: int | None = None
) -> None:
    """Raises SpecvizError if the sizes of heads differ from their target's; None: not known."""
    hidden_size = target.model.config.get_text_config(decoder=True).hidden_size
    vocab_size = target.info.vocab_size
    if hidden not in (None, hidden_size):
        raise SpecvizError(f"its hidden size must be {hidden_size}, the target's (got {hidden})")
    if vocabulary not in (None, vocab_size):
        raise SpecvizError(
            f"its vocabulary must have {vocab_size} tokens, as the target's (got {vocabulary})"
        )


def check_vocabulary(target: LoadedModel, size: int) -> None:
    """Raises SpecvizError unless a head's tables of `size` rows fit the target's vocabulary.

    They must hold every id of the target's tokenizer. They may differ from the target's tables by padding: tools pad to
    multiples of 64 to MOST_PADDING.
    """
    vocab_size = target.info.vocab_size
    least = vocab_size
    if target.tokenizer is not None:
        least = min(vocab_size, len(target.tokenizer))
    if not least <= size < vocab_size + MOST_PADDING:
        raise SpecvizError(
            f"its vocabulary must have {vocab_size} tokens, as the target's, padding aside: {least} to "
            f"{vocab_size + MOST_PADDING - 1} (got {size})"
        )
