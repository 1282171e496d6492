"""The forms of questions and answers of vLLM's server and of SGLang's, as far as the lab needs them.

vLLM: /v1/completions with return_token_ids and prompt_logprobs, which are raw (never divided by the temperature) and
keyed by id. SGLang: /generate with return_logprob, whose entries are [log-probability, id, text].
"""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec

from specviz.alignment.served.top_rows import Entry, TopRows, Untrue, rows_of
from specviz.decoding.sampling import Sampling
from specviz.request import MAX_ID

PLAIN = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""What changes no probability; a server would otherwise take what the model's generation_config.json asks for."""
ENDED, LENGTH = "stop", "length"
"""Why a text ends: the model ended it itself, or it has as many tokens as were asked."""
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]


class Dialect(Protocol):
    """How one kind of server is asked."""

    path: str  # of texts and of log-probabilities

    def ask_text(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, max_new_tokens: int
    ) -> dict[str, Any]: ...

    def read_answer(self, answer: bytes) -> tuple[tuple[int, ...], str]: ...

    def ask_rows(self, tokens: Sequence[int], begin: int, num_top: int) -> dict[str, Any]: ...

    def read_rows(
        self, answer: bytes, tokens: Sequence[int], begin: int, num_top: int
    ) -> TopRows: ...

    def read_text(self, answer: bytes) -> str: ...


def _sampling(sampling: Sampling) -> dict[str, Any]:
    return PLAIN | {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_k": sampling.top_k or -1,
    }


# ---- vLLM ------------------------------------------------------------------------------------------------------------


class _VllmEntry(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str | None = None


class _VllmChoice(msgspec.Struct):
    finish_reason: str | None = None
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, _VllmEntry] | None] | None = None


class _VllmAnswer(msgspec.Struct):
    choices: list[_VllmChoice]

    def only(self) -> _VllmChoice:
        if len(self.choices) != 1:
            raise Untrue(f"it holds {len(self.choices)} texts instead of one")
        return self.choices[0]


class Vllm:
    """The forms of vLLM's server, and of others that speak as it does."""

    path = "/v1/completions"

    def ask_text(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, max_new_tokens: int
    ) -> dict[str, Any]:
        return {
            **_sampling(sampling),
            "prompt": list(prompt),
            "max_tokens": max_new_tokens,
            "seed": seed,
            "return_token_ids": True,
        }

    def read_answer(self, answer: bytes) -> tuple[tuple[int, ...], str]:
        choice = msgspec.json.decode(answer, type=_VllmAnswer).only()
        if choice.token_ids is None:
            raise Untrue("it holds no token ids (return_token_ids), which vLLM gives since 0.10.2")
        return tuple(choice.token_ids), choice.finish_reason or ""

    def ask_rows(self, tokens: Sequence[int], begin: int, num_top: int) -> dict[str, Any]:
        return {
            **PLAIN,
            "prompt": list(tokens),
            "max_tokens": 1,
            "prompt_logprobs": num_top,
            "return_token_ids": True,
        }

    def read_rows(self, answer: bytes, tokens: Sequence[int], begin: int, num_top: int) -> TopRows:
        choice = msgspec.json.decode(answer, type=_VllmAnswer).only()
        if choice.prompt_logprobs is None:
            raise Untrue("it holds no prompt_logprobs: this server cannot read a text")
        if choice.prompt_token_ids is not None and choice.prompt_token_ids != list(tokens):
            raise Untrue("it read other token ids than it was sent")
        if len(choice.prompt_logprobs) != len(tokens):
            raise Untrue(
                f"it tells of {len(choice.prompt_logprobs):,} tokens instead of {len(tokens):,}"
            )
        tops = []
        own = []
        for row, token in zip(choice.prompt_logprobs[begin:], tokens[begin:], strict=True):
            by_id = row or {}
            # the text's own token is named beside the likeliest, whatever its rank
            ranked = sorted(by_id.items(), key=lambda item: item[1].rank)
            likeliest = [item for item in ranked if item[1].rank <= num_top]
            tops.append(
                [Entry(_id_of(name), each.logprob, each.decoded_token) for name, each in likeliest]
            )
            entry = by_id.get(str(token))
            own.append(entry and Entry(token, entry.logprob, entry.decoded_token))
        return rows_of(tops, own, tokens[begin:])

    def read_text(self, answer: bytes) -> str:
        return msgspec.json.decode(answer, type=_VllmText).prompt


class _VllmText(msgspec.Struct):
    prompt: str


def _id_of(name: str) -> int:
    if not (name.isdecimal() and len(name) < 10):
        raise Untrue(f"a token id is {name!r:.40}")
    return int(name)


# ---- SGLang ----------------------------------------------------------------------------------------------------------

_Triple = tuple[float | None, TokenId, str | None]


class _SglangReason(msgspec.Struct):
    type: str = ""


class _SglangMeta(msgspec.Struct):
    finish_reason: _SglangReason | None = None
    input_token_logprobs: list[_Triple] | None = None
    input_top_logprobs: list[list[_Triple] | None] | None = None


class _SglangAnswer(msgspec.Struct):
    meta_info: _SglangMeta
    output_ids: list[TokenId] | None = None


class Sglang:
    """The forms of SGLang's own interface."""

    path = "/generate"

    def ask_text(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, max_new_tokens: int
    ) -> dict[str, Any]:
        params = {
            **_sampling(sampling),
            "max_new_tokens": max_new_tokens,
            "sampling_seed": seed,
        }
        return {"input_ids": list(prompt), "sampling_params": params}

    def read_answer(self, answer: bytes) -> tuple[tuple[int, ...], str]:
        read = msgspec.json.decode(answer, type=_SglangAnswer)
        if read.output_ids is None:
            raise Untrue("it holds no output_ids")
        reason = read.meta_info.finish_reason
        return tuple(read.output_ids), "" if reason is None else reason.type

    def ask_rows(self, tokens: Sequence[int], begin: int, num_top: int) -> dict[str, Any]:
        return {
            "input_ids": list(tokens),
            "sampling_params": {**PLAIN, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": begin - 1,
            "top_logprobs_num": num_top,
            "return_text_in_logprobs": True,
        }

    def read_rows(self, answer: bytes, tokens: Sequence[int], begin: int, num_top: int) -> TopRows:
        meta = msgspec.json.decode(answer, type=_SglangAnswer).meta_info
        if meta.input_token_logprobs is None or meta.input_top_logprobs is None:
            raise Untrue("it holds no input_token_logprobs and input_top_logprobs")
        size = len(tokens) - begin
        own = meta.input_token_logprobs[-size:]
        top = meta.input_top_logprobs[-size:]
        if [token for _, token, _ in own] != list(tokens[begin:]):
            raise Untrue("it read other token ids than it was sent")
        return rows_of(
            [_entries(row or ())[:num_top] for row in top],
            [_entry(*triple) for triple in own],
            tokens[begin:],
        )

    def read_text(self, answer: bytes) -> str:
        return msgspec.json.decode(answer, type=_SglangText).text


def _entry(logprob: float | None, token: int, text: str | None) -> Entry | None:
    return None if logprob is None else Entry(token, logprob, text)


def _entries(triples: Sequence[_Triple]) -> list[Entry]:
    return [entry for entry in (_entry(*triple) for triple in triples) if entry is not None]


class _SglangText(msgspec.Struct):
    text: str


DIALECTS = {"vllm": Vllm, "sglang": Sglang}
