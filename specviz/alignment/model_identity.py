"""The models of a job: each with a hash of its weights, dtype, tokenizer and configuration, made where the shards run.

Every shard carries them: a worker loads what the caller named, never what a shown name would find there, and refuses
weights other than those that the job began with.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from torch import nn

from specviz.alignment.ahead import Draft, Proposer, load_draft
from specviz.alignment.types import ModelIdentity
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel, ModelPool, check_pair
from specviz.session.workbench import workbench

NOT_ITS_OWN = (
    "_name_or_path",
    "transformers_version",
)  # of a configuration: where it lay, and who read it
VALUES_PER_TABLE = 64  # of each weight table; training changes nearly all of them


def identify(wanted: Sequence[Any], pool: ModelPool | None = None) -> tuple[ModelIdentity, ...]:
    """The target and its drafts, loaded once each. Raises SpecvizError for one that cannot draft for the first, or that
    is named twice."""
    models = tuple(map(_identity, _load_each(wanted, pool or workbench().pool), wanted))
    names = [model.name for model in models[1:]]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SpecvizError(
            f"each draft must be named once (got {twice[0]} {names.count(twice[0])} times)"
        )
    return models


def load(models: Sequence[ModelIdentity], pool: ModelPool) -> tuple[LoadedModel, tuple[Draft, ...]]:
    """These very models, the target first. Raises SpecvizError where one holds something else by now."""
    target, *drafts = loaded = _load_each([model.wanted for model in models], pool)
    for model, own in zip(models, loaded, strict=True):
        if _identity(own, model.wanted).content != model.content:
            raise SpecvizError(
                f"{model.name} has changed since this job began: its weights or its configuration differ; start the "
                "job again in another folder"
            )
    return target, tuple(drafts)


def _load_each(wanted: Sequence[Any], pool: ModelPool) -> list[Draft]:
    target = pool.load(wanted[0])
    drafts = [load_draft(each, pool, target) for each in wanted[1:]]
    for draft in drafts:
        if isinstance(draft, LoadedModel):
            check_pair(target, draft)
    return [target, *drafts]


def _identity(loaded: Draft, wanted: Any) -> ModelIdentity:
    if isinstance(loaded, Proposer):
        setup, writer = loaded.setup, loaded.setup.target
        facts = f"{setup.method.name} {sorted(setup.params.items())!r}"
        module = nn.Module() if setup.heads is None else setup.heads.module
    else:
        writer, module = loaded, loaded.model
        own = (
            loaded.text.sha,
            loaded.tokenizer.chat_template,
            sorted(loaded.text.eos_ids),
            loaded.info.context_limit,
        )
        config = {
            name: value
            for name, value in loaded.model.config.to_dict().items()
            if name not in NOT_ITS_OWN
        }
        facts = f"{own!r} {json.dumps(config, sort_keys=True, default=str)}"
    digest = hashlib.sha256(facts.encode())
    for name, table in module.named_parameters():
        flat = table.detach().flatten()
        some = flat[:: max(1, len(flat) // VALUES_PER_TABLE)][:VALUES_PER_TABLE].float().cpu()
        digest.update(
            f"{name} {tuple(table.shape)} {table.dtype}".encode() + some.numpy().tobytes()
        )
    num_ids = min(writer.info.vocab_size, writer.text.num_ids)
    if isinstance(loaded, Proposer) and loaded.setup.heads is not None:
        num_ids = min(num_ids, module.num_choices)
    return ModelIdentity(loaded.name, digest.hexdigest()[:16], num_ids, wanted)
