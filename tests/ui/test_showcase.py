"""What a method is shown with suits it: its prompt is there, its target has what it needs, and it drafts well on it."""

from dataclasses import replace

import pytest

from specviz.drafters import METHODS
from specviz.models import catalog
from specviz.models.pool import ModelPool
from specviz.prompts import prompts_file
from specviz.session.whole_run import activate, whole_run
from specviz.trace.metrics import count, metrics
from specviz.ui.explore.showcase import showcase
from specviz.ui.reports.trace_models import lacks

SHOWN = prompts_file()["shows"]
POOL = ModelPool()
BUNDLED, _ = catalog.default_pair()


def test_only_known_methods_are_shown_and_each_prompt_is_a_ready_one():
    file = prompts_file()
    known = {prompt["name"] for kind in (*file["kinds"], file["dialogues"]) for prompt in kind["prompts"]}
    assert set(SHOWN) <= set(METHODS)
    assert {entry["prompt"] for entries in SHOWN.values() for entry in entries} <= known


@pytest.mark.parametrize("target", [BUNDLED, catalog.REAL, "/a/model/of/ones/own"])
@pytest.mark.parametrize("name", METHODS)
def test_it_can_be_run_and_says_where_another_target_takes_part(name, target):
    case = showcase(METHODS[name], target, POOL)
    assert (case is not None) == (name in SHOWN)
    if case is not None:
        request = case.request.validate()
        assert not lacks(METHODS[name], request.target, POOL)
        assert request.chat == catalog.chats(request.target)
        assert (f"with {request.target}" in case.words) == (request.target != target)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_on_the_bundled_target_it_writes_more_than_one_and_a_half_tokens_per_target_call(name):
    case = showcase(METHODS[name], BUNDLED, POOL)
    runs = [whole_run(activate(replace(case.request, seed=seed, max_new_tokens=64), POOL)) for seed in range(4)]
    per_call = [metrics(count(run))["tokens_per_target_call"] for run in runs]
    assert sum(per_call) / len(per_call) > 1.5
    if name == "reasoning":
        verdicts = {step.evidence.get("verdict") for run in runs for step in run.steps}
        assert {"kept", "refused"} <= verdicts, "a refused reasoning step is shown"
