"""A link to a run as letters for an address: its request, the selected place and a short hash of its text.

`decode` reads untrusted letters: their number is bounded before and after unpacking, and every fault is a SpecvizError.
A link carries the prompt as text and models by public names, never a folder's path.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any
from urllib.parse import unquote

from msgspec import Meta

from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.trace.values import convert, require

VERSION = 1
MAX_CHARACTERS = 12_000
"""The most letters of an encoded link; programs that pass addresses on may shorten longer ones."""
MAX_BYTES = 1 << 20
MOST_COUNTED = 1_000_000
_LETTERS = re.compile(r"[A-Za-z0-9_-]+")
_BEHIND = re.compile(r"[^A-Za-z0-9_-]+\Z")
_PUBLIC = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_DEFAULTS = Request(target="").to_dict()
_MAY_LACK = ("selection", "mark", "goes_on")  # where they have their defaults
_NOT_WHOLE = "it is not whole; copy it again"

_Count = Annotated[int, Meta(ge=0, le=MOST_COUNTED)]
_Ref = Annotated[str, Meta(pattern=r"^[a-z0-9]{1,12}$(?!\n)")]
_TEXT = Meta(title="a number of tokens and a hash")


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a run and to a place in it."""

    request: Request
    selection: Annotated[tuple[_Count, _Ref] | None, Meta(title="a step and a place in it")] = None
    num_tokens: Annotated[_Count, _TEXT] = (
        0  # the first tokens of the text, which the digest covers
    )
    digest: Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{12})?$(?!\n)"), _TEXT] = ""
    mark: Annotated[tuple[_Count, _Count] | None, Meta(title="two counts")] = None
    """The number of tokens before the selected step, and the selected token's id."""
    goes_on: bool = False  # more text followed under other settings


def digest(ids: Iterable[int]) -> str:
    """A short hash of a text's token ids, the same on every machine."""
    return hashlib.blake2b(",".join(map(str, ids)).encode(), digest_size=6).hexdigest()


def encode(link: Link) -> str:
    """The link as letters that an address may hold. Raises SpecvizError for what no link can carry."""
    _refuse_private(link.request)
    knobs = replace(link.request, time_limit_s=None).to_dict()
    request = {name: value for name, value in knobs.items() if value != _DEFAULTS[name]}
    link = _check({item.name: getattr(link, item.name) for item in fields(link)})
    values = {
        "version": VERSION,
        "request": request,
        "num_tokens": link.num_tokens,
        "digest": link.digest,
    }
    for name in _MAY_LACK:
        value = getattr(link, name)
        if value:
            values[name] = value
    plain = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    packed = zlib.compress(plain.encode(), 9)
    text = base64.urlsafe_b64encode(packed).decode().rstrip("=")
    if len(text) > MAX_CHARACTERS:
        raise SpecvizError(
            f"a link must have at most {MAX_CHARACTERS:,} characters, and the prompt takes more (got {len(text):,})"
        )
    return text


def decode(text: object) -> Link:
    """Decodes the link in these letters and checks its request; signs that other programs put after it are dropped.

    Raises SpecvizError for anything else.
    """
    values = _unpack(_letters(text))
    version = values.get("version")
    if type(version) is not int or version != VERSION:
        raise SpecvizError(f"it must be of version {VERSION} (got {version!r:.40})")
    if unknown := sorted(values.keys() - {"version", *Link.__dataclass_fields__}):
        raise SpecvizError(
            f"it holds something that does not belong in a link (got {unknown[0]!r:.40})"
        )
    if not isinstance(values.get("request"), Mapping):
        raise SpecvizError("it holds no request")
    request = Request.from_dict({**values["request"], "time_limit_s": None})
    request = replace(request, time_limit_s=None)
    _refuse_private(request)
    for name in ("num_tokens", "digest"):
        if name not in values:
            raise SpecvizError(f"it lacks the field {name!r}")
    return _check({**values, "request": request})


def _check(values: Mapping[str, Any]) -> Link:
    """Checks the fields and makes a link of them; a mark without a place is left out."""
    link = convert(values, Link)
    has_digest = link.digest or not link.num_tokens
    require(has_digest, "digest", "must stand beside a number of tokens (got none)")
    return link if link.selection else replace(link, mark=None)


def _letters(text: object) -> str:
    """The letters as `encode` wrote them: some programs spell "-" as "%2D", or add a dot, a bracket or a line end."""
    if not isinstance(text, str):
        raise SpecvizError(f"it must have at most {MAX_CHARACTERS:,} characters (got none)")
    letters = text
    if len(text) <= 3 * MAX_CHARACTERS:
        letters = _BEHIND.sub("", unquote(text).lstrip())
    if len(letters) > MAX_CHARACTERS:
        raise SpecvizError(
            f"it must have at most {MAX_CHARACTERS:,} characters (got {len(letters):,})"
        )
    return letters


def _unpack(text: str) -> dict[str, Any]:
    """The JSON object in these letters."""
    if not _LETTERS.fullmatch(text) or len(text) % 4 == 1:
        raise SpecvizError(_NOT_WHOLE)
    unpacking = zlib.decompressobj()
    values = None
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        content = unpacking.decompress(packed, MAX_BYTES + 1)
        if unpacking.eof and not unpacking.unused_data:
            values = json.loads(content.decode(), parse_constant=int)  # int("NaN") is a ValueError
    except (ValueError, RecursionError, zlib.error):
        raise SpecvizError(_NOT_WHOLE) from None
    if len(content) > MAX_BYTES:
        raise SpecvizError(f"it must unpack to at most {MAX_BYTES:,} bytes (got more)")
    if not isinstance(values, dict):
        raise SpecvizError(_NOT_WHOLE)
    return values


def _refuse_private(request: Request) -> None:
    """Raises SpecvizError for what no other machine can have: ids in place of a text, a folder."""
    if request.prompt_ids is not None:
        raise SpecvizError("a link carries the prompt as text; this one is given as token ids")
    names = [request.target]
    if request.draft is not None:
        names.append(request.draft)
    for value in request.params.values():
        if isinstance(value, str):
            names += [name.strip() for name in value.split(",")]
    for name in names:
        if not _PUBLIC.fullmatch(name):
            raise SpecvizError(
                f"a model must have a public name, such as owner/name (got {name!r:.100})"
            )
