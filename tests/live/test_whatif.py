"""What specviz says of other Ks on a run of the page is what it says of Python's run, and what the page then does."""

import pandas
import pytest

import specviz
from specviz.analysis.given_text import judge_run
from specviz.trace.file import read_trace
from tests.live.engine import DRAFTS, TARGET, asked_run, runs
from tests.live.test_run import PROMPTS, reference

KS = (1, 2, 3, 4, 6, 8, 12)


def of_page(*asked):
    return [read_trace(each["file"].encode()) for each in runs([*asked])]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05}], ids=str)
def test_every_k_costs_what_it_costs_python(sampling):
    same = {"k": 4, "seed": 3, "max_new_tokens": 40, **sampling}
    (mine,) = of_page(asked_run(PROMPTS[0], **same))
    right = reference(PROMPTS[0], draft=DRAFTS[0], **same)
    assert [token.id for token in mine.tokens] == [token.id for token in right.tokens]
    for draft in DRAFTS:
        ours, theirs = (specviz.what_if(each, KS, draft=draft) for each in (mine, right))
        pandas.testing.assert_frame_equal(ours, theirs, rtol=0, atol=1e-4)
        assert ours.attrs["exact"] is True
        assert len(ours) == len(KS)


@pytest.mark.parametrize("draft", [DRAFTS[0], *(pytest.param(draft, marks=pytest.mark.slow) for draft in DRAFTS[1:])])
def test_the_what_if_of_a_greedy_run_is_what_the_page_does(draft):
    how = {"temperature": 0.0, "max_new_tokens": 40, "draft": draft}
    first, *others = of_page(*(asked_run(PROMPTS[4], k=k, **how) for k in (5, *KS)))
    calls = specviz.what_if(first, KS, draft=draft).set_index("k")
    cuts = judge_run(first, target=TARGET, draft=draft).cuts(KS)
    for k, other in zip(KS, others, strict=True):
        assert [token.id for token in other.tokens] == [token.id for token in first.tokens]
        assert list(cuts[k].lengths) == [len(step.emitted) for step in other.steps]
        assert list(cuts[k].kinds) == [step.emitted[-1].kind for step in other.steps]
        numbers = calls.loc[k, ["expected_target_calls", "calls_low", "calls_high"]]
        assert list(numbers) == [len(other.steps)] * 3
