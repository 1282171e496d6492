"""Plans from traces and texts: against real runs at other K, against slow sums of one's own, and what is refused."""

import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

import specviz
from specviz.analysis import every_k as planning
from specviz.analysis import given_text as judged
from specviz.errors import SpecvizError
from specviz.settings import assets_dir
from specviz.trace import load_trace
from specviz.trace.shipped import shipped_trace
from tests.helpers import traces
from tests.helpers.runs import NUM_IDS, PROMPT, ids, made, probabilities, whole_text

FIRST_VISIT = assets_dir() / "traces" / "first-visit.jsonl.gz"
OTHER_KS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Costs:
    target: str = "big"
    draft: str | None = "near"
    draft_ms: float = 1.0
    verify_ms: tuple[float, ...] = tuple(8.0 + 0.1 * n for n in range(33))
    overhead_ms: float = 0.5
    plain_overhead_ms: float = 0.5
    doubt: str = ""


@pytest.fixture(scope="module")
def first_visit():
    return load_trace(FIRST_VISIT)


@pytest.fixture
def model(named_models):
    return named_models.load


def calls(recorded):
    return sum(step.calls["target"] for step in recorded.steps)


def slow_calls(a, k, start=0, known=None):
    """E[calls] from `start` on, by the words of the rule."""
    known = {} if known is None else known
    if start >= len(a):
        return 0.0
    if start not in known:
        total, reached, depth = 1.0, 1.0, min(k, len(a) - start - 1)
        for j in range(depth):
            total += reached * (1 - a[start + j]) * slow_calls(a, k, start + j + 1, known)
            reached *= a[start + j]
        known[start] = total + reached * slow_calls(a, k, start + depth + 1, known)
    return known[start]


def test_the_shipped_run_is_exact_and_agrees_with_a_slow_sum(first_visit):
    frame = planning.what_if(first_visit)
    a = [min(1.0, q / p) for p, q in zip(first_visit.scores[-1].p, first_visit.scores[-1].q, strict=True)]
    assert frame.k.tolist() == [*range(1, 33)]
    assert np.abs(frame.expected_target_calls - [slow_calls(a, k) for k in frame.k]).max() < 1e-9
    assert np.abs(frame.tokens_per_call - 64 / frame.expected_target_calls).max() < 1e-9
    assert frame.speedup.isna().all()
    assert frame.attrs["exact"]
    assert "Exact for this text" in frame.attrs["note"]


def test_a_scored_trace_needs_no_torch():
    program = (
        "import sys\nfrom specviz.analysis import every_k\nfrom specviz.trace import load_trace\n"
        f"assert len(every_k.what_if(load_trace({str(FIRST_VISIT)!r}))) == 32\n"
        "assert not {'torch', 'transformers', 'gradio', 'plotly'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=assets_dir().parent, timeout=60)


def test_at_its_own_k_the_run_itself_comes_back(first_visit):
    cut = judged.judge_run(first_visit).cuts([first_visit.steps[0].settings.k])[4]
    assert cut.lengths == tuple(len(step.emitted) for step in first_visit.steps)
    assert cut.kinds == tuple(step.emitted[-1].kind for step in first_visit.steps)


@pytest.mark.parametrize("target", ["big", "ending"])
def test_runs_of_any_ending_come_back(bench, target):
    endings = []
    for seed in (0, 1, 2, 3, 11):
        recorded = made(bench, target=target, num_speculative_tokens=5, seed=seed, max_new_tokens=40)
        endings.append((recorded.footer.reason, recorded.steps[-1].emitted[-1].kind))
        cut = judged.judge_run(recorded).cuts([5], seed=seed)[5]
        assert cut.lengths == tuple(len(step.emitted) for step in recorded.steps)
        assert cut.kinds == tuple(step.emitted[-1].kind for step in recorded.steps)
    assert (("eos", "accepted") in endings) == (target == "ending")


def test_all_ks_share_one_draw(first_visit):
    cuts = judged.judge_run(first_visit).cuts()
    assert all(sum(cut.lengths) == 64 and len(cut.lengths) == len(cut.kinds) for cut in cuts.values())
    numbers = [len(cut.lengths) for cut in cuts.values()]
    assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize(
    ("method", "seed"), [("draft_model", 1), ("draft_model", 2), ("prompt_lookup", 1), ("early_exit", 2)]
)
def test_greedy_runs_at_other_k_make_exactly_these_calls(bench, method, seed):
    options = {"method": method, "temperature": 0.0, "seed": seed, "prompt": PROMPT[seed:]}
    recorded = made(bench, num_speculative_tokens=3, **options)
    big = bench.pool.load("big")
    frame = planning.what_if(recorded, OTHER_KS, target=big).set_index("k")
    for k in OTHER_KS:
        number = calls(made(bench, num_speculative_tokens=k, **options))
        row = frame.loc[k]
        assert row.calls_low == row.calls_high == number
        assert row.expected_target_calls == pytest.approx(number, abs=1e-4)  # float32 logits may part at a rounding
        assert len(judged.judge_run(recorded, target=big).cuts([k])[k].lengths) == number


HEADS = {
    "eagle": {"children": "drawn"},
    "medusa": {"children": "drawn"},
    "early_exit": {"layers": 5},
}
START = "Tom and Mia went to the"


@pytest.mark.parametrize("method", HEADS)
def test_a_greedy_run_of_heads_makes_exactly_these_calls_at_another_k(method):
    asked = {"method": method, "temperature": 0.0, "max_new_tokens": 16, **HEADS[method]}
    runs = {k: specviz.run(START, num_speculative_tokens=k, **asked) for k in (2, 4)}
    told = planning.what_if(runs[2], [*runs]).set_index("k").expected_target_calls
    assert dict(told) == pytest.approx({k: calls(own) for k, own in runs.items()}, abs=1e-3)


@pytest.mark.parametrize("method", HEADS)
def test_what_heads_draft_behind_every_place_is_what_their_run_drafted_where_its_steps_began(method):
    recorded = specviz.run(START, method=method, seed=1, max_new_tokens=24, **HEADS[method])
    chances, start, num_accepted = judged.judge_run(recorded, target="fable-target", deepest=4).chances, 0, 0
    for step in recorded.steps:
        assert len(step.draft) == chances.depths(4)[start]
        accepted = [token for token in step.draft if token.status == "accepted"]
        kept = [min(1.0, token.q / token.p) for token in accepted]
        assert chances.accept[start, : len(kept)] == pytest.approx(kept, abs=1e-4)
        start, num_accepted = start + len(step.emitted), num_accepted + len(accepted)
    assert num_accepted > 3


def test_what_heads_would_have_drafted_needs_their_models_and_says_so():
    with pytest.raises(SpecvizError, match=r"specviz.what_if\(trace\)"):
        judged.judge_run(shipped_trace("real-eagle"))
    recorded = specviz.run("Once", method="early_exit", which="outer", max_new_tokens=4, num_speculative_tokens=2)
    with pytest.raises(SpecvizError, match=r"early_exit .* where its step begins"):
        planning.what_if(recorded)


def test_a_sampled_lookup_run_comes_back(bench):
    recorded = made(bench, method="prompt_lookup", num_speculative_tokens=4, seed=3, temperature=0.6, max_new_tokens=40)
    cut = judged.judge_run(recorded).cuts([4])[4]
    assert cut.lengths == tuple(len(step.emitted) for step in recorded.steps)
    assert cut.kinds == tuple(step.emitted[-1].kind for step in recorded.steps)
    assert planning.what_if(recorded, [4]).expected_target_calls[0] == calls(recorded)


def test_another_draft_on_a_greedy_text_is_that_drafts_own_run(bench, model):
    near, far = (made(bench, draft=draft, temperature=0.0) for draft in ("near", "far"))
    assert ids(near) == ids(far)
    asked = planning.what_if(near, OTHER_KS, target=model("big"), draft=model("far"))
    own = planning.what_if(far, OTHER_KS)
    assert asked.expected_target_calls.tolist() == own.expected_target_calls.tolist()
    assert asked.attrs["exact"]


@pytest.mark.parametrize("as_texts", [False, True])
def test_a_text_from_elsewhere_is_an_estimate_by_both_models_distributions(model, as_texts):
    completion = " and the dog said hello to the little fox again"
    before, text = model("big").text.encode(PROMPT), model("big").text.encode(completion, special=False)
    rows = {name: probabilities(model(name).model, before + text, 0.8)[-len(text) - 1 : -1] for name in ("big", "near")}
    p, q = (rows[name][np.arange(len(text)), text] for name in ("big", "near"))
    source = (PROMPT, completion) if as_texts else (before, text)
    got = planning.what_if(source, [1, 4], target=model("big"), draft=model("near"), temperature=0.8)
    expected = [slow_calls(np.minimum(1, q / p), k) for k in (1, 4)]
    assert np.abs(got.expected_target_calls - expected).max() < 1e-3
    assert not got.attrs["exact"]
    assert "exact only if" in got.attrs["note"]
    assert ("splitting the text again" in got.attrs["note"]) == as_texts


def test_a_text_that_cannot_be_the_targets_is_called_so(bench, model):
    recorded = made(bench, seed=4, temperature=2.0)
    tokens, size = whole_text(recorded), len(recorded.tokens)
    got = planning.what_if((tokens[:-size], tokens[-size:]), [4], target=model("big"), draft=model("near"), top_k=1)
    assert "It was not: " in got.attrs["note"]


def test_costs_give_a_speedup_and_a_best_k(bench):
    recorded = made(bench, seed=4)
    frame = planning.what_if(recorded, costs=Costs())
    assert frame.speedup.notna().all()
    low, high = frame.attrs["best"]
    assert low <= frame.k[frame.speedup.idxmax()] <= high
    free = planning.what_if(made(bench, method="prompt_lookup"), costs=Costs(draft=None, draft_ms=9.0))
    cheap = planning.what_if(made(bench, method="prompt_lookup"), costs=Costs(draft=None, draft_ms=0.0))
    assert free.speedup.tolist() == cheap.speedup.tolist()


def test_other_drafts_one_pass_each(bench, model):
    recorded = made(bench, seed=5, max_new_tokens=30)
    drafts = [model(name) for name in ("near", "far", "stranger", "brief")]
    results = list(planning.other_drafts(recorded, model("big"), drafts, costs={"near": Costs()}))
    assert [(result.done, result.total, len(result.rows)) for result in results] == [(n, 4, n) for n in range(5)]
    near, far, stranger, brief = results[-1].rows
    assert near.alpha == pytest.approx(np.mean(recorded.scores[-1].overlap), abs=1e-6)
    own = planning.what_if(recorded, [4]).expected_target_calls[0]
    assert near.what_if.at(4).expected_target_calls == pytest.approx(own, abs=1e-4)
    assert far.alpha < near.alpha
    assert near.what_if.best == planning.what_if(recorded, costs=Costs()).attrs["best"]
    assert far.what_if.best is None
    assert far.what_if.by_depth[0] > far.what_if.by_depth[3]
    assert stranger.what_if is None
    assert "vocabularies differ" in stranger.refusal
    assert "reads at most 40" in brief.refusal


def without(recorded, *events):
    return traces.read_events([event for event in traces.events_of(recorded) if event["event"] not in events])


def changed(recorded, **settings):
    events = traces.events_of(recorded)
    for event in events[2:]:
        if event["event"] == "step":
            event["settings"] |= settings
    return traces.read_events(events)


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        (lambda: traces.empty(), "fewer than two tokens"),
        (lambda: changed(traces.chain(), lossless=False, rule="typical"), r"lossy rule \(typical\)"),
        (lambda: traces.resampling_changed(), "changed during the run"),
        (lambda: without(traces.chain(), "scores", "footer"), "not scored"),
        (lambda: changed(without(traces.plain(), "scores"), method="none"), "had no draft"),
        (lambda: changed(traces.tree(), method="lookahead"), "earlier steps"),
        (lambda: changed(traces.tree(), method="tree"), "not scored"),
        (lambda: changed(traces.tree(), method="eagle"), "EAGLE head's draft depends on"),
        (lambda: changed(traces.tree(), method="medusa"), "Medusa heads depends on"),
        (lambda: changed(traces.tree(), method="mtp"), "module's draft depends on"),
        (lambda: changed(traces.tree(), method="cross_vocabulary"), "writes other tokens than the target"),
    ],
)
def test_what_cannot_be_told_is_refused_in_words(recorded, says):
    with pytest.raises(SpecvizError, match=says):
        judged.judge_run(recorded())


def test_a_method_whose_q_is_unknown_is_refused_even_when_scored():
    events = traces.events_of(traces.chain())
    scores = next(event for event in events if event["event"] == "scores")
    scores |= {"draft_model": None, "q": [None] * len(scores["q"])}
    recorded = changed(traces.read_events(events), method="early_exit", draft_model=None)
    with pytest.raises(SpecvizError, match="first layers would have drafted"):
        judged.judge_run(recorded)


def test_scores_at_other_sampling_do_not_count():
    with pytest.raises(SpecvizError, match="not scored"):
        planning.what_if(changed(traces.chain(), temperature=0.5))


def test_other_models_are_refused(bench, model):
    recorded = made(bench, seed=4)
    with pytest.raises(SpecvizError, match="big"):
        planning.what_if(recorded, target=model("far"))
    with pytest.raises(SpecvizError, match="other"):
        planning.what_if(recorded, costs=replace(Costs(), target="other"))
    with pytest.raises(SpecvizError, match="vocabularies differ"):
        planning.what_if(recorded, target=model("big"), draft=model("stranger"))
    with pytest.raises(SpecvizError, match="at least two tokens"):
        planning.what_if(([1, 2], [3]), target=model("big"), draft=model("near"))
    with pytest.raises(SpecvizError, match="does not know"):
        planning.what_if(([1, 2], [3, NUM_IDS + 100]), target=model("big"), draft=model("near"))
    with pytest.raises(SpecvizError, match="name a draft model"):
        planning.what_if(([1, 2], [3, 4]), target=model("big"))


@pytest.mark.parametrize("ks", [[], [0], [-1, 2], [1, 1], [2.5], [257]])
def test_ks_that_cannot_be_are_refused_before_anything_is_read(ks):
    for ask in (
        lambda: planning.what_if(None, ks),
        lambda: planning.what_if((None, None), ks),
        lambda: next(planning.other_drafts(None, None, [], ks)),
    ):
        with pytest.raises(ValueError, match=r"ks must be .* \(got \["):
            ask()


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p .*got 0.0"),
        ({"top_k": -1}, "top_k .*got -1"),
        ({"min_p": 2.0}, "min_p .*got 2.0"),
    ],
)
def test_sampling_that_cannot_be_is_refused(model, sampling, says):
    with pytest.raises(SpecvizError, match=says):
        planning.what_if(([1, 2], [3, 4]), target=model("big"), draft=model("near"), **sampling)


def test_a_text_too_long_is_refused_in_words(bench, model, monkeypatch):
    monkeypatch.setattr(judged, "MOST_TOKENS", 20)
    for source in (made(bench, seed=4), ([1, 2], [3] * 24)):
        with pytest.raises(SpecvizError, match=r"at most 20 tokens \(got 24\)"):
            planning.what_if(source, target=model("big"), draft=model("near"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, ""),
        ({"method": "prompt_lookup"}, ""),
        ({"rule": "sample_and_match"}, "as near would with speculative sampling and a fixed K. This run "
         "used near with sample and match, so its own calls are not"),
        ({"rule": "block_verification"}, "This run used near with block verification, so"),
        ({"rule": "sample_and_match", "method": "prompt_lookup"}, "as prompt lookup would with speculative sampling"),
    ],
)  # fmt: skip
def test_whose_steps_these_would_be_is_said(bench, options, says):
    recorded = made(bench, seed=4, **options)
    frame = planning.what_if(recorded, [4])
    assert frame.attrs["exact"]
    assert judged.is_own_plan(recorded) == (not says)
    assert says in frame.attrs["note"]
    assert ("This run used" in frame.attrs["note"]) == bool(says)


def test_steps_of_another_rule_are_not_draws_of_this_distribution(bench):
    """What the note warns of: sample and match keeps with chance p(x), so far more calls than the band holds."""
    outside = 0
    for seed in range(4):
        recorded = made(bench, seed=seed, rule="sample_and_match", max_new_tokens=40)
        row = planning.what_if(recorded, [4]).iloc[0]
        outside += not row.calls_low <= calls(recorded) <= row.calls_high
    assert outside >= 3


@pytest.mark.parametrize(
    "changed",
    [
        {"rule": "block_verification"},
        {"draft_model": "other"},
        {"method": "prompt_lookup", "draft_model": None},
        {"method": "none", "draft_model": None},
        {"params": {"ngram": 2}},
    ],
)
def test_a_way_changed_live_is_no_own_plan(changed):
    recorded = traces.Builder(seed=2).chain(4, 2).chain(4, 2, changed=changed).finish()
    assert not judged.is_own_plan(recorded)
    assert judged.is_own_plan(traces.Builder(seed=2).chain(4, 2).chain(2, 2, changed={"k": 2}).finish())


def test_another_draft_says_whose_steps_these_would_be(bench, model):
    asked = planning.what_if(made(bench, seed=4), [4], target=model("big"), draft=model("far"))
    words = "as far would with speculative sampling and a fixed K. This run used near with"
    assert words in asked.attrs["note"]


def test_live_changes_of_k_leave_the_text_exact():
    recorded = traces.Builder(seed=2).chain(4, 2).chain(2, 2, changed={"k": 2}).score().finish()
    assert planning.what_if(recorded).attrs["exact"]
    assert judged.judge_run(recorded).verdicts == (True, True, False, True, True, None)


def test_a_policy_of_the_run_does_not_cap_what_another_k_proposes(bench):
    """A fixed K is assumed, and said so: a policy that has seen no verdict allows every K."""
    runs = [
        made(bench, method="prompt_lookup", seed=3, temperature=0.0, max_new_tokens=60, params={"k_policy": policy})
        for policy in ("constant", "heuristic")
    ]
    tables = [planning.what_if(recorded, [2, 12]) for recorded in runs]
    assert [token.id for token in runs[0].tokens] == [token.id for token in runs[1].tokens]
    assert tables[0].equals(tables[1])
    assert "with speculative sampling and a fixed K" in tables[1].attrs["note"]
    assert "its K by the policy heuristic" in tables[1].attrs["note"]
