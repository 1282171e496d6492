"""What specviz does with a tiny model of every class: its texts against `generate`, its refusals against what the model
does and keeps.

`python -m tests.helpers.class_sweep [NAME ...]` prints a line for each class and then the table.
"""

from __future__ import annotations

import copy
import inspect
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from specviz.trace import Trace
from tests.helpers.tiny_classes import CANNOT, IDS, PADDING, answers_about_images, names, tiny_of
from tests.helpers.tiny_models import tiny_folder, tiny_tokenizer

METHODS = {
    "none": None,
    "draft_model": "draft",
    "tree": "draft",
    "lookahead": None,
    "prompt_lookup": None,
    "suffix": None,
    "hybrid": "draft",
    "early_exit": None,
    "staged": "draft",
    "cross_vocabulary": "draft",
}
"""Method -> its draft model."""
TREES = {"tree", "lookahead"}
PROMPT = (*range(20, 28), *range(40, 44), *range(20, 28), *range(40, 44))
NUM_TOKENS = 32
SHORT = 15  # the tokens of the shortest text of a proof
ROUNDING = 1e-3
"""How far apart logits may be for another order of sums, as a share of the largest."""
NEAR = 1e-4
"""Two logits that lie closer, as a share of the largest, may change places by rounding."""
OFF = 0.03
"""How far the draft's matrices lie from the target's, as a share of their spread."""
STATES = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states")
"""The names under which a class hands out what it keeps from one token to the next."""

MAPPINGS = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)
PLAIN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"}


@dataclass(slots=True)
class Outcome:
    """What happened with one class. refused: a road or a method -> words; wrong: what must not be; ties: texts that
    part where two logits are nearly equal; accepted, rejected: draft tokens over all methods."""

    name: str
    refused: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    ties: int = 0
    accepted: int = 0
    rejected: int = 0

    @property
    def verdict(self) -> str:
        methods = [method for method in METHODS if method in self.refused]
        if self.wrong:
            return "wrong"
        if "pair" in self.refused or ("folder" in self.refused and not self.accepted):
            return "refused"
        if not methods:
            return "right as a pair alone" if "folder" in self.refused else "right"
        return "chains only" if set(methods) == TREES else f"without {', '.join(methods)}"


class Sweep:
    """One class. place: an empty folder for the models' files."""

    def __init__(self, name: str, place: Path) -> None:
        self.outcome, self._place = Outcome(name), place
        self._library = ModelPool(10**9, allow_any=True)
        self._tokenizer = tiny_tokenizer(IDS)
        self._tokenizer.eos_token = None
        self._model = tiny_of(name)
        self._models = {"target": self._model, "draft": a_little_off(self._model)}

    def run(self) -> Outcome:
        """A model that answers about images and is refused as a folder is passed in once more, as a pair."""
        loaded = self._load("folder", self._folder)
        if not loaded and answers_about_images(self.outcome.name):
            loaded = self._load("pair", self._pair)
        if loaded:
            told, why = own_text(self._model)
            for method, draft in METHODS.items():
                self._write(method, draft, told, why)
        return self.outcome

    def _folder(self, role: str) -> str:
        return str(tiny_folder(self._place / role, self._models[role], self._tokenizer))

    def _pair(self, role: str) -> tuple:
        self._models[role].name_or_path = role
        return self._models[role], self._tokenizer

    def _load(self, road: str, source: Callable[[str], object]) -> bool:
        try:
            for role in self._models:
                assert self._library.load(source(role)).name == role
        except SpecvizError as error:
            self._refuse(road, error)
            return False
        except Exception as error:
            self.outcome.wrong.append(f"{road}: {_bare(error)}")
            return False
        return True

    def _refuse(self, what: str, error: SpecvizError) -> None:
        words = self.outcome.refused[what] = str(error)
        holds = next((claim for said, claim in CLAIMS.items() if said in words), None)
        if holds is None:
            self.outcome.wrong.append(f"{what}: words that nothing here checks: {words}")
        elif not _does_hold(holds, self._model):
            self.outcome.wrong.append(f"{what}: false words: {words}")

    def _write(self, method: str, draft: str | None, told: Sequence[int] | None, why: str) -> None:
        request = Request(
            prompt_ids=PROMPT, target="target", draft=draft, method=method, temperature=0.0, max_new_tokens=NUM_TOKENS
        )
        try:
            run = open_run(request, bench=Workbench(self._library))
            for _ in run.events():
                pass
        except SpecvizError as error:
            self._refuse(method, error)
        except Exception as error:
            self.outcome.wrong.append(f"{method}: {_bare(error)}")
        else:
            self._judge(method, run.trace, told, why)

    def _judge(self, method: str, trace: Trace, told: Sequence[int] | None, why: str) -> None:
        tokens = [token.status for step in trace.steps for token in step.draft]
        self.outcome.accepted += tokens.count("accepted")
        self.outcome.rejected += tokens.count("rejected")
        written = [token.id for token in trace.tokens]
        if told is None:
            self.outcome.wrong.append(f"{method}: a text, where generate has none ({why})")
        elif written != told:
            same = _num_alike(written, told)
            margin = _margin(self._model, [*PROMPT, *told[:same]], written[same : same + 1], told[same : same + 1])
            near = max(NEAR, self._library.load(str(self._place / "target")).proof.off)
            if margin is not None and abs(margin) < near:
                self.outcome.ties += 1
                return
            by = "" if margin is None else f", where its own is {-margin:.2g} of the largest logit likelier"
            self.outcome.wrong.append(f"{method}: another text than generate from token {same} on{by}")


def own_text(model: PreTrainedModel) -> tuple[list[int] | None, str]:
    """What transformers' own greedy `generate` writes behind the prompt, without generation settings of the model; or
    None, and the reason."""
    bare = copy.copy(model)
    bare.generation_config = type(bare.generation_config)()
    ids, options = torch.tensor([PROMPT]), {"do_sample": False, "num_beams": 1, "pad_token_id": PADDING}
    try:
        out = bare.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, **options)
    except Exception as error:  # of a class that cannot answer a text alone
        return None, _bare(error)
    return out[0, len(PROMPT) :].tolist(), ""


def _num_alike(first: Sequence[int], second: Sequence[int]) -> int:
    shorter = min(len(first), len(second))
    return next((place for place in range(shorter) if first[place] != second[place]), shorter)


@torch.inference_mode()
def _margin(model: PreTrainedModel, text: Sequence[int], first: Sequence[int], second: Sequence[int]) -> float | None:
    """By how much the logit of one token is above that of another behind this text, read without a cache, as a share of
    the largest; None for no token, and for a class that cannot read so."""
    if not first or not second:
        return None
    try:
        logits = model(input_ids=torch.tensor([[*text]]), use_cache=False).logits[0, -1]
    except Exception:
        return None
    return float((logits[first[0]] - logits[second[0]]) / logits.abs().max())


@torch.no_grad()
def a_little_off(model: PreTrainedModel, off: float = OFF) -> PreTrainedModel:
    """The same model, all its matrices moved a little."""
    other = copy.deepcopy(model)
    draw = torch.Generator().manual_seed(7)
    for weight in other.parameters():
        if weight.dim() > 1:
            weight += off * weight.std() * torch.randn(weight.shape, generator=draw)
    return other


def _does_hold(claim: Callable[[PreTrainedModel], bool], model: PreTrainedModel) -> bool:
    try:
        return claim(model)
    except Exception:  # of a class that cannot read a text alone
        return False


def _bare(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.160}"


@torch.inference_mode()
def kept(model: PreTrainedModel, num_tokens: int) -> list[tuple[int, ...]]:
    """The shapes of all that the model keeps behind so many tokens, handed out or in its modules."""
    out = model(input_ids=torch.tensor([PROMPT[:num_tokens]]), use_cache=True)
    handed_out = [each for name in STATES for each in _tensors(getattr(out, name, None), set())]
    inside = [each for module in model.modules() for each in vars(module).values() if isinstance(each, torch.Tensor)]
    return [tuple(each.shape) for each in [*handed_out, *inside]]


def _tensors(value: object, seen: set[int]) -> Iterable[torch.Tensor]:
    if value is None or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        return
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    if type(value).__module__.startswith("transformers"):
        inside = [*inside, *vars(value).values()]
    for each in inside:
        yield from _tensors(each, seen)


def _keeps_a_state(model: PreTrainedModel) -> bool:
    """Whether something that the model keeps does not grow with the tokens."""
    few, more = kept(model, 6), kept(model, 11)
    return any(len(shape) > 1 and shape in more for shape in few)


def _merges_tokens(model: PreTrainedModel) -> bool:
    """Whether something that the model keeps grows with the tokens, and more slowly."""
    pairs = [pair for shapes in zip(kept(model, 8), kept(model, 16), strict=True) for pair in zip(*shapes, strict=True)]
    return any(0 < few < more <= few + 4 for few, more in pairs)


@torch.inference_mode()
def _cache_layers(model: PreTrainedModel) -> list[object]:
    return model(input_ids=torch.tensor([PROMPT]), use_cache=True).past_key_values.layers


def _keeps_a_state_of_its_own(model: PreTrainedModel) -> bool:
    """Whether it keeps a state, and no layer of transformers' own cache has one."""
    layers = DynamicCache(config=model.config).layers
    return _keeps_a_state(model) and not any(hasattr(layer, "recurrent_states") for layer in layers)


def _needs_all_layers(model: PreTrainedModel) -> bool:
    """Whether its first layers alone fail, some run several times, or it has several lists of layers."""
    decoder, count = model.get_decoder() or model, _text_config(model).num_hidden_layers
    lists = [part for part in decoder.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == count]
    if len(lists) != 1 or hasattr(_text_config(model), "n_recurrent_layers"):
        return True
    early = copy.deepcopy(model)
    decoder = early.get_decoder() or early
    parent, name = next(
        (part, name)
        for part in decoder.modules()
        for name, child in part.named_children()
        if isinstance(child, torch.nn.ModuleList) and len(child) == count
    )
    setattr(parent, name, getattr(parent, name)[:1])
    _text_config(early).num_hidden_layers = 1
    cache = DynamicCache(config=model.config)
    try:
        for reader in (model, early, early):
            reader(torch.tensor([PROMPT[:2]]), past_key_values=cache)
    except Exception:
        return True
    return False


def _keeps_other_than_rows(model: PreTrainedModel) -> bool:
    """Whether transformers gives some layer a cache of another kind than rows of keys and values."""
    return any(type(layer).__name__ not in PLAIN_LAYERS for layer in _cache_layers(model))


def _has_layers(kind: str) -> Callable[[PreTrainedModel], bool]:
    return lambda model: kind in _text_config(model).layer_types


@torch.inference_mode()
def _read(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """Logits [n, V] of one read without a cache."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def _fails_alone(model: PreTrainedModel) -> bool:
    try:
        return not _read(model, PROMPT).isfinite().all()
    except Exception:
        return True


def _fails_somewhere(model: PreTrainedModel) -> bool:
    """Whether a read of some text fails that is no longer than its configuration says."""
    lengths = (SHORT, getattr(_text_config(model), "max_position_embeddings", SHORT))
    try:
        for length in lengths:
            _read(model, list(islice(cycle(PROMPT), length)))
    except Exception:
        return True
    return _fails_alone(model)


def _text_config(model: PreTrainedModel) -> PreTrainedConfig:
    return model.config.get_text_config(decoder=True)


@torch.inference_mode()
def _is_apart_behind_a_cache(model: PreTrainedModel) -> bool:
    """Whether the rows of a text, read in pieces behind transformers' own cache, are not those of one whole read."""
    return any(_is_apart_in_pieces(model, size) for size in (1, 4))


def _is_apart_in_pieces(model: PreTrainedModel, size: int) -> bool:
    whole, rows, cache = _read(model, PROMPT), [], DynamicCache(config=model.config)
    try:
        for start in range(0, len(PROMPT), size):
            ids = torch.tensor([PROMPT[start : start + size]])
            positions = {"position_ids": start + torch.arange(ids.shape[1])[None]}
            out = model(
                ids, use_cache=True, past_key_values=cache, **(positions if _takes(model, "position_ids") else {})
            )
            rows.append(out.logits[0, -ids.shape[1] :])
    except Exception:
        return True
    return _apart(torch.cat(rows), whole) > ROUNDING


@torch.inference_mode()
def _is_apart_in_a_tree(model: PreTrainedModel) -> bool:
    """Whether some tokens in one place behind a text, hidden from each other, do not give what each gives alone."""
    if not _takes(model, "position_ids"):
        return True
    siblings = range(60, 68)
    for length in (12, len(PROMPT)):
        text, size = PROMPT[:length], length + len(siblings)
        right = torch.stack([_read(model, [*text, each])[-1] for each in siblings])
        mask = torch.full((size, size), torch.finfo(torch.float32).min).triu(1)
        mask[length:, length:] = mask.min()
        mask.fill_diagonal_(0.0)
        positions = torch.tensor([[*range(length), *[length] * len(siblings)]])
        try:
            ids = torch.tensor([[*text, *siblings]])
            out = model(input_ids=ids, attention_mask=mask[None, None], position_ids=positions, use_cache=False)
        except Exception:
            return True
        if _apart(out.logits[0, length:], right) > ROUNDING:
            return True
    return False


def _takes(model: PreTrainedModel, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters


def _apart(given: torch.Tensor, right: torch.Tensor) -> float:
    return float((given - right).abs().max() / right.abs().max())


CLAIMS: Mapping[str, Callable[[PreTrainedModel], bool]] = {
    "is an encoder-decoder model": lambda model: model.config.is_encoder_decoder,
    "does not generate text": lambda model: own_text(model)[0] is None,
    "it keeps a state, which branches cannot share": _keeps_a_state,
    "keeps a state outside transformers' cache": _keeps_a_state_of_its_own,
    "cannot be run one by one": _needs_all_layers,
    "keeps several tokens in one row of its cache": _merges_tokens,
    "reads the keys and values of another model": _fails_alone,
    "a head that reads the target's own keys and values": _fails_alone,
    "keeps a cache of a kind that specviz does not know": _keeps_other_than_rows,
    "has indexed attention": _has_layers("indexed_attention"),
    "tokens at once fails": _fails_somewhere,
    "is no single stack of layers": lambda model: not hasattr(_text_config(model), "num_hidden_layers"),
    "writes whole blocks by diffusion": lambda model: "Diffusion" in type(model).__name__,
    "makes no model that writes text": lambda model: not any(type(model.config) in each for each in MAPPINGS),
    "its numbers behind a cache are not those of the whole text read at once": _is_apart_behind_a_cache,
    "its numbers in a token tree are not those of the same tokens in a row": _is_apart_in_a_tree,
}
"""What a refusal says -> whether that holds of a model."""


def outcome_of(name: str, place: Path) -> Outcome:
    return Sweep(name, place).run()


def table(outcomes: Iterable[Outcome]) -> str:
    """The classes by what happened with them."""
    groups = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.verdict].append(outcome)
    lines = []
    for verdict, members in sorted(groups.items()):
        lines.append(f"\n{verdict} ({len(members)})")
        if verdict == "right":
            lines.append("  " + " ".join(member.name for member in members))
            continue
        for member in members:
            words = member.wrong or dict.fromkeys(member.refused.values())
            lines += [f"  {member.name}: {each}" for each in words]
    ties = {member.name: member.ties for members in groups.values() for member in members if member.ties}
    lines.append(f"\nnear-ties ({sum(ties.values())}): {', '.join(ties) or 'none'}")
    lines.append(f"no tiny model ({len(CANNOT)})")
    lines += [f"  {name}: {why}" for name, why in CANNOT.items()]
    return "\n".join(lines)


def main(wanted: Sequence[str]) -> int:
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    outcomes = []
    for name in wanted or names():
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            outcome = outcome_of(name, Path(place))
        outcomes.append(outcome)
        spent = f"{outcome.accepted} accepted, {outcome.rejected} rejected, {time.perf_counter() - began:.1f} s"
        print(f"{name}: {outcome.verdict} ({spent})", *outcome.wrong, sep="\n  ", flush=True)
    print(table(outcomes))
    return any(outcome.wrong for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
