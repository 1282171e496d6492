"""What the page offers: models, methods, rules and ready prompts, the first request, the browser's files.

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
from specviz.models.chat import as_lines
from specviz.models.files.hub import is_here
from specviz.prompts import prompts_file
from specviz.request import Request, spell_options, spell_stops
from specviz.rules import RULES
from specviz.settings import settings

FIRST_SEED = 5
"""With the bundled pair and the first prompt: a rejection in the middle, a full accept with its bonus, a rejection at
once, in the first three steps."""
FIRST_LENGTH = 128  # tokens: about half a minute at reading pace
AWAY = " · not downloaded"
Option = tuple[str, str]
"""The words of a list's entry, and the name that it stands for."""


@dataclass(frozen=True, slots=True)
class Offer:
    """`prompts`: kind -> title -> text, `dialogues` those kinds whose texts are conversations.

    `any_model`: whether names that are not in the lists may be typed; `may_get`: whether the page may fetch a model.
    """

    targets: tuple[Option, ...]
    drafts: tuple[Option, ...]
    prompts: Mapping[str, Mapping[str, str]]
    first: Request
    any_model: bool
    dialogues: tuple[str, ...] = ()
    may_get: bool = False

    def knows(self, name: str) -> bool:
        """Whether the model, or the heads, are in the page's lists or in the catalogue."""
        listed = (known for _, known in (*self.targets, *self.drafts))
        return name in catalog.MODELS or name in catalog.HEADS or name in listed

    def allows(self, name: str) -> bool:
        return self.any_model or self.knows(name)

    def may_stay(self, name: object, suiting: Collection[str]) -> bool:
        """Whether the model `name` may stay chosen with a new target: it suits it, in any format, or is not known."""
        if not isinstance(name, str) or not name:
            return False
        plain = catalog.without_format(name)
        return plain in suiting or name in suiting or (self.any_model and not self.knows(plain))

    def allows_params(self, method: Method, values: Mapping[str, object]) -> bool:
        """Whether everything that the method's parameters name is on offer. SpecvizError: a value out of range."""
        checked = method.validate(values)
        models = (param for param in method.params if isinstance(param, ModelParam))
        named = (
            (param, name)
            for param in models
            for name in split_names(str(checked[param.name] or ""))
        )
        return all(name in param.reserved or self.allows(name) for param, name in named)

    def kinds_for(self, *, answers: bool) -> dict[str, list[str]]:
        """The titles of the ready prompts by kind; questions come first, and only for a model that answers."""
        questions = self.dialogues if answers else ()
        kinds = [*questions, *(kind for kind in self.prompts if kind not in self.dialogues)]
        return {kind: list(self.prompts[kind]) for kind in kinds}

    def suit(self, prompt: object, *, answers: bool) -> str | None:
        """A ready prompt in place of one that suits a model that answers, or does not; None: `prompt` stays."""
        ready = {
            text: kind in self.dialogues
            for kind, texts in self.prompts.items()
            for text in texts.values()
        }
        if ready.get(prompt, answers) == answers:
            return None
        return next(text for text, is_question in ready.items() if is_question == answers)

    def drafts_for(self, target: str, method: Method) -> tuple[Option, ...]:
        """The draft models that suit a target under a method."""
        return as_options(catalog.drafts_for(target, foreign=method.foreign)) or self.drafts


def make_offer(
    target: str | None = None,
    draft: str | None = None,
    *,
    any_model: bool = True,
    may_get: bool = False,
) -> Offer:
    """The catalogue's offer, beginning with `target` and `draft`, or heads and their method, or the bundled pair."""
    target = target or catalog.default_pair()[0]
    heads = catalog.HEADS.get(draft or "")
    draft = (None if heads else draft) or next(iter(catalog.drafts_for(target)), None)
    file = prompts_file()
    prompts, dialogues = texts_by_title(file["kinds"]), texts_by_title([file["dialogues"]])
    chats = catalog.chats(target)
    # A small model's answer wanders off at temperature 1; with this seed it is a whole explanation.
    kinds, temperature, seed = (dialogues, 0.5, 7) if chats else (prompts, 1.0, FIRST_SEED)
    prompt = next(text for texts in kinds.values() for text in texts.values())
    first = Request(
        prompt=prompt, chat=chats, target=target, draft=draft, temperature=temperature, seed=seed
    )
    first = replace(first, max_new_tokens=min(FIRST_LENGTH, settings().max_new_tokens))
    first = replace(first, method=heads.kind if heads else first.method)
    targets = as_options((target, *catalog.targets()))
    return Offer(
        targets,
        list_drafts(target, draft),
        prompts | dialogues,
        first,
        any_model,
        tuple(dialogues),
        may_get,
    )


def texts_by_title(kinds: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The ready prompts of these kinds: kind -> title -> text."""
    return {
        kind["title"]: {
            each["name"].replace("-", " ").capitalize(): _text_of(each) for each in kind["prompts"]
        }
        for kind in kinds
    }


def _text_of(prompt: Mapping[str, Any]) -> str:
    """A lone question as it is, a longer conversation as plain lines."""
    messages = prompt.get("messages", ())
    return (
        messages[0]["content"] if len(messages) == 1 else prompt.get("text") or as_lines(messages)
    )


def list_drafts(target: str, *others: str | None) -> tuple[Option, ...]:
    """The draft models that suit `target`, after the `others` named."""
    return as_options((*others, *catalog.drafts_for(target)))


def number_or_none(value: Any) -> Any:
    """The number typed into a field that may be empty; what is none stays as it came, for its check to refuse."""
    text = "" if value is None else str(value).strip()
    try:
        return None if not text else int(text) if text.isdecimal() else float(text)
    except ValueError:
        return value


def spelled(request: Request) -> dict[str, str]:
    """The fields of a request that are typed as text."""
    own = ((name, getattr(request, name)) for name in Request.DRAFT_SAMPLING)
    lines = {
        "stop": spell_stops(request.stop),
        "chat_options": "\n".join(spell_options(request.chat_options)),
    }
    return lines | {name: "" if value is None else str(value) for name, value in own}


def as_options(names: Iterable[str | None]) -> tuple[Option, ...]:
    """Models for a list; one that is not on this machine says so."""
    known = [name for name in dict.fromkeys(names) if name is not None]
    return tuple((f"{Path(name).name}{'' if is_here(name) else AWAY}", name) for name in known)


def list_methods() -> tuple[Option, ...]:
    """All methods, the common ones first."""
    ordered = sorted(METHODS.values(), key=lambda method: not method.is_common)
    return tuple((method.title, method.name) for method in ordered)


def list_rules(method: Method) -> tuple[Option, ...]:
    """The rules that can judge the method's drafts, each with its badge."""
    rules = (RULES[name] for name in method.rules)
    return tuple(
        (f"{rule.title} · {'exact' if rule.lossless else 'lossy'}", rule.name) for rule in rules
    )


def list_models(param: ModelParam, target: str) -> tuple[Option, ...]:
    """The known values, for this target, of a parameter that names models."""
    stand_ins = tuple(
        (METHODS[name].title if name in METHODS else name, name) for name in param.reserved
    )
    return (*stand_ins, *as_options(catalog.names_for(target, param.kind)))


def usual_models(param: ModelParam, target: str) -> list[str]:
    """The first value of such a parameter: its own default, else the first that suits the target."""
    if param.default is not None:
        return split_names(str(param.default))
    return list((catalog.names_for(target, param.kind) or param.reserved)[:1])


def choose_draft(method: Method, target: str, draft: str | None) -> str | None:
    """A draft model that the method can use: `draft`, unless the method needs another kind of vocabulary."""
    if "draft" not in method.roles or target not in catalog.MODELS:
        return draft
    foreign, own = catalog.MODELS[target].foreign, catalog.drafts_for(target)
    wanted, other = (foreign, own) if method.foreign else (own, foreign)
    return wanted[0] if wanted and (draft is None or draft in other) else draft


def choose_rule(method: Method, rule: str | None) -> str:
    """The rule where it can judge the method's drafts, else the method's own."""
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
    usual = (
        names
        if names and all(offer.may_stay(name, known) for name in names)
        else usual_models(param, target)
    )
    return usual if param.most > 1 else next(iter(usual), None)


def as_value(value: Any) -> Value:
    """A field's value as a parameter takes it: the names of a list are one text, and no name is None."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = ", ".join(value)
    return None if value == "" else value
