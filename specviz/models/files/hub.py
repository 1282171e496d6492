"""Finds the local folder of a model by its catalogue name, folder or Hugging Face hub id, and checks its files.

Names are untrusted; only a folder's base name is shown. Downloads only plain data files: configuration, tokenizer and
safetensors weights. Loads neither transformers nor torch.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.errors import SpecvizError
from specviz.models import catalog

if TYPE_CHECKING:
    from tqdm import tqdm

Progress = Callable[[str, float | None], None]
"""A function that is told a message, and the fraction done if it is known."""

DOWNLOADING = "downloading"  # the first word of the progress messages of a download

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_HUB_FILE = re.compile(rf"({_HUB_ID.pattern})/((?:[\w.-]+/)*[\w.-]+\.gguf)", re.ASCII)
_DATA_FILES = ["*.json", "*.jinja", "*.model", "*.safetensors", "*.tiktoken", "*.txt"]
_NOT_NEEDED = ["*/*", "consolidated*"]
_WEIGHTS = ["*.safetensors"]
_HEAD_WEIGHTS = ["*.safetensors", "medusa_lm_head.pt", "pytorch_model*.bin"]
"""The weight files of draft heads. Only the first pattern that matches a file is read."""
_CONVERT = (
    "load it where you trust it and save it again with save_pretrained, which makes safetensors"
)
_ORIGINAL = "choose the model that it was made from, which usually has safetensors weights"
_OTHER_FORMATS: Mapping[str, tuple[str, str]] = {
    ".gguf": (
        "GGUF, the format of llama.cpp",
        "add the file to the model's name, as in owner/model/file.gguf",
    ),
    ".ggml": ("GGML, an old format of llama.cpp", _ORIGINAL),
    ".onnx": ("ONNX", _ORIGINAL),
    ".npz": ("MLX", _ORIGINAL),
    ".h5": ("TensorFlow's", _ORIGINAL),
    ".msgpack": ("Flax's", _ORIGINAL),
    **dict.fromkeys(
        (".bin", ".pt", ".pth"), ("PyTorch's pickles, which can run code when opened", _CONVERT)
    ),
}
"""Suffix of a weight file that is not read -> its format, and advice."""
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_FILE_NAME = re.compile(r"[^\0]{1,200}")
INDEX = "model.safetensors.index.json"
_VOCABULARIES = ("vocab.json", "vocab.txt", "spiece.model", "*.tiktoken", "tekken.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", *_VOCABULARIES)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The place that a model comes from."""

    name: str  # shown and stored
    key: str  # its identity
    folder: Path | None = None
    """The model's folder; None: `key` is a hub id, or a hub id and the name of a file there."""
    file: str | None = None  # a GGUF file, in the folder or on the hub


def find(name: str, *, allow_any: bool) -> ModelSource:
    """The source of the model with this name. Reads no model file. allow_any False: catalogue names only."""
    if name in catalog.MODELS or name in catalog.HEADS:
        place = catalog.resolve(name)
        if isinstance(place, str):
            return ModelSource(name, place)
        if not place.is_dir() and not (catalog.MODELS.get(name) or catalog.HEADS[name]).is_bundled:
            raise SpecvizError(
                f"{name} is not on this machine: `python -m specviz get {name}` fetches it"
            )
        if not place.is_dir():
            raise SpecvizError(
                f"the bundled model {name} is not in the assets folder; install specviz with its models"
            )
        times = catalog.depth(name)
        return ModelSource(name, str(place) if times == 1 else f"{place} x{times}", place)
    if not allow_any:
        raise SpecvizError(
            f"this server offers only its own models: {', '.join(catalog.MODELS)} (got {name!r})"
        )
    if not name.isprintable() or not name.strip():
        raise SpecvizError(
            f"a model must be named by a catalogue name, a folder or a hub id (got {name!r})"
        )
    if (place := _find_place(name)) is not None:
        key = str(place.resolve())
        if place.is_dir():
            return ModelSource(_place_name(place), key, place)
        return ModelSource(_place_name(place), key, place.parent, place.name)
    if (match := _HUB_FILE.fullmatch(name)) and ".." not in name:
        return ModelSource(name, name, file=match[3])
    if not _HUB_ID.fullmatch(name) or ".." in name or name.endswith(".gguf"):
        raise SpecvizError(
            f"there is no folder or file {Path(name).name!r}, and this is not a hub id of the form owner/model: check "
            "the spelling"
        )
    return ModelSource(name, name)


def _find_place(name: str) -> Path | None:
    """The folder or GGUF file of this name."""
    try:
        place = Path(os.path.abspath(Path(name).expanduser()))  # a link keeps its own name
        return place if place.is_dir() or (place.suffix == ".gguf" and place.is_file()) else None
    # a name too long for the file system; the home of an unknown user
    except (OSError, RuntimeError):
        return None


def _place_name(place: Path) -> str:
    """The base name of a folder or file, with " (folder)" or " (file)" if the name alone means another model."""
    name = place.name or "model"
    other = _find_place(name)
    if not catalog.is_known(name) and (other is None or other.samefile(place)):
        return name
    return f"{name} (folder)" if place.is_dir() else f"{name} (file)"


def ignore_progress(message: str, fraction: float | None) -> None:
    """Reports nothing; a download then shows a bar on standard error."""


def fetch(
    source: ModelSource, *, may_download: bool, on_progress: Progress, weights: bool = True
) -> tuple[Path, str | None]:
    """Fetches a source, with weights if asked; returns its local folder and a hub model's revision.

    Raises SpecvizError with advice.
    """
    if source.file is not None:
        return _fetch(source, [source.file], [], may_download, on_progress)
    ignored = _NOT_NEEDED if weights else [*_NOT_NEEDED, *_WEIGHTS]
    folder, revision = _fetch(source, _DATA_FILES, ignored, may_download, on_progress)
    if weights and source.folder is None and may_download and not any(folder.glob("*.safetensors")):
        from huggingface_hub import list_repo_files

        try:
            files = list_repo_files(source.key)
        except Exception:  # any error of the hub's client; `weight_files` refuses the folder later
            return folder, revision
        raise SpecvizError(_no_weights(source.name, files))
    return folder, revision


def fetch_heads(
    source: ModelSource, *, may_download: bool, on_progress: Progress
) -> tuple[Path, str | None]:
    """Fetches draft heads like `fetch`; their weights may also be in torch's own format."""
    return _fetch(source, ["config.json", *_HEAD_WEIGHTS], _NOT_NEEDED, may_download, on_progress)


def _fetch(
    source: ModelSource,
    wanted: list[str],
    ignored: list[str],
    may_download: bool,
    on_progress: Progress,
) -> tuple[Path, str | None]:
    if source.folder is not None:
        return source.folder, None
    from huggingface_hub import snapshot_download

    on_progress(f"looking for {source.name} on the Hugging Face hub", None)
    try:
        folder = snapshot_download(
            source.key if source.file is None else source.key.removesuffix(f"/{source.file}"),
            allow_patterns=wanted,
            ignore_patterns=ignored,
            local_files_only=not may_download,
            tqdm_class=progress_bar(f"{DOWNLOADING} {source.name}", on_progress),
        )
    except SpecvizError:  # from on_progress: the download was cancelled
        raise
    except Exception as error:  # the hub's client raises errors of several HTTP libraries, which have no common base
        raise _fetch_error(source.name, error, may_download) from error
    return Path(folder), Path(folder).name


def is_here(name: str) -> bool:
    """Whether all files of a catalogue model or of draft heads are on this machine. Reads none, uses no network.

    True for any other name: a folder needs no download, and a typed hub id is not checked.
    """
    plain = catalog.without_format(name)
    if plain not in catalog.MODELS and plain not in catalog.HEADS:
        return True
    if isinstance(place := catalog.resolve(plain), Path):
        return place.is_dir()
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(plain, "config.json")
    if not isinstance(config, str):
        return False
    try:
        return bool(head_files(Path(config).parent, plain))
    except SpecvizError:
        return False


def hash_of(file: Path) -> str:
    """The sha256 of a file's content."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def check_files(folder: Path, name: str) -> None:
    """Raises SpecvizError for a folder that transformers could not load, or would load from unsafe files."""
    if not (folder / "config.json").is_file():
        hint = _other_format(os.listdir(folder)) or "this is not a model folder"
        if (folder / "adapter_config.json").is_file():
            hint = "it holds an adapter: merge it into its base model first"
        raise SpecvizError(f"{name} has no config.json; {hint}")
    if adapter := next((file for file in _ADAPTERS if (folder / file).is_file()), None):
        raise SpecvizError(
            f"{name} holds a LoRA adapter beside the model ({adapter}), whose weights would be ignored: merge it into "
            "the model and save that, or remove its files"
        )
    if not any(next(folder.glob(pattern), None) for pattern in _TOKENIZERS):
        raise SpecvizError(f"{name} has no tokenizer files; save the tokenizer beside the model")


def weight_files(folder: Path, name: str) -> list[Path]:
    """The safetensors files of a model. Raises SpecvizError if there are none or some are missing."""
    index = folder / INDEX
    single = folder / "model.safetensors"
    if not index.is_file() and not single.is_file():
        raise SpecvizError(_no_weights(name, os.listdir(folder)))
    shards = sorted(set(_weight_map(index, name).values())) if index.is_file() else [single.name]
    files = [folder / shard for shard in shards]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise SpecvizError(
            f"{name} is incomplete: {len(missing)} of {len(files)} weight files are missing"
        )
    return files


def head_files(folder: Path, name: str) -> list[Path]:
    """The weight files of draft heads; safetensors if there are both kinds. Raises SpecvizError if there are none."""
    if (folder / INDEX).is_file():
        return weight_files(folder, name)
    for pattern in _HEAD_WEIGHTS:
        files = sorted(folder.glob(pattern))
        if files:
            return files
    raise SpecvizError(f"its folder has no weights ({', '.join(_HEAD_WEIGHTS)})")


def _no_weights(name: str, files: Iterable[str]) -> str:
    """The words of the error for a model without safetensors that has files of these names."""
    if words := _other_format(files):
        return f"{name} has no safetensors weights; {words}"
    return f"{name} has no weights: model.safetensors is missing; choose a model that has them"


def _other_format(files: Iterable[str]) -> str:
    """The words for the first file in a format that is not read, with advice; "" if there is none."""
    for file in sorted(files):
        if (suffix := Path(file).suffix.lower()) in _OTHER_FORMATS and file != "training_args.bin":
            format_name, way_out = _OTHER_FORMATS[suffix]
            return f"{file!r:.80} is {format_name}: {way_out}"
    return ""


def files_with(folder: Path, name: str, tensors: Iterable[str]) -> dict[str, list[str]]:
    """The names of the weight files that hold these tensors, each with its own; other files may be missing.

    Raises SpecvizError where a file is missing, and leaves out a tensor that the model's index does not name.
    """
    single = "model.safetensors"
    tensors = list(tensors)
    index = folder / INDEX
    weight_map = _weight_map(index, name) if index.is_file() else dict.fromkeys(tensors, single)
    found: dict[str, list[str]] = {}
    for tensor in tensors:
        if tensor in weight_map:
            found.setdefault(weight_map[tensor], []).append(tensor)
    for file, names in found.items():
        if not (folder / file).is_file():
            raise SpecvizError(
                f"{name} lacks the file {file!r:.80}, which holds {', '.join(names)}: put it beside its {INDEX}"
            )
    return found


def _weight_map(index: Path, name: str) -> dict[str, str]:
    """The file of each tensor by a model's index, which is checked. Raises SpecvizError."""
    try:
        weight_map = dict(json.loads(index.read_text("utf-8"))["weight_map"])
        shards = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SpecvizError(f"{name} has a damaged {INDEX}; fetch it again") from error
    if not shards or not all(
        isinstance(shard, str) and _FILE_NAME.fullmatch(shard) for shard in shards
    ):
        raise SpecvizError(f"{name} has a damaged {INDEX}: it must name files (got {shards!r:.80})")
    if any(Path(shard).name != shard for shard in shards):
        raise SpecvizError(
            f"{name} names weight files outside its own folder, so it was not loaded"
        )
    return weight_map


def progress_bar(message: str, on_progress: Progress) -> type:
    """A tqdm class that reports a download's bytes to on_progress; if that is ignore_progress, it prints a bar."""
    from tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            # the hub counts each byte twice, when it comes and when it is written, under names of its own
            is_transfer = str(options.pop("name", "")).endswith(".transfer")
            self._counts_bytes = options.get("unit") == "B" and not is_transfer
            options |= {"disable": False, "file": io.StringIO()}
            if self._counts_bytes and on_progress is ignore_progress:
                options |= {"file": sys.stderr, "desc": message, "position": 0}
            super().__init__(*args, **options)

        def update(self, n: float | None = 1) -> bool | None:
            is_displayed = super().update(n)
            if self.total and self._counts_bytes:
                on_progress(message, min(1.0, self.n / self.total))
            return is_displayed

    return Bar


def bar(message: str) -> tqdm:
    """A bar of 100 parts on standard error."""
    from tqdm import tqdm

    shape = "{desc}: {percentage:3.0f}%|{bar}| {remaining} left"
    return tqdm(total=100, desc=message, file=sys.stderr, position=0, bar_format=shape)


def _fetch_error(name: str, error: Exception, may_download: bool) -> SpecvizError:
    from huggingface_hub import errors

    offline = (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        ConnectionError,
        TimeoutError,
    )
    if isinstance(error, errors.GatedRepoError):
        words = "its owner grants access on request: ask on its page at huggingface.co, then run `hf auth login`"
    elif isinstance(error, errors.RepositoryNotFoundError):
        words = "the hub has no such model, or it is private: check the spelling, or run `hf auth login`"
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        words = "the disk is full; delete something, for example with `hf cache rm`"
    elif not may_download:
        words = "it is not on this server, which downloads nothing; choose a bundled model"
    elif isinstance(error, offline) or type(error).__name__.startswith(
        ("Connect", "Timeout", "ReadTimeout")
    ):
        words = (
            "it is not on this machine and the hub cannot be reached; connect once and run "
            f"`hf download {name}`, or choose a bundled model"
        )
    else:
        lines = (str(error).strip() or type(error).__name__).splitlines()
        words = f"the download failed: {lines[0]}"
    return SpecvizError(f"{name} could not be fetched: {words}")
