"""The models behind a trace, for the pages that ask them again. A trace may come from anywhere: names are looked up."""

from __future__ import annotations

from specviz.errors import SpecvizError
from specviz.models import LoadedModel
from specviz.request import Request
from specviz.session import Workbench
from specviz.trace import ModelInfo, Trace
from specviz.ui.offer import Offer

NO_RUN = "there is no run to look at: make one on Explore, or open a recorded one"


def models_of(trace: Trace | None, bench: Workbench, offer: Offer) -> tuple[LoadedModel, LoadedModel | None]:
    """The target and the draft model of the last step, loaded. Raises SpecvizError for models that are not on offer,
    and for others than those that made the run."""
    if trace is None or not trace.steps:
        raise SpecvizError(NO_RUN)
    named = trace.models[-1]
    target = _loaded(named.target, bench, offer)
    return target, None if named.draft_model is None else _loaded(named.draft_model, bench, offer)


def _loaded(info: ModelInfo, bench: Workbench, offer: Offer) -> LoadedModel:
    if info.name not in bench.library.loaded_names() and not offer.allows(info.name):
        raise SpecvizError(f"the run was made with {info.name}, which is not on offer here, so it cannot be asked")
    loaded = bench.library.load(info.name)
    known = ((info.tokenizer_sha, loaded.info.tokenizer_sha), (info.num_parameters, loaded.info.num_parameters))
    if any(recorded not in (None, own) for recorded, own in known):
        raise SpecvizError(f"{info.name} here is another model than the one that made this run")
    return loaded


def request_of(trace: Trace) -> Request:
    """The request that makes a run with the settings of the trace's last step from its prompt's ids."""
    settings = trace.steps[-1].settings
    seed = trace.header.request.get("seed")
    return Request(
        prompt=trace.header.prompt.text,
        prompt_ids=tuple(token.id for token in trace.header.prompt.tokens),
        target=settings.target,
        draft=settings.draft_model,
        method=settings.method,
        params=dict(settings.params),
        rule=settings.rule,
        k=settings.k,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=seed if type(seed) is int else 0,
    )
