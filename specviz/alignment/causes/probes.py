"""Causes of rejections, found by trying cures: each changes the draft, or what it reads, on a few texts of the job.

Half of the texts choose, for every kind of cause, the cure that gains most. The other half measures what it gains
there. Named is what is clear as one of so many cures, the largest gain first. Coarse weights and other chat forms have
no cure to try: they are read off the weights and the tokenizers.
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

NUM_TEXTS = 24
NUM_TOKENS = 64
MOST_NUMBERS = 40_000_000  # probabilities of all texts: large vocabularies are read less far
FEWEST_TOKENS = 8
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
    """Examines every draft on the shard's first rows, returns causes with the gains of their cures, and warnings.

    Raises SpecvizError where a model cannot be loaded or a row cannot be read.
    """
    pool = pool or workbench().pool
    target, drafts = load(shard, pool)
    texts = _write_texts(shard, target)
    findings: list[Finding] = []
    warnings: list[str] = []
    tried: set[str] = set()  # kinds of causes
    for name, draft in zip(shard.drafts, drafts, strict=True):
        readable = [text for text in texts if _can_read(draft, text)]
        differences = {}
        if isinstance(draft, LoadedModel):
            differences = _tokenizer_differences(target, draft, readable)
        causes = []
        if len(readable) >= FEWEST_TEXTS:
            trials = _DraftTrials(name, draft, target, readable, Sampling.of(shard.request), pool)
            causes = trials.find_causes(differences)
            tried |= trials.tried
        findings += causes
        harmful = {cause.kind for cause in causes}
        for kind, words in differences.items():
            if kind not in harmful:
                warnings.append(f"{name}: {words}.")
    looked_for = tuple(words for kind, words in KINDS.items() if kind in tried)
    return Examined(tuple(findings), tuple(warnings), looked_for)


def _write_texts(shard: Shard, target: LoadedModel) -> list[RowText]:
    """The texts of the shard's first rows, shortened so that their probabilities fit in memory."""
    room = max(FEWEST_TOKENS, MOST_NUMBERS // (NUM_TEXTS * target.info.vocab_size))
    num_tokens = min(NUM_TOKENS, room, shard.request.max_new_tokens)
    request = replace(shard.request, max_new_tokens=num_tokens)
    short = replace(shard, request=request, rows=shard.rows[:NUM_TEXTS])
    texts, _, _ = texts_of(short, target)
    return [replace(text, ids=text.ids[:num_tokens]) for text in texts]


def _can_read(draft: Draft, text: RowText) -> bool:
    return isinstance(draft, Proposer) or can_read(draft, [*text.prompt_ids, *text.ids])


class _DraftTrials:
    """What one draft gains by every cure, on two halves of the texts: the first chooses, the second measures."""

    def __init__(
        self,
        name: str,
        draft: Draft,
        target: LoadedModel,
        texts: Sequence[RowText],
        sampling: Sampling,
        pool: ModelPool,
    ) -> None:
        self.tried: set[str] = set()  # kinds of causes
        self._name = name
        self._draft = draft
        self._target = target
        self._pool = pool
        self._texts = (texts[0::2], texts[1::2])
        self._halves = [self._sample(half, sampling) for half in self._texts]
        self._before = [self._agreement_before(half) for half in self._halves]  # [texts] each
        self._found_deaf: token_ids.DeafIds | None = None

    def _sample(self, texts: Sequence[RowText], sampling: Sampling) -> TargetTexts:
        ids = [TextIds(text.prompt_ids, text.ids) for text in texts]
        return TargetTexts(self._target, ids, sampling)

    def _agreement_before(self, half: TargetTexts) -> Array:
        """The agreement of the unchanged draft, by text [texts]."""
        draft = self._draft
        unchanged = draft.drafter() if isinstance(draft, Proposer) else draft
        return agreements([Trial("", "", unchanged, half.texts)], half)[0]

    def find_causes(self, differences: Mapping[str, str]) -> list[Finding]:
        """Finds what the weights show, then every cause with a cure that gains, the largest gain first.

        differences: between the tokenizers, in words by kind of cause.
        """
        chosen = self._choose_cures()
        trials = []
        if chosen:
            trials = [trial for trial in self._trials(1) if trial.cure in chosen]
        causes = []
        for trial, gain in zip(trials, self._gains(trials, 1), strict=True):
            if _is_clear(gain, _least_gain(trial) / 2, len(trials)):
                claim = chosen[trial.cure]
                causes.append(self._finding(trial, claim, gain, differences.get(trial.kind)))
        causes.sort(key=lambda finding: -finding.numbers["applied"])
        return [*self._find_coarse_weights(), *self._find_deaf_ids(causes), *causes]

    def _choose_cures(self) -> dict[str, Array]:
        """Tries all cures on the first half, returns the gains [texts] of the best cure of each kind, by cure."""
        trials = list(self._trials(0))
        self.tried |= {trial.kind for trial in trials}
        best: dict[str, tuple[Trial, Array]] = {}  # by kind
        for trial, gain in zip(trials, self._gains(trials, 0), strict=True):
            if not _is_clear(gain, _least_gain(trial)):
                continue
            if trial.kind not in best or gain.mean() > best[trial.kind][1].mean():
                best[trial.kind] = (trial, gain)
        return {trial.cure: gain for trial, gain in best.values()}

    def _gains(self, trials: Sequence[Trial], half: int) -> list[Array]:
        """How much more each trial agrees than the unchanged draft, by text of this half [texts]."""
        before = self._before[half]
        return [after - before for after in agreements(trials, self._halves[half])]

    def _trials(self, half: int) -> Iterator[Trial]:
        draft = self._draft
        if isinstance(draft, Proposer):
            yield from head_trials(draft)
            return
        texts = self._halves[half].texts
        yield from all_trials(draft, self._target, texts, self._pool)
        yield from token_ids.swap_trials(draft, texts, self._deaf_ids().found)
        forms = [_prompt_forms(draft, self._target, text) for text in self._texts[half]]
        names = {}  # an ordered set of kinds and cures
        for form in forms:
            names |= dict.fromkeys(form)
        for kind, cure in names:
            changed = []
            for form, text in zip(forms, texts, strict=True):
                changed.append(form.get((kind, cure), text))
            yield Trial(kind, cure, draft, changed)

    def _deaf_ids(self) -> token_ids.DeafIds:
        """The ids that the draft never gives, found on the first half once."""
        if self._found_deaf is None:
            half = self._halves[0]
            self._found_deaf = token_ids.deaf_ids(half, self._draft, half.texts)
        return self._found_deaf

    def _find_coarse_weights(self) -> list[Finding]:
        if isinstance(self._draft, Proposer):
            return []
        self.tried.add("bits")
        words, bits = weights.coarse_words(self._draft.model)
        return [Finding(self._name, "bits", words, {"bits": bits})] if words else []

    def _find_deaf_ids(self, causes: Sequence[Finding]) -> list[Finding]:
        """Names ids that are never given, unless one of the causes cures them."""
        is_cured = any(cause.kind == "token ids" for cause in causes)
        if is_cured or isinstance(self._draft, Proposer):
            return []
        self.tried.add("token ids")
        deaf = self._deaf_ids()
        words = token_ids.deaf_words(self._draft, deaf)
        return [Finding(self._name, "token ids", words, {"share": deaf.share})] if words else []

    def _finding(self, trial: Trial, claim: Array, gain: Array, difference: str | None) -> Finding:
        """The cause that the trial cures. claim, gain: by text of the first and of the second half [texts]."""
        before = self._before[1]
        low, high = interval_of_mean(gain)
        opening = f"{difference[0].upper()}{difference[1:]}. " if difference else ""
        words = (
            f"{opening}Probably {KINDS[trial.kind]}: with {trial.cure}, the agreement rises by "
            f"{100 * gain.mean():.1f} points (95 % interval {100 * low:.1f} to {100 * high:.1f}, {len(gain)} texts), "
            f"from {before.mean():.2f} to {(before + gain).mean():.2f}. "
            f"Chosen on {len(claim)} other texts, where it gained {100 * claim.mean():.1f}."
        )
        numbers = {
            "claimed": float(claim.mean()),
            "applied": float(gain.mean()),
            "low": float(low),
            "high": float(high),
        }
        return Finding(self._name, trial.kind, words, numbers)


def _least_gain(trial: Trial) -> float:
    return LEAST_GAIN.get(trial.kind, CLEAR_GAIN)


def _is_clear(gain: Array, least: float, num_asked: int = 1) -> bool:
    """Whether the mean gain is large enough, and its interval as one of `num_asked` leaves out 0. gain: [texts]."""
    mean = gain.mean()
    is_enough = mean >= least
    return bool(is_enough and excludes_zero(interval_of_mean(gain), mean, len(gain), num_asked))


def _prompt_forms(
    draft: LoadedModel, target: LoadedModel, text: RowText
) -> dict[tuple[str, str], TextIds]:
    """The text behind other forms of its prompt, by kind and cure.

    Left out are forms that equal the prompt, and those that the draft cannot read.
    """
    split_again = "each prompt split by the draft's own tokenizer"
    prompts = {("tokenizer", split_again): _split_again(draft, target, text)}
    row = text.row
    if not isinstance(row.prompt, tuple):
        contents = [message.content for message in row.messages or ()]
        bare = "\n\n".join(contents) or row.prompt
        if bare != text.prompt:
            prompts["template", "the bare text of each prompt"] = draft.text.encode(bare)
        for whose, model in (("the draft's", draft), ("the target's", target)):
            rendered = render(model.tokenizer, row.asked(), row.chat_options, row.tools) or ""
            ids = draft.text.encode(rendered, special=rendered == bare)
            prompts["template", f"the prompts in {whose} chat format"] = ids
    forms = {}
    for name, ids in prompts.items():
        if ids and ids != list(text.prompt_ids) and can_read(draft, [*ids, *text.ids]):
            forms[name] = TextIds(ids, text.ids)
    return forms


def _split_again(draft: LoadedModel, target: LoadedModel, text: RowText) -> list[int]:
    """The prompt's ids by the draft's tokenizer, behind the same start.

    Empty where the target's tokenizer does not give the prompt's own ids.
    """
    target_ids = target.text.encode(text.prompt, special=False)
    draft_ids = draft.text.encode(text.prompt, special=False)
    start = text.prompt_ids[: -len(target_ids)]
    is_targets = [*start, *target_ids] == list(text.prompt_ids)
    return [*start, *draft_ids] if is_targets else []


def _tokenizer_differences(
    target: LoadedModel, draft: LoadedModel, texts: Sequence[RowText]
) -> dict[str, str]:
    """What differs between the two tokenizers on these texts, in words by kind of cause."""
    differences = {}
    if any(text.is_chat for text in texts):
        chat_words = chat_difference(target.tokenizer, draft.tokenizer)
        if chat_words:
            differences["template"] = chat_words
    parts = []  # prompts and answers
    for text in texts:
        parts += [text.prompt, text.text]
    apart = []
    for part in parts:
        target_ids = target.text.encode(part, special=False)
        draft_ids = draft.text.encode(part, special=False)
        if target_ids != draft_ids:
            apart.append((target_ids, draft_ids))
    if apart:
        differences["tokenizer"] = (
            f"its tokenizer splits {len(apart):,} of {len(parts):,} prompts and answers otherwise than the target's: "
            f"{_split_words(target, *apart[0])}"
        )
    return differences


def _split_words(target: LoadedModel, target_ids: Sequence[int], draft_ids: Sequence[int]) -> str:
    """The tokens of both sides from the first difference on, in the target's labels."""
    place = 0
    for at, (target_id, draft_id) in enumerate(zip(target_ids, draft_ids, strict=False)):
        if target_id != draft_id:
            place = at
            break
    target_has = _join_labels(target, target_ids[place : place + 3])
    draft_has = _join_labels(target, draft_ids[place : place + 3])
    return f"where the target has {target_has}, it has {draft_has}"


def _join_labels(target: LoadedModel, ids: Sequence[int]) -> str:
    return ", ".join(target.text.label(token) for token in ids)
