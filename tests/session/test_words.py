"""The sentences about a run that a reader meets most, each with the case that makes it."""

import math
from dataclasses import replace

import pytest
import torch

from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.settings import ProgramSettings
from tests.helpers.runs import Fails, begin, finish, make_steps, statuses

FIELDS = {
    "k": ({"num_speculative_tokens": 0}, "k must be a whole number from 1 to 32 (got 0)"),
    "temperature": ({"temperature": math.nan}, "temperature must be a number from 0 to 5 (got nan)"),
    "top_p": ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1 (got 0.0)"),
    "min_p": ({"min_p": 10}, "min_p must be a number from 0 to 1 (got 10)"),
    "length": ({"max_new_tokens": 4097}, "max_new_tokens must be a whole number from 1 to 4,096 (got 4097)"),
    "prompt": ({"prompt": ""}, "the prompt is empty; type at least one word"),
    "chat": ({"chat": 1}, "chat must be true or false (got 1)"),
}
BEGINNINGS = {
    "vocabularies": ({"draft": "stranger"}, "stranger cannot draft for big: their vocabularies differ"),
    "no draft": ({"draft": None}, "the method draft_model needs a draft model (got none)"),
    "no folder": ({"target": "no/such/folder"}, "there is no folder or file 'folder', and"),
    "parameter": ({"method": "none", "params": {"x": 1}}, "the method none has no parameter 'x'"),
}
CHANGES = {
    "target": ({"target": "stranger"}, "stranger splits text into other tokens than big"),
    "draft": ({"draft": "stranger"}, "stranger cannot draft for big"),
}


@pytest.mark.parametrize(("changes", "sentence"), FIELDS.values(), ids=FIELDS)
def test_a_refused_request_says_the_sentence(changes, sentence):
    with pytest.raises(SpecvizError) as raised:
        replace(Request(prompt="a", target="b"), **changes).validate()
    assert str(raised.value) == sentence


@pytest.mark.parametrize(("changes", "sentence"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_run_that_cannot_begin_says_the_sentence(bench, changes, sentence):
    with pytest.raises(SpecvizError) as raised:
        finish(begin(bench, **changes))
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(("changes", "sentence"), CHANGES.values(), ids=CHANGES)
def test_a_change_that_is_taken_back_says_the_sentence(bench, changes, sentence):
    run = begin(bench)
    make_steps(run, 1)
    run.controls.change(**changes)
    assert any(sentence in status.message for status in statuses(run.events()))


def test_a_run_without_memory_says_what_to_do(bench):
    run = begin(bench)
    make_steps(run, 1)
    full = torch.OutOfMemoryError("CUDA out of memory")
    handle = bench.pool.load("near").model.get_input_embeddings().register_forward_pre_hook(Fails(1, full))
    with pytest.raises(SpecvizError, match="not enough memory on the device to go on with big; shorten the text"):
        finish(run)
    handle.remove()


def test_a_variable_of_the_environment_says_what_it_must_be():
    with pytest.raises(SpecvizError) as raised:
        ProgramSettings.from_environment({"GRADIO_SERVER_PORT": "x"})
    words = "the environment variable GRADIO_SERVER_PORT must be a whole number from 0 to 65535 (got 'x')"
    assert str(raised.value) == words
