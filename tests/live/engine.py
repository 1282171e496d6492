"""The live page's engine under node, for tests in Python: orders, runs, and the parts that they are compared with."""

import base64
import json
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from specviz.decoding.sampling import Sampling
from specviz.settings import assets_dir
from specviz.views.blocks import dump
from specviz.views.live import live_words

ENGINE = Path(__file__).with_name("engine.js")
TARGET, *DRAFTS = "fable-target", "fable-draft", "fable-draft-tiny", "fable-draft-code"
PATIENCE_S = 600


def folder_of(name: str) -> str:
    return str(assets_dir() / "models" / name)


def ask(do: str, **order):
    """The engine's answer to an order of engine.js. Skips where there is no node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the engine in a page needs it (Debian: apt-get install nodejs)")
    sent = json.dumps({"do": do, **order})
    done = subprocess.run(
        [node, ENGINE], input=sent, capture_output=True, encoding="utf-8", timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def numbers(packed: str) -> np.ndarray:
    """The float32 numbers of an answer."""
    return np.frombuffer(base64.b64decode(packed), dtype=np.float32)


@cache
def words() -> dict:
    """The words of the live page, as its script gets them."""
    return json.loads(dump(live_words()))


def controls(k=4, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, draft="fable-draft") -> dict:
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    return {"k": k, **sampling, "draft_model": draft}


def sampling_of(sampling: Sampling) -> dict:
    """The sampling as the engine takes it."""
    return {
        "temperature": sampling.temperature,
        "topK": sampling.top_k,
        "topP": sampling.top_p,
        "minP": sampling.min_p,
    }


def asked_run(prompt: str, *changes: tuple[int, dict], seed=0, max_new_tokens=48, **first) -> dict:
    """A run for `runs`. changes: (number of steps made, the controls from there on)."""
    parts = [{"set": controls(**first)}, *({"from": step, "set": new} for step, new in changes)]
    return {"asked": {"prompt": prompt, "seed": seed, "max_new_tokens": max_new_tokens}, "controls": parts}


def runs(asked: list[dict], do="runs") -> list[dict]:
    """Each run's trace file and its messages to the stage; with "refusedRuns" each one's error, None without."""
    drafts = {part["set"]["draft_model"] for each in asked for part in each["controls"] if part["set"]}
    models = {name: folder_of(name) for name in (TARGET, *sorted(drafts))}
    return ask(do, runs=asked, words=words(), models=models)
