"""Models in GGUF files: converted once into a safetensors folder in the cache, and taken from there.

transformers computes the weights from the file's blocks. They are stored in float16, whose rounding loses seven times
less of a block's float16 scales than bfloat16's (SmolLM2's Q4_1: 3.5e-5 against 2.5e-4, root mean square), and in
bfloat16 where that is the file's own format or weights lie beyond float16. The folder's configuration carries the
file's hash and format.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import torch
from gguf import ReaderTensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import modeling_gguf_pytorch_utils as gguf_reading

from specviz.errors import SpecvizError
from specviz.models import memory
from specviz.models.folder import GB, check_kind
from specviz.models.gguf.header import Header, read_header
from specviz.models.hub import Progress, Source, fetch, hash_of
from specviz.settings import cached_model

_READABLE = sorted({*gguf_reading.GGUF_SUPPORTED_ARCHITECTURES} - {"general", "tokenizer"})
_BYTES = 4 + 2  # per weight while it is converted: in float32, and in 16 bits
_ONE_AT_A_TIME = Lock()


def fetch_model(
    source: Source, *, may_download: bool, on_progress: Progress, weights: bool = True
) -> tuple[Path, str | None]:
    """As `hub.fetch`; for a GGUF file the folder that is made of it."""
    folder, revision = fetch(source, may_download=may_download, on_progress=on_progress, weights=weights)
    file = source.file or _only_file(folder, source.name)
    return (folder, revision) if file is None else (convert(folder / file, source.name, on_progress), None)


def _only_file(folder: Path, name: str) -> str | None:
    """The GGUF file in a folder without safetensors; None where there is none."""
    if any(folder.glob("*.safetensors")):
        return None
    files = sorted(file.name for file in folder.glob("*.gguf") if not file.name.startswith("mmproj"))
    if len(files) > 1:
        raise SpecvizError(
            f"{name} holds {len(files)} GGUF files: name the one that is meant ({', '.join(files):.300})"
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
    with _ONE_AT_A_TIME, TemporaryDirectory(dir=folder.parent) as place, _progress(f"converting {name}", report):
        made = Path(place, "model")
        try:
            config = _config(file, header, name)
            config.gguf = {"sha256": sha256, "format": _format(header)}
            stored = _write(file, config, made, name)
        except SpecvizError:
            raise
        except Exception as error:  # whatever a stranger's file makes transformers, gguf or tokenizers raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise SpecvizError(f"{name} could not be converted: {reason:.300}") from error
        made_from = f"Converted from {file.name}, sha256 {sha256}, {_format(header)}. Stored in {stored}."
        Path(made, "MODEL_CARD.md").write_text(f"# {name}\n\n{about}{made_from}\n", "utf-8")
        if not folder.is_dir():  # another process may have been quicker
            made.rename(folder)
    return folder


def _format(header: Header) -> str:
    """Of most of the weights, by ggml's name."""
    held: Counter[str] = Counter()
    for tensor in header.tensors:
        held[tensor.tensor_type.name] += tensor.n_elements
    return held.most_common(1)[0][0]


@contextmanager
def _progress(message: str, report: Progress) -> Iterator[None]:
    """Reports the share of the tensors that transformers has read, where it would print a bar."""

    def bar(tensors: Sequence[ReaderTensor], **_options: object) -> Iterator[ReaderTensor]:
        for number, tensor in enumerate(tensors):
            report(message, number / len(tensors))
            yield tensor

    report(message, None)
    printed, gguf_reading.tqdm = gguf_reading.tqdm, bar
    try:
        yield
    finally:
        gguf_reading.tqdm = printed


def _config(file: Path, header: Header, name: str) -> PreTrainedConfig:
    """The file's configuration. SpecvizError for a model that would not be the file's own, or has no room here."""
    kind, names = header.setting("general.architecture"), [tensor.name for tensor in header.tensors]
    if str(kind).replace("-", "").replace("_", "") not in [each.replace("_", "") for each in _READABLE]:
        raise SpecvizError(f"{name} is of the kind {kind!r:.40}; transformers reads GGUF of {', '.join(_READABLE)}")
    if left := [each for each in names if each.startswith("rope_")]:
        reason = f"scales its positions by {left[0]}, which transformers leaves out: take its safetensors"
        raise SpecvizError(f"{name} {reason}")
    num_layers, num_weights = header.setting(f"{kind}.block_count"), sum(each.n_elements for each in header.tensors)
    if type(num_layers) is not int or not 0 < num_layers <= len(names):
        raise SpecvizError(f"{name} claims {num_layers!r:.40} layers and holds {len(names):,} tensors")
    needed, room = _BYTES * num_weights / GB, memory.device_share(torch.device("cpu"))
    if room is not None and needed > room / GB:
        raise SpecvizError(f"{name} needs {needed:.2g} GB to be converted, and models may take {room / GB:.2g} GB here")
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    check_kind(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), name)
    if (others := _empty(config, torch.float32).num_parameters()) != num_weights:
        made = f"and transformers would make a model of {others:,} of it"
        raise SpecvizError(f"{name} holds {num_weights:,} weights, {made}")
    return config


def _empty(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model without weights; takes no memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _write(file: Path, config: PreTrainedConfig, folder: Path, name: str) -> str:
    """Converts into a folder; returns the number format."""
    options: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)
    options |= {"config": config, "dtype": torch.float32, "output_loading_info": True}
    read, told = AutoModelForCausalLM.from_pretrained(file.parent, **options)
    if lacking := sorted(told["missing_keys"]):
        raise SpecvizError(f"{name} lacks {len(lacking)} of its weights, {lacking[0]} among them")
    most = torch.stack([each.abs().max() for each in read.parameters()]).max()
    if not most <= torch.finfo(torch.bfloat16).max:
        raise SpecvizError(f"{name} holds weights that are no numbers, or beyond what bfloat16 can hold")
    is_wide = config.gguf["format"] == "BF16" or most > torch.finfo(torch.float16).max
    dtype = torch.bfloat16 if is_wide else torch.float16
    plain = _empty(config, dtype)  # what is read from GGUF counts as quantised, which transformers does not write
    plain.load_state_dict({key: value.to(dtype) for key, value in read.state_dict().items()}, assign=True)
    plain.tie_weights()
    plain.save_pretrained(folder)
    return str(dtype).removeprefix("torch.")
