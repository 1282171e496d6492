"""Models in GGUF files: converted once into a safetensors folder in the cache, and taken from there.

transformers computes the weights from the file's blocks; they are stored in the 16-bit format that loses less of them.
The folder's configuration carries the file's hash and format; its MODEL_CARD.md says what was lost.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gguf import GGMLQuantizationType
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

from specviz.errors import SpecvizError
from specviz.models import memory
from specviz.models.folder import GB, check_kind
from specviz.models.gguf.header import Header, hash_of, join, parts_of, read_headers
from specviz.models.hub import Progress, Source, fetch
from specviz.settings import cached_model

_READABLE = sorted({*GGUF_SUPPORTED_ARCHITECTURES} - {"general", "tokenizer"})
_FORMATS = (torch.float16, torch.bfloat16)
_BYTES = 4 + 2  # per weight while it is converted: in float32, and in one of these


def fetch_model(
    source: Source, *, may_download: bool, on_progress: Progress, weights: bool = True
) -> tuple[Path, str | None]:
    """As `hub.fetch`; for a GGUF file the folder that is made of it."""
    folder, revision = fetch(source, may_download=may_download, on_progress=on_progress, weights=weights)
    file = source.file or _only_file(folder, source.name)
    return (folder, revision) if file is None else (convert(folder / file, source.name, on_progress), None)


def _only_file(folder: Path, name: str) -> str | None:
    """The GGUF file in a folder without safetensors, the first part of a split one; None where there is none."""
    if any(folder.glob("*.safetensors")):
        return None
    files = {parts_of(file)[0].name for file in folder.glob("*.gguf") if not file.name.startswith("mmproj")}
    if len(files) > 1:
        raise SpecvizError(
            f"{name} holds {len(files)} GGUF models: name the file of one ({', '.join(sorted(files)):.300})"
        )
    return next(iter(files), None)


def convert(file: Path, name: str, report: Progress, about: str = "") -> Path:
    """The folder of this file's model, made where it is not there yet. about: what else its card says."""
    files = parts_of(file)
    headers = read_headers(files, name)
    report(f"reading {name}", None)
    sha256 = hash_of(files)
    folder = cached_model(file.name, sha256)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as place:
        whole = file if len(files) == 1 else join(files, headers, Path(place, "whole.gguf"))
        try:
            config = _config(whole, headers, name)
            config.gguf = {"sha256": sha256, "format": _format(headers)}
            words = _write(whole, config, Path(place, "model"), name, report)
        except (SpecvizError, OSError):
            raise
        except Exception as error:  # whatever a stranger's file makes transformers, gguf or tokenizers raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise SpecvizError(f"{name} could not be converted: {reason:.300}") from error
        card = f"# {name}\n\n{about}Converted from {file.name}, sha256 {sha256}, {config.gguf['format']}. {words}\n"
        Path(place, "model", "MODEL_CARD.md").write_text(card, "utf-8")
        if not folder.is_dir():  # another process may have been quicker
            Path(place, "model").rename(folder)
    return folder


def _format(headers: Sequence[Header]) -> str:
    """The format of most of the weights, by ggml's name."""
    held: Counter[int] = Counter()
    for tensor in (tensor for header in headers for tensor in header.tensors):
        held[tensor.kind] += math.prod(tensor.dims)
    return GGMLQuantizationType(held.most_common(1)[0][0]).name


def _config(file: Path, headers: Sequence[Header], name: str) -> PreTrainedConfig:
    """The file's configuration. SpecvizError for a model that would not be the file's own, or has no room here."""
    settings, tensors = headers[0].settings, [tensor for header in headers for tensor in header.tensors]
    kind = settings.get("general.architecture")
    if str(kind).replace("-", "").replace("_", "") not in [each.replace("_", "") for each in _READABLE]:
        raise SpecvizError(f"{name} is of the kind {kind!r:.40}; transformers reads GGUF of {', '.join(_READABLE)}")
    if left := next((tensor.name for tensor in tensors if tensor.name.startswith("rope_")), None):
        raise SpecvizError(
            f"{name} scales its positions by {left}, which transformers leaves out: take its safetensors"
        )
    num_layers, num_weights = settings.get(f"{kind}.block_count"), sum(math.prod(tensor.dims) for tensor in tensors)
    if type(num_layers) is not int or not 0 < num_layers <= len(tensors):
        raise SpecvizError(f"{name} claims {num_layers!r:.40} layers and holds {len(tensors):,} tensors")
    room = memory.device_share(torch.device("cpu"))
    if room is not None and _BYTES * num_weights > room:
        needed, most = _BYTES * num_weights / GB, room / GB
        raise SpecvizError(f"{name} needs {needed:.2g} GB to be converted, and models may take {most:.2g} GB here")
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    check_kind(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), name)
    if (others := _empty(config).num_parameters()) != num_weights:
        raise SpecvizError(
            f"{name} holds {num_weights:,} weights, and transformers would make a model of {others:,} of it"
        )
    return config


def _empty(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model without weights; takes no memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _write(file: Path, config: PreTrainedConfig, folder: Path, name: str, report: Progress) -> str:
    """Converts into a folder; returns what was lost, in words."""
    report(f"converting {name}", None)
    options = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
    exact, told = AutoModelForCausalLM.from_pretrained(
        file.parent, config=config, dtype=torch.float32, output_loading_info=True, **options
    )
    if lacking := sorted(told["missing_keys"]):
        raise SpecvizError(f"{name} lacks {len(lacking)} of its weights, {lacking[0]} among them")
    losses = {dtype: _loss(list(exact.parameters()), dtype) for dtype in _FORMATS}
    best = min(losses, key=losses.get)
    if not math.isfinite(losses[best][0]):
        raise SpecvizError(f"{name} holds weights that are no numbers, or beyond what {best} can hold")
    plain = _empty(config, best)
    plain.load_state_dict({key: value.to(best) for key, value in exact.state_dict().items()}, assign=True)
    plain.tie_weights()
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    told = (f"{mean:.2g} ({most:.2g} at the most) in {str(dtype)[6:]}" for dtype, (mean, most) in losses.items())
    return f"Stored in {str(best)[6:]}. A weight's rounding error, root mean square: {', '.join(told)}."


def _loss(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> tuple[float, float]:
    """What rounding to a format changes: the root mean square, and the most."""
    errors = [(error.norm().item(), error.abs().max().item()) for error in (each - each.to(dtype) for each in weights)]
    norms, most = zip(*errors, strict=True)
    return math.hypot(*norms) / math.sqrt(sum(each.numel() for each in weights)), max(most)
