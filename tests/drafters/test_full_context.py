"""Where a draft model cannot read the text, the step says why K is 0, in its record and in words."""

from dataclasses import replace

import pytest

from specviz.decoding.draft import EMPTY
from specviz.decoding.drafter import no_draft
from specviz.drafters import METHODS
from specviz.request import Request
from specviz.session.whole_run import activate, whole_run
from specviz.views.explore.evidence.view import show_making
from specviz.views.explore.opening import opening
from specviz.views.explore.titles import drawn_title, last_token
from specviz.views.terminal import event_text
from specviz.views.words import speech, why_nothing
from tests.helpers import traces
from tests.helpers.messages import as_json

FULL = "the draft model's context of 40 tokens is full"
ALL_GOOD = {"reasoning": {"threshold": -20.0}}
WITH_DRAFT = [(name, ALL_GOOD.get(name, {})) for name, method in METHODS.items() if "draft" in method.roles]
WITH_DRAFT.append(("cross_vocabulary", {"way": "shared"}))


def run_of(pool, num_tokens, method="draft_model", params=(), draft="brief"):
    """A run on a prompt of 20 tokens."""
    models = {"target": "big", "draft": draft, "method": method, "params": dict(params)}
    request = Request(prompt_ids=tuple(range(60, 80)), max_new_tokens=num_tokens, **models)
    return whole_run(activate(request.validate(), pool))


@pytest.mark.parametrize(("method", "params"), WITH_DRAFT, ids=str)
def test_every_step_beyond_the_draft_models_context_says_so(named_models, method, params):
    run = run_of(named_models, 60, method, params)
    beyond = [why_nothing(step) for step in run.steps if step.context_length > 60]
    assert FULL in beyond
    assert set(beyond) == {FULL} or METHODS[method].foreign  # which waits, too, for the end of a character


def test_no_step_says_so_while_the_draft_model_can_read_the_text(named_models):
    assert {why_nothing(step) for step in run_of(named_models, 20).steps} == {""}
    assert {why_nothing(step) for step in run_of(named_models, 40, draft="near").steps} == {""}


def test_the_words_stand_in_the_terminal_the_inspector_the_opening_and_for_a_screen_reader(named_models):
    run = run_of(named_models, 40)
    step = run.steps[-2]
    (part,) = show_making(step, []).parts
    assert part.items == [("reason", FULL)]
    assert drawn_title(step, last_token(step), 0.5)[0] == f"Nothing was drafted here, as {FULL}: the target wrote "
    said = [
        event_text(step),
        speech(step),
        *(beat["sentence"] for beat in as_json(opening(run, len(run.steps) - 2))["beats"]),
    ]
    assert [FULL in words for words in said] == [True, True, True, False]


def test_an_id_that_the_draft_model_lacks_is_named(named_models):
    reader = named_models.load("brief").cached_lm()
    assert no_draft(reader, [1, 2]) is EMPTY
    assert no_draft(reader, [1, 2, reader.vocab_size]).evidence == {"unknown": reader.vocab_size}
    step = replace(traces.plain().steps[0], evidence={"unknown": 5_000})
    assert "does not know the token id 5,000" in event_text(step)


@pytest.mark.parametrize("evidence", [{"full": "40"}, {"full": True}, {"full": -1}, {"unknown": [1]}, {"unknown": {}}])
def test_evidence_of_another_shape_says_nothing(evidence):
    assert why_nothing(replace(traces.plain().steps[0], evidence=evidence)) == ""
