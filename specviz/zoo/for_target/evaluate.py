"""What a trained draft is worth: its overlap on held-out dialogues, real runs of the engine, and its card."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.heads import kind_of, load_heads
from specviz.drafters.method import Part, Parts
from specviz.drafters.params import Value
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel, ModelPool
from specviz.rules.speculative_sampling import SpeculativeSampling
from specviz.zoo.evaluation.card import table
from specviz.zoo.for_target.eagle3 import MEASURED_DEPTH
from specviz.zoo.for_target.learning import (
    CURVE,
    EARLIER,
    RECIPE,
    Learner,
    measured,
    score_texts,
    scored,
)
from specviz.zoo.for_target.own import own_draft, own_head
from specviz.zoo.for_target.store import StoredText
from specviz.zoo.for_target.teacher import with_whole_distributions

CARD = "MODEL_CARD.md"
K, ANSWER_TOKENS = 4, 64
Params = dict[str, Value]
HEAD = """\
# A draft head for {target}

A head of the EAGLE family in the layout of public checkpoints. It drafts for `{target}` only. It learned the target
model's probabilities in texts that the target model wrote. `recipe.json` holds the settings of each training, the last
one first; `python -m specviz.zoo.for_target eagle` trains such a head."""
DRAFT = """\
# A draft model for {target}

A small model with the vocabulary of `{target}`. It learned the target model's probabilities in its training texts. It
is a draft model, not an assistant. `recipe.json` holds the settings of each training, the last one first;
`python -m specviz.zoo.for_target draft` trains such a model."""
NOTES = """\
Overlap is the sum of min(p, q) at temperature 1, counted over the target's 64 likeliest tokens. Beside it: how often
both models have the same most likely token. Both are measured on answers that were held out of training.{depths}

Over all tokens of the target, the overlap of these weights is {whole}."""
WENT_ON = """\
It went on from the weights of `{folder}`{before}; the table counts from there."""
BEFORE = ", which had read {answer_tokens:,} answer tokens in {steps:,} steps"
DEPTHS = """
The numbers are for depths 1, 2 and so on. At depth 1 the head reads the target's hidden state, deeper its own."""
RUNS = "Answers of up to {tokens} tokens to {number} held-out questions, by speculative sampling, which is lossless."


@dataclass(frozen=True, slots=True)
class DraftSetup:
    """A way to draft with what was trained, in words, and the temperatures at which it is tried."""

    words: str
    method: str
    params: Params
    temperatures: tuple[float, ...] = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Tried:
    """What one way of drafting came to. tokens_per_call: over all answers. same_text: how many greedy answers equal the
    target's own."""

    way: DraftSetup
    temperature: float
    tokens_per_call: float
    same_text: int | None


_CHAIN: Params = {"width": 1, "nodes": K}
HEAD_WAYS = (
    DraftSetup(f"chain of {K}, the likeliest", "eagle", _CHAIN),
    DraftSetup(f"chain of {K}, drawn", "eagle", {"children": "drawn"}, (1.0,)),
    DraftSetup("tree of 16", "eagle", {}),
)
DRAFT_WAYS = (DraftSetup(f"draft model, K = {K}", "draft_model", {}),)


def evaluate(
    target: LoadedModel, folder: Path, texts: Iterable[StoredText], num_questions: int
) -> str:
    """The card of what was trained in `folder`, which is written beside it. SpecvizError where there is nothing."""
    model, curve = folder / "model", folder / CURVE
    if not curve.is_file():
        raise SpecvizError(
            f"{folder.name!r} holds nothing that was trained; run `eagle` or `draft` first"
        )
    recipe = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    held_out = scored(texts)
    parts = _parts(target, model)
    about, ways = (HEAD, HEAD_WAYS) if is_head(model) else (DRAFT, DRAFT_WAYS)
    what = about.format(target=target.name)
    tried = list(_try_all(target, parts, ways, held_out[:num_questions]))
    learner: Learner = (
        own_head(target, model, MEASURED_DEPTH) if is_head(model) else own_draft(target, model)
    )
    whole = measured(score_texts(learner, held_out, 2, partial(with_whole_distributions, target)))
    for file in (curve, folder / RECIPE):
        shutil.copy(file, model)
    if earlier := list(_earlier(recipe)):
        known = [leg for leg in earlier if "steps" in leg]
        sums = {name: sum(leg[name] for leg in known) for name in ("answer_tokens", "steps")}
        before = BEFORE.format_map(sums) if known else ""
        what += f"\n{WENT_ON.format(folder=earlier[0].get('folder', 'model'), before=before)}"
    lines = [json.loads(line) for line in curve.read_text(encoding="utf-8").splitlines()]
    text = _card(what, lines, whole["overlap"], tried, len(held_out[:num_questions]))
    (model / CARD).write_text(text, encoding="utf-8")
    return text


def is_head(model: Path) -> bool:
    """Whether the folder holds a draft head, and not a draft model."""
    return bool(kind_of(model))


def _card(
    what: str,
    curve: Sequence[Mapping[str, Any]],
    whole: Sequence[float],
    tried: Sequence[Tried],
    num_questions: int,
) -> str:
    columns = ("step", "texts", "answer tokens read", "overlap", "same most likely token")
    learnt = table(columns, [_cells(line) for line in curve])
    rows = [
        (
            each.way.words,
            f"{each.temperature:g}",
            f"{each.tokens_per_call:.2f}",
            "" if each.same_text is None else f"{each.same_text} of {num_questions}",
        )
        for each in tried
    ]
    runs = table(
        (
            "drafts",
            "temperature",
            "tokens per target call",
            "equal to the target's own greedy text",
        ),
        rows,
    )
    about = RUNS.format(number=num_questions, tokens=ANSWER_TOKENS)
    notes = NOTES.format(whole=_depths(whole), depths=DEPTHS * (len(whole) > 1))
    return "\n\n".join((what, "## Learning curve", learnt, notes, "## In runs", about, runs)) + "\n"


def _cells(line: Mapping[str, Any]) -> list[str]:
    """A row of the learning curve."""
    counts = (f"{line[name]:,}" for name in ("step", "texts", "answer_tokens"))
    return [*counts, _depths(line["overlap"]), _depths(line["agreement"])]


def _depths(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def _earlier(recipe: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The recipes of the trainings before, the latest first."""
    while recipe := recipe.get(EARLIER, {}):
        yield recipe


def _parts(target: LoadedModel, model: Path) -> Parts:
    """The trained files, as any run loads them."""
    pool, own = ModelPool(allow_any=True), _part(target)
    if is_head(model):
        return Parts(own, heads=load_heads(pool, str(model), "eagle", target).module)
    return Parts(own, draft=_part(pool.load(str(model))))


def _part(loaded: LoadedModel) -> Part:
    return Part(loaded.name, loaded.cached_lm(), loaded.cached_lm, loaded.text)


def _try_all(
    target: LoadedModel, parts: Parts, ways: Iterable[DraftSetup], questions: Sequence[StoredText]
) -> Iterator[Tried]:
    alone = [_answer(target, parts, "none", {}, 0.0, text)[0] for text in questions]
    for way in ways:
        for temperature in way.temperatures:
            made = [
                _answer(target, parts, way.method, way.params, temperature, text)
                for text in questions
            ]
            rate = sum(len(text) for text, _ in made) / sum(calls for _, calls in made)
            same = sum(text == own for (text, _), own in zip(made, alone, strict=True))
            yield Tried(way, temperature, rate, None if temperature else same)


def _answer(
    target: LoadedModel,
    parts: Parts,
    method: str,
    params: Params,
    temperature: float,
    question: StoredText,
) -> tuple[list[int], int]:
    """The answer's tokens and the calls of the target."""
    found = METHODS[method]
    drafter = found.build(parts, found.validate(params))
    plan = Plan(target.cached_lm(), drafter, SpeculativeSampling(), Sampling(temperature), K)
    settings = {"max_new_tokens": ANSWER_TOKENS, "eos_ids": target.text.eos_ids}
    steps = list(speculate(question.prompt, lambda: plan, Seeded(0), **settings))
    return [token for step in steps for token in step.tokens], sum(
        step.target_work.calls for step in steps
    )
