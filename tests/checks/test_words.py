"""The sentence of each outcome, with the numbers that make it. Other tests of the checks ask for states and numbers."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from specviz.checks.end_to_end import EndToEnd, judge_evidence
from specviz.checks.enumerated import Enumeration
from specviz.checks.greedy import Greedy, TextDifference
from specviz.checks.samples import Findings, ForbiddenToken, JudgedSamples, Sample
from specviz.checks.scoring import Outside
from specviz.checks.statistics import Cells, Evidence, outcome_of_cells
from specviz.decoding.sampling import Sampling

EVEN = (0.5, 0.5)
TREES = Enumeration(2, 2, lossless=True, k=3, num_outcomes=1200, distance=1e-16, trees=True)
GREEDY = Greedy(done=3, total=3, num_tokens=72)
PARTING = TextDifference(0, 4, 7, 9, 1.25, 2.5)
TOKEN = Outside(4, 7, 9, logit=1.25, most_likely_logit=2.5, beyond=1.25, is_tie=False)
FOUND = Findings(ForbiddenToken(Sample(3, (5,), (1,), Sampling()), TOKEN), Counter({"bf16": 2}), may_be_coarse=False)
SAMPLES = JudgedSamples(done=1, total=1, evidence=Evidence.empty(("one",)), num_greedy=12)


def written(num_tokens, num_held):
    """Evidence over one feature that has an even chance."""
    holds = (np.arange(num_tokens) % num_tokens < num_held)[:, None]
    np.random.default_rng(0).shuffle(holds)
    return Evidence.empty(("the likeliest token",)).add(holds, np.full((num_tokens, 1), 0.5))


FORBIDDEN = EndToEnd(32, 32, 1, Evidence.empty(("one",)), impossible=2)
OUTCOMES = {
    "cells, differs": (outcome_of_cells(Cells(EVEN, (590, 410))), "differs, n = 1,000"),
    "cells, suspicious": (outcome_of_cells(Cells(EVEN, (560, 440))), "draws decide"),
    "cells, unsure": (outcome_of_cells(Cells(EVEN, (5, 5))), "cannot tell, n = 10: too few to see a shift of 10"),
    "cells, consistent": (outcome_of_cells(Cells(EVEN, (510, 490))), "points in any share would have shown"),
    "text, differs": (
        judge_evidence(written(1000, 700), True, ""),
        "the likeliest token was written 70.0 % of the time; the target's probability is 50.0 % (z = +12.6)",
    ),
    "text, unsure": (judge_evidence(written(20, 10), True, "; more"), "too few to see a shift of 10 points; more"),
    "text, consistent": (
        judge_evidence(written(2000, 1000), True, ""),
        "no difference found, n = 2,000 tokens; one of ",
    ),
    "text, forbidden": (FORBIDDEN.outcome, "differs, n = 32 tokens: 2 of them have probability 0 under the target"),
    "enumerated, exact": (
        TREES.outcome,
        "exact (enumerated): 1,200 outcomes of the real program, drafts of up to 3 tokens, over 3 tokens pooled",
    ),
    "enumerated, trees": (TREES.outcome, "the method's own token trees, made small"),
    "enumerated, the rule alone": (replace(TREES, rule_alone=True).outcome, "the rule alone, over small token trees"),
    "enumerated, differs": (replace(TREES, distance=0.125).outcome, "12.5 % of probability is on wrong texts"),
    "enumerated, no harm": (replace(TREES, lossless=False).outcome, "cannot tell: the rule's error has no effect here"),
    "greedy, exact": (GREEDY.outcome, "exact, token by token: 72 tokens after 3 prompts, equal to the target's own"),
    "greedy, cut": (replace(GREEDY, num_cut=1).outcome, "1 of the texts end where the target's own do not."),
    "greedy, rounding": (
        replace(GREEDY, differences=(PARTING,), num_close=1).outcome,
        "The texts differ there by rounding.",
    ),
    "greedy, a reference that strays": (
        replace(GREEDY, differences=(PARTING,)).outcome,
        "the reference itself does not write the most likely token",
    ),
    "samples, exact": (SAMPLES.greedy_outcome, "exact, token by token: 12 tokens at temperature 0"),
    "samples, near-ties": (
        replace(SAMPLES, tied_greedy=FOUND).greedy_outcome,
        "but for 2 near-ties within bf16 rounding, first line 3, token 5: id 7",
    ),
    "samples, a wrong token": (replace(SAMPLES, wrong_greedy=FOUND).greedy_outcome, "line 3, token 5: id 7"),
    "samples, no format was named": (
        replace(SAMPLES, wrong_greedy=replace(FOUND, may_be_coarse=True)).greedy_outcome,
        "made in bf16 or fp16, say so: --made-in bf16",
    ),
    "samples, forbidden": (
        replace(SAMPLES, impossible=FOUND).drawn_outcome,
        "2 tokens have probability 0 under the target and these settings; ",
    ),
}


@pytest.mark.parametrize(("outcome", "words"), OUTCOMES.values(), ids=OUTCOMES)
def test_each_outcome_says_in_words_what_was_found(outcome, words):
    assert words in outcome.words
