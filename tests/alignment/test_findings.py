"""What is found wrong with a draft: planted cliffs are, healthy drafts are not, and words carry their numbers."""

import re
from dataclasses import replace

import numpy as np
import pytest

from specviz.alignment.aggregate import Aggregator
from specviz.alignment.causes import findings
from specviz.alignment.causes.findings import of_draft
from specviz.alignment.tables import shard_tables as tables
from specviz.alignment.tables.slices import DraftSlice, PerPrompt
from specviz.alignment.types import BINS
from tests.helpers import analysed_texts

# ---- cliffs ---------------------------------------------------------------------------------------------------------


def beyond(start, fall):
    """Agreement falls by so many spreads at this context."""
    return lambda contexts: -fall * (contexts >= start)


SLOW_100 = pytest.param(100, marks=pytest.mark.slow)


@pytest.mark.parametrize("num_jobs", [25, SLOW_100])
def test_healthy_drafts_are_never_called_off_a_cliff(num_jobs):
    """None of these simulated jobs of 40 prompts and two drafts; of 3,500 others one was. Texts drift, prompts differ,
    and the last bucket holds few tokens. Power: a cliff in 12 of 100 jobs would be seen in 25 with 96 %, one in 3 of
    100 jobs in 100 with 95 %."""
    generator = np.random.default_rng(7)
    jobs = [analysed_texts.parts(generator, 40, drafts=("one", "two")) for _ in range(num_jobs)]
    assert not [cliff for job in jobs for cliff in findings.cliffs(job) if cliff.significant]


@pytest.mark.parametrize(("num_jobs", "most"), [(50, 5), pytest.param(150, 10, marks=pytest.mark.slow)])
def test_a_few_healthy_prompts_rarely_look_like_a_cliff(num_jobs, most):
    """10 prompts: in about 2 of 100 jobs something looks like one, which is then said not to be significant. False
    alarms: at most 5 in 10,000; power: one in 5 of the jobs would be seen in 50 with 95 %."""
    generator = np.random.default_rng(8)
    jobs = [analysed_texts.parts(generator, 10, drafts=("one", "two")) for _ in range(num_jobs)]
    seen = [findings.cliffs(job) for job in jobs]
    assert sum(map(bool, seen)) <= most
    assert not any(cliff.significant for found in seen for cliff in found)


@pytest.mark.parametrize("start", [96, 128])
def test_a_draft_blind_from_some_context_on_is_found_there(start):
    generator = np.random.default_rng(start)
    for _ in range(8):
        job = analysed_texts.parts(generator, 40, drafts=("one",), agreement=beyond(start, 1.2), size=200)
        steepest = max(findings.cliffs(job), key=lambda cliff: (cliff.part.kind == "context", cliff.fall))
        assert steepest.significant
        assert steepest.part.value.startswith(f"{start}-")
        assert steepest.interval[0] > 0


@pytest.mark.parametrize("shift", [0, 30, 60])
def test_easier_first_tokens_are_no_cliff_by_context_wherever_the_prompts_end(shift):
    """The first bucket of context holds only first tokens of texts; only the fall by depth is one."""
    generator = np.random.default_rng(shift)
    for _ in range(8):
        job = analysed_texts.parts(generator, 40, early=0.8, prompts=(15 + shift, 30 + shift))
        assert {(cliff.part.kind, cliff.part.value) for cliff in findings.cliffs(job)} == {("depth", "16-31")}


def test_the_fall_is_that_of_the_prompts_with_tokens_on_both_sides():
    job = analysed_texts.parts(np.random.default_rng(1), 40, agreement=beyond(128, 1.5), size=200)
    cliff = next(each for each in findings.cliffs(job) if each.part == DraftSlice("one", "context", "128-191"))
    before, after = (job[DraftSlice("one", "settled", value)] for value in ("96-127", "128-191"))
    shared = set(before.prompts) & set(after.prompts)
    means = [
        sum(part.overlap[part.prompts == n].sum() for n in shared)
        / sum(part.num_tokens[part.prompts == n].sum() for n in shared)
        for part in (before, after)
    ]
    assert (cliff.high, cliff.low) == pytest.approx(means)
    assert (cliff.before, cliff.num_prompts) == ("96-127", len(shared))
    assert cliff.interval[0] < cliff.fall < cliff.interval[1]


def test_a_small_fall_is_no_cliff_however_sure():
    job = analysed_texts.parts(np.random.default_rng(2), 400, agreement=beyond(128, 0.25), size=200)
    assert findings.cliffs(job) == ()


def test_below_30_prompts_a_cliff_is_only_said_to_look_like_one(summary):
    found = findings.cliffs(analysed_texts.parts(np.random.default_rng(3), 20, agreement=beyond(128, 1.5), size=200))
    (finding,) = of_draft(summary, found)
    assert "seems to fall" in finding.words
    assert "not called significant: fewer than 30 prompts" in finding.words
    assert not any(cliff.significant for cliff in found)


def test_a_cliff_is_found_in_texts_and_marked_in_the_slices():
    """The whole way from texts: a draft that stops following the target at 64 tokens of context."""
    aggregator = Aggregator(4, ("one",))
    texts = [
        analysed_texts.text(n, size=60, weight=lambda contexts: np.where(contexts < 64, 0.7, 0.2)) for n in range(40)
    ]
    aggregator.add(tables.build_tables(texts, analysed_texts.shard([text.written.row for text in texts])))
    summary = aggregator.summary(analysed_texts.facts(analysed_texts.request()))
    assert [each.value for each in summary.slices if each.cliff and each.kind == "context"] == ["64-95"]
    (finding,) = summary.draft("one").findings
    assert (finding.kind, finding.numbers["at"], finding.numbers["num_prompts"]) == ("context", 64, 40)
    assert "at about 64 tokens of context" in finding.words


# ---- vocabulary and reach -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def summary():
    texts, aggregator = [analysed_texts.text(n) for n in range(3)], Aggregator(4, ("one",))
    aggregator.add(tables.build_tables(texts, analysed_texts.shard([text.written.row for text in texts])))
    return aggregator.summary(analysed_texts.facts(analysed_texts.request())).draft("one")


def test_nothing_is_found_in_a_draft_that_has_nothing(summary):
    assert of_draft(summary, ()) == summary.findings == ()


def test_missing_vocabulary_is_named_with_the_ceiling_it_sets(summary):
    lame = replace(summary, ceiling=0.91, alpha=0.7)
    (finding,) = of_draft(lame, (), ids=(3000, 4096))
    assert (finding.kind, finding.draft) == ("vocabulary", "one")
    for number in ("3,000", "4,096", "9.0", "30.0", "0.910"):
        assert number in finding.words
    (closed,) = of_draft(lame, (), ids=(4096, 4096))  # nobody knows how many it has closed
    assert "9.0" in closed.words
    assert "4,096" not in closed.words
    assert finding.numbers == pytest.approx({"explained": 0.09, "ceiling": 0.91, "num_ids": 3000})
    assert of_draft(replace(summary, ceiling=0.9995), ()) == ()


def test_tokens_beyond_the_drafts_context_are_named(summary):
    (finding,) = of_draft(replace(summary, readable=0.75), ())
    assert finding.kind == "reach"
    assert " 25\u00a0% of the tokens" in finding.words


# ---- domains --------------------------------------------------------------------------------------------------------


def tagged(num_in, num_out, alpha_in, alpha_out):
    """What a job keeps of texts of 50 tokens with a tag, and of others without; alphas differ from text to text."""
    size = num_in + num_out
    alphas = np.where(np.arange(size) < num_in, alpha_in, alpha_out) + np.random.default_rng(1).normal(0, 0.05, size)
    whole = PerPrompt(np.arange(size), np.full(size, 50), 50 * alphas)
    own = PerPrompt(*(each[:num_in] for each in (whole.prompts, whole.num_tokens, whole.overlap)))
    return {DraftSlice("one", "all", "all"): whole, DraftSlice("one", "tag", "code"): own}


def test_a_tag_on_which_a_draft_fails_is_named_with_the_points_that_it_costs(summary):
    """10 of 40 texts agree 0.3 less: 7.5 points of the whole."""
    (finding,) = of_draft(summary, (), tagged(10, 30, 0.3, 0.6))
    assert finding.kind == "domain"
    assert finding.numbers["explained"] == pytest.approx(0.075, abs=0.01)
    assert 0.03 < finding.numbers["low"] < finding.numbers["explained"] < finding.numbers["high"] < 0.13
    assert "code (10 of 40)" in finding.words


@pytest.mark.parametrize(
    "job",
    [
        tagged(32, 8, 0.55, 0.6),  # most texts have the tag, and lose little more
        tagged(20, 20, 0.6, 0.3),
        tagged(12, 28, 0.45, 0.58),  # as kinds of text differ for sound drafts
        tagged(4, 36, 0.1, 0.6),  # too few to speak of
        tagged(8, 12, 0.3, 0.6),
    ],
)
def test_a_tag_is_not_named_for_its_size_or_on_few_texts(summary, job):
    assert of_draft(summary, (), job) == ()


# ---- calibration ----------------------------------------------------------------------------------------------------


def test_calibration_is_that_of_every_token_that_might_be_drafted():
    generator = np.random.default_rng(5)
    p, q = analysed_texts.simplex(generator, 300), analysed_texts.simplex(generator, 300)
    found = findings.calibration(analysed_texts.confidence_of(p, q, np.ones(300, dtype=bool)), None)
    drawn = [(theirs, min(1, ours / theirs)) for ours, theirs in zip(p.ravel(), q.ravel(), strict=True)]
    ece = 0.0
    for place, each in enumerate(found.bins):
        inside = [(sure, kept) for sure, kept in drawn if min(int(sure * BINS), BINS - 1) == place]
        mass = sum(sure for sure, _ in inside)
        confidence = sum(sure * sure for sure, _ in inside) / mass
        kept = sum(sure * stays for sure, stays in inside) / mass
        assert (each.share, each.confidence, each.accepted) == pytest.approx((mass / 300, confidence, kept))
        assert (each.low, each.high) == pytest.approx((place / 10, (place + 1) / 10))
        ece += mass / 300 * abs(confidence - kept)
    assert found.ece == pytest.approx(ece)


def bins(*rows):
    """Sums of q, q * q and min(p, q), from (share, kept) of the lowest bins."""
    sums = np.zeros((BINS, 3))
    for place, (share, kept) in enumerate(rows):
        sums[place] = share, share * (place + 0.5) / BINS, share * kept
    return sums


@pytest.mark.parametrize(
    ("rows", "ratio", "told"),
    [
        ([(0.1, 0.1), (0.2, 0.2), (0.7, 0.9)], 0.25, "could help: 30\u00a0% .* below 0.2"),
        ([(0.1, 0.1), (0.2, 0.2), (0.7, 0.9)], None, "0.30, .*no costs"),
        ([(0.1, 0.1), (0.2, 0.2), (0.7, 0.9)], 0.05, "helps little: 0\u00a0%"),
        ([(0.04, 0.1), (0.96, 0.9)], 0.25, "helps little: 4.0\u00a0%"),
        ([(0.5, 0.9), (0.5, 0.1)], 0.25, "helps little: 0\u00a0%"),  # the unsure ones are kept
        ([(0.2, 0.1), (0.8, 0.2)], 0.25, "No confidence"),
    ],
)
def test_a_confidence_stop_is_judged_by_what_unsure_tokens_are_worth(rows, ratio, told):
    words = findings.calibration(bins(*rows), ratio).words
    assert re.search(told, words)
    assert "1.0" not in words


def test_no_draft_token_at_all_has_a_calibration_of_nothing():
    found = findings.calibration(np.zeros((BINS, 3)), None)
    assert (found.ece, {each.share for each in found.bins}) == (0.0, {0.0})


# ---- what was looked for --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_prompts", "size", "has_context"), [(4, 160, False), (8, 160, True), (8, 16, False)])
def test_falls_are_said_to_be_looked_for_only_where_prompts_suffice(num_prompts, size, has_context):
    """At least 5 prompts with tokens on both sides of some step, behind the first 16 of their texts."""
    told = findings.looked_for(analysed_texts.parts(np.random.default_rng(1), num_prompts, size=size))
    context = ["a fall with longer context"] * has_context
    assert list(told) == ["a vocabulary that ends early", *context, "tokens out of reach"]
