"""Setup: a method with its parameters and every model that it drafts with, loaded. `gather` makes it from names."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.drafter import Drafter
from specviz.decoding.engine import Plan
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.heads import LoadedHeads, load_heads
from specviz.drafters.method import Method, Part, Parts
from specviz.drafters.params import ModelParam, SizeParam, Value, split_names
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
    """A method with its parameters and loaded models; it makes any number of drafters."""

    method: Method
    params: Mapping[str, Value]  # all of the method's; models stand there by their shown names
    target: LoadedModel
    draft: LoadedModel | None
    heads: LoadedHeads | None = None
    others: Mapping[str, LoadedModel] = field(default_factory=dict)
    by_time: tuple[str, ...] = ()
    """The parameters whose values are the best by time on this device, as measured."""

    @property
    def models(self) -> list[LoadedModel]:
        """All loaded models, the target first; heads are held by their target."""
        drafts = [] if self.draft is None else [self.draft]
        return [self.target, *drafts, *self.others.values()]

    @property
    def comparable_draft(self) -> LoadedModel | None:
        """The draft model where its probabilities can be compared with the target's, token by token."""
        return None if self.method.foreign else self.draft

    def plan(self, rule: Rule, sampling: Sampling, k: int) -> Plan:
        """A plan with readers and a drafter of its own: it uses nothing that another plan has cached."""
        reader = self.target.cached_lm()
        return Plan(reader, self.drafter(reader), rule, sampling, self.k(k))

    def drafter(
        self,
        target: CachedLM,
        draft: CachedLM | None = None,
        answers: Sequence[Sequence[int]] = (),
    ) -> Drafter:
        """Makes a drafter.

        target: the reader that its drafts are checked with. draft: a reader of the draft model that may be used.
        answers: the visitor's earlier answers.
        """
        target_part = _part(self.target, target)
        draft_part = None if self.draft is None else _part(self.draft, draft)
        heads = None if self.heads is None else self.heads.module
        others = {name: _part(loaded) for name, loaded in self.others.items()}
        parts = Parts(target_part, draft_part, heads, others, answers)
        return self.method.build(parts, self.params)

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
        """The largest depth of a draft if a person asks for `asked`."""
        return asked if self.method.depth is None else int(self.params[self.method.depth])

    def settings(self, plan: Plan) -> Settings:
        """The settings that a trace records for this plan's steps."""
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
            by_time=self.by_time or None,
        )


def gather(
    method: Method,
    params: Mapping[str, object],
    target: LoadedModel,
    draft: LoadedModel | None,
    pool: ModelPool | None = None,
    report: Progress = ignore_progress,
) -> Setup:
    """Checks the parameters and the pair, and loads the models that the parameters name. Raises SpecvizError.

    pool: the source of further models, needed for methods that name some.
    """
    check_gpu(target.name)
    checked = method.validate(params)
    if "draft" in method.roles and draft is None:
        raise SpecvizError(
            f"the method {method.name} needs a draft model (got none); choose one or another method"
        )
    if "draft" not in method.roles:
        draft = None
    if draft is not None and not method.foreign:
        check_pair(target, draft)
    heads = None
    others: dict[str, LoadedModel] = {}
    by_time = []
    step_ms = None if pool is None else pool.step_ms.get((method.name, target.name))
    for param in method.params:
        is_open = isinstance(param, SizeParam) and not params.get(param.name)
        if is_open and step_ms and param.counts(checked):
            checked[param.name] = param.best(step_ms)
            by_time.append(param.name)
        if not isinstance(param, ModelParam):
            continue
        names = _names_of(param, checked[param.name], target.name)
        if "heads" in method.roles:
            heads = load_heads(pool, names[0], param.kind, target, report)
            checked[param.name] = heads.name
        else:
            models = _load_named(pool, param, names, report)
            for model in models.values():
                check_pair(target, model)
                others[model.name] = model
            shown_names = [models[name].name if name in models else name for name in names]
            checked[param.name] = ", ".join(shown_names)
    setup = Setup(method, checked, target, draft, heads, others, tuple(by_time))
    _check_trees(setup)
    return setup


def _load_named(
    pool: ModelPool, param: ModelParam, names: Sequence[str], report: Progress
) -> dict[str, LoadedModel]:
    """The models of these names, without the parameter's reserved words."""
    model_names = [name for name in names if name not in param.reserved]
    return {name: pool.load(name, report, as_draft=True) for name in model_names}


def _check_trees(setup: Setup) -> None:
    """Raises SpecvizError if the method drafts token trees and one of its models cannot read them right."""
    if not setup.method.under(setup.params).needs_trees:
        return
    for loaded in setup.models:
        if loaded.proof.trees:
            raise SpecvizError(
                f"{setup.method.title} drafts in branches, and {loaded.name} reads chains only: {loaded.proof.trees}; "
                "choose a method that drafts a chain"
            )


def models_named(settings: RunSettings) -> list[tuple[str, str]]:
    """The (kind, name) of every model that a run needs, the target first.

    Raises SpecvizError for parameters that its method refuses.
    """
    models = [("target", settings.target)]
    if "draft" in METHODS[settings.method].roles and settings.draft:
        models.append(("draft", settings.draft))
    return models + models_in_params(settings)


def models_in_params(settings: RunSettings | Settings) -> list[tuple[str, str]]:
    """The (kind, name) of each model that the method's parameters name.

    Raises SpecvizError for parameters that the method refuses.
    """
    method = METHODS[settings.method]
    params = method.validate(settings.params)
    models = []
    for param in method.params:
        if isinstance(param, ModelParam):
            for name in _names_of(param, params[param.name], settings.target):
                if name not in param.reserved:
                    models.append((param.kind, name))
    return models


def _names_of(param: ModelParam, value: Value, target: str) -> list[str]:
    """The names in a parameter; where it has none, the catalogue's first for the target. Raises SpecvizError."""
    if value is not None:
        return split_names(str(value))
    offered = catalog.names_for(target, param.kind) or param.reserved
    if not offered:
        raise SpecvizError(
            f"{param.name} must name a model: nothing of the kind {param.kind} is known for {target}"
        )
    return [offered[0]]


def _part(loaded: LoadedModel, lm: CachedLM | None = None) -> Part:
    return Part(loaded.name, lm or loaded.cached_lm(), loaded.cached_lm, loaded.text)
