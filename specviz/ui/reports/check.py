"""The Check page: the identity, one step, whole texts, all rules side by side, and the pair itself."""

import time
from collections.abc import Generator, Mapping, Sequence

from specviz.checks.end_to_end import EndToEnd, FirstToken, end_to_end, first_token
from specviz.checks.enumerated import enumerate_texts
from specviz.checks.greedy import Greedy, greedy
from specviz.checks.one_step import DraftedPlace, identity, places, redraws, rule_here, worst_place
from specviz.checks.prove import BROKEN_PREFIX, FIRST_TOKENS, bundled_prompts, find_rule
from specviz.checks.self_checks import SelfCheck, self_checks
from specviz.checks.side_by_side import side_by_side
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.rules import ANY_CHAIN, RULES
from specviz.rules.broken import BROKEN
from specviz.session.setup import Setup, gather
from specviz.session.workbench import Workbench
from specviz.trace import Settings
from specviz.ui.choices import Offer
from specviz.ui.reports.section import Look, Section, Work, one_of, whole_number
from specviz.ui.reports.trace_models import RunModels
from specviz.views.blocks import PageSection
from specviz.views.check import sections as check
from specviz.views.check import whole_texts as check_texts
from specviz.views.compare import rules as side_view

SLICE_S = 0.3  # how long the engine is held for gathering
GREEDY_TOKENS = 64
OPTIONS = [(rule.title, name) for name, rule in ANY_CHAIN.items()]
OPTIONS += [
    (f"{rule.title} (a mistake)", f"{BROKEN_PREFIX}{name}") for name, rule in BROKEN.items()
]
NOT_AT_HAND = (
    "The models of this run are not loaded. Press Redraw to load them and show the places."
)
NOTHING_YET = "The run on Explore has written nothing yet, or is gone. Open this page again later."
READING = "The run's models are reading it once more; the result appears here in a moment."
NO_PLACE = "no token of this run was drafted by a draft model with its probability; make a run with a draft model"


class CheckSections:
    def __init__(self, bench: Workbench, offer: Offer) -> None:
        self._models = RunModels(bench, offer)
        self._newest: tuple[object, list[DraftedPlace]] | None = None

    def sections(self) -> list[Section]:
        return [
            Section("identity", self._place_key, self._begin_identity, opening=self._identity),
            Section(
                "one_step",
                self._text_key,
                self._begin_one_step,
                {"redraw": self._redraw},
                needs=self._needs,
                opening=self._one_step,
            ),
            Section(
                "end_to_end",
                _settings_of,
                self._begin_texts,
                {"write": self._write_texts},
                needs=self._needs,
            ),
            Section(
                "side_by_side",
                lambda look: look.text,
                lambda look: side_view.side_by_side(None),
                {"judge": self._judge},
                needs=self._needs,
            ),
            Section(
                "self_checks",
                _settings_of,
                lambda look: check.self_checks(()),
                {"self": self._self},
                needs=self._needs,
            ),
            Section("someone_else", _settings_of, self._someone_else),
        ]

    def _needs(self, look: Look) -> list[str]:
        return self._models.names(look.trace)

    def _someone_else(self, look: Look) -> PageSection:
        target = self._models.offer.first.target
        if look.settings is not None:
            target = look.settings.target
        return check.someone_else(target)

    def _text_key(self, look: Look) -> tuple[object, ...]:
        """The key of a section that reads the run's text, which models at hand do without a click."""
        return (look.text, self._models.are_at_hand(look.trace))

    def _place_key(self, look: Look) -> tuple[object, ...]:
        return (self._text_key(look), look.place)

    def _why_empty(self, look: Look) -> str:
        """The reason why nothing of the run on the stage is shown; empty where there is no run."""
        if look.settings is None:
            return NOTHING_YET if look.place.run else ""
        if self._models.are_at_hand(look.trace):
            return READING
        try:
            self._models.names(look.trace)
        except SpecvizError as refusal:
            return str(refusal)
        return NOT_AT_HAND

    def _begin_identity(self, look: Look) -> PageSection:
        return check.identity(None, str, refusal=self._why_empty(look))

    def _begin_one_step(self, look: Look) -> PageSection:
        refusal = _why_unchecked(look) or self._why_empty(look)
        return check.one_step(OPTIONS, _rule_of_run(look), None, None, str, refusal=refusal)

    def _begin_texts(self, look: Look) -> PageSection:
        return check_texts.end_to_end(
            _options(look),
            _rule_of_run(look),
            None,
            str,
            made_by=_describe_run(look),
            refusal=_why_unchecked(look),
        )

    def _setup(self, look: Look) -> tuple[Setup, Sampling, int]:
        """The run's models and method, its sampling and its K. Raises SpecvizError."""
        target, draft = self._models.load(look.trace)
        settings = look.settings
        method = METHODS[settings.method]
        pair = gather(method, settings.params, target, draft, self._models.bench.pool)
        return pair, Sampling.of(settings), max(1, settings.k)

    def _places(
        self, look: Look, waiting: PageSection
    ) -> Generator[PageSection, None, list[DraftedPlace]]:
        """The places of the run; those of the newest text are kept. `waiting` is yielded every SLICE_S."""
        models = self._models.load(look.trace)
        if self._newest is not None and self._newest[0] == look.text:
            return self._newest[1]
        found = []
        yielded_at = time.monotonic()
        for place in places(look.trace, *models):
            found.append(place)
            if time.monotonic() - yielded_at > SLICE_S:
                yield waiting
                yielded_at = time.monotonic()
        self._newest = (look.text, found)
        return found

    def _identity(self, look: Look) -> Work:
        """Yields the identity at the pinned token where the draft model gave its probability, else at the first such
        token."""
        if look.settings is None or not self._models.are_at_hand(look.trace):
            return
        found = yield from self._places(look, check.identity(None, str, refusal=READING))
        if not found:
            yield check.identity(None, str, refusal=NO_PLACE)
            return
        pinned = _pinned_place(look, found)
        place = found[0] if pinned is None else pinned
        pair, _, _ = self._setup(look)
        yield check.identity(
            identity(place),
            pair.target.text.label,
            is_pinned=pinned is not None,
        )

    def _one_step(self, look: Look) -> Work:
        if look.settings is None or not self._models.are_at_hand(look.trace):
            return
        rule = _rule_of_run(look)
        try:
            yield from self._at_worst(look, rule, check.REDRAWS[1])
        except SpecvizError as refusal:  # its button stays
            yield check.one_step(OPTIONS, rule, None, None, str, refusal=str(refusal))

    def _redraw(self, look: Look, values: Mapping[str, str]) -> Work:
        rule = one_of(values, "rule", [name for _, name in OPTIONS])
        n = whole_number(values, "n", check.REDRAWS[0], check.REDRAWS[2])
        seed = whole_number(values, "seed", 0, check.MOST_SEED)
        yield from self._at_worst(look, rule, n, seed, draws=True)

    def _at_worst(
        self, look: Look, name: str, n: int, seed: int = 0, *, draws: bool = False
    ) -> Work:
        """Yields the section at the place where this rule errs most: every outcome of its program, then the redraws."""
        if refusal := _why_unchecked(look):
            raise SpecvizError(refusal)
        rule = find_rule(name)
        waiting = check.one_step(
            OPTIONS,
            name,
            None,
            None,
            str,
            n=n,
            seed=seed,
            refusal=READING,
        )
        found = yield from self._places(look, waiting)
        if not any(place.is_judged for place in found):
            raise SpecvizError(NO_PLACE)
        place = worst_place(found, rule)
        rules = (*ANY_CHAIN.values(), *BROKEN.values())
        shown = {
            "n": n,
            "seed": seed,
            "at": (place.step, place.node),
            "others": [rule_here(place, other) for other in rules],
        }
        pair, sampling, k = self._setup(look)
        label = pair.target.text.label
        here = rule_here(place, rule)
        for enumerated in enumerate_texts(pair, rule, [_prompt(look)], sampling, k):
            shown["enumerated"] = enumerated
            yield check.one_step(OPTIONS, name, here, None, label, **shown)
        if draws:
            for result in redraws(place, rule, n, seed):
                yield check.one_step(OPTIONS, name, here, result, label, **shown)

    def _write_texts(self, look: Look, values: Mapping[str, str]) -> Work:
        if refusal := _why_unchecked(look):
            raise SpecvizError(refusal)
        options = _options(look)
        name = one_of(values, "rule", [name for _, name in options])
        tokens = whole_number(values, "tokens", check_texts.TOKENS[0], check_texts.TOKENS[2])
        seed = whole_number(values, "seed", 0, check.MOST_SEED)
        pair, sampling, k = self._setup(look)
        rule = find_rule(name)
        prompts = bundled_prompts(pair.target)

        def section(
            result: EndToEnd | None, first: FirstToken | None, same: Greedy | None
        ) -> PageSection:
            results = {"first": first, "greedy": same, "tokens": tokens, "seed": seed}
            return check_texts.end_to_end(options, name, result, pair.target.text.label, **results)

        if sampling.temperature == 0:
            length = max(8, min(GREEDY_TOKENS, tokens // len(prompts)))
            for same in greedy(pair, rule, prompts, k, length, sampling):
                yield section(None, None, same)
                if same.wrong:
                    return
            return
        result = None
        for result in end_to_end(pair, rule, prompts, sampling, k, tokens, seed):
            yield section(result, None, None)
            if result.outcome is not None and result.outcome.state == "differs":
                return  # later texts cannot change this
        num_first = max(1, round(FIRST_TOKENS * tokens))
        for first in first_token(pair, rule, prompts[0], sampling, k, num_first, seed):
            yield section(result, first, None)

    def _judge(self, look: Look, values: Mapping[str, str]) -> Work:
        yield side_view.side_by_side(None)
        for result in side_by_side(look.trace, *self._models.load(look.trace)):
            yield side_view.side_by_side(result)

    def _self(self, look: Look, values: Mapping[str, str]) -> Work:
        pair, sampling, k = self._setup(look)
        found: list[SelfCheck] = []
        for result in self_checks(pair, _prompt(look), sampling, k):
            found.append(result)
            yield check.self_checks(tuple(found))


def _pinned_place(look: Look, found: Sequence[DraftedPlace]) -> DraftedPlace | None:
    """The place of the pinned token. For the target's own token it is the draft token that this one replaced."""
    ref = look.place.ref
    in_step = [place for place in found if place.step == look.place.step]
    exact = [place for place in in_step if str(place.node) == ref]
    judged = [place for place in in_step if place.is_judged]
    candidates = exact or judged
    return candidates[-1] if candidates else None


def _prompt(look: Look) -> list[int]:
    return [token.id for token in look.trace.header.prompt.tokens]


def _rule_of_run(look: Look) -> str:
    if look.settings is not None and look.settings.rule in ANY_CHAIN:
        return look.settings.rule
    return OPTIONS[0][1]


def _settings_of(look: Look) -> Settings | None:
    """The key of a section that begins again with other settings."""
    return look.settings


def _why_unchecked(look: Look) -> str:
    """The reason why the run cannot be checked: its rule judges only what its own method has graded. Empty for other
    runs."""
    rule = None if look.settings is None else RULES.get(look.settings.rule)
    if rule is None or rule.name in ANY_CHAIN:
        return ""
    return (
        f"this run was judged by {rule.title}, which is lossy by design: there is nothing to check"
    )


def _options(look: Look) -> list[tuple[str, str]]:
    """The rules that can judge what the run's method drafts, and the wrong ones."""
    settings = look.settings
    if settings is None or settings.method not in METHODS:
        return OPTIONS
    rules = METHODS[settings.method].under(settings.params).rules
    return [(words, name) for words, name in OPTIONS if name not in RULES or name in rules]


def _describe_run(look: Look) -> str:
    """The method and its settings in words, without the rule, which has a list of its own."""
    settings = look.settings
    if settings is None or settings.method not in METHODS:
        return ""
    method = METHODS[settings.method]
    words = f"{settings.target}, {method.title}"
    if settings.draft_model and "draft" in method.roles:
        words += f" by {settings.draft_model}"
    if method.sets_k:
        words += f", K {settings.k}"
    return f"{words}, temperature {settings.temperature:g}, judged by the rule above"
