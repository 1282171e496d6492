"""Setup: a method with its parameters and every model that it drafts with, loaded; the way from names to a Drafter."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.drafter import Drafter
from specviz.decoding.engine import Plan
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.heads import LoadedHeads, load_heads
from specviz.drafters.method import Method, Part, Parts
from specviz.drafters.params import ModelParam, Value, split_names
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.files.hub import Progress, ignore_progress
from specviz.models.memory import check_gpu
from specviz.models.pool import LoadedModel, ModelPool, check_pair
from specviz.request import RunSettings
from specviz.rules import RULES
from specviz.trace import Settings


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """params: all of the method's, with models by the names that they may be shown by. Makes any number of drafters."""

    method: Method
    params: Mapping[str, Value]
    target: LoadedModel
    draft: LoadedModel | None
    heads: LoadedHeads | None = None
    others: Mapping[str, LoadedModel] = field(default_factory=dict)

    @property
    def models(self) -> list[LoadedModel]:
        """All that are loaded, the target first; heads are held by their target."""
        return [
            loaded
            for loaded in (self.target, self.draft, *self.others.values())
            if loaded is not None
        ]

    @property
    def comparable_draft(self) -> LoadedModel | None:
        """The draft model where its probabilities can be compared with the target's, token by token."""
        return None if self.method.foreign else self.draft

    def plan(self, rule: Rule, sampling: Sampling, k: int) -> Plan:
        """A plan with readers and a drafter of its own: nothing that another plan has cached is used."""
        reader = self.target.cached_lm()
        return Plan(reader, self.drafter(reader), rule, sampling, self.k(k))

    def drafter(self, target: CachedLM, draft: CachedLM | None = None) -> Drafter:
        """target: the reader that its drafts are checked with. draft: a reader of the draft model that may be used."""
        small = None if self.draft is None else _part(self.draft, draft)
        heads = None if self.heads is None else self.heads.module
        others = {name: _part(loaded) for name, loaded in self.others.items()}
        return self.method.build(
            Parts(_part(self.target, target), small, heads, others), self.params
        )

    def rule(self, name: str | None) -> Rule:
        """The rule of that name, the method's own for None. SpecvizError where it cannot judge these drafts."""
        method = self.method.under(self.params)
        name = name or method.default_rule
        if name not in method.rules:
            allowed = ", ".join(method.rules)
            title = RULES[name].title if name in RULES else name
            raise SpecvizError(
                f"{title} cannot judge the drafts of {self.method.title}; choose one of {allowed}"
            )
        return RULES[name]

    def k(self, asked: int) -> int:
        """The largest depth of a draft, where a person asks for `asked`."""
        return asked if self.method.depth is None else int(self.params[self.method.depth])

    def settings(self, plan: Plan) -> Settings:
        """What a trace says of the steps that are made by this plan."""
        return Settings(
            k=plan.k,
            k_policy=str(self.params.get("k_policy", "constant")),
            **asdict(plan.sampling),
            method=self.method.name,
            params=self.params,
            rule=plan.rule.name,
            lossless=plan.rule.lossless,
            draft_model=None if self.draft is None else self.draft.name,
            target=self.target.name,
        )


def gather(
    method: Method,
    params: Mapping[str, object],
    target: LoadedModel,
    draft: LoadedModel | None,
    pool: ModelPool | None = None,
    report: Progress = ignore_progress,
) -> Setup:
    """Checks the parameters and the pair, and loads what the parameters name.

    library: where further models come from, needed for methods that name some. Raises SpecvizError.
    """
    check_gpu(target.name)
    checked = method.validate(params)
    if "draft" in method.roles and draft is None:
        raise SpecvizError(
            f"the method {method.name} needs a draft model (got none); choose one or another method"
        )
    draft = draft if "draft" in method.roles else None
    if draft is not None and not method.foreign:
        check_pair(target, draft)
    heads, others = None, {}
    for param in (param for param in method.params if isinstance(param, ModelParam)):
        names = _names_of(param, checked[param.name], target.name)
        if "heads" in method.roles:
            heads = load_heads(pool, names[0], param.kind, target, report)
            checked[param.name] = heads.name
            continue
        loaded = {
            name: pool.load(name, report, as_draft=True)
            for name in names
            if name not in param.reserved
        }
        for other in loaded.values():
            check_pair(target, other)
        others |= {other.name: other for other in loaded.values()}
        checked[param.name] = ", ".join(
            loaded[name].name if name in loaded else name for name in names
        )
    setup = Setup(method, checked, target, draft, heads, others)
    _check_trees(setup)
    return setup


def _check_trees(setup: Setup) -> None:
    """SpecvizError where the method drafts token trees and one of its models reads none right."""
    if not setup.method.under(setup.params).needs_trees:
        return
    for loaded in setup.models:
        if loaded.proof.trees:
            raise SpecvizError(
                f"{setup.method.title} drafts in branches, and {loaded.name} reads chains only: {loaded.proof.trees}; "
                "choose a method that drafts a chain"
            )


def models_named(settings: RunSettings) -> list[tuple[str, str]]:
    """(kind, name) of every model that a run needs, the target first. SpecvizError for what its method refuses."""
    has_draft = "draft" in METHODS[settings.method].roles and settings.draft
    drafts = [("draft", settings.draft)] if has_draft else []
    return [("target", settings.target), *drafts, *models_in_params(settings)]


def models_in_params(settings: RunSettings | Settings) -> list[tuple[str, str]]:
    """(kind, name) of the models that the method's parameters name. SpecvizError for what the method refuses."""
    method = METHODS[settings.method]
    params = method.validate(settings.params)
    asked = [param for param in method.params if isinstance(param, ModelParam)]
    named = [
        (param, name)
        for param in asked
        for name in _names_of(param, params[param.name], settings.target)
    ]
    return [(param.kind, name) for param, name in named if name not in param.reserved]


def _names_of(param: ModelParam, value: Value, target: str) -> list[str]:
    """The names that a parameter stands for; where it names none, the catalogue's for the target. SpecvizError."""
    if value is not None:
        return split_names(str(value))
    if not (offered := catalog.names_for(target, param.kind) or param.reserved):
        raise SpecvizError(
            f"{param.name} must name a model: nothing of the kind {param.kind} is known for {target}"
        )
    return [offered[0]]


def _part(loaded: LoadedModel, lm: CachedLM | None = None) -> Part:
    return Part(loaded.name, lm or loaded.cached_lm(), loaded.cached_lm, loaded.text)
