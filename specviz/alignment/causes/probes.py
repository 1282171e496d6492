"""Why a draft is rejected, by trying it: cures are applied to the draft on a few of the job's own texts.

Half of the texts choose, of every kind, the cure that gains most; the other half measures what it gains when applied.
What is clear there, as one of so many chosen, is named, the largest gain first. Two kinds have no cure to try and are
read off the weights and the chat forms.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from specviz.alignment.ahead import Draft, Proposer
from specviz.alignment.causes import token_ids, weights
from specviz.alignment.causes.doctor import chat_difference, render
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.trials import Trial, agreements, all_trials, head_trials
from specviz.alignment.shard import load, texts_of
from specviz.alignment.summary import Examined, Finding
from specviz.alignment.tables.slices import excludes_zero, interval_of_mean
from specviz.alignment.types import Array, RowText, Shard
from specviz.checks.scoring import can_read
from specviz.decoding.sampling import Sampling
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.score import TextIds
from specviz.session.workbench import workbench

NUM_TEXTS, NUM_TOKENS = 24, 64
MOST_NUMBERS, FEWEST_TOKENS = (
    40_000_000,
    8,
)  # of the rows of all texts: large vocabularies are read less far
FEWEST_TEXTS = 8  # half of them choose
CLEAR_GAIN = 0.02  # of agreement
LEAST_GAIN = {
    "layer": 0.005
}  # damping undoes but a part of the damage, and gains nothing in a sound layer
KINDS = {  # of causes, in words
    "temperature": "a wrong temperature of its logits",
    "rope": "wrong rotary positions",
    "setting": "settings that are not the target's",
    "layer": "a damaged layer",
    "order": "layers in a wrong order",
    "window": "too much context",
    "start": "a start token too many or too few",
    "precision": "a coarse number format",
    "bits": "coarsely rounded weights",
    "token ids": "rows of the embedding in wrong places",
    "template": "a different chat format",
    "tokenizer": "a tokenizer that splits otherwise",
    "feature": "target states of a wrong layer or position",
}


def look(shard: Shard, pool: ModelPool | None = None) -> Examined:
    """The causes of every draft with what their cures gain, and warnings, from the shard's first rows. SpecvizError."""
    pool = pool or workbench().pool
    target, drafts = load(shard, pool)
    room = max(FEWEST_TOKENS, MOST_NUMBERS // (NUM_TEXTS * target.info.vocab_size))
    num_tokens = min(NUM_TOKENS, room, shard.request.max_new_tokens)
    short = replace(shard.request, max_new_tokens=num_tokens)
    written, _, _ = texts_of(replace(shard, request=short, rows=shard.rows[:NUM_TEXTS]), target)
    written = [replace(each, ids=each.ids[:num_tokens]) for each in written]
    found: list[Finding] = []
    warnings: list[str] = []
    tried: set[str] = set()
    for name, draft in zip(shard.drafts, drafts, strict=True):
        own = [
            each
            for each in written
            if isinstance(draft, Proposer) or can_read(draft, [*each.prompt_ids, *each.ids])
        ]
        differences = _differences(target, draft, own) if isinstance(draft, LoadedModel) else {}
        if len(own) >= FEWEST_TEXTS:
            texts = [TextIds(each.prompt_ids, each.ids) for each in own]
            halves = [
                TargetTexts(target, texts[place::2], Sampling.of(shard.request)) for place in (0, 1)
            ]
            causes = _Causes(name, draft, own, halves, pool)
            found += causes.find(differences)
            tried |= {KINDS[kind] for kind in causes.tried}
        harmful = {each.kind for each in found if each.draft == name}
        warnings += [
            f"{name}: {words}." for kind, words in differences.items() if kind not in harmful
        ]
    return Examined(
        tuple(found), tuple(warnings), tuple(words for words in KINDS.values() if words in tried)
    )


class _Causes:
    """What one draft gains by every cure. halves: the texts that choose, and those that measure."""

    def __init__(
        self,
        name: str,
        draft: Draft,
        written: Sequence[RowText],
        halves: Sequence[TargetTexts],
        pool: ModelPool,
    ) -> None:
        self._name, self._draft, self._halves, self._library = name, draft, halves, pool
        self._written = [written[place::2] for place in range(len(halves))]
        reader = draft.drafter() if isinstance(draft, Proposer) else draft
        self._deaf: token_ids.DeafIds | None = None
        self._before = [agreements([Trial("", "", reader, half.texts)], half)[0] for half in halves]

    def find(self, differences: Mapping[str, str]) -> list[Finding]:
        """Those that gain, the largest gain first, behind what is read off the weights."""
        best: dict[str, tuple[Trial, Array]] = {}  # by kind
        trials = [*self._trials(0)]
        self.tried = {trial.kind for trial in trials}
        for trial, gain in zip(trials, self._gains(trials, 0), strict=True):
            least = LEAST_GAIN.get(trial.kind, CLEAR_GAIN)
            if _is_clear(gain, least) and (
                trial.kind not in best or gain.mean() > best[trial.kind][1].mean()
            ):
                best[trial.kind] = trial, gain
        claims = {trial.cure: gain for trial, gain in best.values()}
        again = [trial for trial in self._trials(1) if trial.cure in claims] if best else []
        measured = zip(again, self._gains(again, 1), strict=True)
        found = [
            self._finding(trial, claims[trial.cure], gain, len(again), differences.get(trial.kind))
            for trial, gain in measured
        ]
        causes = sorted(filter(None, found), key=lambda each: -each.numbers["applied"])
        return [*self._of_weights(), *self._of_ids(causes), *causes]

    def _gains(self, trials: Sequence[Trial], place: int) -> list[Array]:
        """Of each trial on each text of this half [texts]."""
        return [each - self._before[place] for each in agreements(trials, self._halves[place])]

    def _trials(self, place: int) -> Iterator[Trial]:
        half, draft, target = self._halves[place], self._draft, self._halves[0].target
        if isinstance(draft, Proposer):
            yield from head_trials(draft)
            return
        yield from all_trials(draft, target, half.texts, self._library)
        yield from token_ids.swap_trials(draft, half.texts, self._deaf_ids().found)
        forms = [_forms(draft, target, each) for each in self._written[place]]
        for kind, cure in dict.fromkeys(name for form in forms for name in form):
            texts = [
                form.get((kind, cure), text) for form, text in zip(forms, half.texts, strict=True)
            ]
            yield Trial(kind, cure, draft, texts)

    def _deaf_ids(self) -> token_ids.DeafIds:
        """Found out once."""
        if self._deaf is None:
            self._deaf = token_ids.deaf_ids(self._halves[0], self._draft, self._halves[0].texts)
        return self._deaf

    def _of_weights(self) -> list[Finding]:
        if isinstance(self._draft, Proposer):
            return []
        self.tried.add("bits")
        words, bits = weights.coarse_words(self._draft.model)
        return [Finding(self._name, "bits", words, {"bits": bits})] if words else []

    def _of_ids(self, causes: Sequence[Finding]) -> list[Finding]:
        """Ids that are never given, where no cure for them is known."""
        if isinstance(self._draft, Proposer) or any(each.kind == "token ids" for each in causes):
            return []
        self.tried.add("token ids")
        deaf = self._deaf_ids()
        words = token_ids.deaf_words(self._draft, deaf)
        return [Finding(self._name, "token ids", words, {"share": deaf.share})] if words else []

    def _finding(
        self, trial: Trial, claim: Array, gain: Array, num_asked: int, difference: str | None
    ) -> Finding | None:
        """The cause if its cure holds on the other half, as one of num_asked."""
        before = self._before[1]
        if not _is_clear(gain, LEAST_GAIN.get(trial.kind, CLEAR_GAIN) / 2, num_asked):
            return None
        low, high = interval_of_mean(gain)
        about = f"{difference[0].upper()}{difference[1:]}. " if difference else ""
        words = (
            f"{about}Probably {KINDS[trial.kind]}: with {trial.cure}, the agreement rises by "
            f"{100 * gain.mean():.1f} points (95 % interval {100 * low:.1f} to {100 * high:.1f}, {len(gain)} texts), "
            f"from {before.mean():.2f} to {(before + gain).mean():.2f}. "
            f"Chosen on {len(claim)} other texts, where it gained {100 * claim.mean():.1f}."
        )
        numbers = {"claimed": claim.mean(), "applied": gain.mean(), "low": low, "high": high}
        return Finding(
            self._name, trial.kind, words, {name: float(value) for name, value in numbers.items()}
        )


def _is_clear(gain: Array, least: float, num_asked: int = 1) -> bool:
    return bool(
        gain.mean() >= least
        and excludes_zero(interval_of_mean(gain), gain.mean(), len(gain), num_asked)
    )


def _forms(
    draft: LoadedModel, target: LoadedModel, written: RowText
) -> dict[tuple[str, str], TextIds]:
    """The same text behind its prompt in other forms, by kind and cure; only those that the draft can read."""
    row = written.row
    prompts = {
        ("tokenizer", "each prompt split by the draft's own tokenizer"): _split_again(
            draft, target, written
        )
    }
    if not isinstance(row.prompt, tuple):
        bare = "\n\n".join(message.content for message in row.messages or ()) or row.prompt
        forms = {"the bare text of each prompt": bare if bare != written.prompt else ""}
        for whose, model in (("the draft's", draft), ("the target's", target)):
            forms[f"the prompts in {whose} chat format"] = (
                render(model.tokenizer, row.asked(), row.chat_options, row.tools) or ""
            )
        prompts |= {
            ("template", name): draft.text.encode(text, special=text == bare)
            for name, text in forms.items()
        }
    texts = {
        name: TextIds(ids, written.ids)
        for name, ids in prompts.items()
        if ids and ids != list(written.prompt_ids)
    }
    return {
        name: text for name, text in texts.items() if can_read(draft, [*text.prompt, *text.ids])
    }


def _split_again(draft: LoadedModel, target: LoadedModel, written: RowText) -> list[int]:
    """The prompt's ids by the draft's tokenizer, behind the same start; none where they are not the target's own."""
    ours, theirs = (model.text.encode(written.prompt, special=False) for model in (target, draft))
    start, given = written.prompt_ids[: -len(ours)], list(written.prompt_ids)
    return [*start, *theirs] if [*start, *ours] == given else []


def _differences(
    target: LoadedModel, draft: LoadedModel, written: Sequence[RowText]
) -> dict[str, str]:
    """What differs between the two tokenizers on these texts, in words by kind of cause."""
    found = {}
    if any(each.is_chat for each in written) and (
        words := chat_difference(target.tokenizer, draft.tokenizer)
    ):
        found["template"] = words
    texts = [part for each in written for part in (each.prompt, each.text)]
    splits = [
        [model.text.encode(text, special=False) for text in texts] for model in (target, draft)
    ]
    if apart := [pair for pair in zip(*splits, strict=True) if pair[0] != pair[1]]:
        place = next(
            (at for at, (one, other) in enumerate(zip(*apart[0], strict=False)) if one != other), 0
        )
        ours, theirs = (
            ", ".join(target.text.label(token) for token in ids[place : place + 3])
            for ids in apart[0]
        )
        found["tokenizer"] = (
            f"its tokenizer splits {len(apart):,} of {len(texts):,} prompts and answers otherwise than the target's: "
            f"where the target has {ours}, it has {theirs}"
        )
    return found
