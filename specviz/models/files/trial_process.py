"""python -m specviz.models.files.trial_process: tries the folders whose names it reads, each in a child with limits.

Needs no torch, which would take most of the time and of the addresses: tokenizers and configurations work without. It
reads lines of JSON, [number, folder], and writes [number, "step", words] before each step, then [number, "end", what
ended it], which is "" for a folder that passed.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

Result = TypeVar("Result")

MOST_CPU_S, MOST_S, MOST_MEMORY_GB = 10, 40, 4
"""The CPU time of each step, the time of all of them, and the addresses of the child."""
MOST_TOKENS = 100
"""Per character of a probe; a tokenizer of bytes gives up to 4."""
LENGTH = 2_000
_MIXED = (
    "«Où est-il?» 12,345 times;\n\tif x != y: return 'Ærø' "
    "\U0001f98a 你好 مرحبا हिन्दी a\u0301\u200d\ufeff The fox. "
)
PROBES = (
    *(
        (letters * LENGTH)[:LENGTH]
        for letters in ("a", " ", "7", "\n", "!", "ab", "a ", "é", "你", _MIXED)
    ),
    "a" * (LENGTH - 1) + "!",
    "x" * (LENGTH - 1) + "y",
)
"""Long runs of one kind and of a pair, with and without another end: what makes regular expressions try again."""
_QUESTION, _ANSWER = (
    {"role": "user", "content": "What is two and two?"},
    {"role": "assistant", "content": "Four."},
)
CONVERSATIONS = {
    "a question": (_QUESTION,),
    "a conversation of 4 messages": (
        {"role": "system", "content": "Answer briefly."},
        _QUESTION,
        _ANSWER,
        _QUESTION,
    ),
}
_OWN_FILES = {"local_files_only": True, "trust_remote_code": False}
_IDLE_S = 120
_SHOWN = 12  # characters of a probe
_ENDED = b"="  # before the answer of a child that came to its end
_NO_MEMORY = (b"memory allocation of", b"bad_alloc")  # of Rust and C++, which end the process


def main() -> None:
    sys.modules["torch"] = None  # to transformers, it is not installed
    _import()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever the libraries print

    while True:
        if hasattr(signal, "alarm"):
            signal.alarm(_IDLE_S)
        if not (line := sys.stdin.readline()):
            return
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        number, folder = json.loads(line)

        def say(kind: str, words: str, number: int = number) -> None:
            out.write(json.dumps([number, kind, words]) + "\n")

        say("end", _try_in_child(Path(folder), say))


def _import() -> None:
    """Everything that a child needs."""
    import jinja2.meta
    import jinja2.sandbox  # noqa: F401
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast  # noqa: F401

    from specviz.models import chat, tokens  # noqa: F401


def _try_in_child(folder: Path, say: Callable[[str, str], None]) -> str:
    """What ended the trial of a folder: the name of a signal, "memory", other words, or ""."""
    if not hasattr(os, "fork"):
        return _try(folder, say)
    with TemporaryFile() as errors:
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            try:
                os.dup2(errors.fileno(), 2)
                _limit()
                os.write(writing, _ENDED + _try(folder, say).encode()[:4_000])
            finally:
                os._exit(0)
        os.close(writing)
        status = os.waitpid(child, 0)[1]
        with os.fdopen(reading, "rb") as told:
            answer = told.read()
        errors.seek(0)
        said = errors.read(1 << 20)
    if os.WIFSIGNALED(status):
        return (
            "memory"
            if any(each in said for each in _NO_MEMORY)
            else signal.Signals(os.WTERMSIG(status)).name
        )
    return (
        answer.removeprefix(_ENDED).decode("utf-8", "replace")
        if answer
        else "ends the process that tries it"
    )


def _limit() -> None:
    """The limits of this process; the CPU's is set anew before each step."""
    import resource

    signal.alarm(MOST_S)
    _set_limit(resource.RLIMIT_AS, MOST_MEMORY_GB << 30)
    _set_limit(resource.RLIMIT_FSIZE, 1 << 20)
    _set_limit(resource.RLIMIT_CORE, 0)


def _limit_cpu() -> None:
    try:
        import resource
    except ImportError:  # Windows, where whoever waits ends this process
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + MOST_CPU_S)


def _set_limit(kind: int, most: int) -> None:
    import resource

    hard = resource.getrlimit(kind)[1]
    with suppress(ValueError, OSError):  # macOS bounds no addresses
        resource.setrlimit(
            kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
        )


def _try(folder: Path, say: Callable[[str, str], None]) -> str:
    """Empty where every step ends, with an ordinary error too: reading the model raises it again, in words."""
    from specviz.models.tokens import PanicError

    try:
        for words in _steps(folder):
            say("step", words)
            _limit_cpu()
    except (_RefusedError, PanicError) as error:
        return f"fails: {error}"
    except Exception as error:
        return "memory" if _is_of_memory(error) else ""
    return ""


class _RefusedError(Exception):
    """A step that ended, with more than it may give."""


def _steps(folder: Path) -> Iterator[str]:
    """What reading a model does to its small files; says each step before it."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from specviz.models.chat import chat_switches, has_chat_form, render_chat
    from specviz.models.tokens import TokenText, check_tokenizer, no_panic

    yield "reading its config.json"
    _attempt(lambda: AutoConfig.from_pretrained(folder, **_OWN_FILES))
    if (folder / "generation_config.json").is_file():
        yield "reading its generation_config.json"
        _attempt(lambda: GenerationConfig.from_pretrained(folder, local_files_only=True))
    yield "reading its tokenizer"
    check_tokenizer(folder / "tokenizer.json", folder.name)
    with no_panic():
        tokenizer = AutoTokenizer.from_pretrained(folder, **_OWN_FILES)
    yield "listing its tokenizer's tokens"
    text = TokenText(tokenizer)
    for token in tokenizer.get_vocab().values():
        text.bytes_of(token)
    for probe in PROBES:
        yield f"splitting {len(probe):,} characters ({probe[:_SHOWN]!r}...) with its tokenizer"
        ids = _attempt(lambda probe=probe: text.encode(probe)) or []
        if len(ids) > MOST_TOKENS * len(probe):
            raise _RefusedError(
                f"they become {len(ids):,} tokens, more than {MOST_TOKENS} for each"
            )
        with no_panic():
            _attempt(lambda ids=ids: tokenizer.decode(ids))
    if has_chat_form(tokenizer):
        yield "reading its chat template"
        _attempt(lambda: chat_switches(tokenizer))
        for name, messages in CONVERSATIONS.items():
            yield f"rendering {name} with its chat template"
            _attempt(lambda messages=messages: render_chat(tokenizer, messages))


def _attempt(action: Callable[[], Result]) -> Result | None:
    """Its result; None where it fails in an ordinary way."""
    from specviz.models.tokens import PanicError

    try:
        return action()
    except PanicError:
        raise
    except Exception as error:
        if _is_of_memory(error):
            raise
        return None


def _is_of_memory(error: BaseException | None) -> bool:
    """Whether memory was lacking, though a library made another error of it."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
