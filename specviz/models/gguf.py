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
    """The local folder of a source and its revision, like `hub.fetch`. A GGUF file is converted to a folder."""
    folder, revision = fetch(
        source, may_download=may_download, on_progress=on_progress, weights=weights
    )
    file = source.file or _only_file(folder, source.name)
    if file is None:
        return folder, revision
    return convert(folder / file, source.name, on_progress), None


def _only_file(folder: Path, name: str) -> str | None:
    """The name of the only GGUF file in a folder without safetensors; None if there is none."""
    if any(folder.glob("*.safetensors")):
        return None
    names = (file.name for file in folder.glob("*.gguf"))
    files = sorted(name for name in names if not name.startswith("mmproj"))
    if len(files) > 1:
        raise SpecvizError(
            f"{name} holds {len(files)} GGUF files: name one ({', '.join(files):.300})"
        )
    return files[0] if files else None


def convert(file: Path, name: str, report: Progress, about: str = "") -> Path:
    """Converts the file to a model's folder, unless the folder is there. about: more words for the model's card."""
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
        converted = Path(place, "model")
        # in a folder of its own: transformers reads what lies beside a file, program code too
        alone = Path(place, file.name)
        try:
            with suppress(OSError):  # Windows asks for a right to make links
                alone.symlink_to(file.resolve())
            if not alone.exists():
                shutil.copyfile(file, alone)
            model = _without_weights(alone, header, name)
            model.config.gguf = {"sha256": sha256, "format": header.format}
            number_format = _write(alone, model, converted, name)
        except SpecvizError:
            raise
        # whatever a stranger's file makes transformers, gguf or tokenizers raise
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise SpecvizError(f"{name} could not be converted: {reason:.300}") from error
        origin = f"Converted from {file.name}, sha256 {sha256}, {header.format}."
        card = f"# {name}\n\n{about}{origin} Stored in {number_format}.\n"
        Path(converted, "MODEL_CARD.md").write_text(card, "utf-8")
        if not folder.is_dir():  # another process may have been quicker
            converted.rename(folder)
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
    printing_bar = gguf_reading.tqdm
    gguf_reading.tqdm = bar
    try:
        yield
    finally:
        gguf_reading.tqdm = printing_bar


class GGUFHeader(GGUFReader):
    """A header that raises ValueError for data beyond the file's end, and for longer lists than any vocabulary."""

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
        """The number format of most weights, by ggml's name."""
        num_weights: Counter[str] = Counter()
        for tensor in self.tensors:
            num_weights[tensor.tensor_type.name] += tensor.n_elements
        return num_weights.most_common(1)[0][0]

    def setting(self, key: str) -> Any:
        field = self.get_field(key)
        return None if field is None else field.contents()


def read_header(file: Path, name: str) -> GGUFHeader:
    """Reads a file's header. Raises SpecvizError for a header that cannot be true, and for a part of a split model."""
    try:
        header = GGUFHeader(file)
        if header.byte_order != "I":
            raise ValueError("its numbers are in another machine's byte order")
        by_offset = sorted(header.tensors, key=lambda tensor: tensor.data_offset)
        for tensor, following in pairwise(by_offset):
            if tensor.data_offset + tensor.n_bytes > following.data_offset:
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
    """The file's model, without memory for its weights.

    Raises SpecvizError if transformers would make another model of the file, or if there is no room to convert it.
    """
    kind = header.setting("general.architecture")
    names = [tensor.name for tensor in header.tensors]
    factor = f"{kind}.rope.scaling.factor"
    scales = [name for name in names if name.startswith("rope_")]
    if header.setting(factor) not in (None, 0, 1):
        scales.insert(0, factor)
    if scales and kind != "gpt-oss":
        raise SpecvizError(
            f"{name} scales its positions by {scales[0]}, which transformers ignores: use safetensors"
        )
    num_layers = header.setting(f"{kind}.block_count")
    num_weights = sum(tensor.n_elements for tensor in header.tensors)
    if type(num_layers) is not int or not 0 < num_layers <= len(names):
        raise SpecvizError(
            f"{name} claims {num_layers!r:.40} layers and holds {len(names):,} tensors"
        )
    needed = _BYTES * num_weights / GB
    room = settings().model_memory_bytes or memory.device_share(torch.device("cpu"))
    if room is not None and needed > room / GB:
        raise SpecvizError(
            f"{name} needs {needed:.2g} GB to be converted, but models may take {room / GB:.2g} GB here"
        )
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, **_OWN_CODE)
    check_kind(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    num_parameters = model.num_parameters()
    if num_parameters != num_weights:
        raise SpecvizError(
            f"{name} holds {num_weights:,} weights; transformers would make a model of {num_parameters:,}"
        )
    return model


def _write(file: Path, model: PreTrainedModel, folder: Path, name: str) -> str:
    """Converts into a folder and returns the number format. model: the file's model, which gets its weights here."""
    options: dict[str, Any] = {"gguf_file": file.name, **_OWN_CODE}
    with no_panic(f"{name} could not be converted: "):
        AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)
    options |= {"config": model.config, "dtype": torch.float32, "output_loading_info": True}
    read, report = AutoModelForCausalLM.from_pretrained(file.parent, **options)
    missing = sorted(report["missing_keys"])
    if missing:
        raise SpecvizError(f"{name} lacks {len(missing)} of its weights, {missing[0]} among them")
    most = torch.stack([tensor.abs().max() for tensor in read.parameters()]).max()
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
