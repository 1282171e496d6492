"""The models behind a trace, for the pages that ask them again.

A trace may come from anywhere. Names are looked up, and a trace that the models cannot have written is refused before
they are asked.
"""

from dataclasses import dataclass
from pathlib import Path

from specviz.drafters import METHODS
from specviz.drafters.method import Method
from specviz.drafters.params import ModelParam
from specviz.errors import SpecvizError
from specviz.models.catalog import HEADS, MODELS, names_for, without_format
from specviz.models.memory import check_gpu
from specviz.models.pool import LoadedModel, ModelPool
from specviz.request import Request
from specviz.rules import RULES
from specviz.session.setup import models_in_params
from specviz.session.workbench import Workbench
from specviz.settings import settings
from specviz.trace import ModelInfo, Trace
from specviz.ui.choices import Offer, Option, list_methods

NO_RUN = "there is no run to look at: make one on Explore, or open a recorded one"


@dataclass(frozen=True, slots=True)
class RunModels:
    """The models behind runs, from the workbench's pool, as far as they are in memory or on offer."""

    bench: Workbench
    offer: Offer

    def names(self, trace: Trace | None) -> list[str]:
        """The target and the draft model of the last step. Loads nothing. Raises SpecvizError for models that are not
        on offer, also for those that the parameters name, and for a trace that cannot be a run of them."""
        self._check(trace)
        return [name for kind, name in _models_of(trace) if kind in ("target", "draft")]

    def load(self, trace: Trace | None) -> tuple[LoadedModel, LoadedModel | None]:
        """The target and the draft model. Raises SpecvizError as `names`, and for other models than made the run."""
        self._check(trace)
        named = trace.models[-1]
        target = self._load(named.target)
        draft = None if named.draft_model is None else self._load(named.draft_model)
        ids = [token.id for token in (*trace.header.prompt.tokens, *trace.tokens)]
        if max(ids) >= target.info.vocab_size or len(ids) > target.info.context_limit:
            raise SpecvizError(f"{target.name} cannot have read and written the text of this run")
        return target, draft

    def are_at_hand(self, trace: Trace | None) -> bool:
        """Whether asking the run's models takes no download and no long wait."""
        if trace is None or not trace.models:
            return False
        try:
            return all(self.is_at_hand(name) for _, name in _models_of(trace))
        except SpecvizError:
            return False

    def is_at_hand(self, name: str) -> bool:
        known = MODELS.get(name) or HEADS.get(name)
        return name in self.bench.pool.loaded_names() or (known is not None and known.is_bundled)

    def _check(self, trace: Trace | None) -> None:
        if trace is None or not trace.steps or not trace.header.prompt.tokens:
            raise SpecvizError(NO_RUN)
        settings = trace.steps[-1].settings
        named = trace.models[-1]
        draft = None if named.draft_model is None else named.draft_model.name
        if (settings.target, settings.draft_model) != (named.target.name, draft):
            raise SpecvizError("the steps of this trace name other models than its models event")
        if settings.method not in METHODS or settings.rule not in RULES:
            lost = f"the method {settings.method!r:.60} or its rule is not known here"
            raise SpecvizError(f"{lost}, so it cannot be asked")
        method = METHODS[settings.method].under(settings.params)
        if "draft" in method.roles and draft is None:
            raise SpecvizError(f"this trace names no draft model, and {method.name} needs one")
        if settings.rule not in method.rules:
            raise SpecvizError(
                f"{RULES[settings.rule].title} cannot judge the drafts of {method.title}"
            )
        for _, name in _models_of(trace):
            if name not in self.bench.pool.loaded_names() and not self.offer.allows(name):
                raise SpecvizError(
                    f"the run was made with {name}, which is not on offer here, so it cannot be asked"
                )

    def _load(self, info: ModelInfo) -> LoadedModel:
        """The model of this name. Raises SpecvizError where it is another model here."""
        check_gpu(info.name)
        loaded = self.bench.pool.load(info.name)
        is_same = info.tokenizer_sha in (None, loaded.info.tokenizer_sha)
        if not is_same or info.num_parameters not in (None, loaded.info.num_parameters):
            raise SpecvizError(f"{info.name} here is another model than the one that made this run")
        return loaded


def lacks(method: Method, target: str, pool: ModelPool) -> str:
    """The reason why the method cannot run on this target; empty where it can, or where only loading would tell."""
    if "heads" in method.roles:
        for param in method.params:
            names_models = isinstance(param, ModelParam) and param.default is None
            if names_models and not names_for(target, param.kind):
                return f"For {Path(target).name} no {param.title} are known: name some below, or choose another method."
    if method.target_has is None:
        return ""
    number, words = method.target_has
    if without_format(target) not in MODELS:  # no model of the catalogue brings any
        if target not in pool.loaded_names():
            return ""
        config = pool.load(target).model.config.get_text_config(decoder=True)
        if getattr(config, number, None):
            return ""
    return f"{Path(target).name} has no {words}: choose another method."


def methods_for(target: str, pool: ModelPool, chosen: object) -> tuple[Option, ...]:
    """The methods that the target is made for, as far as that is known, and the chosen one."""
    options = []
    for title, name in list_methods():
        method = METHODS[name]
        if name == chosen or method.target_has is None or not lacks(method, target, pool):
            options.append((title, name))
    return tuple(options)


def _models_of(trace: Trace) -> list[tuple[str, str]]:
    """The models of a run's last step, as (kind, name). Raises SpecvizError for parameters that the method refuses."""
    last = trace.models[-1]
    models = [("target", last.target.name)]
    if last.draft_model:
        models.append(("draft", last.draft_model.name))
    if trace.steps:
        settings = trace.steps[-1].settings
        if settings.method in METHODS:
            models += models_in_params(settings)
    return models


def request_of(trace: Trace) -> Request:
    """The request that makes a run with the settings of the trace's last step from its prompt's ids."""
    last = trace.steps[-1].settings
    prompt = trace.header.prompt
    seed = trace.header.request.get("seed")
    names = [name for name in (*Request.NAMES, *Request.ALL_SAMPLING) if name != "draft"]
    return Request(
        prompt=prompt.text,
        prompt_ids=tuple(token.id for token in prompt.tokens),
        draft=last.draft_model,
        params=dict(last.params),
        num_speculative_tokens=last.k,
        seed=seed if type(seed) is int else 0,
        max_new_tokens=min(64, settings().max_new_tokens),
        **{name: getattr(last, name) for name in names},
    )
