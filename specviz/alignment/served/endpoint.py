"""A server of one model: vLLM's or SGLang's, asked for tokens, for texts and for the log-probabilities of a text.

Servers are not trusted: their answers are bounded and checked. Only the host that was named is asked, and its key goes
nowhere else. Whatever a server does wrong is a ServerError in words.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from specviz.alignment.served.dialects import DIALECTS, Dialect
from specviz.alignment.served.top_rows import TopRows, Untrue
from specviz.alignment.types import ModelIdentity
from specviz.errors import SpecvizError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from specviz.decoding.sampling import Sampling

SERVED = "served"
"""The number format of a model whose weights are elsewhere."""
KEYS = ("SPECVIZ_TARGET_KEY", "SPECVIZ_DRAFT_KEY")
"""Environment variables with the keys of the target's server and of the drafts' servers."""
CONNECT_S = 10.0
TRIES = 3
WAITS_S = (1.0, 4.0)
"""How long to wait before another try."""
MOST_WAIT_S = 30.0  # that a server may ask for
TRY_AGAIN = (429, 500, 502, 503, 504)  # HTTP's codes for what passes
MOST_BYTES = 512 << 20  # of one answer
MOST_SHOWN = 300  # characters of a server's own words


class ServerError(SpecvizError):
    """A server that cannot be used, whatever it is asked."""


class Card(msgspec.Struct):
    """What a server says of a model of its own."""

    id: str
    owned_by: str = ""
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class Cards(msgspec.Struct):
    data: list[Card]


class Endpoint:
    """A model behind an address."""

    def __init__(self, url: str, key_name: str, timeout_s: float) -> None:
        """Asks the server which model it has. key_name: one of KEYS. timeout_s: for an answer to begin, or to go on."""
        self.url, wanted = _split(url)
        self._key_name = key_name
        self._timeout_s = timeout_s
        self._client = _client(os.environ.get(key_name), timeout_s)
        try:
            card = self._find_card(wanted)
            self.dialect = self._find_dialect(card)
        except BaseException:
            self.close()
            raise
        self.model = card.id
        self.context_limit = card.max_model_len
        self._facts = (self.url, card.id, card.root, card.max_model_len)

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def close(self) -> None:
        self._client.close()

    def identity(self, name: str, wanted: str) -> ModelIdentity:
        """The model as a job knows it. Its hash is of the address and of what the server says: weights are not here."""
        content = hashlib.sha256(repr(self._facts).encode()).hexdigest()[:16]
        return ModelIdentity(name, content, 0, SERVED, wanted)

    # ---- what a model is asked ---------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """The ids of a text. special: whether it gets the tokens that begin a text."""
        asked = {"prompt": text, "add_special_tokens": special}
        return self._tokens(asked)

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

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        asked = {"tokens": list(ids), "skip_special_tokens": False}
        return self.dialect.read_text(self._ask("/detokenize", asked))

    def write(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, max_new_tokens: int
    ) -> tuple[tuple[int, ...], bool]:
        """The ids that the model writes behind the prompt, and whether it ended the text itself."""
        asked = self.dialect.ask_text(prompt, sampling, seed, max_new_tokens)
        with self._explain_shape():
            return self.dialect.read_answer(self._ask(self.dialect.path, asked))

    def read(self, prompt: Sequence[int], ids: Sequence[int], num_top: int) -> TopRows:
        """The log-probabilities of each id behind the prompt, and of the num_top likeliest tokens there."""
        tokens = [*prompt, *ids]
        asked = self.dialect.ask_rows(tokens, len(prompt), num_top)
        with self._explain_shape():
            rows = self.dialect.read_rows(self._ask(self.dialect.path, asked), tokens, len(prompt))
            rows.check(num_top)
        return rows

    # ---- HTTP --------------------------------------------------------------------------------------------------------

    def _tokens(self, asked: Mapping[str, Any]) -> tuple[int, ...]:
        with self._explain_shape():
            answer = msgspec.json.decode(self._ask("/tokenize", asked), type=_Tokens)
        return tuple(answer.tokens)

    def _find_card(self, wanted: str) -> Card:
        """The model of this name; without a name the only one, adapters left out."""
        with self._explain_shape():
            cards = msgspec.json.decode(self._send("GET", "/v1/models"), type=Cards).data
        names = [card.id for card in cards]
        own = [card for card in cards if card.id == wanted or (not wanted and not card.parent)]
        if len(own) != 1:
            words = f"has no model {wanted!r:.100}" if wanted else f"has {len(own)} models"
            raise ServerError(
                f"the server at {self.host} {words}: name one behind the address, such as {self.url}#MODEL "
                f"(it has: {', '.join(names)[:MOST_SHOWN] or 'none'})"
            )
        return own[0]

    def _find_dialect(self, card: Card) -> Dialect:
        owner = card.owned_by.lower()
        if owner.startswith("llamacpp"):
            raise ServerError(
                f"the server at {self.host} is llama.cpp's, which gives no log-probabilities of a prompt: name its "
                ".gguf file as the model instead"
            )
        return DIALECTS["sglang" if owner == "sglang" else "vllm"]()

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
            except httpx.HTTPError as error:
                problem = f"cannot be reached ({str(error)[:MOST_SHOWN] or type(error).__name__})"
                cause = error
            else:
                if answer.status_code == 200:
                    return content
                if answer.status_code not in TRY_AGAIN:
                    raise self._refusal(path, answer, content)
                problem = f"answered {answer.status_code} ({_own_words(content)})"
                cause = None
                if wait_s is not None:
                    wait_s = _wait_asked_for(answer) or wait_s
            if wait_s is not None:
                time.sleep(wait_s)
        raise ServerError(f"the server at {self.host} {problem}, {TRIES} times in a row") from cause

    def _send_once(
        self, method: str, path: str, asked: Mapping[str, Any] | None
    ) -> tuple[httpx.Response, bytes]:
        with self._client.stream(method, f"{self.url}{path}", json=asked) as answer:
            content = bytearray()
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    raise ServerError(
                        f"the server at {self.host} answered more than {MOST_BYTES >> 20:,} MB"
                    )
        return answer, bytes(content)

    def _refusal(self, path: str, answer: httpx.Response, content: bytes) -> SpecvizError:
        """What the server refused, in words; a ServerError unless it refused this very question."""
        code = answer.status_code
        if code in (401, 403):
            has_key = bool(os.environ.get(self._key_name))
            words = "does not take the key in" if has_key else "asks for a key: put it into"
            return ServerError(f"the server at {self.host} {words} {self._key_name}")
        if answer.is_redirect:
            return ServerError(
                f"the server at {self.host} sends on to another address, which is not followed: name that one"
            )
        own_words = _own_words(content)
        hint = ""
        if "logprobs" in own_words and code == 400:
            hint = "; ask for fewer with --logprobs, or start it with a larger --max-logprobs"
        if code == 404:
            hint = "; only servers that vLLM and SGLang start are read; for llama.cpp, name the .gguf file instead"
        kind = SpecvizError if code in (400, 413, 422) else ServerError
        return kind(f"the server at {self.host} refuses {path} with {code} ({own_words}){hint}")

    @contextmanager
    def _explain_shape(self) -> Iterator[None]:
        """Says whose answer it was that could not be read."""
        try:
            yield
        except (msgspec.DecodeError, Untrue) as error:
            raise ServerError(
                f"the answer of the server at {self.host} cannot be used: {str(error)[:MOST_SHOWN]}"
            ) from error


class _Tokens(msgspec.Struct):
    tokens: list[int]


def _split(url: str) -> tuple[str, str]:
    """The address of a server without /v1, and the model that is named behind it."""
    parts = urlsplit(url)
    try:
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        has_host = False
    if not has_host or parts.query or parts.username or parts.password:
        raise SpecvizError(
            f"a server is named as http://HOST:PORT or https://HOST/PATH, #MODEL behind it if it has several, and its "
            f"key stands in {' or '.join(KEYS)} (got an address of another form)"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}", parts.fragment


def _client(key: str | None, timeout_s: float) -> httpx.Client:
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(
        headers=headers,
        timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
        follow_redirects=False,
        trust_env=False,  # no proxy and no password file decides who gets the key
    )


def _wait_asked_for(answer: httpx.Response) -> float | None:
    """The seconds that the server asks to wait."""
    try:
        asked = float(answer.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(max(asked, 0.0), MOST_WAIT_S)


def _own_words(content: bytes) -> str:
    """What a server says of its error."""
    try:
        values = msgspec.json.decode(content)
    except msgspec.DecodeError:
        values = content.decode("utf-8", "replace")
    for name in ("error", "message", "detail"):
        if isinstance(values, dict) and name in values:
            values = values[name]
    return " ".join(str(values).split())[:MOST_SHOWN] or "no words"
