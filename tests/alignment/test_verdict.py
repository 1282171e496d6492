"""The verdict on a draft, the two floors beside it, and the exit codes that follow from them."""

import numpy as np
import pytest
import torch

from specviz.alignment.causes.floors import STRENGTH, floors_of
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.verdict import LIMITS, least_explained, next_step, verdict_of
from specviz.alignment.summary import Finding, Floors
from specviz.cli.align import print_verdict
from specviz.decoding.sampling import Sampling
from specviz.models.score import TextIds
from specviz.session.workbench import workbench
from tests.helpers.made_summaries import draft, made_summary

FLOORS = Floors(0.1, 0.25, 24)
FAULT = Finding("one", "exchange", "", {"explained": 0.2})


def test_the_floors_are_those_of_counts_over_the_other_texts():
    """Computed again with plain loops: frequencies, and pairs backed by frequencies."""
    target = workbench().pool.load("fable-target")
    texts = []
    for text in ("Tom has a red ball.", "Mia has a red hat.", "The king has a red hat and a dog."):
        ids = target.text.encode(text)
        texts.append(TextIds(ids[:2], ids[2:]))
    samples = [TargetTexts(target, texts[:1], Sampling()), TargetTexts(target, texts[1:], Sampling())]
    p = torch.cat([sample.p for sample in samples]).numpy().astype(np.float64)
    places = [
        (number, [*text.prompt, *text.ids][len(text.prompt) + place - 1])
        for number, text in enumerate(texts) for place in range(len(text.ids))
    ]  # fmt: skip
    single, pairs = [], []
    for row, (number, before) in enumerate(places):
        others = [p[at] for at, (other, _) in enumerate(places) if other != number]
        frequencies = np.sum(others, 0) / np.sum(others)
        behind = [p[at] for at, (other, token) in enumerate(places) if other != number and token == before]
        backed = (np.sum(behind, 0) + STRENGTH * frequencies) / (len(behind) + STRENGTH)
        single.append(np.minimum(p[row], frequencies).sum())
        pairs.append(np.minimum(p[row], backed).sum())
    found = floors_of(samples)
    assert found.frequencies == pytest.approx(np.mean(single), abs=1e-5)
    assert found.pairs == pytest.approx(np.mean(pairs), abs=1e-5)
    assert found.num_texts == 3


@pytest.mark.parametrize(
    ("agreement", "findings", "verdict"),
    [
        (0.05, (), "broken"),
        (0.25, (), "broken"),
        (0.26, (), "weak"),
        (0.39, (), "weak"),
        (0.41, (), "sound"),
        (0.9, (FAULT,), "broken"),
        (0.9, tuple(Finding("one", kind, "", {}) for kind in LIMITS), "sound"),
        (None, (), None),
    ],
)
def test_a_draft_is_broken_by_a_fault_or_below_the_floor_and_weak_a_little_above_it(agreement, findings, verdict):
    assert verdict_of(agreement, FLOORS, findings) == verdict
    assert verdict_of(agreement, None, findings) is None


def test_a_tensor_of_unknown_cost_breaks_no_draft_that_agrees_well():
    tensors = (Finding("one", "tensors", "", {}),)
    assert verdict_of(0.4, FLOORS, tensors) == "broken"
    assert verdict_of(0.9, FLOORS, tensors) == "sound"
    assert verdict_of(0.9, FLOORS, (Finding("one", "tensors", "", {"explained": 0.2}),)) == "broken"
    assert verdict_of(0.9, Floors(1.0, 1.0, 8), ()) == "broken"


def test_a_finding_needs_half_a_point_and_a_tenth_of_the_loss():
    assert least_explained(0.99) == 0.005
    assert least_explained(0.4) == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("verdict", "kinds", "words"),
    [
        ("broken", ("rope", "exchange"), "rope_theta"),
        ("broken", ("exchange",), "converted"),
        ("broken", ("layer",), "--reference"),
        ("broken", (), "--reference"),
        ("weak", ("domain",), "--export-rows"),
        ("sound", ("template",), "--chat"),
        ("sound", (), "bench costs"),
    ],
)
def test_one_next_step_stands_at_the_end(verdict, kinds, words):
    assert words in next_step(verdict, [Finding("one", kind, "", {}) for kind in kinds])


@pytest.mark.parametrize(
    ("verdict", "findings", "on_broken", "on_findings"),
    [
        ("sound", (), 0, 0),
        ("weak", (), 0, 0),
        ("weak", (Finding("one", "domain", "", {}),), 0, 1),
        ("broken", (FAULT,), 1, 1),
        ("broken", (), 1, 1),
        (None, (), 1, 1),  # too few texts: nobody can say that it is sound
    ],
)
def test_fail_on_decides_the_exit_code(verdict, findings, on_broken, on_findings, capsys):
    summary = made_summary(drafts=(draft("one", 0.5, findings=findings, verdict=verdict),))
    assert print_verdict(summary, {}, None) == 0
    assert print_verdict(summary, {}, None, "broken") == on_broken
    assert print_verdict(summary, {}, None, "findings") == on_findings
    assert ("--fail-on findings" in capsys.readouterr().out) == bool(on_findings)
