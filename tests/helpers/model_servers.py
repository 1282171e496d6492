"""Servers for tests that speak as vLLM's and SGLang's do, with a real model behind: written from the shapes of their
answers, with transformers alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specviz.settings import assets_dir

MOST_LOGPROBS = 20


def bundled(name: str) -> tuple[torch.nn.Module, object]:
    folder = assets_dir() / "models" / name
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(
        folder
    )


@dataclass
class Behind:
    """A model behind a server, and how the server behaves."""

    name: str
    owner: str
    model: torch.nn.Module
    tokenizer: object
    key: str | None = None
    context: int = 1024
    most_logprobs: int = MOST_LOGPROBS
    change: Callable[[str, dict], dict] = lambda path, answer: answer  # of every answer
    before: Callable[[str], int | None] = lambda path: None  # the status of a failure, or None
    page: bytes | None = None  # in the place of every answer but that on the models
    drip: float | None = None  # seconds from one byte of an answer to the next
    vocab: int | None = None  # ids from here on are refused
    asked: list[tuple[str, dict]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @torch.inference_mode()
    def logprobs(self, ids: list[int]) -> torch.Tensor:
        with self.lock:
            logits = self.model(torch.tensor([ids])).logits[0]
        return torch.log_softmax(logits.double(), -1)

    @torch.inference_mode()
    def write(self, ids: list[int], most: int, asked: dict) -> tuple[list[int], str]:
        generator = torch.Generator().manual_seed(asked.get("seed") or asked.get("sampling_seed") or 0)
        written: list[int] = []
        while len(written) < most:
            logits = self.logprobs([*ids, *written])[-1]
            if asked["temperature"] == 0:
                token = int(logits.argmax())
            else:
                weights = torch.softmax(logits / asked["temperature"], -1)
                token = int(torch.multinomial(weights, 1, generator=generator))
            written.append(token)
            if token == self.tokenizer.eos_token_id:
                return written, "stop"
        return written, "length"

    # ---- what is asked -------------------------------------------------------------------------------------------

    def get(self, path: str) -> dict:
        assert path == "/v1/models", path
        card = {
            "id": self.name,
            "object": "model",
            "owned_by": self.owner,
            "root": self.name,
            "max_model_len": self.context,
        }
        return {"object": "list", "data": [card]}

    def post(self, path: str, asked: dict) -> dict | tuple[int, str]:
        if path == "/tokenize":
            if "messages" in asked:
                ids = self.tokenizer.apply_chat_template(
                    asked["messages"], add_generation_prompt=True, return_dict=False, **asked["chat_template_kwargs"]
                )
            else:
                ids = self.tokenizer.encode(asked["prompt"], add_special_tokens=asked["add_special_tokens"])
            return {"count": len(ids), "max_model_len": self.context, "tokens": ids}
        if path == "/detokenize":
            text = self.tokenizer.decode(asked["tokens"])
            return {"prompt": text} if self.owner == "vllm" else {"text": text}
        if path == "/v1/completions" and self.owner == "vllm":
            return self._complete(asked)
        if path == "/generate" and self.owner == "sglang":
            return self._generate(asked)
        return 404, "Not Found"

    def _complete(self, asked: dict) -> dict | tuple[int, str]:
        ids, most = asked["prompt"], asked["max_tokens"]
        if self.vocab and max(ids) >= self.vocab:
            return 400, f"Token id {max(ids)} is out of vocabulary"
        if len(ids) + most > self.context:
            return 400, f"This model's maximum context length is {self.context} tokens."
        choice: dict = {"index": 0, "text": "", "logprobs": None, "stop_reason": None, "prompt_logprobs": None}
        if (top := asked.get("prompt_logprobs")) is not None:
            if top > self.most_logprobs:
                return (
                    400,
                    f"Requested prompt logprobs of {top}, which is greater than max allowed: {self.most_logprobs}",
                )
            choice["prompt_logprobs"] = self._prompt_logprobs(ids, top)
        written, reason = self.write(ids, most, asked)
        choice |= {"token_ids": written, "prompt_token_ids": ids, "finish_reason": reason}
        return {"id": "cmpl-1", "object": "text_completion", "model": self.name, "choices": [choice]}

    def _prompt_logprobs(self, ids: list[int], top: int) -> list[dict | None]:
        rows: list[dict | None] = [None]
        for row, token in zip(self.logprobs(ids), ids[1:], strict=False):
            values, best = row.topk(top)
            rank = int((row >= row[token]).sum())
            found = {str(token): self._entry(token, row[token], rank)}
            for place, (value, other) in enumerate(zip(values, best.tolist(), strict=True), 1):
                found[str(other)] = self._entry(other, value, place)
            rows.append(found)
        return rows

    def _entry(self, token: int, logprob: torch.Tensor, rank: int) -> dict:
        return {"logprob": float(logprob), "rank": rank, "decoded_token": self.tokenizer.decode([token])}

    def _generate(self, asked: dict) -> dict | tuple[int, str]:
        ids, params = asked["input_ids"], asked["sampling_params"]
        if len(ids) + params["max_new_tokens"] > self.context:
            return 400, f"The input ({len(ids)} tokens) is longer than the model's context length ({self.context})."
        meta: dict = {"id": "1", "prompt_tokens": len(ids)}
        if asked.get("return_logprob"):
            start, top = asked["logprob_start_len"], asked["top_logprobs_num"]
            rows = [None, *self.logprobs(ids)[:-1]]
            own, likeliest = [], []
            for place in range(start, len(ids)):
                row, token = rows[place], ids[place]
                text = self.tokenizer.decode([token])
                own.append([None if row is None else float(row[token]), token, text])
                if row is None:
                    likeliest.append(None)
                    continue
                values, best = row.topk(top)
                likeliest.append(
                    [[float(v), t, self.tokenizer.decode([t])] for v, t in zip(values, best.tolist(), strict=True)]
                )
            meta |= {"input_token_logprobs": own, "input_top_logprobs": likeliest}
        written, reason = self.write(ids, params["max_new_tokens"], params)
        meta["finish_reason"] = {"type": reason}
        return {"text": self.tokenizer.decode(written), "output_ids": written, "meta_info": meta}


class _Handler(BaseHTTPRequestHandler):
    behind: Behind
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(lambda: self.behind.get(self.path))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.behind.asked.append((self.path, asked))
        self._answer(lambda: self.behind.post(self.path, asked))

    def _answer(self, work: Callable[[], dict | tuple[int, str]]) -> None:
        behind = self.behind
        if behind.key is not None and self.headers.get("Authorization") != f"Bearer {behind.key}":
            self._send(401, {"error": "Unauthorized"})
            return
        if (status := behind.before(self.path)) is not None:
            self._send(status, {"error": {"message": "out of order"}})
            return
        with behind.lock:
            behind.at_once += 1
            behind.most_at_once = max(behind.most_at_once, behind.at_once)
        try:
            found = work()
        finally:
            with behind.lock:
                behind.at_once -= 1
        if not isinstance(found, tuple):
            found = behind.change(self.path, found)
        if isinstance(found, tuple):
            self._send(found[0], {"error": {"message": found[1], "type": "BadRequestError", "code": found[0]}})
        else:
            self._send(200, found)

    def _send(self, status: int, values: dict) -> None:
        content = json.dumps(values).encode()
        if self.behind.page is not None and self.path != "/v1/models":
            content = self.behind.page
        try:
            self.send_response(status)
            if status in (301, 307):
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.behind.drip is None or self.path == "/v1/models":
                self.wfile.write(content)
                return
            for place in range(len(content)):
                self.wfile.write(content[place : place + 1])
                time.sleep(self.behind.drip)
        except OSError:
            pass  # who asked has left

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def serve(behind: Behind) -> Iterator[str]:
    """Serves the model on a free port of this machine; gives its address."""
    handler = type("Handler", (_Handler,), {"behind": behind})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slow(seconds: float) -> Callable[[str], None]:
    """A server that takes its time before every answer but its first."""

    def wait(path: str) -> None:
        if path != "/v1/models":
            time.sleep(seconds)

    return wait
