"""The sentences of the lab that a reader meets most, each with the case that makes it."""

from dataclasses import replace

import numpy as np
import pytest

from specviz.alignment.aggregate import Aggregator
from specviz.alignment.causes import findings
from specviz.alignment.causes.chat_forms import chat_difference
from specviz.alignment.causes.findings import of_draft
from specviz.alignment.job import Progress, align
from specviz.alignment.tables import compare as comparing
from specviz.alignment.tables import shard_tables as tables
from specviz.alignment.types import BINS
from specviz.cli.align import progress_line
from specviz.errors import SpecvizError
from tests.helpers import analysed_texts
from tests.helpers.tiny_models import CHAT_TEMPLATE, tiny_tokenizer


def summary_of(limit=10**6, **changes):
    texts = [analysed_texts.text(number, drafts=("one", "two"), size=12, limit=limit) for number in range(2)]
    aggregator = Aggregator(4, ("one", "two"))
    aggregator.add(
        tables.build_tables(texts, analysed_texts.shard([text.written.row for text in texts], ("one", "two")))
    )
    return aggregator.summary(analysed_texts.facts(analysed_texts.request(**changes), prompts="a3f"))


def finding(**changes):
    (found,) = of_draft(replace(summary_of().draft("one"), **changes), (), ids=(3000, 4096))
    return found.words


def calibration(*rows):
    """Of (share, confidence, kept) in the lowest bins."""
    sums = np.zeros((BINS, 3))
    for place, (share, confidence, kept) in enumerate(rows):
        sums[place] = share, share * confidence, share * kept
    return findings.calibration(sums, 0.9).words


def templates(change):
    pair = tiny_tokenizer(), tiny_tokenizer()
    for tokenizer, template in zip(pair, (CHAT_TEMPLATE, change(CHAT_TEMPLATE)), strict=True):
        tokenizer.chat_template = template
    return chat_difference(*pair)


def error(action):
    with pytest.raises(SpecvizError) as raised:
        action()
    return str(raised.value)


WORDS = {
    "a cut vocabulary": (
        lambda: finding(ceiling=0.91, alpha=0.7),
        "It can draft 3,000 of the target's 4,096 ids. On average, 9.0\u00a0% of the target's probability is on the "
        "others. These are 9.0 of the 30.0 points of agreement that are lost: the agreement cannot exceed 0.910.",
    ),
    "a calibration at temperature 0": (
        lambda: calibration(*[(0, 0, 0)] * (BINS - 1), (300, 1, 170 / 300)),
        "Every confidence is 1, as always at temperature 0, so it says nothing.",
    ),
    "filters in the note": (
        lambda: summary_of(top_k=5, top_p=0.9, min_p=0.1, temperature=0.7).note,
        "2 texts sampled from big at temperature 0.7, top-k 5, top-p 0.9, min-p 0.1.",
    ),
    "an unknown agreement": (
        lambda: comparing.check_thresholds(summary_of(limit=3), {"alpha": 0.5})[0],
        "one: alpha is not known: it can read none of the tokens (at least 0.5 was asked for)",
    ),
    "chat formats": (
        lambda: templates(lambda template: template.replace("<|assistant|>", "<|model|>")),
        'one question: after ">What is two and two?⏎<|" the target\'s chat format continues with "assistant|>", '
        'the draft\'s with "model|>"',
    ),
    "a template that refuses": (
        lambda: templates(lambda template: "{% for %}"),
        "one question: the draft's chat template refuses it, the other does not",
    ),
    "k out of range": (
        lambda: error(lambda: align(["x"], k=17)),
        "k must be a whole number from 1 to 16 (got 17)",
    ),
    "progress that began": (lambda: progress_line(Progress("reading", 0, 1200)), "reading: 0 of 1,200 prompts"),
    "progress at its end": (
        lambda: progress_line(Progress("reading", 4, 9, 80, 1234.4, 0.0)),
        "reading: 4 of 9 prompts, 1,234 tokens/s, 0 s left",
    ),
    "progress in minutes": (
        lambda: progress_line(Progress("reading", 4, 9, 80, 3.0, 125.2)),
        "reading: 4 of 9 prompts, 3 tokens/s, 2 min 5 s left",
    ),
    "progress in hours": (
        lambda: progress_line(Progress("reading", 4, 9, 80, 3.0, 7262.0)),
        "reading: 4 of 9 prompts, 3 tokens/s, 2 h 1 min left",
    ),
}


@pytest.mark.parametrize(("say", "sentence"), WORDS.values(), ids=WORDS)
def test_the_sentence_is_said(say, sentence):
    assert say() == sentence
