"""Shared set-up: one thread per process keeps small tests quick and repeatable; tiny models known by name."""

import copy
import gc
import os

import pytest
import torch
from hypothesis import settings

from tests.helpers.tiny_models import bigram, tiny, tiny_folder, tiny_tokenizer

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # in what the tests start, too
settings.register_profile("any-machine", deadline=None)  # one slow example says that the machine is busy, and no more
settings.load_profile("any-machine")


@pytest.fixture(scope="session", autouse=True)
def cache_of_this_session(tmp_path_factory):
    """No test finds, makes or deletes a model in the person's own cache, but the one that is to get the real one."""
    from specviz.models.compiler import build

    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("SPECVIZ_TEST_GET"):
            patch.setenv("SPECVIZ_CACHE", str(tmp_path_factory.mktemp("cache")))
        build().wait()  # no test changes its forward on the way
        yield


@pytest.fixture(scope="session")
def named_models():
    """A library that knows tiny random models by name, most of them of one vocabulary without an end token.

    big: a target; near, far: drafts that resemble it more and less; padded: a target whose table has rows without a
    token; brief: a draft that reads 40 tokens; ending: a target with an end token; chatty: one with a chat template;
    stranger: a model with another tokenizer; broken: a target whose weights hold not-a-number; quick, quick-draft: a
    target and a draft that look at the last token alone.
    """
    from specviz.models.pool import ModelPool

    pool = ModelPool(10**9, allow_any=True)
    for name, (model, tokenizer) in _pairs().items():
        model.name_or_path = name
        assert pool.load((model, tokenizer)).name == name
    return pool


@pytest.fixture
def bench(named_models):
    from specviz.session.workbench import Workbench

    return Workbench(named_models)


@pytest.fixture
def pool():
    """An empty library of one gigabyte."""
    from specviz.models.pool import ModelPool

    return ModelPool(10**9, allow_any=True)


@pytest.fixture
def folder(tmp_path):
    """A tiny model in a folder of its own."""
    tokenizer = tiny_tokenizer()
    return tiny_folder(tmp_path / "my-model", tiny("llama", vocab_size=len(tokenizer)), tokenizer)


def pytest_collection_finish():
    gc.freeze()  # what was imported stays: no test has to look through it again


def _pairs():
    endless, ending, stranger = tiny_tokenizer(), tiny_tokenizer(), tiny_tokenizer(seed=2)
    chatty = tiny_tokenizer(chat=True)
    for tokenizer in (endless, stranger, chatty):
        tokenizer.eos_token = None
    size = len(endless)
    big = _model(size)
    return {
        "big": (big, endless),
        "near": (_disturbed(big, 0.1), endless),
        "far": (_model(size, seed=2, layers=1, hidden=16), endless),
        "padded": (_model(size + 8, seed=3), endless),
        "brief": (_model(size, seed=4, layers=1, max_position_embeddings=40), endless),
        "ending": (copy.deepcopy(big), ending),
        "chatty": (copy.deepcopy(big), chatty),
        "stranger": (_model(size, seed=5), stranger),
        "broken": (_disturbed(big, float("nan")), endless),
        "quick": (bigram(size, seed=1), endless),
        "quick-draft": (bigram(size, seed=2, hidden=16), endless),
    }


def _model(size, *, seed=1, layers=2, hidden=32, **config):
    return tiny("llama", vocab_size=size, seed=seed, layers=layers, hidden=hidden, eos_token_id=None, **config)


def _disturbed(model, amount):
    """The same model with random numbers of this size added to its last layer."""
    model = copy.deepcopy(model)
    noise = torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        model.lm_head.weight += amount * noise
    return model
