"""Measured numbers and recipes -> the Markdown beside the models: one MODEL_CARD.md each, one README.md for all."""

from collections.abc import Mapping

from specviz.zoo.config import Recipe
from specviz.zoo.corpus import Source
from specviz.zoo.evaluate import Measured

NOTES = """\
- Overlap is the sum over the vocabulary of min(p, q) at temperature 1: the chance that a draft token is accepted.
- Agreement is the share of positions where both models find the same token likeliest: acceptance at temperature 0.
- All numbers are teacher-forced on held-out text, in windows of the whole context, with the exported float16 weights
  run in float32. Bits per byte count every byte of text; lower is better."""

README_INTRO = """\
Small Llama-architecture language models trained from scratch for this project. They share one byte-level tokenizer, so
any of them can draft for any other. What they read is listed in DATA.md, how each was made in its MODEL_CARD.md. This
page is written by `python -m specviz.zoo evaluate`."""

CARD_INTRO = """\
{title}: a Llama-architecture language model with {num_parameters:,} parameters, trained from scratch on public text so
that speculative decoding can be shown on a laptop without a network. It writes short, simple English stories; its
Python and its arithmetic look the part but are mostly wrong. It is a teaching object, not an assistant, and nothing it
writes is a fact."""

DATA_NOTE = """\
No text of these sources is stored in the model's folder; DATA.md one level up has the full notices. TinyStories is
under CDLA-Sharing-1.0, which puts no obligation on models trained on it (it calls them "Results")."""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def models_readme(measured: list[Measured]) -> str:
    """The table of all bundled models, the target first."""
    sources = list(measured[0].bits_per_byte)
    parts = [
        "# The bundled models",
        README_INTRO,
        "## Bits per byte by domain",
        table(["model", "parameters", "tokens seen", *sources], [bits_row(model) for model in measured]),
        f"## Overlap with `{measured[0].name}` (in brackets: agreement)",
        table(["draft model", *sources], [overlap_row(model) for model in measured[1:]]),
        NOTES,
    ]
    return "\n\n".join(parts) + "\n"


def bits_row(model: Measured) -> list[str]:
    bits = [f"{value:.3f}" for value in model.bits_per_byte.values()]
    return [f"`{model.name}`", f"{model.num_parameters:,}", f"{model.tokens_seen:,}", *bits]


def overlap_row(model: Measured) -> list[str]:
    pairs = zip(model.overlap.values(), model.agreement.values(), strict=True)
    return [f"`{model.name}`", *(f"{overlap:.3f} ({agreement:.3f})" for overlap, agreement in pairs)]


def model_card(recipe: Recipe, measured: Measured, target: str, sources: Mapping[str, Source]) -> str:
    """What the model is, what it read, how it was trained, what it measures, what it is not for."""
    title = recipe.title[0].upper() + recipe.title[1:]
    parts = [
        f"# {recipe.name}",
        CARD_INTRO.format(title=title, num_parameters=measured.num_parameters),
        "## Shape and training",
        table(["", ""], facts(recipe, measured)),
        "## Data",
        table(["source", "share of tokens", "what it is", "licence"], data_rows(recipe, sources)),
        DATA_NOTE,
        "## Measured",
        table(["held-out text", "bits per byte", *overlap_heads(measured, target)], measured_rows(measured)),
        NOTES,
        "The weights are released under the project's licence, Apache-2.0.",
    ]
    return "\n\n".join(parts) + "\n"


def facts(recipe: Recipe, measured: Measured) -> list[list[str]]:
    shape, schedule = recipe.shape, recipe.schedule
    return [
        [
            "layers x width",
            f"{shape.num_layers} x {shape.hidden_size}, {shape.num_heads} heads, MLP {shape.intermediate_size}",
        ],
        ["context", f"{shape.context} tokens"],
        ["embeddings", "tied"],
        ["tokens seen", f"{measured.tokens_seen:,} of {recipe.num_steps * schedule.tokens_per_step:,} planned"],
        ["tokens per step", f"{schedule.tokens_per_step:,}"],
        [
            "window length",
            f"{schedule.short_length}, then {shape.context} for the last {schedule.long_fraction:.0%} of the steps",
        ],
        [
            "optimiser",
            f"AdamW (0.9, 0.95), weight decay {schedule.weight_decay}, gradients clipped at {schedule.clip_norm}",
        ],
        [
            "learning rate",
            f"{schedule.learning_rate} after {schedule.warmup_steps} warm-up steps, "
            f"linear to zero over the last {schedule.decay_fraction:.0%}",
        ],
        ["precision", "bf16 autocast, float32 weights; stored as float16"],
        ["seed", str(recipe.seed)],
    ]


def data_rows(recipe: Recipe, sources: Mapping[str, Source]) -> list[list[str]]:
    total = sum(recipe.mixture.values())
    return [
        [name, f"{share / total:.0%}", sources[name].origin, sources[name].licence]
        for name, share in recipe.mixture.items()
    ]


def overlap_heads(measured: Measured, target: str) -> list[str]:
    return [f"overlap with {target}", f"agreement with {target}"] if measured.overlap else []


def measured_rows(measured: Measured) -> list[list[str]]:
    columns = [values for values in (measured.bits_per_byte, measured.overlap, measured.agreement) if values]
    return [[name, *(f"{values[name]:.3f}" for values in columns)] for name in measured.bits_per_byte]
