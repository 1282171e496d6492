"""Measures the exported members and writes what the person reads: every MODEL_CARD.md and the family's README.md."""

from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from specviz.models import memory as machine
from specviz.zoo.config import recipe_names
from specviz.zoo.data.corpus import load_sources
from specviz.zoo.data.tokenizer import load_tokenizer
from specviz.zoo.evaluation import card, trials
from specviz.zoo.evaluation.evaluate import EvaluationRow, Texts, measure, predictors_of, texts_for
from specviz.zoo.family import TARGET, Workplace
from specviz.zoo.training.export import Origin, load_head, load_model


def write_report(place: Workplace, models: Path) -> str:
    """Measure everything under `models`, write the cards and the README, and return the README."""
    members = measured_members(place, models)
    for member in members:
        text = card.model_card(member, TARGET, load_sources())
        (models / member.recipe.name / "MODEL_CARD.md").write_text(text, encoding="utf-8")
    readme = card.family_readme(members)
    (models / "README.md").write_text(readme, encoding="utf-8")
    return readme


def measured_members(place: Workplace, models: Path) -> list[card.Member]:
    target = load_model(models / TARGET)
    rows = measured_rows(place, models, target)
    return [measured_member(models / name, target, rows[name]) for name in recipe_names()]


def measured_rows(
    place: Workplace, models: Path, target: PreTrainedModel
) -> dict[str, list[EvaluationRow]]:
    """The rows of every member: one pass over the held-out text for the target's vocabulary, one for each other."""
    vocabulary = Origin.read(models / TARGET).recipe.tokenizer
    rows, owners, shared = {}, {}, {}
    for name in recipe_names():
        recipe = Origin.read(models / name).recipe
        if recipe.tokenizer != vocabulary:
            texts = held_out(place, models / name, recipe.tokenizer)
            rows[name] = [replace(measure(load_model(models / name), {}, texts)[0], label=name)]
            continue
        predictors = predictors_of(models / name, target)
        owners |= dict.fromkeys(predictors, name)
        shared |= predictors
    for row in measure(target, shared, held_out(place, models / TARGET, vocabulary)):
        owner = owners.get(row.label, TARGET)
        rows.setdefault(owner, []).append(
            row if row.label in owners else replace(row, label=TARGET)
        )
    return rows


def held_out(place: Workplace, folder: Path, tokenizer: str) -> Texts:
    return texts_for(folder, place.held_out_domains(tokenizer))


def measured_member(
    folder: Path, target: PreTrainedModel, rows: list[EvaluationRow]
) -> card.Member:
    origin = Origin.read(folder)
    if origin.recipe.heads:
        head = load_head(folder, target)
        return card.Member(
            origin.recipe, sum(p.numel() for p in head.parameters()), origin.tokens_seen, rows
        )
    model, tokenizer = load_model(folder), load_tokenizer(folder / "tokenizer.json")
    member = card.Member(
        origin.recipe,
        model.num_parameters(),
        origin.tokens_seen,
        rows,
        trials.sums_solved(model, tokenizer),
    )
    if distillation := origin.recipe.distillation:
        return replace(member, start=Origin.read(folder.with_name(distillation.start)).recipe)
    if folder.name == TARGET:
        return replace(
            member, samples=trials.samples(model, tokenizer), timing=timing(origin, model)
        )
    return member


def timing(origin: Origin, model: PreTrainedModel) -> card.ForwardTiming:
    wide = trials.wide_model(origin.recipe, model)
    own, other = trials.seconds_per_token([model, wide])
    config = wide.config
    size = f"{config.num_hidden_layers} x {config.hidden_size}, {wide.num_parameters():,} parameters (untrained)"
    return card.ForwardTiming(machine_words(), own * 1e3, other * 1e3, size)


def machine_words() -> str:
    here = machine.environment(torch.device("cpu"))
    return f"{here['device_name']}, {here['threads']} thread(s), torch {here['torch']}"
