"""What the lessons and measured.md say of texts and runs that are not recorded, worked out from the bundled models.

All of it starts from the page's first request: its prompt, its pair of models, its length. What takes a minute to make
lies in `tests/restated.json`, which `python -m tests.helpers.restated_numbers` writes and a slow test makes again.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev

from specviz.alignment.generate import sample
from specviz.alignment.shard import seed_of
from specviz.analysis.every_k import what_if
from specviz.decoding.sampling import Sampling
from specviz.models.pool import ModelPool
from specviz.models.score import score
from specviz.session.whole_run import activate, whole_run
from specviz.trace.metrics import count
from specviz.trace.shipped import shipped_trace
from specviz.zoo.shipped_runs import base_request

KS = (1, 2, 3, 4, 8)
TEMPERATURES = (0.0, 1.0, 1.5, 2.0, 3.0, 5.0)
NUM_TEXTS, NUM_RUNS = 24, 8
KEPT = Path(__file__).parents[1] / "restated.json"


@cache
def pool():
    return ModelPool()


@cache
def pair():
    first = base_request()
    return pool().load(first.target), pool().load(first.draft)


@cache
def kept():
    return json.loads(KEPT.read_text("utf-8"))


def agreements(temperature):
    """As `make_agreements` made them."""
    return kept()["agreements"][str(float(temperature))]


def calls_of_runs(k):
    """As `make_calls` made them."""
    return kept()["calls"][str(k)]


def make_agreements(temperature):
    """Of each of the texts that the alignment lab draws at this temperature with seed 0: mean sum min(p, q)."""
    (target, _), first = pair(), base_request()
    prompt, sampling = target.text.encode(first.prompt), Sampling(temperature)
    seeds = [seed_of(0, number) for number in range(NUM_TEXTS)]
    drawn = sample(target, [prompt] * NUM_TEXTS, seeds, sampling, first.max_new_tokens)
    return [_agreement([*prompt, *text.ids], len(text.ids), temperature) for text in drawn]


@cache
def agreement_on(name, temperature):
    """Of the text of a recorded run, read at this temperature."""
    trace = shipped_trace(name)
    ids = [token.id for token in (*trace.header.prompt.tokens, *trace.tokens)]
    return _agreement(ids, len(trace.tokens), temperature)


def _agreement(ids, num_tokens, temperature):
    return mean(score(*pair(), ids, num_tokens, Sampling(temperature)).overlap)


@cache
def expected(name="first-visit"):
    """Row by K of the exact what-if on a recorded run's text."""
    return what_if(shipped_trace(name), KS).set_index("k")


def make_calls(k):
    """Target calls of really made runs, with seeds 0, 1, ..."""
    requests = [replace(base_request(), num_speculative_tokens=k, seed=seed).validate() for seed in range(NUM_RUNS)]
    runs = [whole_run(activate(request, pool())) for request in requests]
    assert {len(run.tokens) for run in runs} == {base_request().max_new_tokens}
    return [count(run).calls["target"] for run in runs]


def spread(values, decimals=0):
    """Mean and standard deviation, as numbers in a text."""
    return tuple(f"{value:.{decimals}f}" for value in (mean(values), stdev(values)))


def read_for_a_draft_token():
    """Of early exit: the numbers in the layers that draft and in the output layer, over those in all layers and it."""
    model, layers = pair()[0].model, shipped_trace("early-exit").steps[1].evidence["layers"]
    own = [sum(weight.numel() for weight in layer.parameters()) for layer in model.model.layers]
    head = model.lm_head.weight.numel()
    return (sum(own[layer] for layer in layers) + head) / (sum(own) + head)


def make_all():
    """What the file holds."""
    agreements = {str(temperature): make_agreements(temperature) for temperature in TEMPERATURES}
    return {"agreements": agreements, "calls": {str(k): make_calls(k) for k in KS}}


if __name__ == "__main__":
    KEPT.write_text(json.dumps(make_all(), indent=1) + "\n", "utf-8")
