"""A setup of tiny random models for every method, by its name: what the contract test runs.

All share one small vocabulary of single characters, so that texts, tokenizers and exact laws are at hand for each.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.engine import Plan
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.assistant import heads as assistant_heads
from specviz.drafters.block import heads as block_heads
from specviz.drafters.eagle import heads as eagle_heads
from specviz.drafters.heads import LoadedHeads
from specviz.drafters.markov import MarkovBias
from specviz.drafters.medusa.heads import MedusaHeads
from specviz.drafters.mtp import modules as mtp_modules
from specviz.models.files.checkpoint import LoadReport
from specviz.models.pool import LoadedModel, ModelPool
from specviz.session.setup import Setup
from tests.helpers.eagle_heads import HIDDEN, eagle
from tests.helpers.head_formats import speculators_dflash
from tests.helpers.tiny_models import CONTEXT_LIMIT, tiny

FEW = 3  # tokens of a vocabulary whose every outcome is enumerated: drafts are made small there
CHARACTERS = "a\n" + "bc" + string.ascii_uppercase + string.digits + string.ascii_lowercase[3:]


@cache
def setup_of(name: str, vocab_size: int = 32, dtype: torch.dtype = torch.float32, limit: int = CONTEXT_LIMIT) -> Setup:
    """Tiny models for the method: a target, and the draft model that most need; _MAKERS make what is more.

    Made once: nothing changes a model, and readers and drafters are made anew of it.
    """
    method = METHODS[name]
    maker = _MAKERS.get(name, _drafted if method.roles == ("draft",) else _plain)
    return maker(method, vocab_size, dtype, limit)


def plan_with(setup: Setup, reader: CachedLM, sampling: Sampling, k: int, rule: str | None = None) -> Plan:
    """A plan with a new drafter over this reader of the setup's target."""
    return Plan(reader, setup.drafter(reader), setup.rule(rule), sampling, setup.k(k))


# ---- the makers -----------------------------------------------------------------------------------------------------


def _plain(method, vocab_size, dtype, limit, params: Mapping[str, Any] | None = None, target=None) -> Setup:
    target = target or _llama("target", vocab_size, dtype, limit, layers=2, seed=3)
    return Setup(method, method.validate(params or {}), target, None)


def _drafted(method, vocab_size, dtype, limit, **params) -> Setup:
    draft = _llama("draft", vocab_size, dtype, limit, layers=1, seed=4)
    return replace(_plain(method, vocab_size, dtype, limit, params), draft=draft)


def _foreign(method, vocab_size, dtype, limit, **params) -> Setup:
    """Its draft model counts the same characters backwards and has pairs of them besides."""
    pieces = [*CHARACTERS[:vocab_size][::-1], "aa", "a\n"]
    draft = _llama("draft", len(pieces), dtype, limit, pieces, layers=1, seed=4)
    return replace(_plain(method, vocab_size, dtype, limit, params), draft=draft)


def _medusa(method, vocab_size, dtype, limit) -> Setup:
    heads = MedusaHeads(HIDDEN, vocab_size, 3)
    heads.markov = MarkovBias(vocab_size, 2, 3)
    generator = torch.Generator().manual_seed(7)
    for parameter in heads.parameters():
        parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator)
    return _headed(method, vocab_size, dtype, limit, lambda target: heads.to(dtype))


def _eagle(method, vocab_size, dtype, limit) -> Setup:
    return _headed(method, vocab_size, dtype, limit, lambda target: eagle_heads.read(*eagle(target), target)[0])


def _block(method, vocab_size, dtype, limit) -> Setup:
    def make(target):
        config, state = speculators_dflash(target)
        config |= {"mask_token_id": 1, "aux_hidden_state_layer_ids": [0, 1]}
        return block_heads.read(config, state, target)[0]

    return _headed(method, vocab_size, dtype, limit, make)


def _assistant(method, vocab_size, dtype, limit) -> Setup:
    from tests.helpers.gemma_assistants import settings_of, tiny_assistant, tiny_target  # skips where none is known

    model = tiny_target(vocab_size=vocab_size, dtype=dtype)
    state = tiny_assistant(model).state_dict()
    target = _loaded("target", model, CHARACTERS[:vocab_size], limit)
    make = assistant_heads.read
    return _headed(method, vocab_size, dtype, limit, lambda target: make(settings_of(model), state, target)[0], target)


def _headed(
    method, vocab_size, dtype, limit, make: Callable[[LoadedModel], torch.nn.Module], target: LoadedModel | None = None
) -> Setup:
    setup = _plain(method, vocab_size, dtype, limit, {"heads": "heads"}, target)
    module = make(setup.target).eval().requires_grad_(False)
    return replace(setup, heads=LoadedHeads("heads", method.name, module, LoadReport((), (), ())))


def _mtp(method, vocab_size, dtype, limit) -> Setup:
    from tests.helpers.mtp_targets import tiny_modules, tiny_target  # skips where this transformers cannot run them

    model = tiny_target(vocab_size=vocab_size, dtype=dtype)
    mtp_modules._attached.get(model, None, lambda: tiny_modules(model))
    target = _loaded("target", model, CHARACTERS[:vocab_size], min(limit, 128))
    return _plain(method, vocab_size, dtype, limit, target=target)


def _tree(method, vocab_size, dtype, limit) -> Setup:
    return _drafted(method, vocab_size, dtype, limit, **({} if vocab_size > FEW else {"width": 2, "nodes": 2}))


def _staged(method, vocab_size, dtype, limit) -> Setup:
    setup = _drafted(
        method, vocab_size, dtype, limit, stages="tiny, prompt_lookup" if vocab_size > FEW else "tiny", inner_k=2
    )
    return replace(setup, others={"tiny": _llama("tiny", vocab_size, dtype, limit, layers=1, seed=5)})


def _reasoning(method, vocab_size, dtype, limit) -> Setup:
    return _drafted(method, vocab_size, dtype, limit, delimiter="line", threshold=-2.0, longest=4)


_MAKERS: Mapping[str, Callable[..., Setup]] = {
    "tree": _tree,
    "medusa": _medusa,
    "eagle": _eagle,
    "assistant": _assistant,
    "block": _block,
    "mtp": _mtp,
    "staged": _staged,
    "cross_vocabulary": _foreign,
    "reasoning": _reasoning,
}


def _llama(name, vocab_size, dtype, limit, pieces=None, **shape) -> LoadedModel:
    model = tiny("llama", vocab_size=vocab_size, hidden=HIDDEN, eos_token_id=None, **shape).to(dtype)
    return _loaded(name, model, pieces or CHARACTERS[:vocab_size], limit)


def _loaded(name, model, pieces, limit) -> LoadedModel:
    model.name_or_path = name
    loaded = ModelPool(10**9, allow_any=True).load((model, tokenizer_of(pieces)))
    return replace(loaded, info=replace(loaded.info, context_limit=limit))


def tokenizer_of(pieces) -> PreTrainedTokenizerFast:
    """Byte-level, with exactly these pieces in this order; those of two characters are merged from single ones."""
    spelled = [piece.replace("\n", "Ċ") for piece in pieces]
    merges = [tuple(piece) for piece in spelled if len(piece) == 2]
    core = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(spelled)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False)
