"""The work folder of a family that is being made, and the setup of each member's training.

Work folder: `<tokenizer>.json`, `tokens/<tokenizer>/`, `<edition>/` (checkpoints, the target's samples)."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from specviz.errors import SpecvizError
from specviz.zoo.config import Recipe, load_recipe, load_tokenizer_recipes
from specviz.zoo.data.corpus import END_OF_TEXT, Batches, TokenFile, load_sources, prepare
from specviz.zoo.data.samples import SAMPLES, open_samples, write_samples
from specviz.zoo.data.tokenizer import load_tokenizer, train_tokenizer, training_texts
from specviz.zoo.training.export import (
    Origin,
    export_head,
    export_model,
    export_parts,
    load_head,
    load_model,
)
from specviz.zoo.training.heads import (
    BiasObjective,
    build_head,
    fresh_parts,
    head_objective,
)
from specviz.zoo.training.model import build_model
from specviz.zoo.training.objectives import Objective, objective_of
from specviz.zoo.training.train import Data, Trainer, TrainingPace, train

TARGET = "fable-target"


@dataclass(frozen=True, slots=True)
class Workplace:
    """One edition's work folder and the device it is trained on."""

    work: Path
    edition: str
    device: torch.device

    def recipe(self, name: str) -> Recipe:
        return load_recipe(self.edition, name)

    def tokenizer(self, name: str) -> Tokenizer:
        return load_tokenizer(self.work / f"{name}.json")

    def tokens(self, tokenizer: str) -> Path:
        return self.work / "tokens" / tokenizer

    def checkpoint(self, name: str) -> Path:
        return self.own / f"{name}.pt"

    @property
    def own(self) -> Path:
        """The folder of this edition's checkpoints and samples."""
        return self.work / self.edition

    def make_tokenizers(self, corpus: Path) -> None:
        """Learn every vocabulary and encode every source with it; what is already there is kept."""
        sources = load_sources()
        self.work.mkdir(parents=True, exist_ok=True)
        for name, recipe in load_tokenizer_recipes().items():
            path = self.work / f"{name}.json"
            if not path.exists():
                train_tokenizer(training_texts(corpus, recipe, sources), recipe.vocab_size).save(
                    str(path)
                )
            print(f"tokenizer {name}: {recipe.vocab_size:,} tokens", flush=True)
            prepare(corpus, self.tokens(name), self.tokenizer(name), sources.values())

    def data(self, recipe: Recipe) -> Data:
        """Training batches and held-out tokens; raises SpecvizError when a token file is missing."""
        if recipe.distillation:
            write_samples(
                recipe,
                self.load_finished(TARGET),
                self.batches(self.recipe(recipe.distillation.start)),
                self.own,
            )
        return Data(self.batches(recipe), self.held_out(recipe.tokenizer))

    def batches(self, recipe: Recipe) -> Batches:
        folder = self.tokens(recipe.tokenizer)
        files = {
            name: open_samples(self.own)
            if name == SAMPLES
            else TokenFile.open(folder, name, "train")
            for name in recipe.mixture
        }
        return Batches(files, recipe.mixture, recipe.seed)

    def held_out(self, tokenizer: str) -> dict[str, TokenFile]:
        """Held-out tokens by source."""
        names = [source.name for source in load_sources().values() if source.is_held_out]
        return {name: TokenFile.open(self.tokens(tokenizer), name, "valid") for name in names}

    def held_out_domains(self, tokenizer: str) -> dict[str, list[TokenFile]]:
        """The held-out documents by domain."""
        sources = load_sources()
        domains: dict[str, list[TokenFile]] = {}
        for name, file in self.held_out(tokenizer).items():
            domains.setdefault(sources[name].domain, []).append(file)
        return domains

    def export(self, name: str, models: Path) -> None:
        """Put a member, as far as it is trained, where the application finds it."""
        trainer = self.restore(name)
        origin = Origin(trainer.recipe, trainer.tokens_seen)
        if trainer.recipe.heads:
            export_head(trainer.model, TARGET, origin, models / name)
        else:
            export_model(
                trainer.model, self.tokenizer(trainer.recipe.tokenizer), origin, models / name
            )

    def fit_bias(self, name: str, models: Path) -> None:
        """Fit a bias on exported heads, which stay as they are, and put it into their folder.

        It takes minutes at most, so it is fitted anew each time."""
        origin = Origin.read(models / name)
        if origin.recipe.edition != self.edition:
            raise SpecvizError(
                f"{name} is of another edition: choose --edition {origin.recipe.edition} (got {self.edition})"
            )
        recipe = self.recipe(name)
        if recipe.heads is None or recipe.heads.bias is None:
            raise SpecvizError(f"the recipe of {name} has no bias")
        target = load_model(models / TARGET).to(self.device).requires_grad_(False)
        heads = load_head(models / name, target)
        parts = fresh_parts(recipe, target).to(self.device)
        objective = BiasObjective(parts, heads, target, recipe.heads.bias.loss)
        stage = replace(recipe, schedule=recipe.heads.bias.schedule)
        trainer = Trainer.start(stage, parts, objective, self.device)
        train(trainer, self.data(stage), TrainingPace(), on_save=lambda trainer: None)
        export_parts(parts, Origin(recipe, origin.tokens_seen), models / name)

    def restore(self, name: str) -> Trainer:
        """The trainer as its checkpoint left it, or before its first step."""
        recipe = self.recipe(name)
        model, objective = self.assemble(recipe)
        trainer = Trainer.start(recipe, model, objective, self.device)
        if self.checkpoint(name).exists():
            trainer.load(self.checkpoint(name))
        return trainer

    def assemble(self, recipe: Recipe) -> tuple[torch.nn.Module, Objective]:
        """What is trained, and its objective with whatever frozen model it looks up to."""
        if recipe.heads:
            target = self.load_finished(TARGET)
            head = build_head(recipe, target).to(self.device)
            return head, head_objective(head, target)
        model = self.fresh(recipe)
        if recipe.distillation:
            model.load_state_dict(self.load_finished(recipe.distillation.start).state_dict())
            return model, objective_of(recipe, model, self.load_finished(TARGET))
        return model, objective_of(recipe, model, None)

    def fresh(self, recipe: Recipe) -> LlamaForCausalLM:
        tokenizer = self.tokenizer(recipe.tokenizer)
        attention = (
            "eager" if self.device.type == "cpu" else "sdpa"
        )  # compiled eager attention is quicker on a CPU
        end = tokenizer.token_to_id(END_OF_TEXT)
        assert recipe.shape is not None
        return build_model(
            recipe.shape, recipe.seed, tokenizer.get_vocab_size(), end, attention
        ).to(self.device)

    def load_finished(self, name: str) -> LlamaForCausalLM:
        """A member whose training has ended, frozen; raises SpecvizError when it has not."""
        recipe, path = self.recipe(name), self.checkpoint(name)
        state = (
            torch.load(path, map_location=self.device, weights_only=True)
            if path.exists()
            else {"step": 0}
        )
        if state["step"] < recipe.num_steps:
            command = f"python -m specviz.zoo {recipe.command} {name}"
            raise SpecvizError(
                f"{name} is needed first (step {state['step']} of {recipe.num_steps}): run `{command}`"
            )
        if state["recipe"] != recipe.to_dict():
            raise SpecvizError(
                f"{path.name} was trained by another recipe; remove it or restore the recipe"
            )
        model = self.fresh(recipe)
        model.load_state_dict(state["model"])
        return model.eval().requires_grad_(False)
