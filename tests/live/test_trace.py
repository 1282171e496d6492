"""A run of the page is a trace like any other: specviz opens it, shows the same of it, and records the same numbers."""

import json
import random
from itertools import pairwise

import pytest

from specviz.trace.events import Models, Step, event_dict
from specviz.trace.file import read_trace
from specviz.trace.metrics import METRICS
from specviz.views.blocks import dump
from specviz.views.explore.feed import MOST_SENT, Feed, plain_head
from specviz.views.live import METRICS_SHOWN
from tests.live.engine import DRAFTS, asked_run, controls, runs
from tests.live.test_run import PROMPTS, reference

CLOSE = 1e-4
STORY = PROMPTS[0]
ENDS = "Sum: 275 + 615\n\n"  # the target ends its answer after 48 tokens
LONG = " ".join(["Once upon a time there was a fox who was very happy."] * 70)  # 980 tokens of the 1,024 that are read
HOSTILE = (
    "\x00\x01\x1b[31m\x7f\x85\u2028\u2029\ufeff\u200b",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 \ud7ff\ue000\U0010ffff",
    "\u202eevil\u2066 שלום עולם مرحبا بالعالم",
    "x" * 200 + " " + "é" * 100,
    "</script><script>alert(1)</script>&amp;\\n\"'`${1}",
    "\r\n\r\r\t\t   \n \n",
    "'",
    "a\u0301\u0323 ﬁ ǅ ½ ² Ⅷ 𝔸 漢字 かな",
)


def chain_runs():
    """Runs with every kind of change and end: by length, by the end token and by the context."""
    yield asked_run(STORY, k=4)
    yield asked_run(STORY, k=0, max_new_tokens=12)
    yield asked_run(STORY, k=12, temperature=0.0, max_new_tokens=30)
    yield asked_run(STORY, k=1, temperature=0.7, top_k=20, top_p=0.9, max_new_tokens=30)
    yield asked_run(STORY, (4, controls(k=3)), k=3, min_p=0.2, max_new_tokens=30)
    yield asked_run(STORY, k=3, temperature=0.01, draft=DRAFTS[2], max_new_tokens=30)
    yield asked_run(STORY, k=5, temperature=2.5, top_p=0.5, draft=DRAFTS[1], max_new_tokens=30)
    changed = (3, controls(k=8)), (5, controls(k=0)), (7, controls(k=2, draft=DRAFTS[1], temperature=0.0))
    last = (9, controls(k=2, draft=DRAFTS[2], temperature=0.8, top_k=3)), (11, controls(k=5, top_p=0.25))
    yield asked_run(STORY, *changed, *last, k=4)
    fine = controls(k=2, temperature=0.123456789, top_p=0.87654321)
    yield asked_run(STORY, (2, fine), k=2, temperature=1 / 3, max_new_tokens=12)
    yield asked_run(STORY, (4, controls(k=1)), k=4, max_new_tokens=12)
    yield asked_run(ENDS, k=8, temperature=0.0, max_new_tokens=100)
    yield asked_run(ENDS, k=7, temperature=0.5, max_new_tokens=100)
    yield asked_run(ENDS, k=3, max_new_tokens=1)
    yield asked_run(LONG, k=8, draft=DRAFTS[1], max_new_tokens=200)


def hostile_runs():
    for prompt in HOSTILE:
        yield asked_run(prompt, k=3, temperature=1.5, max_new_tokens=8)
        yield asked_run(f"Once{prompt}", k=3, max_new_tokens=8)


def random_controls(generator):
    return controls(
        k=generator.randrange(13),
        temperature=generator.choice((0.0, 0.01, 0.3, 0.7, 1.0, 1.0, 1.5, 5.0)),
        top_k=generator.choice((0, 0, 1, 2, 5, 40, 4_096)),
        top_p=generator.choice((1.0, 1.0, 0.95, 0.5, 0.1, 0.0)),
        min_p=generator.choice((0.0, 0.0, 0.01, 0.1, 0.5, 1.0)),
        draft=generator.choice(DRAFTS),
    )


def random_run(generator):
    """A run with up to three changes of its settings."""
    prompt = generator.choice((generator.choice(PROMPTS), generator.choice(HOSTILE), ENDS))
    changes = [(generator.randrange(1, 12), random_controls(generator)) for _ in range(generator.randrange(4))]
    length = generator.choice((1, 2, 20, 60))
    first = {"draft" if name == "draft_model" else name: value for name, value in random_controls(generator).items()}
    return asked_run(
        prompt,
        *sorted(changes, key=lambda change: change[0]),
        seed=generator.randrange(2**53),
        max_new_tokens=length,
        **first,
    )


KINDS = {
    "chain": lambda: [*chain_runs()],
    "hostile": lambda: [*hostile_runs()],
    "random": lambda: [random_run(random.Random(number)) for number in range(200)],
}


@pytest.fixture(scope="module", params=["chain", "hostile", pytest.param("random", marks=pytest.mark.slow)])
def page(request):
    """Runs of one kind: what was asked, the trace file, the messages to the stage."""
    asked = KINDS[request.param]()
    return [*zip(asked, runs(asked), strict=True)]


def lines_of(file):
    return [json.loads(line) for line in file.split("\n")[:-1]]


def test_the_file_is_opened_and_saved_with_equal_content(page, tmp_path):
    for _, each in page:
        opened = read_trace(each["file"].encode())
        opened.save(tmp_path / "run.jsonl")
        saved = (tmp_path / "run.jsonl").read_text("utf-8")
        assert lines_of(saved) == lines_of(each["file"])


def differences(mine, right, path=""):
    """Where two values of JSON differ: path -> (mine, right)."""
    if isinstance(mine, dict) and isinstance(right, dict):
        for name in mine.keys() | right.keys():
            yield from differences(mine.get(name, "missing"), right.get(name, "missing"), f"{path}.{name}")
    elif isinstance(mine, list) and isinstance(right, list) and len(mine) == len(right):
        for one, other in zip(mine, right, strict=True):
            yield from differences(one, other, f"{path}[]")
    elif mine != right:
        yield path, (mine, right)


def shown_by_python(trace):
    """The message of the whole run, without the charts and next steps that the live page does not have."""
    feed = Feed.from_trace(trace, "run")
    message = json.loads(feed.message(0))
    for since in range(MOST_SENT, len(feed), MOST_SENT):
        message["steps"] += json.loads(feed.message(since))["steps"]
    for step in message["steps"]:
        del step["points"]
    del message["end"]["next"]
    values = dict(zip(METRICS, message["numbers"], strict=True))
    message["numbers"] = [values[name] for name in METRICS_SHOWN]
    message["head"] |= {
        "metrics": json.loads(dump(plain_head(METRICS_SHOWN)))["metrics"],
        "figures": {},
        "recorded": False,
    }
    return message


def test_the_stage_is_told_what_python_tells_it(page):
    found = {}
    for _, each in page:
        right = shown_by_python(read_trace(each["file"].encode()))
        *steps, last = each["messages"]
        del last["end"]["next"]
        mine = {"steps": [step for message in steps for step in message["steps"]]}
        mine |= {name: last[name] for name in ("numbers", "end", "done", "total")}
        if "hidden" not in right["head"]:
            mine["head"] = each["messages"][0]["head"]
        found |= dict(differences(mine, {name: right[name] for name in mine}))
    assert found == {}


@pytest.mark.parametrize("page", ["chain"], indirect=True)
def test_the_runs_end_in_every_way_and_change_all_that_may_change(page):
    traces = [read_trace(each["file"].encode()) for _, each in page]
    assert {trace.footer.reason for trace in traces} == {"length", "eos", "context"}
    changed = {name for trace in traces for step in trace.steps for name in step.changed}
    assert changed == {"k", "temperature", "top_k", "top_p", "min_p", "draft_model"}
    assert {token.kind for trace in traces for token in trace.tokens} == {"accepted", "resampled", "bonus", "plain"}
    assert max(step.truncated for trace in traces for step in trace.steps) > 0


def test_the_models_in_force_stand_before_the_steps_that_use_them(page):
    for _, each in page:
        in_force = []
        for event in read_trace(each["file"].encode()).events():
            if isinstance(event, Models):
                assert event.index == len(in_force)
                in_force.append(event)
            elif isinstance(event, Step):
                assert in_force[-1].draft_model.name == event.settings.draft_model
                assert in_force[-1].target.name == event.settings.target
        names = [event.draft_model.name for event in in_force]
        assert all(one != other for one, other in pairwise(names))


# ---- the numbers -----------------------------------------------------------------------------------------------------


def folded(position, shown):
    """A draw with the rows of these ids; all others are part of the rest, and the target gives them nothing.

    Where the target has fewer than eight possible tokens, torch's topk fills up with any. The residual is given in
    shares of p: it is a quotient by the shortfall, and where that is small, of rounding.
    """
    rest, rows = dict(position["rest"]), {}
    for token, _, *values in position["top"]:
        if token in shown:
            rows[token] = dict(zip(rest, values, strict=True))
            continue
        assert values[0] == 0
        for name, value in zip(rest, values, strict=True):
            rest[name] = None if value is None else rest[name] + value
    if position["overlap"] is not None:
        for row in (rest, *rows.values()):
            row["residual"] *= 1 - position["overlap"]
    labels = {token: text for token, text, *_ in position["top"] if token in shown}
    return {**position, "rest": rest, "top": labels, "rows": rows}


def comparable(step, page):
    """A step's record without its times, and with the rows that the page shows.

    The page's models remember the run before: what they read of a prompt in the first step is less than all of it.
    """
    without = {"at_ms", "timing", "positions", *(["fed"] if step["index"] == 0 else [])}
    record = {name: value for name, value in step.items() if name not in without}
    shown = [{row[0] for row in position["top"]} for position in page["positions"]]
    return {**record, "positions": list(map(folded, step["positions"], shown))}


def ids_of(step, part):
    return [token["id"] for token in step[part]]


def distant(found):
    """The differences that are not between two numbers close to each other."""
    for path, (one, other) in found:
        are_measures = {type(one), type(other)} in ({float}, {int, float})
        if not (are_measures and abs(one - other) < CLOSE):
            yield path, (one, other)


SAMPLINGS = (
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.5, "min_p": 0.3},
)


def check_numbers(cases, max_new_tokens):
    """cases: (prompt, sampling, K, draft, seed). All steps are compared but those behind a near-tie of a draw."""
    made = runs(
        [
            asked_run(prompt, k=k, draft=draft, seed=seed, max_new_tokens=max_new_tokens, **how)
            for prompt, how, k, draft, seed in cases
        ]
    )
    num_steps = num_same = 0
    for (prompt, sampling, k, draft, seed), each in zip(cases, made, strict=True):
        right = reference(prompt, k=k, draft=draft, seed=seed, max_new_tokens=max_new_tokens, **sampling)
        mine = [line for line in lines_of(each["file"]) if line["event"] == "step"]
        num_steps += len(right.steps)
        for step, other in zip(mine, right.steps, strict=False):
            other = json.loads(json.dumps(event_dict(other)))
            if ids_of(step, "emitted") != ids_of(other, "emitted"):
                break
            if ids_of(step, "draft") != ids_of(other, "draft"):
                continue
            found = distant(differences(comparable(step, step), comparable(other, step)))
            assert dict(found) == {}, (prompt, sampling, k, draft)
            num_same += 1
    assert num_same > 0.95 * num_steps


def test_the_recorded_numbers_are_those_of_python():
    cases = [(PROMPTS[at], SAMPLINGS[at % 4], (4, 1, 8)[at % 3], DRAFTS[at % len(DRAFTS)], at) for at in range(8)]
    check_numbers(cases, max_new_tokens=16)


def test_the_header_and_the_models_are_those_of_python():
    """What the page leaves out of a request is its default; a rule that is named is the method's own."""
    how = {
        "k": 3,
        "draft": DRAFTS[1],
        "temperature": 0.7,
        "top_k": 9,
        "top_p": 0.8,
        "min_p": 0.1,
        "seed": 2**53 - 1,
        "max_new_tokens": 2,
    }
    (each,) = runs([asked_run(STORY, **how)])
    header, models, *_ = lines_of(each["file"])
    right, right_models, *_ = (json.loads(json.dumps(event_dict(event))) for event in reference(STORY, **how).events())
    assert header["prompt"] == right["prompt"]
    assert header["request"] == {
        **{name: right["request"][name] for name in header["request"]},
        "rule": "speculative_sampling",
    }
    for model in (models["target"], models["draft_model"]):
        model["device"] = "cpu"
    assert dict(differences(models, right_models)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_all_recorded_numbers_are_those_of_python(sampling):
    cases = [(prompt, sampling, 4, draft, at) for at, prompt in enumerate(PROMPTS) for draft in DRAFTS]
    check_numbers(cases, max_new_tokens=48)
