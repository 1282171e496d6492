"""Runs on a ZeroGPU Space, in `spaces`' own emulation with a stub of its scheduler (`tests.helpers.zero_gpu`)."""

import json
import math
import os
import subprocess
import sys

import httpx
import pytest
from gradio_client import Client

from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from specviz.ui.startup import free_port
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer
from tests.helpers.waits import until
from tests.helpers.zero_gpu import NUM_TOKENS, ROOT

pytestmark = pytest.mark.slow

pytest.importorskip("spaces")
SPACE = ("-m", "tests.helpers.zero_gpu")
LEFT_OVER = "Recorded runs, lessons and the bundled models work without it."
PAUSED = f"Nothing is lost: press Resume later. {LEFT_OVER}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place, tokenizer = tmp_path_factory.mktemp("models"), tiny_tokenizer(300)
    models = {"big": tiny("llama", vocab_size=300), "small": tiny("llama", vocab_size=300, hidden=16, layers=1, seed=1)}
    return [str(tiny_folder(place / name, model, tokenizer)) for name, model in models.items()]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(home), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def told(folders, environment):
    done = subprocess.run(
        [sys.executable, *SPACE, *folders], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def tokens(folders):
    """Those of the same run in an ordinary process."""
    pair = dict(zip(("target", "draft"), folders, strict=True))
    request = Request(prompt="The fox", **pair, num_speculative_tokens=2, max_new_tokens=NUM_TOKENS, seed=3)
    run = open_run(request, bench=Workbench(ModelPool(10**9)))
    for _ in run.events():
        pass
    return [token.id for token in run.trace.tokens]


def test_a_worker_makes_the_run_and_the_text_is_that_of_any_other_process(told, tokens):
    assert told["kind"] == "WorkerRun"
    assert told["whole"] == {"end": ["finished", ""], "tokens": tokens, "worker": True}


def test_the_gpu_is_asked_for_as_long_as_the_tokens_take(told):
    assert int(told["seconds"]) == math.ceil(10 + NUM_TOKENS * 0.1), "both models were loaded before"


def test_a_change_reaches_the_worker_before_the_next_step(told):
    ks, changed = told["live"]["k"], told["live"]["changed"]
    first = ks.index(6)
    assert 4 <= first <= 5
    assert {*ks[:first]} == {2}
    assert {*ks[first:]} == {6}
    assert changed[first] == ["k"]
    assert not any(changed[:first] + changed[first + 1 :])


def test_a_pause_gives_the_gpu_back_and_another_worker_goes_on_with_the_same_text(told, tokens):
    paused = told["pause"]
    assert paused["states"] == ["paused", "finished"]
    assert paused["given_back"] == 1
    assert 3 <= paused["so_far"] <= 4
    assert paused["tokens"] == tokens
    assert paused["headers"] == 1
    assert paused["indices"] == [*range(len(paused["indices"]))]
    assert paused["at_ms"] == sorted(paused["at_ms"])


def test_a_run_whose_gpu_is_taken_away_is_paused_and_loses_nothing(told, tokens):
    (state, words), after = told["killed"]["states"]
    assert state == "paused"
    assert words.endswith(PAUSED)
    assert after == ["finished", ""]
    assert told["killed"]["tokens"] == tokens


def test_without_quota_a_run_waits_paused_and_a_new_one_says_what_works(told, tokens):
    quota = told["quota"]
    assert quota["paused"][0] == "paused"
    assert "GPU limit" in quota["paused"][1]
    assert quota["paused"][1].endswith(PAUSED)
    assert quota["fresh"][0] == "error"
    assert quota["fresh"][1].endswith(LEFT_OVER)
    assert quota["again"] == ["finished", ""]
    assert quota["tokens"] == tokens


def test_a_closed_tab_leaves_the_gpu_to_others(told):
    assert told["after a closed tab"] == "finished"


def test_bundled_models_run_without_a_gpu_and_reports_say_that_others_cannot(told):
    assert told["bundled"] == {"end": "finished", "lent": 0}
    assert told["reports"] == (
        "big needs the GPU, which this Space lends to runs on Explore only: for this, choose a bundled model"
    )


def test_the_page_starts_there_and_serves_a_run(folders, environment):
    port = free_port("127.0.0.1", 8200, 200)
    command = [sys.executable, *SPACE, "page", "--port", str(port), "--target", folders[0], "--draft", folders[1]]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as space:
        address = f"http://127.0.0.1:{port}"

        def is_up():
            assert space.poll() is None, space.stdout.read()
            try:
                return httpx.get(f"{address}/healthz", timeout=5).json()["models_ready"]
            except httpx.TransportError:
                return False

        until(is_up)
        answer = Client(address, verbose=False).predict("The fox", max_new_tokens=8, api_name="/run")
        space.stdin.close()
        asked = json.loads(space.stdout.read().splitlines()[-1])
    assert answer["numbers"]["emitted"] == 8
    assert asked == ["startup-report", "schedule", "allow", "release"]
