"""The code of the compiled forward (`decoding/forward/quick.cpp`), built once for this processor by its C++ compiler.

That is done in the background, and the library stays in the cache folder. It is never needed: where there is no
compiler, or anything fails, torch does the work, and `Build.found` says why.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import threading
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from specviz import decoding
from specviz.decoding.forward.compiled import Compiled
from specviz.settings import cache_dir

SOURCE = Path(decoding.__file__).with_name("forward") / "quick.cpp"
LONGEST_S = 120
"""The time that the compiler may take; it takes about two seconds."""
_CPU_INFO = Path("/proc/cpuinfo")
_CPU_FACTS = re.compile(r"^(?:model name|flags|Features|CPU \w+)\s*:.*$", re.MULTILINE)


class Build:
    """The library for this processor, in a folder, where it is built if it is not there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / library_name()
        self.found: tuple[Compiled | None, str] = (None, "it is being built")
        """The loaded library; or None, and the reason in words."""
        self._work = threading.Thread(target=self._make)
        if os.path.exists(self._path):  # False as well where the folder may not be read
            self.found = self._load()
        else:
            self._work.start()

    def wait(self) -> None:
        """Waits until the library is built."""
        if self._work.is_alive():
            self._work.join()

    def _make(self) -> None:
        compiler = shutil.which("c++")
        if compiler is None:
            self.found = (None, "no C++ compiler was found")
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self._path.parent) as aside:
                built = Path(aside) / self._path.name
                command = (compiler, *_flags(), str(SOURCE), "-o", str(built))
                subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_S)
                with built.open("rb") as library:
                    os.fsync(library.fileno())  # half a library would end the program that loads it
                built.chmod(0o755)
                built.replace(self._path)
        except subprocess.CalledProcessError as error:
            words = error.stderr.decode(errors="replace")
            self.found = (None, self._reason("the C++ compiler failed", words))
        except subprocess.TimeoutExpired:
            self.found = (None, f"the C++ compiler took more than {LONGEST_S} seconds")
        except OSError as error:
            self.found = (None, self._reason("it could not be built", error))
        else:
            self.found = self._load()

    def _load(self) -> tuple[Compiled | None, str]:
        try:
            if os.name == "posix" and not _is_ours_alone(self._path):
                return None, f"others can write to {self._path.name}"
            return Compiled(str(self._path)), ""
        except (OSError, AttributeError) as error:
            return None, self._reason("it could not be loaded", error)

    def _reason(self, failure: str, cause: Exception | str) -> str:
        """A reason in words. A trace shows it to others: it does not say in which folders this person works."""
        words = getattr(cause, "strerror", None) or str(cause)
        for folder in (self._path.parent, SOURCE.parent):
            words = words.replace(f"{folder}{os.sep}", "")
        return f"{failure}: {words.strip()[:200]}"


def build() -> Build:
    """The build in the cache folder; the first call begins it."""
    return _build(cache_dir())


@cache
def _build(folder: Path) -> Build:
    return Build(folder)


def _is_ours_alone(path: Path) -> bool:
    """Whether nobody but this user could have put the file's content there."""
    facts = path.stat()
    return facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def _flags() -> tuple[str, ...]:
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    for_this_processor = "-march=native" if is_x86 else "-mcpu=native"
    # The functions of OpenMP are found where torch has loaded them.
    link = ("-undefined", "dynamic_lookup") if platform.system() == "Darwin" else ()
    return ("-std=c++17", "-O3", "-w", "-shared", "-fPIC", for_this_processor, *link)


def library_name() -> str:
    """The name of the library: of its source, how it is built, and the processor that it is built for."""
    processor = [platform.machine(), platform.processor()]
    if _CPU_INFO.exists():
        first = _CPU_INFO.read_text("utf-8").partition("\n\n")[0]
        processor += _CPU_FACTS.findall(first)
    known = repr((SOURCE.read_bytes(), _flags(), processor))
    return f"quick-{hashlib.sha256(known.encode()).hexdigest()[:24]}.so"
