"""RunSettings holds the settings of a run, Request also everything else that is needed to run again.

Page, command line, link, API and file header share one validation. Both hold plain values and names only, so that they
can be pickled and stored. Whether a model, method or rule of a name exists is checked elsewhere. Standard library only.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from specviz.errors import SpecvizError
from specviz.settings import settings

DEFAULT_K = 4
MAX_K = 32
MAX_TEMPERATURE = 5.0
MAX_TOP_K = 1_000_000
MAX_SEED = 2**53 - 1  # the largest integer that JavaScript and every JSON reader keep
MAX_SECONDS = 86_400.0
MAX_PROMPT_CHARACTERS = 200_000
MAX_PROMPT_IDS = 100_000
MAX_ID = 2**31 - 1
MAX_NAME = 500
MAX_PARAMS = 32
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 200
_FIELDS = {"k": "num_speculative_tokens"}
_KEYS = {name: key for key, name in _FIELDS.items()}
Own = TypeVar("Own", bound="RunSettings")
Option = bool | int | float | str
"""A value of a switch of a chat template."""
Check = Callable[[str, Any], Any]


def field_of(key: str) -> str:
    """The name in code of the field that files, links and the page call `key`."""
    return _FIELDS.get(key, key)


def one_k(k: int | None, num_speculative_tokens: int | None, default: int = DEFAULT_K) -> int:
    """The value of K, which has two names. Raises SpecvizError where these are two numbers."""
    if k is None:
        return default if num_speculative_tokens is None else num_speculative_tokens
    if num_speculative_tokens not in (None, k):
        got = f"(got k={_short(k)} and num_speculative_tokens={_short(num_speculative_tokens)})"
        raise SpecvizError(
            f"k and num_speculative_tokens are two names of one number: give one of them {got}"
        )
    return k


def _short(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # a whole number with more digits than Python prints
        return "a huge number"


def _got(value: object) -> str:
    return f"(got {_short(value)})"


def _text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str):
        raise SpecvizError(f"{name} must be a text {_got(value)}")
    if len(value) > most:
        raise SpecvizError(
            f"{name} is too long: at most {most:,} characters are allowed (got {len(value):,})"
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise SpecvizError(
            f"{name} must be valid Unicode; it holds half of a surrogate pair {_got(value)}"
        ) from None
    return value


def _name(name: str, value: object) -> str:
    text = _text(name, value, MAX_NAME)
    if not text.strip() or not text.isprintable():
        raise SpecvizError(f"{name} must be a name without control characters {_got(value)}")
    return text


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SpecvizError(f"{name} must be true or false {_got(value)}")
    return value


def check_whole(name: str, value: object, low: int, high: int) -> int:
    """The value, if it is a whole number in these bounds. Raises SpecvizError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SpecvizError(f"{name} must be a whole number from {low:,} to {high:,} {_got(value)}")
    return int(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(name: str, value: object, low: float, high: float) -> float:
    if not _is_number(value) or not low <= value <= high:  # NaN fails both comparisons
        raise SpecvizError(f"{name} must be a number from {low:g} to {high:g} {_got(value)}")
    return float(value) + 0.0  # no negative zero


def _fraction(name: str, value: object) -> float:
    if not _is_number(value) or not 0.0 < value <= 1.0:
        raise SpecvizError(f"{name} must be a number above 0 and at most 1 {_got(value)}")
    return float(value)


def _length(name: str, value: object) -> int:
    return check_whole(name, value, 1, settings().max_new_tokens)


def _time_limit(_: str, value: object) -> float | None:
    server_limit = settings().max_seconds
    if value is None:
        return server_limit
    most = MAX_SECONDS if server_limit is None else server_limit
    if not _is_number(value) or not 0.0 < value <= most:
        raise SpecvizError(
            f"time_limit_s must be a number of seconds above 0 and at most {most:g} {_got(value)}"
        )
    return float(value)


def _ids(_: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, (list, tuple)):
        raise SpecvizError(f"prompt_ids must be a list of token ids {_got(values)}")
    if not values:
        raise SpecvizError("the prompt is empty: prompt_ids must hold at least one token id")
    if len(values) > MAX_PROMPT_IDS:
        raise SpecvizError(
            f"prompt_ids is too long: at most {MAX_PROMPT_IDS:,} ids are allowed (got {len(values):,})"
        )
    return tuple([check_whole("each of prompt_ids", value, 0, MAX_ID) for value in values])


def _stops(_: str, values: object) -> tuple[str, ...]:
    texts = (values,) if isinstance(values, str) else values
    if not isinstance(texts, (list, tuple)) or len(texts) > MAX_STOPS:
        raise SpecvizError(f"stop must be at most {MAX_STOPS} texts {_got(values)}")
    for text in texts:
        if not _text("each of stop", text, MAX_STOP_CHARACTERS) or "\ufffd" in text:
            raise SpecvizError(
                f"each of stop must be a text of at least one character, without U+FFFD {_got(text)}"
            )
    return tuple(texts)


def _params(_: str, values: object) -> dict[str, Any]:
    if not isinstance(values, Mapping) or len(values) > MAX_PARAMS:
        raise SpecvizError(
            f"params must be an object of at most {MAX_PARAMS} named values {_got(values)}"
        )
    params = {}
    for name, value in values.items():
        params[_name("each name in params", name)] = _param(f"params.{name}", value)
    return params


def _param(name: str, value: object) -> bool | int | float | str | None:
    """A parameter of a method: any plain value; the method itself checks its range."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(name, value, MAX_NAME)
    if _is_number(value) and -MAX_SEED <= value <= MAX_SEED:
        return value
    raise SpecvizError(
        f"{name} must be a number of ordinary size, a text, true or false {_got(value)}"
    )


def check_chat_options(name: str, values: object) -> dict[str, Option]:
    """The switches of a chat template, such as {"enable_thinking": False}. Raises SpecvizError."""
    if not isinstance(values, Mapping) or len(values) > MAX_PARAMS:
        raise SpecvizError(
            f"{name} must be an object of at most {MAX_PARAMS} named values {_got(values)}"
        )
    options = {}
    for key, value in values.items():
        options[_option_name(name, key)] = _option(f"{name}.{key}", value)
    return options


def _option_name(name: str, key: object) -> str:
    text = _name(f"each name in {name}", key)
    if not text.isidentifier():
        raise SpecvizError(
            f"each name in {name} must be one word, such as enable_thinking {_got(key)}"
        )
    return text


def _option(name: str, value: object) -> Option:
    if value is None:
        raise SpecvizError(f"{name} must be true, false, a number or a text {_got(value)}")
    return _param(name, value)


def _optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _checked(check: Check, **default: Any) -> Any:
    """A field. check: takes its name and a value, and returns the value that is stored or raises SpecvizError."""
    return field(**default, metadata={"check": check})


_temperature = partial(_number, low=0.0, high=MAX_TEMPERATURE)
_top_k = partial(check_whole, low=0, high=MAX_TOP_K)
_min_p = partial(_number, low=0.0, high=1.0)


def has_one_law(sampling: Mapping[str, Any]) -> bool:
    """Whether all engines sample by one law at these settings. They apply several filters in different orders."""
    filters = [name for name, off in RunSettings.FILTERS.items() if sampling.get(name, off) != off]
    return sampling.get("temperature") == 0 or len(filters) < 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run: the models, how they draft and judge, how tokens are sampled."""

    FILTERS: ClassVar = MappingProxyType({"top_k": 0, "top_p": 1.0, "min_p": 0.0})
    """Each filter with the value that filters nothing; files may leave such a filter out."""
    SAMPLING: ClassVar = ("temperature", *FILTERS)
    DRAFT_SAMPLING: ClassVar = tuple(f"draft_{name}" for name in SAMPLING)
    ALL_SAMPLING: ClassVar = (*SAMPLING, *DRAFT_SAMPLING)
    NAMES: ClassVar = ("draft", "method", "rule", "target")  # of a model, a method or a rule
    target: str = _checked(_name)
    draft: str | None = _checked(_optional(_name), default=None)
    method: str = _checked(_name, default="draft_model")
    rule: str | None = _checked(_optional(_name), default=None)  # None: the method's own
    params: Mapping[str, Any] = _checked(_params, default_factory=dict, hash=False)  # the method's
    num_speculative_tokens: int = _checked(
        lambda _, value: check_whole("k", value, 1, MAX_K), default=DEFAULT_K
    )
    """The largest depth of a draft, K; "k" in files and links."""
    temperature: float = _checked(_temperature, default=1.0)  # 0 is greedy
    top_k: int = _checked(_top_k, default=FILTERS["top_k"])
    top_p: float = _checked(_fraction, default=FILTERS["top_p"])
    min_p: float = _checked(_min_p, default=FILTERS["min_p"])
    # The draft's own settings; None: as the target's.
    draft_temperature: float | None = _checked(_optional(_temperature), default=None)
    draft_top_k: int | None = _checked(_optional(_top_k), default=None)
    draft_top_p: float | None = _checked(_optional(_fraction), default=None)
    draft_min_p: float | None = _checked(_optional(_min_p), default=None)

    def validate(self: Own) -> Own:
        """An equal value with numbers as int or float.

        Raises SpecvizError that says what is wrong, what was got and what is allowed.
        """
        values = {}
        for item in fields(self):
            check = item.metadata["check"]
            values[item.name] = check(item.name, getattr(self, item.name))
        return replace(self, **values)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values, by the keys of files and links."""
        values = {}
        for item in fields(RunSettings):
            values[_KEYS.get(item.name, item.name)] = getattr(self, item.name)
        values["params"] = dict(self.params)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(RunSettings):
    """A request for one generation."""

    prompt: str = _checked(partial(_text, most=MAX_PROMPT_CHARACTERS), default="")
    prompt_ids: tuple[int, ...] | None = _checked(_optional(_ids), default=None)
    """The ids that the target reads; if they are given, `prompt` is only their text."""
    chat: bool = _checked(_boolean, default=False)
    chat_options: Mapping[str, Option] = _checked(
        check_chat_options, default_factory=dict, hash=False
    )
    """The switches of the target's chat template, by name."""
    seed: int = _checked(partial(check_whole, low=0, high=MAX_SEED), default=0)
    max_new_tokens: int = _checked(_length, default=64)
    stop: tuple[str, ...] = _checked(_stops, default=())
    """Texts that end the answer; it ends before the first that occurs."""
    time_limit_s: float | None = _checked(_time_limit, default=None)

    @property
    def settings(self) -> RunSettings:
        return RunSettings(**{item.name: getattr(self, item.name) for item in fields(RunSettings)})

    def validate(self) -> Request:
        """An equal valid value, as for RunSettings; a request without a time limit gets the server's, if any."""
        _text("prompt", self.prompt, MAX_PROMPT_CHARACTERS)
        if self.prompt_ids is None and not self.prompt:
            raise SpecvizError("the prompt is empty; type at least one word")
        if self.prompt_ids is not None and _boolean("chat", self.chat):
            raise SpecvizError(
                "chat must be false when prompt_ids are given: a chat template needs a text (got true)"
            )
        if check_chat_options("chat_options", self.chat_options) and not self.chat:
            raise SpecvizError(
                "chat must be true where chat_options are given: the chat template has them (got false)"
            )
        return RunSettings.validate(self)

    def to_dict(self) -> dict[str, Any]:
        """The request as plain JSON values; `from_dict` gives an equal request back."""
        return {
            "prompt": self.prompt,
            "prompt_ids": None if self.prompt_ids is None else list(self.prompt_ids),
            "chat": self.chat,
            "chat_options": dict(self.chat_options),
            **RunSettings.to_dict(self),
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
            "stop": list(self.stop),
            "time_limit_s": self.time_limit_s,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """A valid request from parsed JSON. Raises SpecvizError for anything that is not one."""
        if not isinstance(values, Mapping):
            raise SpecvizError(f"a request must be an object with named fields {_got(values)}")
        unknown = [key for key in values if key not in REQUEST_KEYS]
        if unknown:
            raise SpecvizError(
                f"a request has no field {_short(unknown[0])}; its fields are {', '.join(REQUEST_KEYS)}"
            )
        if "target" not in values:
            raise SpecvizError(
                "a request must name its target model in the field 'target' (got none)"
            )
        return cls(**{field_of(key): value for key, value in values.items()}).validate()


REQUEST_KEYS = tuple(Request(target="").to_dict())
"""The fields of a request in files and links."""


def read_stops(lines: Iterable[str]) -> tuple[str, ...]:
    r"""Reads stop texts that were typed, one a line; \n is a line break and \t a tab. Empty lines do not count."""
    return tuple(line.replace("\\n", "\n").replace("\\t", "\t") for line in lines if line)


def spell_stops(stops: Iterable[str]) -> str:
    """Spells stop texts as the lines that `read_stops` reads."""
    return "\n".join(stop.replace("\n", "\\n").replace("\t", "\\t") for stop in stops)


def read_options(lines: Iterable[str]) -> dict[str, Option]:
    """Reads switches of a chat template that were typed, each as NAME=VALUE.

    VALUE is true, false, a number, or a text with or without the double quotes of JSON. Empty lines do not count.
    Raises SpecvizError.
    """
    options: dict[str, Option] = {}
    for line in filter(str.strip, lines):
        name, equals, value = map(str.strip, line.partition("="))
        if not equals or not name or name in options:
            raise SpecvizError(
                f"each chat option must be NAME=VALUE, and each name be given once {_got(line)}"
            )
        options[name] = _read_option(value)
    return check_chat_options("chat_options", options)


def _read_option(text: str) -> Option:
    """Reads a value; Python's True and False count as JSON's."""
    try:
        value = json.loads({"True": "true", "False": "false"}.get(text, text))
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, (bool, int, float, str)) else text


def spell_options(options: Mapping[str, Option]) -> list[str]:
    """Spells switches as the lines that `read_options` reads."""
    return [f"{name}={_spell_option(value)}" for name, value in options.items()]


def _spell_option(value: Option) -> str:
    if isinstance(value, str) and value.isprintable() and _read_option(value.strip()) == value:
        return value
    return json.dumps(value)
