"""A link to a run: its request, what is selected in it and a short hash of its text, as letters for an address.

`decode` takes letters from anywhere: they are bounded before and after unpacking, and whatever is not a link is one
SpecvizError. A link carries the prompt as text and models by public names, never a folder's path. Standard library.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from urllib.parse import unquote

from specviz.errors import SpecvizError
from specviz.request import Request

VERSION = 1
MAX_CHARACTERS = 12_000
"""Of an encoded link; programs that pass addresses on cut longer ones."""
MAX_BYTES = 1 << 20
MOST_COUNTED = 1_000_000
_LETTERS = re.compile(r"[A-Za-z0-9_-]+")
_BEHIND = re.compile(r"[^A-Za-z0-9_-]+\Z")
_REF = re.compile(r"[a-z0-9]{1,12}")
_DIGEST = re.compile(r"[0-9a-f]{12}")
_PUBLIC = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_DEFAULTS = Request(target="").to_dict()
_PARTS = {"version", "request", "selection", "mark", "num_tokens", "digest", "goes_on"}
_NOT_WHOLE = "it is not whole; copy it again"


@dataclass(frozen=True, slots=True)
class Link:
    """selection: the step and the place in it; mark: how many tokens stand before that step, and the id of the place's
    own; num_tokens, digest: of the text's first tokens, as far as it is told; goes_on: whether more followed that was
    made with other settings."""

    request: Request
    selection: tuple[int, str] | None = None
    num_tokens: int = 0
    digest: str = ""
    mark: tuple[int, int] | None = None
    goes_on: bool = False


def digest(ids: Iterable[int]) -> str:
    """A short hash of a text's token ids, the same on every machine."""
    return hashlib.blake2b(",".join(map(str, ids)).encode(), digest_size=6).hexdigest()


def encode(link: Link) -> str:
    """The link as letters that an address may hold. Raises SpecvizError for what no link can carry."""
    _refuse_private(link.request)
    fields = replace(link.request, time_limit_s=None).to_dict()
    told: dict[str, Any] = {
        "version": VERSION,
        "request": {name: value for name, value in fields.items() if value != _DEFAULTS[name]},
        "num_tokens": link.num_tokens,
        "digest": link.digest,
    }
    if _selection(link.selection and list(link.selection)):
        told["selection"] = link.selection
    if link.selection and _mark(link.mark and list(link.mark)):
        told["mark"] = link.mark
    if link.goes_on:
        told["goes_on"] = True
    packed = zlib.compress(json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode(), 9)
    text = base64.urlsafe_b64encode(packed).decode().rstrip("=")
    if len(text) > MAX_CHARACTERS:
        raise SpecvizError(
            f"a link must have at most {MAX_CHARACTERS:,} characters, and the prompt takes more (got {len(text):,})"
        )
    return text


def decode(text: object) -> Link:
    """The link that these letters spell, its request checked, without what a program that passed it on has put behind
    it. Raises SpecvizError for anything else."""
    told = _parsed(_unpacked(_letters(text)))
    if told.get("version") != VERSION:
        raise SpecvizError(f"it must be of version {VERSION} (got {told.get('version')!r:.40})")
    if unknown := sorted(set(told) - _PARTS):
        raise SpecvizError(f"it holds something that is no part of a link (got {unknown[0]!r:.40})")
    fields = told.get("request")
    if not isinstance(fields, Mapping):
        raise SpecvizError("it holds no request")
    request = replace(Request.from_dict({**fields, "time_limit_s": None}), time_limit_s=None)
    _refuse_private(request)
    selection, goes_on = _selection(told.get("selection")), told.get("goes_on") is True
    text = _told_of(told.get("num_tokens"), told.get("digest"))
    return Link(request, selection, *text, selection and _mark(told.get("mark")), goes_on)


def _letters(text: object) -> str:
    """The letters of a link as they were written: some programs spell "-" as "%2D", or add a dot, a bracket, a line."""
    if not isinstance(text, str):
        raise SpecvizError(f"it must have at most {MAX_CHARACTERS:,} characters (got none)")
    if len(text) > 3 * MAX_CHARACTERS:
        raise SpecvizError(f"it must have at most {MAX_CHARACTERS:,} characters (got {len(text):,})")
    letters = _BEHIND.sub("", unquote(text).lstrip())
    if len(letters) > MAX_CHARACTERS:
        raise SpecvizError(f"it must have at most {MAX_CHARACTERS:,} characters (got {len(letters):,})")
    return letters


def _unpacked(text: str) -> bytes:
    if not _LETTERS.fullmatch(text) or len(text) % 4 == 1:
        raise SpecvizError(_NOT_WHOLE)
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), MAX_BYTES + 1)
    except zlib.error:
        raise SpecvizError(_NOT_WHOLE) from None
    if len(content) > MAX_BYTES:
        raise SpecvizError(f"it must unpack to at most {MAX_BYTES:,} bytes (got more)")
    if not unpacking.eof or unpacking.unused_data:
        raise SpecvizError(_NOT_WHOLE)
    return content


def _parsed(content: bytes) -> Mapping[str, Any]:
    try:
        told = json.loads(content.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise SpecvizError(_NOT_WHOLE) from None
    if not isinstance(told, dict):
        raise SpecvizError(_NOT_WHOLE)
    return told


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _selection(told: object) -> tuple[int, str] | None:
    if told is None:
        return None
    step, ref = told if isinstance(told, list) and len(told) == 2 else (None, None)
    if not _is_count(step) or not isinstance(ref, str) or not _REF.fullmatch(ref):
        raise SpecvizError(f"what it selects must be a step and a place in it (got {told!r:.60})")
    return step, ref


def _mark(told: object) -> tuple[int, int] | None:
    if told is None:
        return None
    before, token = told if isinstance(told, list) and len(told) == 2 else (None, None)
    if not _is_count(before) or not _is_count(token):
        raise SpecvizError(f"what it says of the selected token must be two counts (got {told!r:.60})")
    return before, token


def _told_of(num_tokens: object, text: object) -> tuple[int, str]:
    is_none = num_tokens == 0 and text == ""
    if not _is_count(num_tokens) or not isinstance(text, str) or not (is_none or _DIGEST.fullmatch(text)):
        raise SpecvizError(f"what it says of the text must be a number of tokens and a hash (got {num_tokens!r:.40})")
    return num_tokens, text


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_COUNTED


def _refuse_private(request: Request) -> None:
    """Raises SpecvizError for what no other machine can have: ids in place of a text, a folder."""
    if request.prompt_ids is not None:
        raise SpecvizError("a link carries the prompt as text; this one is given as token ids")
    named = [name for value in request.params.values() if isinstance(value, str) for name in value.split(",")]
    models = [name for name in (request.target, request.draft) if name is not None]
    for name in [*models, *map(str.strip, named)]:
        if not _PUBLIC.fullmatch(name):
            raise SpecvizError(f"a model must have a public name, such as owner/name (got {name!r:.100})")
