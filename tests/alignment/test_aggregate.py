"""The summary of a job against the same numbers added up token by token; and what is refused, kept and said."""

import gc
import itertools
import json
import math
import re
import tracemalloc
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from scipy import stats

from specviz.alignment import aggregate
from specviz.alignment.aggregate import Aggregator
from specviz.alignment.summary import Finding
from specviz.alignment.tables import shard_tables as tables
from specviz.alignment.tables import totals
from specviz.alignment.types import RefusedRow, ShardTables
from specviz.analysis.whatif import start_chances
from tests.helpers import analysed_texts

DRAFTS = ("one", "two")
COSTS = SimpleNamespace(
    draft_ms=1.0,
    verify_ms=[10.0 + n for n in range(33)],
    overhead_ms=1.0,
    plain_overhead_ms=0.5,
    doubt="",
    to_dict=lambda: {"draft_ms": 1.0},
)
STEP_MS = (10.5, *(k * 1.0 + 10.0 + k + 1.0 for k in range(1, 17)))


def texts_of(num=12, **changes):
    return [analysed_texts.text(n, drafts=DRAFTS, tags=("even",) if n % 2 == 0 else (), **changes) for n in range(num)]


def gathered(texts, k=4, per_shard=40, step_ms=None):
    found = Aggregator(k, DRAFTS)
    for first in range(0, len(texts), per_shard):
        some = texts[first : first + per_shard]
        shard = analysed_texts.shard([text.written.row for text in some], DRAFTS, k, step_ms or {})
        found.add(tables.build_tables(some, shard))
    return found


def summary_of(texts, costs=None, **changes):
    step_ms = {"one": STEP_MS} if costs else None
    facts = analysed_texts.facts(analysed_texts.request(), costs=costs or {}, **changes)
    return gathered(texts, step_ms=step_ms).summary(facts)


def places(texts, draft, inside=lambda text, place: True):
    """(text, columns of the draft, place) of every readable place."""
    for text in texts:
        columns = text.drafts[draft]
        readable = np.flatnonzero(columns["readable"])
        yield from ((text, columns, n) for n in readable if inside(text, n))


@pytest.fixture(scope="module")
def texts():
    return texts_of(limit=60, num_ids=11)


@pytest.fixture(scope="module")
def summary(texts):
    return summary_of(texts)


@pytest.fixture(scope="module")
def with_costs(texts):
    """The same where the costs of the first draft are known."""
    return summary_of(texts, costs={"one": COSTS})


def test_a_draft_has_the_means_of_all_readable_tokens(texts, summary):
    found = summary.draft("two")
    every = list(places(texts, "two"))
    assert (found.num_tokens, found.num_prompts) == (12 * 40, 12)
    assert found.readable == pytest.approx(len(every) / (12 * 40))
    assert found.alpha == pytest.approx(np.mean([own["overlap"][n] for _, own, n in every]), rel=1e-6)
    assert found.mean_acceptance == pytest.approx(np.mean([own["keep"][n] for _, own, n in every]), rel=1e-6)
    agree = [text.tokens["most_likely"][n] == own["draft_most_likely"][n] for text, own, n in every]
    assert found.greedy_agreement == pytest.approx(np.mean(agree))
    assert found.ceiling == pytest.approx(1 - np.mean([own["outside"][n] for _, own, n in every]), rel=1e-6)
    assert found.alpha_interval[0] < found.alpha < found.alpha_interval[1]


def test_tokens_per_call_and_speedups_are_those_of_all_texts_together(texts, with_costs):
    found = with_costs
    shard = analysed_texts.shard([text.written.row for text in texts], DRAFTS, step_ms={"one": STEP_MS})
    built = tables.build_tables(texts, shard)
    prompts, sums = built.prompts, built.sums
    calls = [
        40 / rate for rate, draft in zip(prompts["tokens_per_call"], prompts["draft"], strict=True) if draft == "one"
    ]
    assert found.draft("one").tokens_per_call[3] == pytest.approx(12 * 40 / sum(calls), rel=1e-6)
    speedups = found.draft("one").speedups
    assert found.draft("two").speedups is found.draft("two").best_k is None
    time_ms = sum(
        row for row, *key in zip(sums["time_ms"], sums["draft"], sums["kind"], strict=True) if key == ["one", "all"]
    )
    np.testing.assert_allclose(speedups, 12 * 40 * 10.5 / time_ms, rtol=1e-5)
    low, high = found.draft("one").best_k
    assert low <= 1 + int(np.argmax(speedups)) <= high
    assert all((speedups[k - 1] >= 0.98 * max(speedups)) == (low <= k <= high) for k in range(1, 17))
    whole = next(each for each in found.slices if each.kind == "all" and each.draft == "one")
    assert (whole.best_k, whole.speedup) == (1 + int(np.argmax(speedups)), pytest.approx(max(speedups)))


def test_every_slice_has_the_mean_of_its_tokens(texts, summary):
    found = {(each.draft, each.kind, each.value): each for each in summary.slices}
    asked = {
        ("one", "tag", "even"): lambda text, n: "even" in text.written.row.tags,
        ("two", "class", "digit"): lambda text, n: text.tokens["class"][n] == "digit",
        ("one", "depth", "16-31"): lambda text, n: 16 <= n < 32,
        ("two", "context", "32-47"): lambda text, n: 32 <= 30 + n < 48,
    }
    for key, inside in asked.items():
        every = list(places(texts, key[0], inside))
        assert found[key].num_tokens == len(every)
        assert found[key].num_prompts == len({text.written.row.number for text, _, _ in every})
        assert found[key].alpha == pytest.approx(np.mean([own["overlap"][n] for _, own, n in every]), rel=1e-5)
    assert ("one", "context", "64-95") not in found  # beyond the drafts' context


def test_slices_stand_in_the_order_of_the_report(summary):
    found = [(each.kind, each.value) for each in summary.slices if each.draft == "one"]
    kinds = [kind for kind, _ in itertools.groupby(found, key=lambda each: each[0])]
    assert kinds == ["all", "tag", "class", "depth", "context", "ahead"]
    assert [value for kind, value in found if kind == "depth"] == ["0-15", "16-31"]
    assert [value for kind, value in found if kind == "class"] == list(tables.CLASSES)


def test_how_work_was_cut_into_shards_changes_nothing(texts):
    facts = analysed_texts.facts(analysed_texts.request())
    whole, parts = (gathered(texts[:4], per_shard=size).summary(facts).to_dict() for size in (4, 1))
    assert _close(whole, parts)


def _close(ours, theirs):
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(_close(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(_close, ours, theirs))
    return ours == theirs or (isinstance(ours, float) and math.isclose(ours, theirs, rel_tol=1e-9))


def test_a_summary_is_plain_json_without_numbers_that_are_none(texts):
    unread = [analysed_texts.text(20 + n, drafts=DRAFTS, limit=3) for n in range(2)]
    told = summary_of([*texts[:2], *unread], costs={"one": COSTS}).to_dict()
    assert json.loads(json.dumps(told, allow_nan=False))["drafts"][0]["name"] == "one"


def test_a_job_without_a_usable_text_says_so():
    found = gathered([]).summary(analysed_texts.facts(analysed_texts.request()))
    assert (found.num_prompts, found.slices, found.exact) == (0, (), False)
    json.dumps(found.to_dict(), allow_nan=False)


def test_alphas_are_kept_by_prompt(texts, summary):
    found = summary.by_prompt
    own = texts[7].drafts["two"]
    assert list(found) == [f"row {n}" for n in range(12)]
    assert found["row 7"]["two"] == pytest.approx(own["overlap"][own["readable"]].sum() / 40, rel=1e-5)


def test_a_prompt_that_a_draft_cannot_read_has_an_alpha_of_0():
    """Or a job in which it reads more would be compared on other prompts."""
    unread, read = analysed_texts.text(0, drafts=DRAFTS, limit=3), analysed_texts.text(1, drafts=DRAFTS)
    assert summary_of([unread, read]).by_prompt["row 0"] == {"one": 0.0, "two": 0.0}


# ---- rejections -----------------------------------------------------------------------------------------------------


def test_a_pattern_saves_what_its_places_save_in_all_texts_with_the_interval_of_that_sum(texts, summary):
    told = summary.draft("one")
    saved = defaultdict(lambda: np.zeros(12))
    places_of = defaultdict(list)
    for text, own, n in places(texts, "one"):
        key = (text.tokens["class_before"][n], text.tokens["text"][n], own["draft_most_likely_text"][n])
        if own["saved"][n] > 1e-6:
            saved[key][text.written.row.number] += own["saved"][n]
            places_of[key].append((text.written.row.number, n))
    sure = {}
    for key, by_text in saved.items():
        mean = stats.ttest_1samp(by_text, 0).confidence_interval(0.95)
        if mean.low > 0 and by_text.sum() >= 1e-4 * told.calls:
            sure[key] = (12 * mean.low, 12 * mean.high)
    assert len(sure) > 3
    assert {(each.before, each.token, each.draft_token) for each in told.patterns} == set(sure)
    assert [each.saved for each in told.patterns] == sorted((each.saved for each in told.patterns), reverse=True)
    for each in told.patterns:
        key = each.before, each.token, each.draft_token
        assert each.saved == pytest.approx(saved[key].sum(), rel=1e-5)
        assert each.interval == pytest.approx(sure[key], rel=1e-4, abs=1e-6)
        assert (each.num_places, each.num_prompts) == (len(places_of[key]), np.count_nonzero(saved[key]))
        assert (each.prompt, each.place) in places_of[key]
        assert each.id == f"row {each.prompt}"


def test_one_costly_text_makes_no_pattern():
    """Or the list would hold whatever is rare: chance decides which rare words a job meets."""
    text = analysed_texts.text(0, drafts=DRAFTS, weight=0.0)
    others = [analysed_texts.text(n, drafts=DRAFTS, weight=1.0) for n in range(1, 12)]
    assert summary_of([text, *others]).draft("one").patterns == ()


def test_beyond_the_most_patterns_those_that_save_least_are_forgotten(texts, summary, monkeypatch):
    whole = summary.draft("one").patterns
    monkeypatch.setattr(totals, "MOST_PATTERNS", len(whole) + 60)
    assert summary_of(texts).draft("one").patterns[0].token == whole[0].token


# ---- slices that lose more than their share -------------------------------------------------------------------------


def tagged(num, weak, strong, share=0.5, size=40):
    """Texts of which this share has the tag `weak`, drafted with that weight of p in q, the others with `strong`."""
    num_weak = int(num * share)
    return [
        analysed_texts.text(n, size=size, drafts=DRAFTS, tags=("weak" if n < num_weak else "strong",),
                     weight=weak if n < num_weak else strong)
        for n in range(num)
    ]  # fmt: skip


def standing_out(texts):
    return {(each.kind, each.value) for each in summary_of(texts).slices if each.draft == "one" and each.stands_out}


@pytest.mark.slow
def test_a_slice_stands_out_where_its_share_of_the_loss_is_above_its_share_of_the_tokens_beyond_chance():
    texts = tagged(40, 0.3, 0.7)
    assert ("tag", "weak") in standing_out(texts)
    assert ("tag", "strong") not in standing_out(texts)
    weak = next(each for each in summary_of(texts).slices if (each.draft, each.value) == ("one", "weak"))
    lost = {text.written.row.number: (1 - text.drafts["one"]["overlap"]).sum() for text in texts}
    assert weak.share == pytest.approx(0.5)
    assert weak.loss_share == pytest.approx(sum(lost[n] for n in range(20)) / sum(lost.values()), rel=1e-5)
    assert weak.excess[0] < weak.loss_share - weak.share < weak.excess[1]


@pytest.mark.slow
def test_a_slice_that_only_holds_most_tokens_does_not_stand_out():
    """That it holds most of the loss as well restates its size, also where it surely loses a little more."""
    texts = tagged(40, 0.46, 0.54, share=0.8)
    weak = next(each for each in summary_of(texts).slices if (each.draft, each.value) == ("one", "weak"))
    assert 0.82 < weak.loss_share < 0.84
    assert weak.excess[0] > 0
    assert standing_out(texts) == set()


@pytest.mark.parametrize(("num_read", "num_more"), [(28, 0), (28, 4), (3, 28), (1, 30)])
def test_below_30_texts_no_slice_stands_out(num_read, num_more):
    """Nor where the draft can read that many of more texts."""
    read = tagged(28, 0.1, 0.9, size=8)[:num_read]
    unread = [analysed_texts.text(28 + n, size=8, drafts=DRAFTS, limit=0) for n in range(num_more)]
    assert standing_out([*read, *unread]) == set()


def test_from_30_texts_on_a_slice_stands_out():
    assert ("tag", "weak") in standing_out(tagged(30, 0.1, 0.9, size=8))


# ---- losses ---------------------------------------------------------------------------------------------------------


def test_losses_add_up_to_all_that_the_steps_could_have_added_by_class_and_by_reason(texts, summary):
    """A step that nothing cut short emits K + 1 tokens, or what is left of the text."""
    found, whole = summary.draft("one"), 0.0
    for text in texts:
        chances = tables.draft_chances(text.drafts["one"]["keep"], text.drafts["one"]["readable"])
        most = np.minimum(chances.depths(4), 39 - np.arange(40)) + 1
        whole += start_chances(chances, [4])[0] @ most - 40
    for kind in ("class", "reason"):
        own = [each for each in found.losses if each.kind == kind]
        assert sum(each.lost for each in own) == pytest.approx(whole, rel=1e-5)
        assert sum(each.share for each in own) == pytest.approx(1)
        assert own == sorted(own, key=lambda each: -each.lost)
    lost = sum(own["lost"][n] for text, own, n in places(texts, "one") if text.tokens["class"][n] == "word")
    told = {(each.kind, each.value): each.lost for each in found.losses}
    assert told["class", "word"] == pytest.approx(lost, rel=1e-5)
    assert [each.kind for each in found.losses] == sorted(each.kind for each in found.losses)


def test_calls_are_the_expected_target_calls_for_all_texts(texts, summary):
    prompts = tables.build_tables(texts, analysed_texts.shard([text.written.row for text in texts], DRAFTS)).prompts
    rates = [rate for rate, draft in zip(prompts["tokens_per_call"], prompts["draft"], strict=True) if draft == "two"]
    assert summary.draft("two").calls == pytest.approx(sum(40 / rate for rate in rates), rel=1e-6)


def test_reasons_share_out_all_that_is_lost(texts, summary):
    found = summary.draft("one").reasons
    assert sum(reason.share for reason in found) == pytest.approx(1)
    assert [reason.share for reason in found] == sorted((reason.share for reason in found), reverse=True)
    assert sum(reason.num_tokens for reason in found) == 12 * 40
    outside = next(reason for reason in found if reason.name == "outside the draft's vocabulary")
    lost = sum((1 - text.drafts["one"]["overlap"]).sum() for text in texts)
    missing = sum(own["outside"][n] for _, own, n in places(texts, "one"))
    assert outside.share == pytest.approx(missing / lost, rel=1e-5)


# ---- what the driver knows ------------------------------------------------------------------------------------------


def test_refused_lines_are_counted_and_listed_once_from_the_file_and_from_the_models():
    found = gathered(texts_of(2))
    late = tables.build_tables(
        [], analysed_texts.shard([], DRAFTS), [RefusedRow(9, "is too long")], ["mind this", "and this"]
    )
    found.add(late)
    facts = analysed_texts.facts(
        analysed_texts.request(), refused=[RefusedRow(4, "is empty")], num_refused=30, warnings=["mind this"]
    )
    told = found.summary(facts)
    assert (told.num_refused, told.refused) == (31, ((4, "is empty"), (9, "is too long")))
    assert told.warnings == ("mind this", "and this")


def test_findings_on_models_come_first_and_to_their_draft(texts):
    noised = Finding("two", "layer", "layer 3 is noised", {"layer": 3})
    found = summary_of(texts, findings=[noised], num_ids={"two": 11, "big": 12})
    assert found.draft("two").findings[0] == noised
    assert [each.kind for each in found.draft("one").findings] == ["vocabulary", "reach"]
    assert " 11 of the target's 12 ids" in found.draft("two").findings[1].words


def test_given_texts_are_called_estimates():
    given = [analysed_texts.text(5, drafts=DRAFTS, given=True)]
    told = summary_of(texts_of(2) + given)
    assert (told.exact, summary_of(texts_of(2)).exact) == (False, True)
    assert "1 text given: an estimate" in told.note
    assert "2 texts sampled from big at temperature 1." in told.note


def test_texts_that_fill_the_targets_context_are_counted():
    ends = ["context", "eos", "length", "context"]
    told = summary_of([analysed_texts.text(n, drafts=DRAFTS, finish=finish) for n, finish in enumerate(ends)])
    assert told.num_cut == 2


def test_what_was_looked_for_in_models_and_numbers_is_named(texts):
    told = summary_of(texts, looked_for=["a damaged layer"]).looked_for
    assert told == (
        "a damaged layer",
        "a vocabulary that ends early",
        "a fall with longer context",
        "tokens out of reach",
        "a tag on which it fails",
    )


def test_the_prompt_set_and_the_chat_form_are_told():
    facts = analysed_texts.facts(analysed_texts.request(chat=True), prompts="a3f")
    told = gathered(texts_of(2)).summary(facts)
    assert (told.prompts, told.chat) == ("a3f", True)


def test_a_draft_that_reads_nothing_has_no_agreement_but_still_its_calls():
    found = summary_of([analysed_texts.text(n, drafts=DRAFTS, limit=3) for n in range(3)]).draft("one")
    assert found.alpha is found.greedy_agreement is found.mean_acceptance is found.ceiling is None
    assert (found.readable, found.calls, found.tokens_per_call[3]) == (0.0, 120.0, 1.0)
    assert [each.kind for each in found.findings] == ["reach"]


def test_a_slice_in_which_no_step_begins_has_no_tokens_per_call():
    """Every token is kept, so one step takes all five; at K = 4 none begins at the third."""
    text = analysed_texts.text(0, size=5, drafts=DRAFTS, weight=1.0)
    classes = np.array(["word", "word", "digit", "word", "word"], dtype=object)
    found = summary_of([replace(text, tokens=text.tokens | {"class": classes})], costs={"one": COSTS})
    apart = next(each for each in found.slices if each.value == "digit")
    assert apart.tokens_per_call is apart.best_k is apart.speedup is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_of_many_tags_those_with_most_prompts_are_listed(monkeypatch):
    monkeypatch.setattr(aggregate, "TAGS_SHOWN", 2)
    monkeypatch.setattr(aggregate, "MOST_TAGS", 4)
    texts = [analysed_texts.text(n, size=5, drafts=DRAFTS, tags=("a", "b", f"own {n}")) for n in range(6)]
    told = summary_of(texts)
    assert {each.value for each in told.slices if each.kind == "tag"} == {"a", "b"}
    (warning,) = told.warnings
    assert re.search(r"\b2 tags .* first 4\b", warning)


def test_k_must_be_one_that_texts_are_planned_for():
    with pytest.raises(ValueError, match="k must be from 1 to 16"):
        Aggregator(17, DRAFTS)


def later(found, by):
    """The same tables, `by` prompts later, made anew: a frame remembers all that shares its cells."""
    moved = ({**table, "prompt": table["prompt"] + by} for table in found)
    frames = ({name: pandas.Series(cells, dtype=cells.dtype) for name, cells in table.items()} for table in moved)
    return ShardTables(*map(pandas.DataFrame, frames), {}, (), ())


@pytest.mark.slow
@pytest.mark.parametrize("size", [20, 200])
def test_memory_grows_by_a_few_hundred_bytes_per_prompt_and_not_with_tokens(size):
    texts = [analysed_texts.text(n, size=size) for n in range(10)]
    found, shard = Aggregator(4, ("one",)), analysed_texts.shard([text.written.row for text in texts])
    made = tables.build_tables(texts, shard)
    made = [
        {name: cells.to_numpy() for name, cells in table.items()}
        for table in (made.tokens, made.prompts, made.sums, made.bounds)
    ]
    tracemalloc.start()
    for number in range(60):
        found.add(later(made, 10 * number))
        if number == 9:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown / 500 < 750
