"""Models in GGUF files: converted once into a safetensors folder in the cache, and taken from there.

The gguf package reads the header, but within the file: one that lies is refused before it takes memory. transformers
computes the weights. They are stored in float16, which loses seven times less of Q4_1's float16 scales than bfloat16
(SmolLM2: 3.5e-5 against 2.5e-4, root mean square); in bfloat16 where that is the file's own format or one lies beyond
float16. The folder's configuration carries the file's hash and format.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
import torch
import transformers.modeling_gguf_pytorch_utils as gguf_reading
from gguf import GGUFReader, GGUFValueType, ReaderTensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils.logging import disable_progress_bar

from specviz.errors import SpecvizError
from specviz.models import memory
from specviz.models.files.hub import ModelSource, Progress, fetch, hash_of
from specviz.models.folder import GB, check_kind
from specviz.models.tokens import no_panic
from specviz.settings import cached_model, settings

MOST_VALUES = 2_000_000  # of all lists in a header; the largest vocabularies have 1,300,000
_BYTES = 4 + 2  # per weight while it is converted: in float32, and in 16 bits
_OWN_CODE = {"local_files_only": True, "trust_remote_code": False}
_ONE_AT_A_TIME = Lock()


def fetch_model(
    source: ModelSource, *, may_download: bool, on_progress: Progress, weights: bool = True
) -> tuple[Path, str | None]:
    """As `hub.fetch`; for a GGUF file the folder that is made of it."""
    folder, revision = fetch(
        source, may_download=may_download, on_progress=on_progress, weights=weights
    )
    file = source.file or _only_file(folder, source.name)
    return (
        (folder, revision)
        if file is None
        else (convert(folder / file, source.name, on_progress), None)
    )


def _only_file(folder: Path, name: str) -> str | None:
    """The GGUF file in a folder without safetensors; None where there is none."""
    found = () if any(folder.glob("*.safetensors")) else folder.glob("*.gguf")
    files = sorted(file.name for file in found if not file.name.startswith("mmproj"))
    if len(files) > 1:
        raise SpecvizError(
            f"{name} holds {len(files)} GGUF files: name one ({', '.join(files):.300})"
        )
    return next(iter(files), None)


def convert(file: Path, name: str, report: Progress, about: str = "") -> Path:
    """The folder of this file's model, made where it is not there yet. about: what else its card says."""
    if not file.is_file():
        raise SpecvizError(f"{name} has no file {file.name!r:.120}")
    report(f"reading {name}", None)
    sha256 = hash_of(file)
    if (folder := cached_model(file.name, sha256)).is_dir():
        return folder
    header = read_header(file, name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        _ONE_AT_A_TIME,
        TemporaryDirectory(dir=folder.parent) as place,
        _progress(f"converting {name}", report),
    ):
        made = Path(place, "model")
        alone = Path(
            place, file.name
        )  # transformers takes what lies beside a file for its own, program code too
        try:
            with suppress(OSError):  # Windows asks for a right to make links
                alone.symlink_to(file.resolve())
            if not alone.exists():
                shutil.copyfile(file, alone)
            model = _without_weights(alone, header, name)
            model.config.gguf = {"sha256": sha256, "format": header.format}
            stored = _write(alone, model, made, name)
        except SpecvizError:
            raise
        except (
            Exception
        ) as error:  # whatever a stranger's file makes transformers, gguf or tokenizers raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise SpecvizError(f"{name} could not be converted: {reason:.300}") from error
        made_from = (
            f"Converted from {file.name}, sha256 {sha256}, {header.format}. Stored in {stored}."
        )
        Path(made, "MODEL_CARD.md").write_text(f"# {name}\n\n{about}{made_from}\n", "utf-8")
        if not folder.is_dir():  # another process may have been quicker
            made.rename(folder)
    return folder


@contextmanager
def _progress(message: str, report: Progress) -> Iterator[None]:
    """Reports the share of the tensors that transformers has read, and keeps it from printing bars."""

    def bar(tensors: Sequence[ReaderTensor], **_options: object) -> Iterator[ReaderTensor]:
        for number, tensor in enumerate(tensors):
            report(message, number / len(tensors))
            yield tensor

    disable_progress_bar()
    report(message, None)
    printed, gguf_reading.tqdm = gguf_reading.tqdm, bar
    try:
        yield
    finally:
        gguf_reading.tqdm = printed


class GGUFHeader(GGUFReader):
    """ValueError where anything lies beyond the file's end, and for more in lists than any vocabulary holds."""

    _num_values = 0

    def _get(
        self, offset: int, dtype: np.typing.DTypeLike, count: int = 1, **order: Any
    ) -> np.ndarray:
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"it continues to byte {end:,}, but the file has {len(self.data):,}")
        return super()._get(offset, dtype, count, **order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[Any, ...]:
        if raw_type == GGUFValueType.ARRAY:
            self._num_values += int(self._get(orig_offs + 4, np.uint64)[0])
        if self._num_values > MOST_VALUES:
            raise ValueError(
                f"it claims lists of {self._num_values:,} values; the limit is {MOST_VALUES:,}"
            )
        return super()._get_field_parts(orig_offs, raw_type)

    @property
    def format(self) -> str:
        """Of most of the weights, by ggml's name."""
        held: Counter[str] = Counter()
        for tensor in self.tensors:
            held[tensor.tensor_type.name] += tensor.n_elements
        return held.most_common(1)[0][0]

    def setting(self, key: str) -> Any:
        field = self.get_field(key)
        return None if field is None else field.contents()


def read_header(file: Path, name: str) -> GGUFHeader:
    """SpecvizError for a file that cannot be what it says it is, and for one part of a split model."""
    try:
        header = GGUFHeader(file)
        if header.byte_order != "I":
            raise ValueError("its numbers are in another machine's byte order")
        placed = sorted(header.tensors, key=lambda tensor: tensor.data_offset)
        if any(
            one.data_offset + one.n_bytes > after.data_offset for one, after in pairwise(placed)
        ):
            raise ValueError("its tensors overlap")
        num_parts = header.setting("split.count")
    except Exception as error:  # whatever a stranger's file makes gguf and numpy raise
        raise SpecvizError(f"{name} is damaged or not a GGUF file: {error}") from error
    if num_parts not in (None, 0, 1):
        way_out = (
            "join them with `llama-gguf-split --merge FIRST-PART NEW-FILE`, and name the new file"
        )
        raise SpecvizError(f"{name} is one of {num_parts!r:.20} parts of a model: {way_out}")
    return header


def _without_weights(file: Path, header: GGUFHeader, name: str) -> PreTrainedModel:
    """The file's model, in no memory. SpecvizError for one that would not be the file's own, or has no room here."""
    kind, names = header.setting("general.architecture"), [tensor.name for tensor in header.tensors]
    factor = f"{kind}.rope.scaling.factor"
    scales = [factor] * (header.setting(factor) not in (None, 0, 1)) + [
        each for each in names if each[:5] == "rope_"
    ]
    if scales and kind != "gpt-oss":
        raise SpecvizError(
            f"{name} scales its positions by {scales[0]}, which transformers ignores: use safetensors"
        )
    num_layers, num_weights = (
        header.setting(f"{kind}.block_count"),
        sum(each.n_elements for each in header.tensors),
    )
    if type(num_layers) is not int or not 0 < num_layers <= len(names):
        raise SpecvizError(
            f"{name} claims {num_layers!r:.40} layers and holds {len(names):,} tensors"
        )
    needed, room = _BYTES * num_weights / GB, settings().model_memory_bytes
    room = room or memory.device_share(torch.device("cpu"))
    if room is not None and needed > room / GB:
        raise SpecvizError(
            f"{name} needs {needed:.2g} GB to be converted, but models may take {room / GB:.2g} GB here"
        )
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, **_OWN_CODE)
    check_kind(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if (others := model.num_parameters()) != num_weights:
        raise SpecvizError(
            f"{name} holds {num_weights:,} weights; transformers would make a model of {others:,}"
        )
    return model


def _write(file: Path, model: PreTrainedModel, folder: Path, name: str) -> str:
    """Converts into a folder; returns the number format. model: the file's, which gets its weights."""
    options: dict[str, Any] = {"gguf_file": file.name, **_OWN_CODE}
    with no_panic(f"{name} could not be converted: "):
        AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)
    options |= {"config": model.config, "dtype": torch.float32, "output_loading_info": True}
    read, told = AutoModelForCausalLM.from_pretrained(file.parent, **options)
    if lacking := sorted(told["missing_keys"]):
        raise SpecvizError(f"{name} lacks {len(lacking)} of its weights, {lacking[0]} among them")
    most = torch.stack([each.abs().max() for each in read.parameters()]).max()
    if not most <= torch.finfo(torch.bfloat16).max:
        raise SpecvizError(f"{name} holds weights that are not numbers, or too large for bfloat16")
    is_wide = model.config.gguf["format"] == "BF16" or most > torch.finfo(torch.float16).max
    dtype = torch.bfloat16 if is_wide else torch.float16
    # `read` itself counts as quantised, which transformers does not write
    model.load_state_dict(
        {key: value.to(dtype) for key, value in read.state_dict().items()}, assign=True
    )
    model.tie_weights()
    model.save_pretrained(folder)
    return str(dtype).removeprefix("torch.")
