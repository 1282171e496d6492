"""python -m specviz.models.files.trial_process tries model folders, each in a child process with limits.

It needs no torch, which would take most of the time and memory: tokenizers and configurations work without it. It reads
lines of JSON, [number, folder]. It writes [number, "step", words] before each step, then [number, "end", cause]; the
cause is "" for a folder that passed.
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

MOST_CPU_S = 10  # of a step
MOST_S = 40  # of all steps
MOST_MEMORY_GB = 4  # of the child's addresses
MOST_TOKENS = 100
"""The most tokens per character of a probe; a tokenizer of bytes gives up to 4."""
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
"""Long runs of one kind and of a pair, with and without another end: they make regular expressions try again."""
_QUESTION = {"role": "user", "content": "What is two and two?"}
_ANSWER = {"role": "assistant", "content": "Four."}
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
    """Imports everything that a child needs."""
    import jinja2.meta
    import jinja2.sandbox  # noqa: F401
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast  # noqa: F401

    from specviz.models import chat, tokens  # noqa: F401


def _try_in_child(folder: Path, say: Callable[[str, str], None]) -> str:
    """Tries a folder; returns the cause of its end: the name of a signal, "memory", other words, or ""."""
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
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        errors.seek(0)
        error_text = errors.read(1 << 20)
    if os.WIFSIGNALED(status):
        if any(words in error_text for words in _NO_MEMORY):
            return "memory"
        return signal.Signals(os.WTERMSIG(status)).name
    if not answer:
        return "ends the process that tries it"
    return answer.removeprefix(_ENDED).decode("utf-8", "replace")


def _limit() -> None:
    """Sets the limits of this process. The CPU limit is set again before each step."""
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

    _, hard = resource.getrlimit(kind)
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(ValueError, OSError):  # macOS bounds no addresses
        resource.setrlimit(kind, (soft, hard))


def _try(folder: Path, say: Callable[[str, str], None]) -> str:
    """Runs every step; returns the cause of an early end, or "".

    An ordinary error is no such cause: reading the model raises it again, in words.
    """
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
    """An error for a step that ended with a larger result than it may give."""


def _steps(folder: Path) -> Iterator[str]:
    """Reads a model's small files as loading does; yields the words for each step before it."""
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
    """Runs the action; returns its result, or None if it fails in an ordinary way."""
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
    """Whether an error means that memory was lacking, though a library made another error of it."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
