"""Measured numbers and recipes -> the Markdown beside the models: one MODEL_CARD.md each, one README.md for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specviz.zoo.config import BiasRecipe, Heads, Recipe
from specviz.zoo.data.corpus import CorpusSource
from specviz.zoo.data.samples import SAMPLES
from specviz.zoo.evaluation.evaluate import EvaluationRow
from specviz.zoo.evaluation.trials import NUM_SUMS, SAMPLE_PROMPT, SAMPLE_TEMPERATURE, SAMPLE_TOKENS

NOTES = """\
- Overlap (alpha) is the sum over the vocabulary of min(p, q) at temperature 1: the chance that a draft token is kept.
- Agreement is the share of positions where both models find the same token likeliest: acceptance at temperature 0.
- All numbers are teacher-forced on held-out text, in windows of the whole context, with the exported float16 weights
  run in float32. Bits per byte count every byte of text; lower is better. The end-of-text token counts with its bits
  and no bytes. A vocabulary of its own is read in windows of as many of its own tokens, which hold less text: its
  numbers are near the others', not on the same bytes.
- A head's bits are those of the token that it speaks about: Medusa's head 1 has seen one token less than the target,
  head 4 four tokens less; EAGLE's depth 1 has seen the same tokens, but not the target's feature of the last. A block's
  depth j has seen j - 1 tokens less, and not that feature; it is measured at every 32nd token. With bias each has also
  seen the token before its own.
- Sums solved: greedy answers to held-out sums of two three-digit numbers."""

README_INTRO = """\
Small Llama-architecture language models trained from scratch for this project, and draft heads for one of them. Where
nothing else is said they share one byte-level tokenizer, so that any of them can draft for any other. What they read is
listed in DATA.md, how each was made in its MODEL_CARD.md. `smol-draft` and `smol-eagle`, the drafts of `smollm2`, are
not listed here: see their cards. This page is written by `python -m specviz.zoo evaluate`."""

EDITION_NOTES = {
    "full": "Edition: full, the recipes meant for a GPU.",
    "two-cores": """\
Edition: two-cores. These models were trained on two CPU cores, one core each, in about two hours altogether; the full
recipes (a target of 16 layers that reads 18 times as many tokens) lie in `specviz/zoo/configs/full` and run with the
same commands.""",
}

MODEL_INTRO = """\
{title}: a Llama-architecture language model with {num_parameters:,} parameters, trained from scratch on public text so
that speculative decoding can be shown on a laptop without a network. It is a teaching object, not an assistant, and
nothing it writes is a fact."""

HEAD_INTRO = """\
{title}: {num_parameters:,} parameters that draft for `{target}` and mean nothing without it. A teaching object, like
the models beside it."""

DEEP_NOTE = """\
The target is deep and narrow on purpose: one forward of one token costs about as much per layer whatever the width, so
that the draft models' relative cost resembles that of pairs of large models. A model of nearly equal size in two wide
layers is much quicker, see the table; it would make a poor picture of why speculation pays."""

LAYOUTS = {
    "medusa": """\
`medusa_lm_head.safetensors`, float16. The keys are those of the public checkpoints (FasterDecoding/Medusa), the file
format and `medusa_own_output` in config.json are ours: for head j = 0, 1, ..., `<j>.0.linear.weight` [H, H] and
`<j>.0.linear.bias` [H] of the residual block `x + silu(W x + b)`, then `<j>.1.weight` [V, H], the head's own output
matrix (absent where `medusa_own_output` is false: the target's serves). Input: the target's last hidden state at
position t, after its final norm. Head j gives the logits of token t+2+j.""",
    "eagle": """\
`model.safetensors`, float16. The keys are those of the public EAGLE-1 checkpoints (SafeAILab/EAGLE), without
`embed_tokens.weight`, which is the target's own: `fc.weight` [H, 2H] and `fc.bias` [H], applied to the embedding of
token t+1 followed by the feature at t; then one Llama decoder layer under `layers.0.` without an input norm
(`self_attn.{q,k,v,o}_proj.weight`, `mlp.{gate,up,down}_proj.weight`, `post_attention_layernorm.weight`). Features are
the target's last hidden states after its final norm; embedding, rotary angles (positions of the tokens read: t+1) and
output matrix are the target's own. The layer's output is the feature at t+1, and `lm_head(feature)` gives the logits of
token t+2.""",
    "block": """\
`model.safetensors`, float16. The keys are those of z-lab's DFlash checkpoints: `fc.weight` [H, 3H] and
`hidden_norm.weight` fuse the target's states after three layers (`target_layer_ids`, from 0); every layer under
`layers.<n>.` (Qwen3's, with `q_norm` and `k_norm`) takes the fused states as keys and values of the text; `norm.weight`
is the last norm. One pass reads the last token and mask tokens (`mask_token_id`) behind it, `block_size` in all; each
sees the text and the whole block. Embedding, rotary angles and output matrix are the target's own. The place of
each mask token gives the logits of the token there.""",
}

BIAS_LAYOUT = """\
`markov.safetensors`, float16, may be left out: a low-rank Markov bias (DSpark, arXiv:2607.05147), the layout is ours.
`markov.<j>.weight` [V, r] times the row of `markov.embed.weight` [V, r] of the token before is added to the logits of
depth j = 0, 1, .... The heads alone guess all tokens at once; with the bias each guess depends on the one before it."""

CONFIDENCE_LAYOUT = """\
Beside the bias lies DSpark's confidence head, `confidence_head.proj.weight` [1, H + r] and `.bias` [1]: times the last
feature of a place and the embedding's row of the token before, through a sigmoid, it tells how often the token there
is accepted if those before it are."""

LOSSES = {
    "total_variation": """\
total variation, 1 - sum min(p, q), because it is the rejection probability itself; the start is a trained model, so
that the flat gradient of total variation between distant distributions does no harm. Tried once, two-cores edition,
200 steps from the same start on the same batches: overlap on held-out stories 0.626 before, 0.642 with total variation,
0.639 with reverse KL, 0.631 with forward KL; the same order in every other domain""",
    "forward_kl": "forward KL, KL(p||q)",
    "reverse_kl": "reverse KL, KL(q||p)",
}

DATA_NOTE = """\
No text of these sources is stored in the model's folder; DATA.md one level up has the full notices. TinyStories is
under CDLA-Sharing-1.0, which puts no obligation on models trained on it (it calls them "Results")."""

LICENCE = "The weights are released under the project's licence, Apache-2.0."


@dataclass(frozen=True, slots=True)
class ForwardTiming:
    """Milliseconds per token of one cached forward, and of an untrained model of equal size in two wide layers."""

    machine: str
    own_ms: float
    wide_ms: float
    wide: str


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the family with all that was measured of it; `start`: what it was trained as before."""

    recipe: Recipe
    num_parameters: int
    tokens_seen: int
    rows: Sequence[EvaluationRow]
    sums_solved: float | None = None
    samples: Sequence[str] = ()
    start: Recipe | None = None
    timing: ForwardTiming | None = None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def family_readme(members: Sequence[Member]) -> str:
    """The tables of all members, the target first."""
    rows = [row for member in members for row in member.rows]
    domains = list(rows[0].bits_per_byte)
    parts = [
        "# The bundled models",
        README_INTRO,
        EDITION_NOTES[members[0].recipe.edition],
        "## Members",
        table(
            ["member", "parameters", "tokens seen", "what it is", "sums solved"],
            [summary(m) for m in members],
        ),
        "## Bits per byte by domain",
        table(["", *domains], [[f"`{row.label}`", *numbers(row.bits_per_byte)] for row in rows]),
        "## Overlap with the target, in brackets how often the most likely token is the same",
        table(["", *domains], [[f"`{row.label}`", *overlaps(row)] for row in rows if row.overlap]),
        NOTES,
    ]
    return "\n\n".join(parts) + "\n"


def summary(member: Member) -> list[str]:
    solved = "" if member.sums_solved is None else f"{member.sums_solved:.1%} of {NUM_SUMS}"
    title = member.recipe.title
    return [
        f"`{member.recipe.name}`",
        f"{member.num_parameters:,}",
        f"{member.tokens_seen:,}",
        title,
        solved,
    ]


def numbers(values: Mapping[str, float]) -> list[str]:
    return [f"{value:.3f}" for value in values.values()]


def overlaps(row: EvaluationRow) -> list[str]:
    pairs = zip(row.overlap.values(), row.agreement.values(), strict=True)
    return [f"{overlap:.3f} ({agreement:.3f})" for overlap, agreement in pairs]


def model_card(member: Member, target: str, sources: Mapping[str, CorpusSource]) -> str:
    """What the member is, what it read, how it was trained, what it measures, what it is not for."""
    recipe = member.recipe
    intro = HEAD_INTRO if recipe.heads else MODEL_INTRO
    title = recipe.title[0].upper() + recipe.title[1:]
    parts = [
        f"# {recipe.name}",
        intro.format(title=title, num_parameters=member.num_parameters, target=target),
        EDITION_NOTES[recipe.edition],
        *(layout(recipe.heads) if recipe.heads else []),
        "## Shape and training",
        table(["", ""], facts(member, target)),
        "## Data",
        table(
            ["source", "share of tokens", "what it is", "licence"],
            data_rows(member, target, sources),
        ),
        DATA_NOTE,
        *measurements(member),
        *deep(member),
        *sample_texts(member),
        LICENCE,
    ]
    return "\n\n".join(parts) + "\n"


def layout(heads: Heads) -> list[str]:
    parts = ["## Layout", LAYOUTS[heads.kind]]
    if heads.bias is not None:
        parts.append(BIAS_LAYOUT)
        if heads.bias.has_confidence:
            parts.append(CONFIDENCE_LAYOUT)
    return parts


def facts(member: Member, target: str) -> list[list[str]]:
    recipe, schedule = member.recipe, member.recipe.schedule
    return [
        *shape_facts(recipe),
        *method_facts(recipe, target),
        [
            "tokens seen",
            f"{member.tokens_seen:,} of {recipe.num_steps * schedule.tokens_per_step:,} planned",
        ],
        ["tokens per step", f"{schedule.tokens_per_step:,}"],
        ["window length", window_words(recipe)],
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


def shape_facts(recipe: Recipe) -> list[list[str]]:
    shape = recipe.shape
    if shape is None:
        return []
    size = f"{shape.num_layers} x {shape.hidden_size}, {shape.num_heads} heads, MLP {shape.intermediate_size}"
    return [
        ["layers x width", size],
        ["context", f"{shape.context:,} tokens"],
        ["embeddings", "tied"],
    ]


def method_facts(recipe: Recipe, target: str) -> list[list[str]]:
    rows = []
    if exits := recipe.early_exit:
        layers = " and ".join(map(str, exits.layers))
        rows.append(
            [
                "early exits",
                f"LayerSkip (arXiv:2404.16710): exits after layers {layers} take turns with weight {exits.weight}; "
                f"layer dropout up to {exits.dropout}",
            ]
        )
    if distillation := recipe.distillation:
        rows.append(["starts from", f"`{distillation.start}`"])
        rows.append(
            [
                "distillation",
                f"{distillation.num_samples:,} samples of `{target}` at temperature 1, "
                f"{distillation.sample_length} tokens each",
            ]
        )
        rows.append(["loss", LOSSES[distillation.loss].replace("\n", " ")])
    if recipe.heads:
        loss = {
            "medusa": "KL from the target's own distribution at the place each head speaks about, weighted 0.8^j",
            "eagle": "smooth L1 on features + 0.1 x cross-entropy to the target's distribution, feature noise 0.1",
            "block": "total variation + 0.5 x KL from the target's own distribution at each place, weighted exp(-j/4)",
        }
        rows.append(["loss", loss[recipe.heads.kind]])
        rows += bias_facts(recipe.heads.bias)
    return rows


def bias_facts(bias: BiasRecipe | None) -> list[list[str]]:
    """How the bias was fitted, where it differs from the heads."""
    if bias is None:
        return []
    schedule = bias.schedule
    words = (
        f"rank {bias.rank}, fitted on the finished heads by {bias.loss.replace('_', ' ')}, all depths alike: "
        f"{schedule.tokens:,} tokens, {schedule.tokens_per_step:,} per step, learning rate {schedule.learning_rate}"
    )
    return [["bias", words]]


def window_words(recipe: Recipe) -> str:
    schedule = recipe.schedule
    if not schedule.long_fraction:
        return f"{schedule.short_length}"
    last = f"{schedule.long_length} for the last {schedule.long_fraction:.0%} of the steps"
    return f"{schedule.short_length}, then {last}"


def data_rows(member: Member, target: str, sources: Mapping[str, CorpusSource]) -> list[list[str]]:
    """The recipe's own sources, then those of the model that it started from."""
    rows = mixture_rows(member.recipe, target, sources)
    before = mixture_rows(member.start, target, sources) if member.start else []
    return [*rows, *([f"{name} (at first)", *rest] for name, *rest in before)]


def mixture_rows(
    recipe: Recipe, target: str, sources: Mapping[str, CorpusSource]
) -> list[list[str]]:
    total = sum(recipe.mixture.values())
    own = [f"texts written by `{target}`", "this project's own (Apache-2.0)"]
    return [
        [
            name,
            f"{share / total:.0%}",
            *(own if name == SAMPLES else [sources[name].origin, sources[name].licence]),
        ]
        for name, share in recipe.mixture.items()
    ]


def measurements(member: Member) -> list[str]:
    heads = ["held-out text", "bits per byte", "overlap with the target", "same most likely token"]
    parts = ["## Measured"]
    for row in member.rows:
        columns = [values for values in (row.bits_per_byte, row.overlap, row.agreement) if values]
        lines = [
            [name, *(f"{values[name]:.3f}" for values in columns)] for name in row.bits_per_byte
        ]
        parts += [f"`{row.label}`", table(heads[: 1 + len(columns)], lines)]
    if member.sums_solved is not None:
        parts.append(f"Sums solved: {member.sums_solved:.1%} of {NUM_SUMS}.")
    return [*parts, NOTES]


def deep(member: Member) -> list[str]:
    timing = member.timing
    if timing is None or member.recipe.shape is None:
        return []
    shape = member.recipe.shape
    rows = [
        [
            f"this model, {shape.num_layers} x {shape.hidden_size}, {member.num_parameters:,} parameters",
            *speed_cells(timing.own_ms),
        ],
        [timing.wide, *speed_cells(timing.wide_ms)],
    ]
    return [
        "## Deep and narrow",
        DEEP_NOTE,
        table([timing.machine, "ms per token", "tokens/s"], rows),
    ]


def speed_cells(milliseconds: float) -> list[str]:
    return [f"{milliseconds:.2f}", f"{1000 / milliseconds:,.0f}"]


def sample_texts(member: Member) -> list[str]:
    if not member.samples:
        return []
    how = (
        f"The first {len(member.samples)} seeds (0, 1, ...), none left out: {SAMPLE_TOKENS} tokens after "
        f'"{SAMPLE_PROMPT}" at temperature {SAMPLE_TEMPERATURE}.'
    )
    return [
        "## Samples",
        how,
        *(code_block(seed, text) for seed, text in enumerate(member.samples)),
    ]


def code_block(seed: int, text: str) -> str:
    return f"Seed {seed}:\n\n````text\n{text.strip()}\n````"
