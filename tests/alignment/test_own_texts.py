"""Texts that are not the target's own at the job's settings: their tokens tell, whatever their rows say."""

import json

import numpy as np
import pytest

from specviz.alignment.aggregate import ONE_IN, Aggregator
from specviz.alignment.job import align
from specviz.request import Request
from tests.alignment.test_counters import PROMPTS, vllm

TARGET = "fable-target"
OPTIONS = {"target": TARGET, "draft": "fable-draft-tiny", "costs": {}, "max_new_tokens": 40}


def rows_of(done, change=lambda ids: ids, **sampled):
    """The job's texts as rows that say how they were sampled."""
    said = {"target": TARGET, "temperature": 1.0, **sampled}
    tokens = done.tokens
    rows = []
    for row in done.prompts.itertuples():
        ids = tokens.loc[tokens["prompt"] == row.prompt, "token"].tolist()
        rows.append({"prompt_ids": list(map(int, row.prompt_ids)), "ids": change(ids), "sampled": said})
    return rows


@pytest.fixture(scope="module")
def sampled():
    return align(PROMPTS, **OPTIONS)


def odd(summary):
    return [words for words in summary.warnings if "were not sampled" in words]


def test_the_targets_own_texts_are_believed(sampled):
    assert sampled.summary.exact
    assert not odd(sampled.summary)
    again = align(rows_of(sampled), **OPTIONS).summary
    assert again.exact
    assert not odd(again)


def test_texts_of_another_temperature_are_found_out(sampled):
    cold = align(PROMPTS, **OPTIONS, temperature=0.5)
    assert not odd(cold.summary)
    told = align(rows_of(cold), **OPTIONS).summary
    assert odd(told)
    assert not told.exact


def test_what_a_broken_engine_wrote_is_found_out_and_its_counters_are_not_compared(sampled, tmp_path):
    """As a real engine did with a draft at temperature 1 on a CPU: tokens that hardly depended on the target."""
    noise = np.random.default_rng(0)
    rows = rows_of(sampled, lambda ids: noise.integers(0, 4096, len(ids)).tolist())
    path = tmp_path / "counted.json"
    path.write_text(json.dumps(vllm([90, 5, 3, 2])))
    told = align(rows, **OPTIONS, k=3, served=path).summary
    assert odd(told)
    assert not told.exact
    assert told.as_served is None
    assert not [each for each in told.drafts[0].findings if each.kind == "served"]


@pytest.mark.parametrize("num_texts", [8, 40])
def test_own_texts_are_suspected_as_seldom_as_said(num_texts):
    """Drawn texts, with sure and unsure places in each."""
    chance = np.random.default_rng(1)
    suspected = 0
    num_jobs = 3000
    for _ in range(num_jobs):
        sure = chance.beta(0.8, 0.6, (num_texts, 40))
        found = chance.random(sure.shape) < sure
        judged = Aggregator(4, ["a"])
        judged.ids = dict.fromkeys(range(num_texts), "")
        judged._most_likely = [np.stack([found.mean(1), sure.mean(1)], axis=1)]
        suspected += bool(judged._odd_words(Request(prompt="-", target="t")))
    assert suspected <= 3 + 3 * num_jobs / ONE_IN
