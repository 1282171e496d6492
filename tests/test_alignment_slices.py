"""Slices and their intervals: buckets, resamples against a direct count, and coverage by simulation."""

import itertools

import aligned
import numpy as np
import pytest

from specviz.alignment import slices
from specviz.alignment.slices import CONTEXT_STARTS, DEPTH_STARTS, Part, PerPrompt


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
    text = aligned.text(0, size=100, tags=("a", "b", "a"))
    found = slices.membership(text, [f"class {number}" for number in range(8)])
    for kind, times in {"all": 1, "tag": 2, "class": 1, "depth": 1, "context": 1}.items():
        np.testing.assert_array_equal(found.inside[found.kinds == kind].sum(0), times)
    np.testing.assert_array_equal(found.inside[found.kinds == "settled"].sum(0), np.arange(100) >= 16)
    where = dict(zip(zip(found.kinds, found.values, strict=True), found.inside, strict=True))
    assert np.flatnonzero(where["depth", "16-31"]).tolist() == list(range(16, 32))
    assert np.flatnonzero(where["context", "96-127"]).tolist() == list(range(66, 98))


# ---- bootstrap ------------------------------------------------------------------------------------------------------


def test_a_resample_draws_as_many_prompts_as_there_are_and_all_alike():
    counts = np.concatenate(list(slices.resamples(37)))
    assert counts.shape == (slices.RESAMPLES, 37)
    assert (counts.sum(1) == 37).all()
    np.testing.assert_allclose(counts.mean(0), 1, atol=5 / np.sqrt(slices.RESAMPLES))
    np.testing.assert_allclose(counts.var(0).mean(), 1 - 1 / 37, atol=0.05)


def test_blocks_do_not_change_the_draws(monkeypatch):
    whole = np.concatenate(list(slices.resamples(50)))
    monkeypatch.setattr(slices, "BLOCK_VALUES", 1000)
    assert len(list(slices.resamples(50))) == slices.RESAMPLES / 20
    np.testing.assert_array_equal(np.concatenate(list(slices.resamples(50))), whole)


def test_sums_of_a_resample_are_those_of_its_prompts_one_by_one():
    generator = np.random.default_rng(1)
    tables = [generator.random((size, width)) for size, width in ((9, 2), (5, 1), (9, 3))]
    found = slices.weighted_sums(tables)
    for table, sums in zip(tables, found, strict=True):
        counts = np.concatenate(list(slices.resamples(len(table))))
        for row in (0, 1, 1999):
            drawn = [prompt for prompt, times in enumerate(counts[row]) for _ in range(int(times))]
            np.testing.assert_allclose(sums[row], table[drawn].sum(0), rtol=1e-5)
    assert slices.weighted_sums([]) == []


def test_an_interval_of_many_prompts_is_the_middle_of_the_draws_and_of_few_is_wider():
    draws = np.random.default_rng(2).random(20_000)
    assert slices.interval(draws, 100_000) == pytest.approx((0.025, 0.975), abs=0.005)
    few, many = slices.interval(draws, 5), slices.interval(draws, 50)
    assert few[0] < many[0] < many[1] < few[1]
    assert slices.interval(draws, 1) is None


def test_one_of_many_intervals_must_clear_zero_by_more():
    assert slices.excludes_zero((0.01, 0.21), 0.11, 50, 1)
    assert not slices.excludes_zero((0.01, 0.21), 0.11, 50, 20)
    assert slices.excludes_zero((-0.21, -0.11), -0.16, 50, 20)
    assert not slices.excludes_zero((-0.01, 0.21), 0.1, 50, 1)


@pytest.mark.parametrize(("num_prompts", "num_jobs", "least"), [(5, 500, 0.895), (30, 300, 0.91)])
def test_intervals_of_alpha_hold_it_in_about_95_of_100_jobs(num_prompts, num_jobs, least):
    """Over 3,000 simulated jobs 92 of 100 at 5 prompts, 94 at 30; the bounds are two standard errors away. The texts'
    own drift, prompts that differ and lengths that differ are in it; alpha is 1/2 by symmetry."""
    generator, inside, part = np.random.default_rng((4, num_prompts)), 0, Part("one", "all", "all")
    for _ in range(num_jobs):
        job = aligned.parts(generator, num_prompts, size=40)
        low, high = slices.alpha_intervals({part: job[part]})[part]
        inside += low <= 0.5 <= high
    assert least <= inside / num_jobs <= 0.98


def test_prompts_are_paired_by_their_number():
    ours = PerPrompt(np.array([1, 4, 6]), np.array([10, 20, 5]), np.array([5.0, 5.0, 5.0]))
    theirs = PerPrompt(np.array([0, 4, 5, 6]), np.array([1, 10, 1, 10]), np.array([1.0, 10.0, 0.0, 5.0]))
    mine, others = ours.among(theirs)
    assert (mine.prompts.tolist(), others.prompts.tolist()) == ([4, 6], [4, 6])
    assert (mine.alphas.tolist(), others.alphas.tolist()) == ([0.25, 1.0], [1.0, 0.5])
    assert mine.table.tolist() == [[5, 20], [5, 5]]
