"""Examines drafts for faults: what their files say, then undos that are tried on texts of the job, then where it hurts.

A fault is named by an exact inverse that makes the draft agree more, chosen on half of the texts and measured on the
other half. Every finding says how many of the lost points it explains, and how many stay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specviz.alignment import model_identity as identity
from specviz.alignment.ahead import Draft, Proposer
from specviz.alignment.causes import files
from specviz.alignment.causes.engine_faults import try_faults
from specviz.alignment.causes.floors import floors_of
from specviz.alignment.causes.reading import NUM_DEPTHS, Subject
from specviz.alignment.causes.reference import Reference
from specviz.alignment.causes.search import Cause, Search, Texts
from specviz.alignment.causes.undo import prompts, rows
from specviz.alignment.causes.undo.rounding import coarse_words
from specviz.alignment.causes.verdict import TENSORS
from specviz.alignment.shard import load, texts_of
from specviz.alignment.summary import EngineFault, Examined, Finding, Floors
from specviz.alignment.tables.slices import gain_interval_words, gain_numbers
from specviz.alignment.types import RowText, Shard
from specviz.checks.scoring import can_read
from specviz.decoding.sampling import Sampling
from specviz.drafters.eagle.heads import EagleHead
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel, ModelPool
from specviz.session.workbench import workbench

NUM_TEXTS = 24
NUM_TOKENS = 64
MOST_NUMBERS = 40_000_000  # probabilities of all texts: large vocabularies are read less far
FEWEST_TOKENS = 8
FEWEST_TEXTS = 8  # half of them choose
KINDS = {  # of causes, in words
    TENSORS: "lost, copied or unused tensors",
    "bits": "coarsely rounded weights",
    "zero point": "a wrong zero point or scale of rounded weights",
    "scale": "weights at another scale",
    "norm": "norm weights that are off by one",
    "exchange": "matrices in each other's place",
    "layout": "queries and keys laid out for another kind of rope",
    "order": "layers in a wrong order",
    "rope": "wrong rotary positions",
    "setting": "settings that are not the target's",
    "narrow window": "attention that reaches too few tokens",
    "precision": "a coarse number format",
    "token ids": "rows of the embedding in wrong places",
    "unlearned ids": "ids that it never gives",
    "long prompts": "longer prompts than it was trained on",
    "start": "a start token too many or too few",
    "template": "a different chat format",
    "tokenizer": "a tokenizer that splits otherwise",
    "feature": "target states of a wrong layer or position",
    "position": "drafted tokens at a wrong position",
    "ids of a head": "ids of the target that are read otherwise than they were stored",
    "reference": "tensors that are not the reference's",
    "temperature": "a wrong temperature of its logits",
    "layer": "a damaged layer",
}


@dataclass(frozen=True, slots=True)
class Trials:
    """How far the search in one draft is."""

    draft: str
    num_trials: int


def look(shard: Shard, pool: ModelPool | None = None) -> Examined:
    """Does all `steps` and returns the result."""
    for step in steps(shard, pool):
        examined = step
    return examined


def steps(shard: Shard, pool: ModelPool | None = None) -> Iterator[Trials | Examined]:
    """Examines every draft on the shard's first rows. Yields how far it is, and at last the result.

    Raises SpecvizError where a model cannot be loaded or a row cannot be read.
    """
    pool = pool or workbench().pool
    target, drafts = load(shard, pool)
    written = _write_texts(shard, target)
    sampling = Sampling.of(shard.request)
    findings: list[Finding] = []
    warnings: list[str] = []
    tried: set[str] = set()  # kinds of causes
    floors: Floors | None = None
    agreements: dict[str, float] = {}
    engine_faults: tuple[EngineFault, ...] = ()
    ancestor = _load_ancestor(shard, drafts, pool)
    known: dict[int, Texts] = {}  # by the number of texts that a draft can read
    for name, draft in zip(shard.drafts, drafts, strict=True):
        readable = [text for text in written if _can_read(draft, text)]
        causes: list[Finding] = []
        differences = {}
        if isinstance(draft, LoadedModel):
            differences = prompts.differences(target, draft, readable)
        if _is_spread(draft):
            warnings.append(f"{name} lies on several devices, so no fault was looked for in it.")
        elif len(readable) >= FEWEST_TEXTS:
            if len(readable) not in known:
                known[len(readable)] = Texts(readable, target, sampling)
            halves = known[len(readable)]
            floors = floors or floors_of(halves.samples)
            examination = Examination(name, draft, target, halves, floors, pool)
            for number in examination.search.run():
                yield Trials(name, number)
            causes = examination.findings(differences)
            agreements[name] = examination.agreement()
            tried |= examination.tried
            if shard.is_counted:
                k = shard.request.num_speculative_tokens
                engine_faults = try_faults(Subject(draft, target), halves, k)
            if ancestor is not None:
                words, numbers = examination.beside(ancestor)
                if numbers:
                    causes.append(Finding(name, "reference", words, numbers))
                else:
                    warnings.append(f"{name}: {words}")
        findings += causes
        harmful = {cause.kind for cause in causes}
        for kind, words in differences.items():
            if kind not in harmful:
                warnings.append(f"{name}: {words}.")
    looked_for = tuple(words for kind, words in KINDS.items() if kind in tried)
    words = tuple(warnings)
    yield Examined(tuple(findings), words, looked_for, floors, agreements, engine_faults)


def _load_ancestor(shard: Shard, drafts: Sequence[Draft], pool: ModelPool) -> LoadedModel | None:
    """The sound ancestor that drafts are compared with. Raises SpecvizError for another shape, or what is no model."""
    if shard.reference is None:
        return None
    _, (ancestor,) = identity.load((shard.models[0], shard.reference), pool)
    if not isinstance(ancestor, LoadedModel):
        raise SpecvizError(
            f"the reference must be a model, as the drafts are (got {ancestor.name})"
        )
    for draft in drafts:
        if isinstance(draft, LoadedModel):
            Reference.check(draft.model, ancestor.model)
    return ancestor


def _write_texts(shard: Shard, target: LoadedModel) -> list[RowText]:
    """The texts of the shard's first rows, shortened so that their probabilities fit in memory."""
    room = max(FEWEST_TOKENS, MOST_NUMBERS // (NUM_TEXTS * target.info.vocab_size))
    num_tokens = min(NUM_TOKENS, room, shard.request.max_new_tokens)
    request = replace(shard.request, max_new_tokens=num_tokens)
    short = replace(shard, request=request, rows=shard.rows[:NUM_TEXTS])
    written, refused, _ = texts_of(short, target)
    if not written:
        reasons = "; ".join(f"line {row.line} {row.reason}" for row in refused[:3])
        raise SpecvizError(f"none of the prompts could be used: {reasons}")
    return [replace(text, ids=text.ids[:num_tokens]) for text in written]


def _is_spread(draft: Draft) -> bool:
    """Whether a draft model lies on several devices: a twin of it would compute with the original's parts."""
    places = getattr(draft.model, "hf_device_map", None) if isinstance(draft, LoadedModel) else None
    return len(set((places or {}).values())) > 1


def _can_read(draft: Draft, text: RowText) -> bool:
    return isinstance(draft, Proposer) or can_read(draft, [*text.prompt_ids, *text.ids])


class Examination:
    """What is wrong with one draft."""

    def __init__(
        self,
        name: str,
        draft: Draft,
        target: LoadedModel,
        halves: Texts,
        floors: Floors,
        pool: ModelPool,
    ) -> None:
        self._name = name
        self._draft = draft
        self._target = target
        self._subject = Subject(draft, target)
        self.search = Search(self._subject, halves, floors, pool)

    @property
    def tried(self) -> set[str]:
        """The kinds of causes that were looked for."""
        kinds = self.search.tried | {TENSORS, "bits"}
        if isinstance(self._draft, LoadedModel):
            kinds |= {"layer", "unlearned ids"}
        return kinds

    def agreement(self) -> float:
        """The agreement of the unchanged draft over all texts, for the first token of a draft."""
        search = self.search
        if isinstance(self._draft, LoadedModel):
            return float(np.concatenate(search.before).mean())
        drafters = [self._draft.drafter()]
        rows = [sample.agreement_of_drafters(drafters, 1) for sample in search.texts.samples]
        return float(np.concatenate(rows, axis=1).mean())

    def findings(self, differences: Mapping[str, str]) -> list[Finding]:
        """What the files say, then every fault with its share of the loss, the costliest first.

        differences: between the tokenizers, in words by kind of cause.
        """
        search = self.search
        differences = {**self._settings(), **differences}
        tensors = self._tensors()
        causes = sorted(search.causes, key=lambda cause: -cause.gain.mean())
        if any(cause.undo.kind == TENSORS for cause in causes):
            differences[TENSORS] = " ".join(tensors).removesuffix(".")
            tensors = []
        found = [Finding(self._name, TENSORS, words, {}) for words in tensors]
        found += [self._finding(cause, differences.get(cause.undo.kind)) for cause in causes]
        if search.hurts is not None and not found:
            found.append(self._hurts(search.hurts))
        found += self._coarse()
        return found or self._deaf()

    def beside(self, ancestor: LoadedModel) -> tuple[str, Mapping[str, float]]:
        """What the tensors cost that are not the ancestor's, in words, and the numbers if they cost anything."""
        if not isinstance(self._draft, LoadedModel):
            return "a reference is for draft models alone, so it was not compared.", {}
        samples = self.search.texts.samples
        return Reference(self._subject, ancestor.model, ancestor.name, samples).compare()

    def _tensors(self) -> list[str]:
        """What the files say of single tensors, in words."""
        module = self._subject.module
        if module is None:
            return []
        unused = self._draft.unused if isinstance(self._draft, LoadedModel) else ()
        return list(files.faults(module, unused))

    def _coarse(self) -> list[Finding]:
        if not isinstance(self._draft, LoadedModel):
            return []
        words, bits = coarse_words(self._draft.model)
        return [Finding(self._name, "bits", words, {"bits": bits})] if words else []

    def _settings(self) -> Mapping[str, str]:
        """The settings that are not the target's, in words by kind of cause; of a head, its rotary positions alone."""
        draft = self._draft
        config = self._target.model.config
        if isinstance(draft, LoadedModel):
            return files.differences(draft.model.config, config, files.folder_of(draft))
        module = self._subject.module
        if not isinstance(module, EagleHead):
            return {}
        found = files.differences(module.rotary.config, config)
        return {kind: words for kind, words in found.items() if kind == "rope"}

    def _deaf(self) -> list[Finding]:
        deaf = self.search.deaf
        num_tokens = len(self.search.texts.samples[0].p)
        if deaf is None or num_tokens < rows.FEWEST_TOKENS or deaf.share < self.search.least:
            return []
        words = rows.deaf_words(self._draft, deaf)
        numbers = {"explained": deaf.share}
        return [Finding(self._name, "unlearned ids", words, numbers)] if words else []

    def _finding(self, cause: Cause, difference: str | None) -> Finding:
        opening = f"{difference[0].upper()}{difference[1:]}. " if difference else ""
        gain = self._gain_words(cause)
        words = f"{opening}Probably {KINDS[cause.undo.kind]}: with {gain} {self._left(cause)}"
        return Finding(self._name, cause.undo.kind, words, _numbers(cause))

    def _hurts(self, cause: Cause) -> Finding:
        words = (
            f"No known fault explains the loss. It hurts most in one place: with {self._gain_words(cause)} This damps "
            f"the damage, and does not take it back. {self._left(cause)}"
        )
        return Finding(self._name, cause.undo.kind, words, _numbers(cause))

    def _gain_words(self, cause: Cause) -> str:
        gain = cause.gain.mean()
        before = self.search.before[1].mean()
        depths = (
            "" if isinstance(self._draft, LoadedModel) else f" over {NUM_DEPTHS} drafted tokens"
        )
        interval = gain_interval_words(cause.gain)
        how_far = f", from {before:.2f} to {before + gain:.2f}"
        if len(self.search.causes) > 1:
            how_far = ", its share of what all of these gain together"
        return (
            f"{cause.undo.cure}, the agreement{depths} rises by {100 * gain:.1f} points ({interval}){how_far}. "
            f"Chosen on {len(cause.claim)} other texts, where it gained {100 * cause.claim.mean():.1f}."
        )

    def _left(self, cause: Cause) -> str:
        """How much of the loss the cause explains, and how much stays when all causes are taken back."""
        lost = 1 - float(self.search.before[1].mean())
        explained = float(cause.gain.mean())
        all_explained = sum(float(each.gain.mean()) for each in self.search.causes) or explained
        return (
            f"It explains {100 * explained:.1f} of the {100 * lost:.1f} points that are lost; "
            f"{100 * (lost - all_explained):.1f} stay unexplained."
        )


def _numbers(cause: Cause) -> dict[str, float]:
    return {"claimed": float(cause.claim.mean()), **gain_numbers(cause.gain)}
