"""Faults that only the draft itself shows: a layer that does harm, and a chat form that is not the target's.

A few short texts are enough. Each layer is skipped once: a sound draft agrees less with the target without it, one with
damaged weights agrees more. Chats are read once more in the draft's own form.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from specviz.alignment.causes.doctor import chat_difference
from specviz.alignment.shard import load, sampling_of, texts_of
from specviz.alignment.summary import Examined, Finding
from specviz.alignment.types import PromptRow, Shard
from specviz.checks.scoring import can_read
from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.models.chat import render_chat
from specviz.models.library import Library, LoadedModel
from specviz.models.score import Text, overlap_of, read
from specviz.session.workbench import workbench

NUM_TEXTS, NUM_TOKENS = 12, 64
FEWEST_TEXTS = 4
CLEAR_GAIN = 0.02  # of overlap; and so many standard errors over the texts:
CLEAR_ERRORS = 3.0

DAMAGED_LAYER, OTHER_FORM = "a damaged layer", "a different chat format"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Mean of sum min(p, q) over one text: as it is, without each of the layers, and where the text follows a chat also
    with the chat in the draft's own form."""

    whole: float
    without: tuple[float, ...]
    own_form: float | None


def look(shard: Shard, library: Library | None = None) -> Examined:
    """Findings of the kinds layer and template, and warnings, from the shard's first rows. Raises SpecvizError."""
    library = library or workbench().library
    target, drafts = load(shard, library)
    sampling = sampling_of(shard.request)
    short = replace(shard.request, max_new_tokens=min(NUM_TOKENS, shard.request.max_new_tokens))
    written, _, _ = texts_of(replace(shard, request=short, rows=shard.rows[:NUM_TEXTS]), target)
    has_chats = any(each.is_chat for each in written)
    differences = [chat_difference(target.tokenizer, draft.tokenizer) if has_chats else None for draft in drafts]
    found: list[list[Agreement]] = [[] for _ in drafts]
    for each in written:
        text = Text(each.prompt_ids, each.ids[:NUM_TOKENS])
        p = _probs(target, text, sampling)
        for draft, difference, agreements in zip(drafts, differences, found, strict=True):
            if can_read(draft, [*text.prompt, *text.ids]):
                chat = each.row if difference and each.is_chat else None
                agreements.append(_agreement(draft, text, p, sampling, chat))
    findings, warnings = [], []
    for draft, agreements, difference in zip(drafts, found, differences, strict=True):
        form = _form_findings(draft, agreements, difference)
        findings += [*_layer_findings(draft, agreements), *form]
        if difference and not form:  # it does no clear harm
            warnings.append(f"{draft.name}: {difference}.")
    layers = all(len(agreements) >= FEWEST_TEXTS and agreements[0].without for agreements in found)
    looked_for = (DAMAGED_LAYER,) * layers + (OTHER_FORM,) * has_chats
    return Examined(tuple(findings), tuple(warnings), looked_for)


def _probs(model: LoadedModel, text: Text, sampling: Sampling) -> Tensor:
    """[N, V]"""
    return torch.cat([sampling.probs(rows.target) for rows in read(model, [], [text])])


def _agreement(draft: LoadedModel, text: Text, p: Tensor, sampling: Sampling, chat: PromptRow | None) -> Agreement:
    """chat: the row whose chat the text follows, if the draft has another form for it."""
    without = []
    for layer in _layers(draft):
        with _skip(layer):
            without.append(_overlap(draft, text, p, sampling))
    own = None if chat is None else _rewrite_chat(draft, text, chat)
    own_form = None if own is None else _overlap(draft, own, p, sampling)
    return Agreement(_overlap(draft, text, p, sampling), tuple(without), own_form)


def _overlap(draft: LoadedModel, text: Text, p: Tensor, sampling: Sampling) -> float:
    q = _probs(draft, text, sampling).to(p.device)
    width = min(p.shape[1], q.shape[1])
    return float(overlap_of(p[:, :width], q[:, :width]).mean())


def _layer_findings(draft: LoadedModel, agreements: Sequence[Agreement]) -> list[Finding]:
    """The layer that the draft is best without, if it does clear harm."""
    if len(agreements) < FEWEST_TEXTS or not agreements[0].without:
        return []
    whole = np.array([each.whole for each in agreements])
    without = np.array([each.without for each in agreements])  # [texts, layers]
    worst = int(without.mean(0).argmax())
    if not _is_clear(without[:, worst] - whole):
        return []
    alpha, better = float(whole.mean()), float(without[:, worst].mean())
    words = (
        f"Layer {worst + 1} of {without.shape[1]} does harm: without it, the agreement with the target rises from "
        f"{alpha:.2f} to {better:.2f} ({len(agreements)} texts). Its weights look damaged."
    )
    return [Finding(draft.name, "layer", words, {"layer": worst + 1, "alpha": alpha, "alpha_without": better})]


def _is_clear(gains: np.ndarray) -> bool:
    error = gains.std(ddof=1) / len(gains) ** 0.5
    return bool(gains.mean() > max(CLEAR_GAIN, CLEAR_ERRORS * error))


def _layers(draft: LoadedModel) -> list[torch.nn.Module]:
    """The decoder's layers, first to last; none where they cannot be found."""
    count = draft.model.config.get_text_config(decoder=True).num_hidden_layers
    stacks = [part for part in draft.model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == count]
    return list(stacks[0]) if stacks else []


@contextmanager
def _skip(layer: torch.nn.Module) -> Iterator[None]:
    """Makes the layer return its input."""

    def return_input(_, args, kwargs, output):
        given = args[0] if args else kwargs["hidden_states"]
        return given if isinstance(output, Tensor) else (given, *output[1:])

    handle = layer.register_forward_hook(return_input, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _form_findings(draft: LoadedModel, agreements: Sequence[Agreement], difference: str | None) -> list[Finding]:
    """The other chat form, if the draft agrees clearly better where it reads the chats in its own."""
    pairs = np.array([(each.whole, each.own_form) for each in agreements if each.own_form is not None])
    if len(pairs) < FEWEST_TEXTS or not _is_clear(pairs[:, 1] - pairs[:, 0]):
        return []
    alpha, own = pairs.mean(0).tolist()
    words = (
        f"{difference}. On {len(pairs)} chats, it agrees {alpha:.2f} with the target as it is, and {own:.2f} when it "
        "reads them in its own format."
    )
    return [Finding(draft.name, "template", words, {"alpha": alpha, "alpha_own_form": own})]


def _rewrite_chat(draft: LoadedModel, text: Text, row: PromptRow) -> Text | None:
    """The same text behind the same chat in the draft's form; None where it cannot be read so."""
    messages = row.prompt if row.messages is None else [asdict(message) for message in row.messages]
    try:
        prompt = draft.text.encode(render_chat(draft.tokenizer, messages), special=False)
    except SpecvizError:
        return None
    return Text(prompt, text.ids) if prompt and can_read(draft, [*prompt, *text.ids]) else None
