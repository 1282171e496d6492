"""The offer of the page: models, methods, rules and ready prompts, the first request, the browser's files.

Only this module decides which draft, rule and further models fit a method and a target.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specviz.decoding.rule import Rule
from specviz.drafters import METHODS
from specviz.drafters.method import Method
from specviz.drafters.params import ModelParam, Value, split_names
from specviz.models import catalog
from specviz.models.chat import ready_text
from specviz.models.files.hub import is_here
from specviz.models.quantisation import split_format, with_format
from specviz.prompts import prompts_file
from specviz.request import Request, spell_options, spell_stops
from specviz.rules import RULES
from specviz.settings import settings

FIRST_SEED = 5
"""The seed of the first run. Its first three steps, with the bundled pair and the first prompt: a rejection in the
middle, all accepted with a bonus, a rejection at once."""
FIRST_LENGTH = 128  # tokens: about half a minute at normal pace
FASTER = " in bfloat16: faster, may part at near-ties"
AWAY = " · not downloaded"
Option = tuple[str, str]
"""The words of a list's entry, and the name that it stands for."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The models and ready prompts that the page offers, and the request that it begins with."""

    targets: tuple[Option, ...]
    drafts: tuple[Option, ...]
    prompts: Mapping[str, Mapping[str, str]]
    """The texts of the prompts: kind -> title -> text."""
    first: Request
    any_model: bool
    """Whether names that are not in the lists may be typed."""
    dialogues: tuple[str, ...] = ()
    """The kinds of prompts that are conversations."""
    may_get: bool = False
    """Whether the page may fetch a model."""

    def knows(self, name: str) -> bool:
        """Whether the model, or the heads, are in the page's lists or in the catalogue."""
        listed = [option for _, option in (*self.targets, *self.drafts)]
        return name in catalog.MODELS or name in catalog.HEADS or name in listed

    def allows(self, name: str) -> bool:
        return self.any_model or self.knows(name)

    def may_stay(self, name: object, suiting: Collection[str]) -> bool:
        """Whether the model `name` may stay chosen with a new target: it suits the target, in any format, or is
        unknown."""
        if not isinstance(name, str) or not name:
            return False
        plain = catalog.without_format(name)
        return plain in suiting or name in suiting or (self.any_model and not self.knows(plain))

    def allows_params(self, method: Method, values: Mapping[str, object]) -> bool:
        """Whether every model that the method's parameters name is on offer. Raises SpecvizError for a bad value."""
        checked = method.validate(values)
        for param in method.params:
            if isinstance(param, ModelParam):
                names = split_names(str(checked[param.name] or ""))
                if not all(name in param.reserved or self.allows(name) for name in names):
                    return False
        return True

    def kinds_for(self, *, answers: bool) -> dict[str, list[str]]:
        """The titles of the ready prompts by kind. Questions come first, and only for a model that answers."""
        kinds = [kind for kind in self.prompts if kind not in self.dialogues]
        if answers:
            kinds = [*self.dialogues, *kinds]
        return {kind: list(self.prompts[kind]) for kind in kinds}

    def suit(self, prompt: object, *, answers: bool) -> str | None:
        """A ready prompt to replace one that does not suit the target; None where `prompt` may stay.

        answers: whether the target answers questions.
        """
        is_question: dict[object, bool] = {}  # by the text of a ready prompt
        for kind, texts in self.prompts.items():
            is_question |= dict.fromkeys(texts.values(), kind in self.dialogues)
        if is_question.get(prompt, answers) == answers:
            return None
        return next(text for text in is_question if is_question[text] == answers)

    def drafts_for(self, target: str, method: Method) -> tuple[Option, ...]:
        """The draft models that suit a target under a method."""
        return as_options(catalog.drafts_for(target, foreign=method.foreign)) or self.drafts


def make_offer(
    target: str | None = None,
    draft: str | None = None,
    *,
    any_model: bool = True,
    may_get: bool = False,
    gains_by_bfloat16: bool = False,
) -> Offer:
    """The catalogue's offer, which begins with the bundled pair where no other models are named.

    draft: a draft model, or heads, which bring their method. gains_by_bfloat16: see memory.gains_by_bfloat16.
    """
    target = target or catalog.default_pair()[0]
    heads = catalog.HEADS.get(draft or "")
    if heads or not draft:
        draft = next(iter(catalog.drafts_for(target)), None)
    file = prompts_file()
    prompts = texts_by_title(file["kinds"])
    dialogues = texts_by_title([file["dialogues"]])
    chats = catalog.chats(target)
    temperature = 1.0
    seed = FIRST_SEED
    if chats:
        # A small model's answer wanders off at temperature 1; with this seed its program is right.
        temperature = 0.7
        seed = 10
    targets = [target, *catalog.targets()]
    if gains_by_bfloat16 and is_here(catalog.REAL):
        half = with_format(catalog.REAL, catalog.BFLOAT16)
        targets.insert(targets.index(catalog.REAL) + 1, half)
    kinds = dialogues if chats else prompts
    first_kind = next(texts for texts in kinds.values() if texts)
    first = Request(
        prompt=next(iter(first_kind.values())),
        chat=chats,
        target=target,
        draft=draft,
        temperature=temperature,
        seed=seed,
        max_new_tokens=min(FIRST_LENGTH, settings().max_new_tokens),
    )
    if heads:
        first = replace(first, method=heads.kind)
    return Offer(
        as_options(targets),
        list_drafts(target, draft),
        prompts | dialogues,
        first,
        any_model,
        tuple(dialogues),
        may_get,
    )


def texts_by_title(kinds: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The ready prompts of these kinds: kind -> title -> text."""
    texts_by_kind: dict[str, dict[str, str]] = {}
    for kind in kinds:
        texts = {}
        for prompt in kind["prompts"]:
            texts[title_of_prompt(prompt["name"])] = ready_text(prompt)
        texts_by_kind[kind["title"]] = texts
    return texts_by_kind


def title_of_prompt(name: str) -> str:
    return name.replace("-", " ").capitalize()


def list_drafts(target: str, *others: str | None) -> tuple[Option, ...]:
    """The draft models `others`, then those that suit `target`."""
    return as_options((*others, *catalog.drafts_for(target)))


def number_or_none(value: Any) -> Any:
    """The number typed into a field that may be empty. Anything else stays as it came, for its check to refuse."""
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return value


def spelled(request: Request) -> dict[str, str]:
    """The text in each field that a request's value is typed into."""
    lines = {
        "stop": spell_stops(request.stop),
        "chat_options": "\n".join(spell_options(request.chat_options)),
    }
    for name in Request.DRAFT_SAMPLING:
        value = getattr(request, name)
        lines[name] = "" if value is None else str(value)
    return lines


def as_options(names: Iterable[str | None]) -> tuple[Option, ...]:
    """The entries of a list of models. A model that is not on this machine says so."""
    known = [name for name in dict.fromkeys(names) if name is not None]
    return tuple((_spell_model(name), name) for name in known)


def _spell_model(name: str) -> str:
    plain, form = split_format(name)
    words = Path(plain).name + FASTER if form == catalog.BFLOAT16 else Path(name).name
    return words if is_here(name) else f"{words}{AWAY}"


def list_methods() -> tuple[Option, ...]:
    """The entries of the list of methods, the common ones first."""
    ordered = sorted(METHODS.values(), key=lambda method: not method.is_common)
    return tuple((method.title, method.name) for method in ordered)


def list_rules(method: Method) -> tuple[Option, ...]:
    """The rules that can judge the method's drafts, each with its badge."""
    options = []
    for name in method.rules:
        rule = RULES[name]
        badge = "exact" if rule.lossless else "lossy"
        options.append((f"{rule.title} · {badge}", rule.name))
    return tuple(options)


def list_models(param: ModelParam, target: str) -> tuple[Option, ...]:
    """The known values, for this target, of a parameter that names models."""
    options = []
    for name in param.reserved:
        title = METHODS[name].title if name in METHODS else name
        options.append((title, name))
    return (*options, *as_options(catalog.names_for(target, param.kind)))


def usual_models(param: ModelParam, target: str) -> list[str]:
    """The value that such a parameter has at first: its own default, else the first that suits the target."""
    if param.default is not None:
        return split_names(str(param.default))
    suiting = catalog.names_for(target, param.kind) or param.reserved
    return list(suiting[:1])


def choose_draft(method: Method, target: str, draft: str | None) -> str | None:
    """A draft model that the method can use: `draft`, unless the method needs another kind of vocabulary."""
    if "draft" not in method.roles or target not in catalog.MODELS:
        return draft
    suiting = catalog.drafts_for(target)
    unsuiting = catalog.MODELS[target].foreign
    if method.foreign:
        suiting, unsuiting = unsuiting, suiting
    if suiting and (draft is None or draft in unsuiting):
        return suiting[0]
    is_of_others = not suiting and draft in catalog.MODELS
    return None if is_of_others else draft


def choose_rule(method: Method, rule: str | None) -> str:
    """The rule, if it can judge the method's drafts, else the method's default."""
    return rule if rule in method.rules and method.drafts else method.default_rule


def rule_to_explain(method: Method, rule: str | None) -> Rule | None:
    """The rule that judges the method's drafts; None where there are none."""
    return RULES[choose_rule(method, rule)] if method.drafts else None


def choose_models(
    offer: Offer, param: ModelParam, target: str, chosen: Any
) -> str | list[str] | None:
    """The chosen name, or list of names, where all of it may stay with the target, else the usual one."""
    known = [name for _, name in list_models(param, target)]
    names = chosen if isinstance(chosen, list) else [chosen]
    if not names or not all(offer.may_stay(name, known) for name in names):
        names = usual_models(param, target)
    return names if param.most > 1 else next(iter(names), None)


def as_value(value: Any) -> Value:
    """The value of a field as a parameter takes it: a list of names becomes one text, and no name is None."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = ", ".join(value)
    return None if value == "" else value
