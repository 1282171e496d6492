"""Every number of README and its documents about what ships is worked out from what ships; a number that nobody claims
fails.

Measurements are exempt: what stands in measured.md, beside a command and a machine, apart from what is
claimed there too. Elsewhere only codes, versions, years and names with a digit in them may stand unclaimed.
"""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from specviz import settings
from specviz.alignment.aggregate import LEAST_EXCESS, LEAST_TIMES
from specviz.alignment.causes import findings, probes, search, verdict
from specviz.alignment.causes.undo.rounding import MOST_BITS, ZERO_POINTS
from specviz.alignment.causes.undo.settings import STRETCHES
from specviz.alignment.job import MOST_DRAFTS
from specviz.alignment.outputs import CSV_NAMES
from specviz.alignment.summary import ENOUGH_PROMPTS
from specviz.alignment.tables.totals import PATTERNS_SHOWN
from specviz.alignment.types import DEPTHS, WIDEST
from specviz.analysis import rounds, theory, trainers, whatif
from specviz.analysis.costs import Costs
from specviz.analysis.every_k import what_if
from specviz.bench.speed import ROUNDS
from specviz.checks.statistics import ALPHA, SUSPICION
from specviz.decoding import cached_lm, kept_answers, kept_rows
from specviz.decoding.forward import products, replays
from specviz.drafters import METHODS, eagle, tree
from specviz.drafters.eagle.layouts import _FEWEST_LAYERS
from specviz.lessons.load import lessons
from specviz.models.catalog import HEADS, MODELS
from specviz.models.chat import MOST_RENDER_S
from specviz.models.files import config_values, meta_build, small_files, trial, trial_process
from specviz.models.files.draft_formats import MOST_CONFIG_BYTES
from specviz.models.gguf import _BYTES
from specviz.prompts import prompts_file
from specviz.rules.broken import BROKEN
from specviz.rules.lossy import Lenience
from specviz.session import gpu_worker
from specviz.settings import ProgramSettings
from specviz.trace.metrics import metrics
from specviz.trace.shipped import shipped_trace
from specviz.ui import api, registry, visitors
from specviz.views.compare.claims import FIELDS
from specviz.views.learn.lesson_file import lesson_page
from specviz.views.learn.plan import LessonsBlock, plan
from specviz.views.live import live_page
from specviz.views.site import site_files
from tests.helpers import restated_numbers
from tests.helpers.documents import ALL, MEASURED

NAMES = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
NUMBER = re.compile(rf"\d|\b({'|'.join([*NAMES[2:], 'half', 'thirds?', 'quarters?', 'twice'])})\b", re.IGNORECASE)
TOLD_ELSEWHERE = re.compile(
    r"Python 3\.\d+(, 3\.\d+)*( and 3\.\d+)?|3\.10 and 3\.13|torch 2\.\d+|Chromium \d+|Firefox \d+ ESR"  # versions
    r"|WebKitGTK [\d.]+|JupyterLab [\d.]+|UTF-8|GSM8K|Apache-2\.0"
    r"|\bet al\. \d{4}|(Saxena|Spector and Ré) \d{4}|EAGLE-1 to -3\.1|EAGLE-3\.1|EAGLE-[123]|DFlash2|DeepSeek-V3"
    r"|Phi-3 128k|FP8"
    r"|Gemma 3n|Gemma 4|E[24]B|Qwen2\.5-VL|Qwen3-VL|Mistral 3|NVIDIA H100|transformers 5\.\d+"  # models and machines
    r"|Qwen3\.5|Qwen3-Next|LFM2|Granite 4|Falcon-H1|Zamba2|text half of models|the three states"
    r"|A\.5|bf16|fp16|b?float16|float32|sha256|SmolLM2-135M-Instruct|Llama [34]|Qwen[23]|Gemma 3"  # names
    r"|if (the first|one) id is( not)?( [12]| the number)|layers 2, L/2 and L-3|counted from 0|K is 0 then|K 8\*"
    r"|Two different numbers|is 128 \+ the|count as 0|min\(1, p/|max\(0, p"  # codes
    r"|in two processes|took 16 minutes on two busy cores|Each prompt is raced twice per side|any two (setups|traces)"
    r"|\*Two runs\*|none twice|in two ways|at temperature [01]|accept 1, 2, \.\.\. K|two neighbours|half precision"
    r"|[Hh]alf of the texts choose|[Tt]he other half|that half|the two split"
    r"|-1 for the context|depth in the draft, from 1|uniform in 0 to 1|KL\(p&#124;&#124;q\)"  # of columns
)
PROSE = ALL.split("---\n", 2)[2].replace(MEASURED, "")


def told():
    """What the texts say outside of measurements, code and addresses, in one line, without the numbers of lists."""
    text = re.sub(r"^```.*?^```", "", PROSE, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\d+\. ", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|<http[^>]*>", "…", text)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def exits():
    return json.loads((settings.assets_dir() / "models/fable-target/recipe.json").read_text())["recipe"]["early_exit"][
        "layers"
    ]


def large():
    """The recipe of the target for a GPU."""
    return json.loads((Path(settings.__file__).parent / "zoo/configs/full/fable-target.json").read_text())


def claims():
    """Phrases with a number, made of what ships."""
    (listed,) = [block for block in plan().blocks if isinstance(block, LessonsBlock)]
    total, short = (re.search(r"\d+", way)[0] for way in listed.ways)
    recipe, smollm2 = large(), MODELS["smollm2"].download
    assert ALPHA == 1e-6  # "a million"
    assert verdict.LEAST_GAIN == 0.005  # "half a point"
    assert verdict.LEAST_SHARE == 0.1  # "a tenth of the loss"
    assert verdict.LEAST_OVER_FLOOR == 1 / 5  # "less than a fifth"
    first_unsafe = ".".join(map(str, replays.UNSAFE_SINCE))
    drafted, draft_ms, check_ms, accepted = example = [value for _, value in FIELDS.values()]
    return [
        f"D from k to {whatif.DEEPEST} (or k)",
        f"A row has to add up to 1 within {trainers.ROUNDING}",
        f"{NAMES[rounds.FEWEST]} prompts or more is {rounds.NEAR - 1:.0%} away from 1 and beyond chance: two equal "
        f"setups are called different in at most {rounds.LEVEL:.0%} of races".replace("%", " %"),
        f'suspicious in at most 1 of {1 / SUSPICION:,.0f} checks and "differs" in 1 of a million',
        f"{NAMES[drafted]} tokens drafted in {draft_ms} ms, checked in {check_ms} ms, {NAMES[accepted]} accepted are "
        f"{theory.stated_rates(*example)[0]:.0f} tokens/s",
        f"**Learn** holds {NAMES[len(lessons())]} short lessons",
        f"The long plan takes {total} minutes, with two games and a break; the short one takes {short}.",
        f"and {NAMES[len(CSV_NAMES)]} tables as Parquet and CSV",
        f"up to {PATTERNS_SHOWN} groups of rejections",
        f"below {ENOUGH_PROMPTS} prompts nothing is called significant",
        f"(fewer than {ENOUGH_PROMPTS} prompts in common)",
        f"{Lenience()._lenience:g} q",
        f"{NAMES[len(BROKEN)].capitalize()} broken rules",
        "early exits after layers {} and {}".format(*exits()),
        f"a target of {recipe['shape']['num_layers']} layers, {recipe['schedule']['tokens'] / 1e6:.0f} M tokens",
        f"(default {ProgramSettings().max_runs})",
        f"(default {ProgramSettings().max_new_tokens} tokens, and no limit of seconds)",
        f"for a target of {NAMES[_FEWEST_LAYERS]} layers or more",
        f"as one GGUF file of {smollm2.megabytes[0]} MB",
        f"(the wheel … {smollm2.package[1]})",
        f"a folder of {smollm2.megabytes[1]} MB in the cache",
        f"up to {products.MOST_ROWS} rows of float32 are multiplied",
        f"forgotten after {NAMES[int(kept_rows.IDLE_S / 60)]} minutes",
        f"Up to {cached_lm.MOST_TOGETHER} tokens are read again together with a draft",
        f"At most {kept_answers.MOST_TOKENS:,} tokens of one visitor",
        f"with torch before {first_unsafe}, the compact forward reads up to {replays.MOST_TOKENS} tokens",
        f"From torch {first_unsafe} on",
        f"takes {_BYTES} bytes of memory per weight",
        f"at most {api.API_LIMIT_S:.0f} s",
        f"at most {api.MOST_PROVED} tokens",
        f"at most {api.MOST_PROMPTS} prompts",
        f"up to {MOST_DRAFTS}: …",
        f"Where they are more than {WIDEST:.0%} apart".replace("%", " %"),
        f"read 1 to {DEPTHS} tokens after every position",
        f"the lab drafts {DEPTHS} tokens",
        f"on {probes.FEWEST_TEXTS} to {probes.NUM_TEXTS} texts of {probes.NUM_TOKENS} tokens",
        f"({probes.MOST_NUMBERS // (probes.NUM_TEXTS * 50_000)} tokens where the vocabulary has 50,000 ids)",
        f"All are screened on {search.NUM_SCREENED} texts, the best compared on half of the texts",
        f"positions times or over {STRETCHES[0]:g} to {STRETCHES[-1]:g}",
        f"coarse weights {ZERO_POINTS[0]} to {ZERO_POINTS[-1]} steps up or down",
        f"logits divided by {search.TEMPERATURES[0][-1]:g} to {search.TEMPERATURES[1][-1]:g}",
        f"fewer than {probes.FEWEST_TEXTS} texts could be read",
        f"up to {search.MOST_UNDOS} faults in one draft",
        "What explains less than half a point, or less than a tenth of the loss, is not named",
        "norm weights 1 larger or smaller",
        "whether half of it agrees better than all of it",  # `Reference.compare`
        f"at least {LEAST_TIMES:g} times its share of the tokens, {100 * LEAST_EXCESS:.0f} points above it",
        f"loses at least {findings.LEAST_TIMES:g} times as much agreement",
        f"rounded to {MOST_BITS} bits or fewer",
        f"{gpu_worker.START_S} s, {gpu_worker.LOAD_S} s for each model to load",
        f"at most {gpu_worker.LONGEST_S} s in all",
        f"in turn: {NAMES[ROUNDS]} rounds in which each runs twice, after one to warm up",
        f"When nobody has listened to it for {visitors.LEFT_S:g} s, it ends",
        f"a run on the page waits {registry.GRACE_S:g} s for",
        f"One browser may have {registry.MOST_RUNS} runs and jobs at a time, the programs of one address "
        f"{registry.MOST_CALLS} jobs",
        f"splits texts of {trial_process.LENGTH:,} characters",
        f"may take {trial_process.MOST_CPU_S} s of CPU",
        f"may take {trial_process.MOST_S} s and {trial_process.MOST_MEMORY_GB} GB of memory",
        f"more than {trial_process.MOST_TOKENS} tokens for each of its characters",
        f"at most {MOST_CONFIG_BYTES >> 20} MB for … and …, "
        f"{small_files.MOST_INDEX_BYTES >> 20} MB for the index of the weights, "
        f"{small_files.MOST_BYTES >> 20} MB for any other file of settings or a tokenizer, "
        f"and {small_files.MOST_BYTES_IN_ALL >> 20} MB for all of them",
        f"{config_values.MOST_LAYERS:,} layers, {config_values.MOST_PARTS:,} experts or heads, "
        f"{config_values.MOST_LABELS:,} labels, {meta_build.MOST_PARTS:,} modules and tensors",
        f"{NAMES[trial.MOST_AT_ONCE].capitalize()} models are tried at a time, "
        f"and up to {trial.MOST_WAITING} more wait",
        f"is given again for {trial.FORGOTTEN_S // 60} minutes",
        f"at most {MOST_RENDER_S:g} s for each prompt",
        f"one budget of memory ({registry.MOST_BYTES >> 20} MB)",
        f"with trees of {min(tree.PER_CALL)} to {max(eagle.PER_CALL)} nodes",
        f"a tree has {METHODS['tree'].validate({})['nodes']} nodes",
        f"[the best by time], else {METHODS['eagle'].validate({})['nodes']}",
        *sorted({each.stated for each in (*MODELS.values(), *HEADS.values()) if each.stated}),
        "… {}, {} and {} times as deep".format(*(model.dial[1] for model in MODELS.values() if model.dial)),
    ]


def test_every_number_outside_of_measurements_is_worked_out_from_what_ships():
    text = told()
    for phrase in claims():
        assert phrase in text
        text = text.replace(phrase, "…")
    text = TOLD_ELSEWHERE.sub("…", text)
    left = [text[max(0, found.start() - 40) : found.end() + 40] for found in NUMBER.finditer(text)]
    assert not left, "numbers that nothing backs"


# ---- facts among the measurements -----------------------------------------------------------------------------------


def row(label):
    """The cells of a table's row."""
    (found,) = [line for line in MEASURED.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in found.split("|")[2:-1]]


def costs():
    """As the documented `bench costs` measured them; other numbers of tokens lie on the line between."""
    numbers = re.search(
        r"takes ([\d.]+) ms over one token, ([\d.]+) over 2, ([\d.]+) over 5, ([\d.]+) over 9, ([\d.]+) over 33; "
        r"a drafted token ([\d.]+) ms; the rest of a step ([\d.]+) ms, of one without a draft ([\d.]+) ms",
        " ".join(MEASURED.split()),
    )
    *verify, draft, overhead, plain = map(float, numbers.groups())
    return Costs(
        target="fable-target", draft="fable-draft", context_length=128, device="cpu", threads=2, dtype="float32",
        draft_ms=draft, verify_ms=tuple(np.interp(range(1, 34), (1, 2, 5, 9, 33), verify).tolist()),
        overhead_ms=overhead, plain_overhead_ms=plain, batch=(), weight_bytes=1, bandwidth_gb_s=1.0, bandwidth_bytes=1,
        spread=0.0,
    )  # fmt: skip


@cache
def at_every_k():
    trace, known = shipped_trace("first-visit"), costs()
    rows = what_if(trace, restated_numbers.KS, costs=known).set_index("k").loc[list(restated_numbers.KS)]
    alpha, c = metrics(trace)["alpha"], theory.cost_ratio(known)
    formula = [theory.walltime_improvement(alpha, k, c) for k in restated_numbers.KS]
    return rows, alpha, c, formula


def test_one_text_at_every_k_is_the_what_if_of_a_recorded_run():
    rows, alpha, c, formula = at_every_k()
    assert row("K")[: len(restated_numbers.KS)] == [str(k) for k in restated_numbers.KS]
    assert row("expected target calls, this text (5-95 %)") == [
        f"{each.expected_target_calls:.1f} ({each.calls_low}-{each.calls_high})" for each in rows.itertuples()
    ]
    assert row("speed from the costs above") == [f"{speed:.2f}x" for speed in rows.speedup]
    assert row("speed by the formula") == [f"{speed:.2f}x" for speed in formula]
    told = " ".join(MEASURED.split())
    assert f"own alpha ({alpha:.2f}), the measured c ({c:.2f})" in told


def test_the_runs_beside_it_are_really_made():
    found = [restated_numbers.calls_of_runs(k) for k in restated_numbers.KS]
    assert row(f"target calls of {restated_numbers.NUM_RUNS} runs: mean, sd, smallest to largest") == [
        "{}, sd {}, ".format(*restated_numbers.spread(calls, 1)) + f"{min(calls)}-{max(calls)}" for calls in found
    ]


def test_agreement_by_temperature_is_that_of_texts_drawn_from_the_target():
    found = [[100 * each for each in restated_numbers.agreements(float(at))] for at in row("temperature")]
    assert row("mean") == [f"{restated_numbers.spread(each, 1)[0]} %" for each in found]
    assert row("sd of one text") == [restated_numbers.spread(each, 1)[1] for each in found]


def test_what_is_said_of_the_bundled_models_and_prompts_is_so():
    told, kinds = " ".join(MEASURED.split()), prompts_file()["kinds"]
    target, draft = restated_numbers.pair()
    assert f"`fable-target` ({target.info.num_parameters / 1e6:.1f} M parameters)" in told
    assert f"`fable-draft` ({draft.info.num_parameters / 1e6:.1f} M)" in told
    assert f"the {target.info.num_parameters * 4 / 1e6:.1f} MB of weights" in told
    assert f"{sum(len(kind['prompts']) for kind in kinds)} prompts of {NAMES[len(kinds)]} kinds" in told
    assert f"{restated_numbers.read_for_a_draft_token():.0%} of the weights".replace("%", " %") in told


def test_the_cost_of_an_early_exit_is_that_of_its_row():
    """The table's last column: drafting of K = 4 tokens, and a pass over one token without a draft."""
    rows = dict.fromkeys(("none", "early_exit"))
    for name in rows:
        line = [line for line in MEASURED.splitlines() if line.startswith(f"| `{name}` | ") and " + " in line][-1]
        rows[name] = [float(ms) for ms in line.split("|")[-2].split("+")]
    c = rows["early_exit"][0] / 4 / rows["none"][1]
    assert f"c = {c:.2f} at T = 1" in " ".join(MEASURED.split())


def test_the_lessons_in_one_file_have_the_size_that_is_said():
    assert row("all twelve lessons with their runs as one file") == [f"{len(lesson_page().encode()) / 1e6:.2f} MB"]


@pytest.mark.slow
def test_the_live_page_in_one_file_has_the_size_that_is_said():
    size = len(live_page().encode())
    assert row("the live page in one file (`export --live live.html`)") == [f"{size / 1e6:.1f} MB"]


@pytest.mark.slow
def test_a_site_has_the_size_that_is_said():
    sizes = {"own": 0, "runs": 0, "plotly.min.js": 0, "weights": 0}
    for name, text in site_files({}).items():
        kind = "runs" if re.match(r"data/sv-(run|opening|of|side-by-side)-", name) else name if name in sizes else "own"
        kind = "weights" if name.startswith("data/sv-weights") else kind
        sizes[kind] += len(text.encode())
    label = (
        "a site (`export --site site --no-checks`): code, lessons, games, documents; runs; plotly, for charts; weights"
    )
    assert row(label) == ["; ".join(f"{size / 1e6:.1f} MB" for size in sizes.values())]
