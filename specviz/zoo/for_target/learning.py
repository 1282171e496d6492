"""The loop in which a draft learns the target's distributions: stopped anywhere and run again, it goes on.

State is (weights, optimiser, running average of the weights, step, seconds); a batch is a function of the seed, the
step and the texts that are there. What is measured and exported is the running average."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from specviz.errors import SpecvizError
from specviz.zoo.for_target.store import Batch, StoredText, make_batch
from specviz.zoo.training.export import write_json
from specviz.zoo.training.train import make_optimizer, mixed_precision

STATE, CURVE, RECIPE = "training.pt", "curve.jsonl", "recipe.json"
EARLIER = "went_on_from"  # in a recipe: that of the finished draft whose weights it began with
_MOST_SCORED = 256  # held-out texts
_LEAST = 1e-6  # that a draft gives to all tokens but the target's likeliest
_SIMILAR = 24  # tokens: texts of a batch differ in length by about so many


@dataclass(frozen=True, slots=True)
class LearningPace:
    """How a draft learns. overlap_weight: of 1 - sum(min(p, q)), the chance of a rejection, beside the cross-entropy.
    place_weight: how much the weights of the lab's rows count: 0 not, 1 alone.

    The rate rises over `warmup_steps`, stays, and falls linearly to a tenth over the last `decay_share` of the run.
    """

    texts_per_step: int = 16
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    decay_share: float = 0.4
    overlap_weight: float = 15.0
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    average: float = 0.998
    place_weight: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Goal:
    """The end of a training: after so many steps or seconds, those before a stop counted in."""

    steps: int | None = None
    seconds: float | None = None

    def progress(self, step: int, seconds: float) -> float:
        """The part of the training that is done, from 0 to 1."""
        parts = []
        if self.steps:
            parts.append(step / self.steps)
        if self.seconds:
            parts.append(seconds / self.seconds)
        return min(1.0, max(parts, default=1.0))


@dataclass(frozen=True, slots=True)
class DepthScore:
    """Sums over places at one depth. overlap: of sum(min(p, q)) over the target's tokens in the batch, of stored ones
    the likeliest, so a little less than the whole; agreement: of equal likeliest tokens."""

    overlap: float = 0.0
    agreement: float = 0.0
    places: int = 0

    def __add__(self, other: "DepthScore") -> "DepthScore":
        return DepthScore(
            *(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        )


class Learner(Protocol):
    """A draft that learns: `module` holds what is learned and no more. reads_states: whether it takes stored states."""

    module: nn.Module
    reads_states: bool

    def loss(self, batch: Batch, overlap_weight: float) -> Tensor:
        """The mean loss, a scalar."""
        ...

    def score(self, batch: Batch) -> list[DepthScore]:
        """The scores by depth, over the places of the answers."""
        ...

    def settings(self) -> dict[str, Any]:
        """What the draft is, JSON-ready; a training goes on only where this is the same."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What target and draft say at n places of texts, of the target's likeliest tokens."""

    p: Tensor  # [n, TOP], 0 for tokens that the draft cannot propose
    rest: Tensor  # [n], the target's probability of all other tokens
    log_q: Tensor  # [n, TOP]
    logits: Tensor  # [n, D], the draft's, over its choices
    ids: Tensor  # [n, TOP], of the target's tokens among these choices, -1 for none
    weights: Tensor  # [n]

    @classmethod
    def of(
        cls, log_probs: Tensor, ids: Tensor, logits: Tensor, temperatures: Tensor, weights: Tensor
    ) -> "Judged":
        """Compares the target's log_probs [n, TOP] of tokens with the draft's logits [n, D] over its choices.

        ids [n, TOP]: the tokens' numbers among these choices, -1 for none. temperatures [n, 1]: of the probabilities.
        """
        p = log_probs.exp()
        logits = logits.float() / temperatures
        log_q = logits.gather(-1, ids.clamp_min(0)) - logits.logsumexp(-1, keepdim=True)
        rest = (1 - p.sum(-1)).clamp_min(0)
        return cls(p * (ids >= 0), rest, log_q, logits, ids, weights)

    def loss(self, overlap_weight: float) -> Tensor:
        """The loss, summed over the places: the cross-entropy, all other tokens counted as one, and the chance of a
        rejection."""
        q = self.log_q.exp()
        missed = 1 - torch.minimum(self.p, q).sum(-1)
        left = (1 - (q * (self.p > 0)).sum(-1)).clamp_min(_LEAST).log()
        entropy = -(self.p * self.log_q).sum(-1) - self.rest * left
        return ((overlap_weight * missed + entropy) * self.weights).sum()

    def score(self) -> DepthScore:
        overlap = torch.minimum(self.p, self.log_q.exp()).sum()
        same = self.logits.argmax(-1) == self.ids[:, 0]
        return DepthScore(float(overlap), float(same.sum()), len(self.p))


class Learning:
    """A learner on its way; `folder` keeps its state and its learning curve. finished: what it begins with."""

    def __init__(
        self,
        learner: Learner,
        texts: Sequence[StoredText],
        pace: LearningPace,
        folder: Path,
        finished: Path | None = None,
    ) -> None:
        self._learner, self._pace, self._folder = learner, pace, folder
        self.held_out = scored(texts)
        self.texts = [text for text in texts if not text.is_held_out]
        if len(self.texts) < pace.texts_per_step or not self.held_out:
            raise SpecvizError(
                f"{len(self.texts)} texts to train on and {len(self.held_out)} held out are too few"
            )
        self._module = learner.module
        self._earlier = {EARLIER: _origin(finished)} if finished else {}
        self._optimizer = make_optimizer(self._module, pace.learning_rate, pace.weight_decay)
        self.average = {name: value.clone() for name, value in self._module.state_dict().items()}
        self.step, self.answer_tokens, self._seconds = 0, 0, 0.0
        if (folder / STATE).exists():
            self._restore(torch.load(folder / STATE, weights_only=True))

    def run(self, goal: Goal, export: Callable[[], None], every: int = 200) -> None:
        """Learns until `goal`; measures, saves and exports every so many steps and at the end."""
        began, since = time.monotonic(), self._seconds
        batches = self._batches()
        while (progress := goal.progress(self.step, self._seconds)) < 1:
            loss = self._update(next(batches), progress)
            self._seconds = since + time.monotonic() - began
            if self.step % 20 == 0:
                print(f"step {self.step}  loss {loss:.3f}  {self._seconds:,.0f} s", flush=True)
            if self.step % every == 0:
                self._keep(export)
        self._keep(export)

    def _batches(self) -> Iterator[Batch]:
        """Texts of about the same length together, in another order in each epoch."""
        size = self._pace.texts_per_step
        per_epoch = len(self.texts) // size
        while True:
            epoch, first = divmod(self.step, per_epoch)
            random = np.random.default_rng((self._pace.seed, epoch))
            order = random.permutation(len(self.texts)).tolist()
            order.sort(key=lambda index: len(self.texts[index].tokens) // _SIMILAR)
            for start in (random.permutation(per_epoch) * size)[first:].tolist():
                chosen = [self.texts[index] for index in order[start : start + size]]
                yield make_batch(
                    chosen,
                    with_states=self._learner.reads_states,
                    place_weight=self._pace.place_weight,
                )

    def _update(self, batch: Batch, progress: float) -> float:
        pace = self._pace
        decay = min(1.0, 0.1 + 0.9 * (1 - progress) / pace.decay_share)
        for group in self._optimizer.param_groups:
            group["lr"] = pace.learning_rate * min(decay, (self.step + 1) / pace.warmup_steps)
        with mixed_precision(torch.device("cpu")):
            loss = self._learner.loss(batch, pace.overlap_weight)
        loss.backward()
        nn.utils.clip_grad_norm_(self._module.parameters(), pace.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        self.answer_tokens += int(batch.is_answer.sum())
        follow = 1 - min(pace.average, (1 + self.step) / (20 + self.step))
        for name, value in self._module.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, follow)
        return loss.item()

    def _keep(self, export: Callable[[], None]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        recipe = {
            "draft": self._learner.settings(),
            "pace": asdict(self._pace),
            "texts": len(self.texts),
        }
        recipe |= self._earlier | {"steps": self.step, "answer_tokens": self.answer_tokens}
        write_json(self._folder / RECIPE, recipe)
        learned = {name: value.clone() for name, value in self._module.state_dict().items()}
        state = {
            "model": learned,
            "optimizer": self._optimizer.state_dict(),
            "average": self.average,
        }
        state |= {"step": self.step, "answer_tokens": self.answer_tokens, "seconds": self._seconds}
        torch.save(
            state | {"settings": self._learner.settings()}, self._folder / f"{STATE}.partial"
        )
        (self._folder / f"{STATE}.partial").replace(self._folder / STATE)
        self._module.load_state_dict(self.average)
        self._measure()
        export()
        self._module.load_state_dict(learned)

    def _restore(self, state: dict[str, Any]) -> None:
        if state["settings"] != self._learner.settings():
            raise SpecvizError(
                f"{STATE} in {self._folder.name!r} is of a draft of another shape; take another folder"
            )
        self._module.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.average, self.step = state["average"], state["step"]
        self.answer_tokens, self._seconds = state["answer_tokens"], state["seconds"]
        recipe = json.loads((self._folder / RECIPE).read_text(encoding="utf-8"))
        self._earlier = {EARLIER: recipe[EARLIER]} if EARLIER in recipe else {}

    def _measure(self) -> None:
        """Adds a line to the learning curve: what the module as it is does on held-out texts. One line a step."""
        file = self._folder / CURVE
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if lines and json.loads(lines[-1])["step"] == self.step:
            return
        line = {
            "step": self.step,
            "answer_tokens": self.answer_tokens,
            "seconds": round(self._seconds),
        }
        line |= {"texts": len(self.texts), **measured(score_texts(self._learner, self.held_out))}
        with file.open("a", encoding="utf-8") as curve:
            curve.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def scored(texts: Iterable[StoredText]) -> list[StoredText]:
    """The held-out dialogues by which a draft is measured."""
    return list(islice((text for text in texts if text.is_held_out and text.prompt), _MOST_SCORED))


def _origin(finished: Path) -> dict[str, Any]:
    """Tells where a training began: the folder's name, and its recipe where it was trained here."""
    file = finished / RECIPE
    recipe = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {"folder": finished.name, **(recipe if "answer_tokens" in recipe else {})}


@torch.no_grad()
def score_texts(
    learner: Learner,
    texts: Sequence[StoredText],
    size: int = 16,
    change: Callable[[Batch], Batch] = lambda batch: batch,
) -> list[DepthScore]:
    """The scores by depth over all these texts, where `change` changes each batch before it is read."""
    ordered = sorted(texts, key=lambda text: len(text.tokens))
    total: list[DepthScore] = []
    for start in range(0, len(ordered), size):
        batch = make_batch(ordered[start : start + size], with_states=learner.reads_states)
        scores = learner.score(change(batch))
        total = [a + b for a, b in zip(total, scores, strict=True)] if total else scores
    return total


def measured(scores: Sequence[DepthScore]) -> dict[str, list[float]]:
    """Means over the places, per depth."""
    names = ("overlap", "agreement")
    return {
        name: [round(getattr(score, name) / max(1, score.places), 4) for score in scores]
        for name in names
    }
