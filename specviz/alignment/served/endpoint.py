"""A server of one model: vLLM's or SGLang's, asked for tokens, for texts and for the log-probabilities of a text.

Servers are not trusted: their answers are bounded and checked. Only the host that was named is asked, and its key goes
nowhere else. A server that cannot be used is a ServerError, which names its host; a question that it refuses is a
SpecvizError without the host, as such words are stored.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from specviz.alignment.served.dialects import DIALECTS, ENDED, LENGTH, Dialect, TokenId
from specviz.alignment.served.top_rows import TopRows, Untrue
from specviz.alignment.types import ModelIdentity
from specviz.errors import SpecvizError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from specviz.decoding.sampling import Sampling

SERVED = "served"
"""The number format of a model whose weights are elsewhere."""
TARGETS = "the target's server"
DRAFTS = "the draft's server"
KEYS = {TARGETS: "SPECVIZ_TARGET_KEY", DRAFTS: "SPECVIZ_DRAFT_KEY"}
"""Whose server it is -> the environment variable with its key."""
CONNECT_S = 10.0
WAITS_S = (1.0, 4.0)
"""How long to wait before another try."""
MOST_WAIT_S = 30.0  # that a server may ask for
TRY_AGAIN = (429, 500, 502, 503, 504)  # HTTP's codes for what passes
REFUSED = (400, 413, 422)  # for a question that is refused
MOST_BYTES = 512 << 20  # of one answer
MOST_SHOWN = 200  # characters of a server's own words, and of a model's name
FEWEST_TOKENS = 4  # that a model reads: a prompt, a text and one more


class ServerError(SpecvizError):
    """A server that cannot be used, whatever it is asked."""


class Card(msgspec.Struct):
    """What a server says of a model of its own."""

    id: str
    owned_by: str | None = None
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class Cards(msgspec.Struct):
    data: list[Card]


class Tokens(msgspec.Struct):
    tokens: list[TokenId]


class Endpoint:
    """A model behind an address."""

    def __init__(self, url: str, who: str, timeout_s: float) -> None:
        """Asks the server which model it has. who: one of KEYS. timeout_s: for a whole answer."""
        self.url, wanted = _split(url)
        self.who = who
        self._key = _read_key(KEYS[who])
        self._timeout_s = timeout_s
        self._client = _client(self._key, timeout_s)
        try:
            card = self._find_card(wanted)
            self.dialect = self._find_dialect(card)
        except BaseException:
            self.close()
            raise
        self.model = card.id
        self.context_limit = card.max_model_len
        self._facts = (card.id, card.root, card.max_model_len)

    def __str__(self) -> str:
        return f"{self.who} at {urlsplit(self.url).netloc}"

    def close(self) -> None:
        self._client.close()

    def identity(self, name: str, wanted: str) -> ModelIdentity:
        """The model as a job knows it. Its hash is of what the server says of it, as its weights are not here."""
        content = hashlib.sha256(repr(self._facts).encode()).hexdigest()[:16]
        return ModelIdentity(name, content, 0, SERVED, wanted)

    # ---- what a model is asked ---------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """The ids of a text. special: whether it gets the tokens that begin a text."""
        return self._tokens({"prompt": text, "add_special_tokens": special})

    def tokenize_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]],
    ) -> tuple[int, ...]:
        """The ids of messages in the model's chat form, up to where its answer begins."""
        asked: dict[str, Any] = {
            "messages": list(messages),
            "add_special_tokens": False,
            "chat_template_kwargs": dict(options),
        }
        if tools:
            asked["tools"] = list(tools)
        return self._tokens(asked)

    def _tokens(self, asked: Mapping[str, Any]) -> tuple[int, ...]:
        with self._explain_shape("/tokenize"):
            return tuple(msgspec.json.decode(self._ask("/tokenize", asked), type=Tokens).tokens)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        asked = {"tokens": list(ids), "skip_special_tokens": False}
        with self._explain_shape("/detokenize"):
            return self.dialect.read_text(self._ask("/detokenize", asked))

    def write(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, max_new_tokens: int
    ) -> tuple[tuple[int, ...], bool]:
        """The ids that the model writes behind the prompt, and whether it ended the text itself."""
        path = self.dialect.path
        asked = self.dialect.ask_text(prompt, sampling, seed, max_new_tokens)
        with self._explain_shape(path):
            ids, reason = self.dialect.read_answer(self._ask(path, asked))
            if len(ids) > max_new_tokens:
                raise Untrue(
                    f"it holds {len(ids):,} tokens where at most {max_new_tokens:,} were asked"
                )
        if reason not in (ENDED, LENGTH):
            raise SpecvizError(f"{self.who} broke the text off ({reason!r:.40})")
        return ids, reason == ENDED

    def read(self, prompt: Sequence[int], ids: Sequence[int], num_top: int) -> TopRows:
        """The log-probabilities of each id behind the prompt, and of the num_top likeliest tokens there."""
        path = self.dialect.path
        tokens = [*prompt, *ids]
        begin = len(prompt)
        asked = self.dialect.ask_rows(tokens, begin, num_top)
        with self._explain_shape(path):
            rows = self.dialect.read_rows(self._ask(path, asked), tokens, begin, num_top)
            rows.check(num_top)
        return rows

    # ---- which model it is -------------------------------------------------------------------------------------------

    def _find_card(self, wanted: str) -> Card:
        """The model of this name; without a name the only one, adapters left out."""
        with self._explain_shape("/v1/models"):
            cards = msgspec.json.decode(self._send("GET", "/v1/models"), type=Cards).data
            for card in cards:
                _check_card(card)
        names = [card.id for card in cards]
        own = [card for card in cards if card.id == wanted or (not wanted and not card.parent)]
        if len(own) != 1:
            words = f"has no model {wanted!r:.100}" if wanted else f"has {len(own)} models"
            raise ServerError(
                f"{self} {words}: name one behind the address, such as {self.url}#MODEL (it has: "
                f"{', '.join(names)[:MOST_SHOWN] or 'none'})"
            )
        return own[0]

    def _find_dialect(self, card: Card) -> Dialect:
        owner = (card.owned_by or "").lower()
        if owner.startswith("llamacpp"):
            raise ServerError(
                f"{self} is llama.cpp's, which gives no log-probabilities of a prompt: name its .gguf file as the "
                "model instead"
            )
        return DIALECTS["sglang" if owner == "sglang" else "vllm"]()

    # ---- HTTP --------------------------------------------------------------------------------------------------------

    def _ask(self, path: str, asked: Mapping[str, Any]) -> bytes:
        return self._send("POST", path, {"model": self.model, **asked})

    def _send(self, method: str, path: str, asked: Mapping[str, Any] | None = None) -> bytes:
        """The answer to a request; one that may pass is tried again."""
        import httpx

        for wait_s in (*WAITS_S, None):
            try:
                answer, content = self._send_once(method, path, asked)
            except httpx.TimeoutException as error:
                problem = f"did not answer within {self._timeout_s:g} s"
                cause: Exception | None = error
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
                problem = f"cannot be reached ({self._clean(str(error)) or type(error).__name__})"
                cause = error
            else:
                if answer.status_code == 200:
                    return content
                if answer.status_code not in TRY_AGAIN:
                    raise self._refusal(path, answer, content)
                problem = f"answered {answer.status_code} ({self._own_words(content)})"
                cause = None
                if wait_s is not None:
                    wait_s = _wait_asked_for(answer) or wait_s
            if wait_s is not None:
                time.sleep(wait_s)
        raise ServerError(f"{self} {problem}, {len(WAITS_S) + 1} times in a row") from cause

    def _send_once(
        self, method: str, path: str, asked: Mapping[str, Any] | None
    ) -> tuple[httpx.Response, bytes]:
        import httpx

        deadline = time.monotonic() + self._timeout_s
        with self._client.stream(method, f"{self.url}{path}", json=asked) as answer:
            content = bytearray()
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    raise ServerError(f"{self} answered more than {MOST_BYTES >> 20:,} MB")
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer came too slowly")
        return answer, bytes(content)

    # ---- what goes wrong ---------------------------------------------------------------------------------------------

    def _refusal(self, path: str, answer: httpx.Response, content: bytes) -> SpecvizError:
        """What the server refused, in words."""
        code = answer.status_code
        if code in (401, 403):
            words = "does not take the key in" if self._key else "asks for a key: put it into"
            return ServerError(f"{self} {words} {KEYS[self.who]}")
        if answer.is_redirect:
            where = urlsplit(answer.headers.get("location", "")).netloc or "another place"
            return ServerError(
                f"{self} sends on to {self._clean(where)}, which is not followed: name that address"
            )
        own_words = self._own_words(content)
        if code in REFUSED:
            hint = ""
            if "logprobs" in own_words:
                hint = "; ask for fewer with --logprobs, or start it with a larger --max-logprobs"
            return SpecvizError(f"{self.who} refuses {path} with {code} ({own_words}){hint}")
        hint = ""
        if code == 404:
            hint = (
                "; name the address alone, of a server that vLLM or SGLang started; for llama.cpp, name the .gguf file "
                "instead"
            )
        return ServerError(f"{self} refuses {path} with {code} ({own_words}){hint}")

    def _clean(self, words: str) -> str:
        """What a stranger says, on one line, short and without the key."""
        if self._key:
            words = words.replace(self._key, "***")
        return " ".join(words.split())[:MOST_SHOWN]

    def _own_words(self, content: bytes) -> str:
        """What the server says of its error."""
        try:
            values = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            values = content.decode("utf-8", "replace")
        for name in ("error", "message", "detail"):
            if isinstance(values, dict) and name in values:
                values = values[name]
        return self._clean(str(values)) or "no words"

    @contextmanager
    def _explain_shape(self, path: str) -> Iterator[None]:
        """Says whose answer it was that could not be read."""
        try:
            yield
        except (msgspec.DecodeError, RecursionError, Untrue) as error:
            words = "it is not JSON as these servers write it"
            if isinstance(error, (msgspec.ValidationError, Untrue)):
                words = self._clean(str(error))
            raise ServerError(f"the answer of {self} to {path} cannot be used: {words}") from error


def _check_card(card: Card) -> None:
    """Raises Untrue for a model whose name cannot be shown, or that reads nothing."""
    if not 0 < len(card.id) <= MOST_SHOWN or not card.id.isprintable():
        raise Untrue(f"a model is called {card.id!r:.80}")
    if card.max_model_len is not None and card.max_model_len < FEWEST_TOKENS:
        raise Untrue(f"{card.id} reads at most {card.max_model_len} tokens")


def _split(url: str) -> tuple[str, str]:
    """The address of a server without /v1, and the model that is named behind it."""
    try:
        parts = urlsplit(url)
        is_plain = bool(parts.hostname) and parts.port != 0
        is_plain = is_plain and not (parts.query or parts.username or parts.password)
    except ValueError:  # of a host or a port that is none
        is_plain = False
    if not is_plain:
        raise SpecvizError(
            "a server is named as http://HOST:PORT or https://HOST/PATH, #MODEL behind it if it has several, and its "
            f"key stands in {' or '.join(KEYS.values())} (got an address of another form)"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}", parts.fragment


def _read_key(name: str) -> str:
    """The key in an environment variable, empty where there is none. Raises SpecvizError for what is no key."""
    key = os.environ.get(name, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise SpecvizError(f"{name} holds a character that no key has")
    return key


def _client(key: str, timeout_s: float) -> httpx.Client:
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(
        headers=headers,
        timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
        limits=httpx.Limits(max_connections=None),
        follow_redirects=False,
        trust_env=False,  # no proxy and no password file decides who gets the key
    )


def _wait_asked_for(answer: httpx.Response) -> float | None:
    """The seconds that the server asks to wait."""
    try:
        asked = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(max(asked, 0.0), MOST_WAIT_S) if math.isfinite(asked) else None
