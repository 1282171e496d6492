"""Slices and their intervals: buckets, and the coverage of intervals by simulation."""

import itertools

import numpy as np
import pytest
from scipy import stats

from specviz.alignment.tables import slices
from specviz.alignment.tables.compare import compare_drafts
from specviz.alignment.tables.slices import CONTEXT_STARTS, DEPTH_STARTS, DraftSlice, PerPrompt
from tests.helpers import analysed_texts


@pytest.mark.parametrize("starts", [DEPTH_STARTS, CONTEXT_STARTS])
def test_buckets_meet_without_a_gap_and_are_named_by_their_ends(starts):
    names = [slices.bucket_name(starts, bucket) for bucket in range(len(starts) - 1)]
    ends = [tuple(map(int, name.split("-"))) for name in names]
    assert ends[0][0] == 0
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ends))
    assert [slices.bucket_start(name) for name in names] == list(starts[:-1])
    assert slices.bucket_start(slices.bucket_name(starts, len(starts) - 1)) == starts[-1]


def test_buckets_are_those_that_are_promised():
    assert [slices.bucket_name(DEPTH_STARTS, bucket) for bucket in range(4)] == ["0-15", "16-31", "32-63", "64-127"]
    context = [slices.bucket_name(CONTEXT_STARTS, bucket) for bucket in range(7)]
    assert context == ["0-31", "32-47", "48-63", "64-95", "96-127", "128-191", "192-255"]


def test_every_token_is_in_one_slice_of_each_kind_and_in_every_tag_once():
    text = analysed_texts.text(0, size=100, tags=("a", "b", "a"))
    found = slices.find_slices(text)
    for kind, times in {"all": 1, "tag": 2, "class": 1, "depth": 1, "context": 1}.items():
        np.testing.assert_array_equal(found.inside[found.kinds == kind].sum(0), times)
    np.testing.assert_array_equal(found.inside[found.kinds == "settled"].sum(0), np.arange(100) >= 16)
    where = dict(zip(zip(found.kinds, found.values, strict=True), found.inside, strict=True))
    assert np.flatnonzero(where["depth", "16-31"]).tolist() == list(range(16, 32))
    assert np.flatnonzero(where["context", "96-127"]).tolist() == list(range(66, 98))


# ---- intervals ------------------------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_that_of_the_t_test():
    values = np.random.default_rng(2).random(7)
    found = slices.interval(slices.without_each(values) / 6)
    assert found == pytest.approx(tuple(stats.ttest_1samp(values, 0).confidence_interval(0.95)))
    assert slices.interval(slices.without_each(values[:1])) is None


def test_alphas_without_a_prompt_are_those_of_the_others():
    part = PerPrompt(np.arange(3), np.array([10, 20, 5]), np.array([5.0, 5.0, 5.0]))
    assert part.alphas_without == pytest.approx([10 / 25, 10 / 15, 10 / 30])


def test_one_of_many_intervals_must_clear_zero_by_more():
    assert slices.excludes_zero((0.01, 0.21), 0.11, 50, 1)
    assert not slices.excludes_zero((0.01, 0.21), 0.11, 50, 20)
    assert slices.excludes_zero((-0.21, -0.11), -0.16, 50, 20)
    assert not slices.excludes_zero((-0.01, 0.21), 0.1, 50, 1)


FEW = {2: 800, 3: 800, 5: 600, 9: 500, 20: 400}
"""Prompts -> simulated jobs."""


def coverage(num_prompts, interval_of, drafts=("one",)):
    generator, inside = np.random.default_rng((4, num_prompts)), 0
    for _ in range(FEW[num_prompts]):
        job = analysed_texts.parts(generator, num_prompts, drafts=drafts, size=40)
        (low, high), truth = interval_of({part: own for part, own in job.items() if part.kind == "all"})
        inside += low <= truth <= high
    return inside / FEW[num_prompts]


@pytest.mark.slow
@pytest.mark.parametrize("num_prompts", FEW)
def test_intervals_of_alpha_hold_it_in_95_of_100_jobs_however_few_their_prompts(num_prompts):
    """The texts' own drift, prompts that differ and lengths that differ are in it; alpha is 1/2 by symmetry."""
    found = coverage(num_prompts, lambda job: (slices.alpha_intervals(job)[DraftSlice("one", "all", "all")], 0.5))
    assert 0.93 <= found <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("num_prompts", FEW)
def test_intervals_of_a_difference_hold_it_in_95_of_100_jobs_however_few_their_prompts(num_prompts):
    """Of two drafts that agree alike; so do those of `--compare`."""
    ids = {prompt: str(prompt) for prompt in range(num_prompts)}
    found = coverage(num_prompts, lambda job: (compare_drafts(job, "ab", ids)[0].slices[0].interval, 0.0), drafts="ab")
    assert 0.93 <= found <= 0.98


def test_an_interval_of_alpha_stays_between_0_and_1():
    part = PerPrompt(np.arange(2), np.array([10, 10]), np.array([1.0, 9.0]))
    assert slices.alpha_intervals({"any": part}) == {"any": (0.0, 1.0)}


def test_prompts_are_paired_by_their_number():
    ours = PerPrompt(np.array([1, 4, 6]), np.array([10, 20, 5]), np.array([5.0, 5.0, 5.0]))
    theirs = PerPrompt(np.array([0, 4, 5, 6]), np.array([1, 10, 1, 10]), np.array([1.0, 10.0, 0.0, 5.0]))
    mine, others = ours.among(theirs)
    assert (mine.prompts.tolist(), others.prompts.tolist()) == ([4, 6], [4, 6])
    assert (mine.alphas.tolist(), others.alphas.tolist()) == ([0.25, 1.0], [1.0, 0.5])
