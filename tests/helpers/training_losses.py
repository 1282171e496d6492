"""Which loss suits which field of the rows that `align --export-rows` writes? Run as a program:

`python -m tests.helpers.training_losses FOLDER`: each loss trains the draft on the same rows from the same weights, and
is measured on texts behind prompts that no training has seen.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from specviz.alignment.executors import local
from specviz.alignment.job import align
from specviz.alignment.prompts import open_prompts
from specviz.alignment.training_rows import training_lines
from specviz.models.pool import LoadedModel, ModelPool
from specviz.prompts import prompts_file
from specviz.settings import assets_dir
from specviz.trace.lines import write_lines
from specviz.zoo.for_target.own import own_draft
from specviz.zoo.for_target.rows import stored_rows
from specviz.zoo.for_target.small_draft import DraftLearner
from specviz.zoo.for_target.store import Batch, StoredText, make_batch, read_texts
from specviz.zoo.training.train import mixed_precision

FEWEST_WORDS = 3
COPIES = {"train": 3, "held_out": 1}  # texts behind each beginning
STARTS = 800  # texts behind the start of a text and the first token that the target draws there
TOKENS = 64
TEXTS_PER_STEP = 16
RATE = 1e-4
Change = Callable[[Batch], Batch]


def write_prompts(folder: Path, target: LoadedModel) -> dict[str, Path]:
    """Beginnings of the bundled prompts as JSON lines; of each kind the last prompt is held out. Starts of other texts
    are added to those that are trained on."""
    lines: dict[str, list[str]] = {"train": [], "held_out": []}
    for kind in prompts_file()["kinds"]:
        for prompt in kind["prompts"]:
            part = "held_out" if prompt is kind["prompts"][-1] else "train"
            words = prompt["text"].split(" ")
            for count in range(min(FEWEST_WORDS, len(words)), len(words) + 1):
                row = {"prompt": " ".join(words[:count]), "tags": [kind["name"]]}
                lines[part] += [json.dumps(row)] * COPIES[part]
    start = target.model.config.bos_token_id
    with torch.inference_mode():
        p = target.model(torch.tensor([[start]])).logits[0, -1].softmax(-1)
    firsts = torch.multinomial(p, STARTS, replacement=True, generator=torch.Generator().manual_seed(0))
    lines["train"] += [json.dumps({"prompt": [start, first]}) for first in firsts.tolist()]
    files = {part: folder / f"{part}.jsonl" for part in lines}
    for part, file in files.items():
        write_lines(file, lines[part])
    return files


def damage(draft: str, folder: Path, share: float) -> Path:
    """A copy of a bundled draft whose matrices have noise of this share of their norm."""
    loaded = ModelPool().load(draft)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            if weight.ndim == 2:
                noise = torch.randn(weight.shape, generator=generator)
                weight += share * weight.norm() / noise.norm() * noise
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def export_rows(prompts: Path, draft: str, seed: int) -> tuple[Path, dict[tuple[int, ...], list[float]]]:
    """The rows of a job, and what a rejection loses at each drawn token (`lost`), by the text's ids."""
    job = prompts.with_name(f"{prompts.stem}-job")  # a second call finds it done
    done = align(prompts, draft=draft, seed=seed, max_new_tokens=TOKENS, costs={}, out=job)
    rows = prompts.with_name(f"{prompts.stem}-rows.jsonl.gz")
    with local() as run_each:
        write_lines(rows, training_lines(done, open_prompts(prompts).rows(), run_each))
    lost = {}
    by_text = done.tokens.groupby("prompt")
    for text in done.prompts.itertuples():
        own = by_text.get_group(text.prompt)
        lost[(*text.prompt_ids.tolist(), *own["token"].tolist())] = own["lost"].tolist()
    return rows, lost


def only_drawn(batch: Batch) -> Batch:
    """The token that was drawn stands for the whole distribution."""
    ids = torch.zeros_like(batch.ids)
    ids[..., 0] = batch.tokens[:, 1:]
    log_probs = torch.full_like(batch.log_probs, -torch.inf)
    log_probs[..., 0] = 0.0
    return replace(batch, ids=ids, log_probs=log_probs)


def weighed_by_loss(texts: list[StoredText], lost: dict[tuple[int, ...], list[float]], batch: Batch) -> Batch:
    """Each drawn token weighs what its rejection loses."""
    weights = torch.zeros_like(batch.weights)
    for row, text in enumerate(texts):
        weights[row, len(text.prompt) - 1 : len(text.tokens) - 1] = torch.tensor(lost[text.tokens])
    return only_drawn(replace(batch, weights=weights))


class Alpha:
    """The overlap of a draft with the target over the whole vocabulary, a mean over all places of these answers."""

    @torch.inference_mode()
    def __init__(self, target: LoadedModel, texts: list[StoredText]) -> None:
        self._read = []
        for start in range(0, len(texts), TEXTS_PER_STEP):
            batch = make_batch(texts[start : start + TEXTS_PER_STEP], with_states=False)
            logits = target.model(batch.tokens[:, :-1], use_cache=False).logits
            self._read.append((batch, logits[batch.is_answer].softmax(-1)))

    @torch.inference_mode()
    def __call__(self, draft: torch.nn.Module) -> float:
        found = []
        for batch, p in self._read:
            logits = draft(input_ids=batch.tokens[:, :-1], use_cache=False).logits
            found.append(torch.minimum(p, logits[batch.is_answer].softmax(-1)).sum(-1))
        return float(torch.cat(found).mean())


def batches(texts: list[StoredText], seed: int) -> Iterator[list[StoredText]]:
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(texts)).tolist()
        for start in range(0, len(order) - TEXTS_PER_STEP + 1, TEXTS_PER_STEP):
            yield [texts[index] for index in order[start : start + TEXTS_PER_STEP]]


def train(learner: DraftLearner, texts: list[StoredText], seed: int, steps: int, way: "Way") -> torch.nn.Module:
    """The draft after its steps."""
    learner = copy.deepcopy(learner)
    optimizer = torch.optim.AdamW(learner.module.parameters(), lr=RATE, weight_decay=0.0, betas=(0.9, 0.95))
    for step, some in zip(range(steps), batches(texts, seed), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 10) * (1 - 0.9 * step / steps)
        batch = way.change(some, make_batch(some, with_states=False, place_weight=way.place_weight))
        with mixed_precision(torch.device("cpu")):
            loss = learner.loss(batch, way.overlap_weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return learner.module


class Way:
    """A loss: what it makes of a batch, and how it weighs places and the overlap."""

    def __init__(self, change=lambda texts, batch: batch, place_weight: float = 0.0, overlap_weight: float = 0.0):
        self.change, self.place_weight, self.overlap_weight = change, place_weight, overlap_weight


def ways(lost: dict[tuple[int, ...], list[float]]) -> dict[str, Way]:
    drawn = lambda texts, batch: only_drawn(batch)  # noqa: E731
    return {
        "drawn tokens": Way(drawn),
        "drawn tokens, places weighed": Way(drawn, 1.0),
        "drawn tokens, weighed by `lost`": Way(lambda texts, batch: weighed_by_loss(texts, lost, batch)),
        "probabilities": Way(),
        "probabilities, places weighed": Way(place_weight=1.0),
        "probabilities and overlap": Way(overlap_weight=15.0),
        "overlap": Way(overlap_weight=1e4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draft", default="fable-draft-tiny")
    parser.add_argument("--damage", type=float, default=0.0, help="noise, as a share of each matrix's norm")
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    target = ModelPool().load("fable-target")
    draft = str(assets_dir() / "models" / args.draft)
    if args.damage:
        draft = str(damage(args.draft, args.folder / "damaged", args.damage))
    files = write_prompts(args.folder, target)
    rows, lost = export_rows(files["train"], draft, 0)
    held_rows, _ = export_rows(files["held_out"], draft, 1)
    texts = list(read_texts([stored_rows(target, rows, args.folder)]))
    held = list(read_texts([stored_rows(target, held_rows, args.folder)]))
    print(f"{len(texts)} texts, {sum(len(text.answer) for text in texts):,} tokens; held out {len(held)}", flush=True)

    alpha = Alpha(target, held)

    learner = own_draft(target, Path(draft))
    print(f"untrained: {alpha(learner.module):.3f}", flush=True)
    for name, way in ways(lost).items():
        started = time.perf_counter()
        found = sorted(alpha(train(learner, texts, seed, args.steps, way)) for seed in range(args.seeds))
        seconds = (time.perf_counter() - started) / args.seeds
        print(
            f"| {name} | {statistics.median(found):.3f} | {found[0]:.3f}-{found[-1]:.3f} | {seconds:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
