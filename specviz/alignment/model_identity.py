"""Identifies the models of a job by a hash of weights, dtype, tokenizer and configuration, made where the shards run.

Every shard carries the identities. A worker loads what the caller named, never what a shown name would find there.
It refuses weights that differ from those at the job's start.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from torch import nn

from specviz.alignment.ahead import Draft, Proposer, load_draft
from specviz.alignment.states.target import StatesTarget, WithStates
from specviz.alignment.types import ModelIdentity
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel, ModelPool, check_pair
from specviz.session.workbench import workbench

NOT_ITS_OWN = ("_name_or_path", "transformers_version")
"""Fields of a configuration that do not describe the model: where it lay, and who read it."""
VALUES_PER_TABLE = 64  # of each weight table; training changes nearly all of them


def identify(wanted: Sequence[Any], pool: ModelPool | None = None) -> tuple[ModelIdentity, ...]:
    """Loads the target and its drafts once each and identifies them. wanted: the target first.

    Raises SpecvizError for a draft that cannot draft for the target, or that is named twice.
    """
    loaded = _load_each(wanted, pool or workbench().pool)
    models = tuple(map(_identity, loaded, wanted))
    names = [model.name for model in models[1:]]
    for name in names:
        if names.count(name) > 1:
            raise SpecvizError(
                f"each draft must be named once (got {name} {names.count(name)} times)"
            )
    return models


def load(models: Sequence[ModelIdentity], pool: ModelPool) -> tuple[LoadedModel, tuple[Draft, ...]]:
    """Loads these very models, the target first. Raises SpecvizError if one has changed by now."""
    loaded = _load_each([model.wanted for model in models], pool)
    for model, loaded_model in zip(models, loaded, strict=True):
        if _identity(loaded_model, model.wanted).content != model.content:
            raise SpecvizError(
                f"{model.name} has changed since this job began: its weights or its configuration differ; start the "
                "job again in another folder"
            )
    target, *drafts = loaded
    return target, tuple(drafts)


def _load_each(wanted: Sequence[Any], pool: ModelPool) -> list[Draft]:
    first = wanted[0]
    target = first.load(pool) if isinstance(first, WithStates) else pool.load(first)
    drafts = [load_draft(draft, pool, target) for draft in wanted[1:]]
    for draft in drafts:
        if isinstance(draft, LoadedModel):
            check_pair(target, draft)
    return [target, *drafts]


def _identity(loaded: Draft, wanted: Any) -> ModelIdentity:
    if isinstance(loaded, Proposer):
        setup = loaded.setup
        token_model = setup.target  # its tokens are drafted
        facts = f"{setup.method.name} {sorted(setup.params.items())!r}"
        module = nn.Module() if setup.heads is None else setup.heads.module
    else:
        token_model = loaded
        module = loaded.model
        facts = _facts(loaded)
        if isinstance(loaded, StatesTarget):
            facts += loaded.states.content
    digest = hashlib.sha256(facts.encode())
    for name, weights in module.named_parameters():
        flat = weights.detach().flatten()
        stride = max(1, len(flat) // VALUES_PER_TABLE)
        values = flat[::stride][:VALUES_PER_TABLE].float().cpu()
        digest.update(f"{name} {tuple(weights.shape)} {weights.dtype}".encode())
        digest.update(values.numpy().tobytes())
    num_ids = min(token_model.info.vocab_size, token_model.text.num_ids)
    number_format = token_model.info.dtype
    if isinstance(loaded, Proposer) and loaded.setup.heads is not None:
        num_ids = min(num_ids, module.num_choices)
        number_format = str(next(module.parameters()).dtype).removeprefix("torch.")
    return ModelIdentity(loaded.name, digest.hexdigest()[:16], num_ids, number_format, wanted)


def _facts(model: LoadedModel) -> str:
    """Everything of a model that counts besides its weights."""
    facts = (
        model.text.sha,
        model.tokenizer.chat_template,
        sorted(model.text.eos_ids),
        model.info.context_limit,
    )
    config = model.model.config.to_dict()
    for name in NOT_ITS_OWN:
        config.pop(name, None)
    return f"{facts!r} {json.dumps(config, sort_keys=True, default=str)}"
