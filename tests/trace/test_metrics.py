"""Laws of the numbers: hand-computed ones, an independent slow recount, and one formula for live and loaded traces."""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.trace import ROOT, Footer, Trace
from specviz.trace.counters import Counters, wilson
from specviz.trace.frames import STEP_COLUMNS, TOKEN_COLUMNS, steps, tokens
from specviz.trace.metrics import METRICS, count, lossy_words, metrics
from specviz.trace.tool_names import VLLM, export
from tests.helpers import evidence_traces, traces

every_trace = pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL.keys())
near = pytest.approx

# ---------------------------------------------------------------- by hand
# traces.chain: K = 4 in seven steps that keep 4, 2, 0, 3, 1, 4, 2 -> A = 16 of D = 28, R = 5, 7 not judged, E = 16 + 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 7),
        ("drafted", 28),
        ("accepted", 16),
        ("rejected", 5),
        ("ignored", 7),
        ("emitted", 23),
        ("resampled", 5),
        ("bonus", 2),
        ("plain", 0),
        ("truncated", 0),
        ("target_calls", 7),
        ("draft_calls", 28),
        ("tokens_per_target_call", near(23 / 7)),
        ("tokens_per_step", near(23 / 7)),
        ("compression_ratio", near(23 / 7)),
        ("acceptance_rate_judged", near(16 / 21)),
        ("acceptance_rate", near(16 / 28)),
        ("lm_studio_percent", near(100 * 16 / 28)),
        ("mean_acceptance_length", near(1 + 16 / 7)),
        ("acceptance_histogram", [1, 1, 2, 1, 2]),
        ("acceptance_by_depth_all_steps", near([6 / 7, 5 / 7, 3 / 7, 2 / 7])),
        ("nvidia_joint", near([6 / 7, 5 / 7, 3 / 7, 2 / 7])),
        ("nvidia_conditional", near([6 / 7, 5 / 6, 3 / 5, 2 / 3])),
        ("tokens_per_s", near(1000 * 23 / (7 * 15.1))),
        ("speedup", near(1000 * 23 / (7 * 15.1) / 150)),
    ],
)
def test_a_chain_by_hand(name: str, value: object) -> None:
    assert metrics(traces.chain())[name] == value


def test_rates_by_depth_by_hand() -> None:
    rows = metrics(traces.chain())["acceptance_by_depth"]
    assert [(row["accepted"], row["drafted"], row["judged"]) for row in rows] == [
        (6, 7, 7),
        (5, 7, 6),
        (3, 7, 5),
        (2, 7, 3),
    ]


def test_joint_rates_count_only_steps_that_drafted_so_deep() -> None:
    made = traces.changed_k()  # K = 4 (kept 2, 4), 2 (kept 2, 0), 8 (kept 5), and one empty draft
    numbers = metrics(made)
    drafted = [row["drafted"] for row in numbers["acceptance_by_depth"]]
    kept = [row["accepted"] for row in numbers["acceptance_by_depth"]]
    assert drafted == [5, 5, 3, 3, 1, 1, 1, 1]
    assert kept == [4, 4, 2, 2, 1, 0, 0, 0]
    assert numbers["acceptance_by_depth_all_steps"] == near([n / 5 for n in kept])
    assert numbers["nvidia_joint"] == near([n / 6 for n in kept])
    assert numbers["nvidia_conditional"] == [4 / 6, 1, 2 / 4, 1, 1 / 2, 0, None, None]


def test_a_step_without_a_draft_is_no_speculative_step() -> None:
    numbers = metrics(traces.lookup())  # drafts of 0, 3, 1, 0, 4 tokens keep 0, 2, 1, 0, 0
    assert numbers["mean_acceptance_length"] == 1 + 3 / 3
    assert numbers["acceptance_histogram"] == [1, 1, 1, 0, 0]
    assert numbers["plain"] == 2


def test_a_tree_may_reject_several_in_a_step() -> None:
    numbers = metrics(traces.tree())
    assert (numbers["drafted"], numbers["accepted"], numbers["rejected"], numbers["ignored"]) == (27, 7, 7, 13)


def test_scratch_nodes_are_no_drafted_tokens() -> None:
    numbers = metrics(traces.scratch())  # one chain of two, then nothing; four scratch nodes beside
    assert (numbers["drafted"], numbers["accepted"], numbers["rejected"], numbers["plain"]) == (2, 1, 1, 1)
    assert numbers["acceptance_by_depth"][0]["drafted"] == 1


def test_a_cut_step_emits_fewer_than_it_accepted() -> None:
    numbers = metrics(traces.truncated())  # keeps 1 and 3; the last step loses two of its four tokens
    assert (numbers["accepted"], numbers["emitted"], numbers["truncated"]) == (4, 4, 2)


def test_waiting_is_no_working_time() -> None:
    paced = metrics(traces.truncated())
    assert paced["times_ms"]["wait_ms"] == 500
    assert paced["tokens_per_s"] == near(1000 * 4 / 30.2)


def test_alpha_is_the_mean_overlap_of_all_emitted_positions() -> None:
    made = traces.chain()
    assert metrics(made)["alpha"] == near(sum(made.scores[0].overlap) / 23)


def test_judged_alpha_uses_judged_positions_only() -> None:
    made = traces.chain()
    overlaps = [row.overlap for step in made.steps for row in step.positions if row.child is not None]
    assert len(overlaps) == 21
    assert metrics(made)["alpha_judged"] == near(sum(overlaps) / 21)


def test_vllm_counters() -> None:
    assert list(json.loads(export(traces.changed_k(), VLLM)).values())[-4:] == [5, 20, 13, [4, 4, 2, 2, 1]]


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_interval_against_published_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == near((low, high), abs=6e-5)


# ---------------------------------------------------------------- a slow recount, written differently


def recount(made: Trace) -> dict[str, object]:
    """The same numbers from lists of everything, in the words of the definitions."""
    nodes = [(step.index, token) for step in made.steps for token in step.draft if token.status != "scratch"]
    emitted = [token for step in made.steps for token in step.emitted]
    by_status = Counter(token.status for _, token in nodes)
    by_kind = Counter(token.kind for token in emitted)
    drafting = {index for index, _ in nodes}
    lengths = {index: sum(1 for i, t in nodes if i == index and t.status == "accepted") for index in drafting}
    deepest = max([token.depth for _, token in nodes], default=0)
    working = sum(step.timing.total_ms for step in made.steps) - sum(step.timing.wait_ms for step in made.steps)
    result: dict[str, object] = {
        "steps": len(made.steps),
        "drafted": len(nodes),
        "accepted": by_status["accepted"],
        "rejected": by_status["rejected"],
        "ignored": by_status["ignored"],
        "emitted": len(emitted),
        "resampled": by_kind["resampled"],
        "bonus": by_kind["bonus"],
        "plain": by_kind["plain"],
    }
    if made.steps:
        result["tokens_per_step"] = near(len(emitted) / len(made.steps))
        result["tokens_per_s"] = near(len(emitted) / (working / 1000))
    if drafting:
        result["mean_acceptance_length"] = near(sum(length + 1 for length in lengths.values()) / len(drafting))
        result["acceptance_rate"] = near(by_status["accepted"] / len(nodes))
        result["acceptance_histogram"] = [list(lengths.values()).count(kept) for kept in range(deepest + 1)]
        result["acceptance_by_depth_all_steps"] = near(
            [sum(length >= depth for length in lengths.values()) / len(drafting) for depth in range(1, deepest + 1)]
        )
    return result


def depth_recount(made: Trace) -> list[tuple[int, int, int]]:
    """(kept, drafted, judged) per depth, one depth at a time over the whole trace."""
    rows = []
    for depth in range(1, 1 + max((t.depth for s in made.steps for t in s.draft if t.status != "scratch"), default=0)):
        at_depth = [{t.status for t in step.draft if t.depth == depth} - {"scratch"} for step in made.steps]
        rows.append(
            (
                sum("accepted" in statuses for statuses in at_depth),
                sum(bool(statuses) for statuses in at_depth),
                sum(bool(statuses & {"accepted", "rejected"}) for statuses in at_depth),
            )
        )
    return rows


def agrees_with_recount(made: Trace) -> None:
    numbers = metrics(made)
    for name, value in recount(made).items():
        assert numbers[name] == value, name
    rows = numbers["acceptance_by_depth"] or []
    assert [(row["accepted"], row["drafted"], row["judged"]) for row in rows] == depth_recount(made)


@every_trace
def test_metrics_agree_with_a_slow_recount(make: Callable[[], Trace]) -> None:
    agrees_with_recount(make())


@st.composite
def scripted_traces(draw: st.DrawFn) -> Trace:
    made = traces.Builder(seed=draw(st.integers(0, 99)))
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(0, 6))
        parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
        made.step(parents, draw(st.sets(st.integers(0, 5))), num_scratch=draw(st.integers(0, size)))
    return made.finish()


@settings(max_examples=60, deadline=None)
@given(scripted_traces())
def test_any_tree_agrees_with_a_slow_recount(made: Trace) -> None:
    agrees_with_recount(made)


@every_trace
def test_counts_obey_the_distributions_of_speculative_decoding(make: Callable[[], Trace]) -> None:
    numbers = metrics(make())
    assert numbers["drafted"] == numbers["accepted"] + numbers["rejected"] + numbers["ignored"]
    assert numbers["emitted"] == numbers["accepted"] + numbers["steps"] - numbers["truncated"]


# ---------------------------------------------------------------- one formula, and what is undefined


@every_trace
def test_folding_counters_step_by_step_gives_the_same_numbers(make: Callable[[], Trace]) -> None:
    made, counters = make(), Counters()
    for event in made.events():
        counters.add(event)
        metrics(counters)
    assert metrics(counters) == metrics(made)


@every_trace
def test_every_metric_has_a_value_or_a_reason(make: Callable[[], Trace]) -> None:
    numbers = metrics(make())
    reasons = numbers.pop("reasons")
    assert numbers.keys() == METRICS.keys()
    assert {name for name, value in numbers.items() if value is None} == reasons.keys()


def test_an_empty_trace_has_counts_of_zero_and_no_rates() -> None:
    numbers = metrics(Trace())
    assert numbers["steps"] == numbers["drafted"] == numbers["emitted"] == 0
    assert numbers["acceptance_rate_judged"] is None
    assert numbers["reasons"]["acceptance_rate_judged"] == "no drafted token was judged"


def with_footer(made: Trace, **changes: object) -> Trace:
    *events, footer = made.events()
    return Trace([*events, replace(footer, **changes)])


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (traces.resampling_changed(), "changed during the run"),
        (traces.tree(), "was not measured"),
        (traces.empty(), "was not measured"),
        (with_footer(traces.chain(), extra={"shared_engine": True}), "under load"),
        (with_footer(traces.chain(), baseline={**traces.BASELINE, "tokens_per_s": 0.0}), "is zero"),
        (with_footer(traces.chain(), baseline={**traces.BASELINE, "tokens_per_s": 5e-324}), "is zero"),
    ],
)
def test_a_speedup_that_cannot_be_told_says_why(made: Trace, reason: str) -> None:
    numbers = metrics(made)
    assert numbers["speedup"] is None
    assert reason in numbers["reasons"]["speedup"]


@pytest.mark.parametrize("number", [0, 7])
def test_times_after_a_prompt_that_had_been_read_before_say_so(number: int) -> None:
    counters = count(with_footer(traces.chain(), extra={"read_before": number}))
    told = {name for name, metric in METRICS.items() if "read before" in metric.note(counters)}
    assert told == ({"tokens_per_s", "by_target", "times_ms"} if number else set())


def test_a_change_of_k_leaves_the_speedup() -> None:
    assert metrics(traces.changed_k())["speedup"] is not None


def test_each_target_of_a_run_has_numbers_of_its_own() -> None:
    made = traces.chain()
    settings = replace(made.steps[-1].settings, target="deeper")
    last = replace(made.steps[-1], settings=settings)
    both = Trace([last if event is made.steps[-1] else event for event in made.events()])
    rows = {row["target"]: row for row in metrics(both)["by_target"]}
    assert list(rows) == [made.steps[0].settings.target, "deeper"]
    assert rows["deeper"]["per_call"] == len(last.emitted) / last.calls["target"]
    others = made.steps[:-1]
    spent = sum(step.timing.total_ms - step.timing.wait_ms for step in others)
    speed = 1000 * sum(len(step.emitted) for step in others) / spent
    assert rows[made.steps[0].settings.target]["per_s"] == pytest.approx(speed)
    assert metrics(made)["reasons"]["by_target"] == "no second target model had a part in this run"


def test_the_latest_footer_decides() -> None:
    counters = Counters().add(Footer("stopped", None, None))
    assert counters.footer.reason == "stopped"


@every_trace
def test_every_value_can_be_spelled(make: Callable[[], Trace]) -> None:
    numbers = metrics(make())
    for name, metric in METRICS.items():
        spelled = metric.spell(numbers[name])
        assert spelled
        assert "None" not in spelled
        assert (spelled == "n/a") == (numbers[name] is None)


def test_labels_are_unique() -> None:
    labels = [metric.label for metric in METRICS.values()]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("lossless", "words"),
    [
        ("111", ""),
        ("000", "lossy"),
        ("011", "lossy in part (step 1)"),
        ("1001", "lossy in part (steps 2–3)"),
        ("010100101", "lossy in part (steps 1, 3, 5–6 …)"),
    ],
)
def test_lossy_steps_are_counted_and_named(lossless: str, words: str) -> None:
    made = traces.Builder()
    for sign in lossless:
        made.chain(changed={"lossless": sign == "1"})
    assert lossy_words(count(made.trace)) == words
    assert metrics(made.trace)["lossy_steps"] == lossless.count("0")
    assert list(steps(made.trace)["lossless"]) == [sign == "1" for sign in lossless]


def test_whole_reasoning_steps_have_a_rate_of_their_own() -> None:
    made = evidence_traces.refused()
    assert metrics(made)["reasoning_steps_kept"] == 0.5
    assert "whole reasoning steps" in METRICS["acceptance_rate_judged"].note(count(made))
    assert metrics(traces.chain())["reasoning_steps_kept"] is None


def test_without_a_draft_there_is_nothing_to_compare() -> None:
    made = traces.Builder().chain(0, 0).chain(0, 0).finish()
    assert "this run is the baseline" in metrics(made)["reasons"]["speedup"]


# ---------------------------------------------------------------- frames


@every_trace
def test_frames_have_the_documented_columns(make: Callable[[], Trace]) -> None:
    assert list(tokens(make()).columns) == list(TOKEN_COLUMNS)
    assert list(steps(make()).columns) == list(STEP_COLUMNS)


@every_trace
def test_the_token_frame_spells_the_generated_text(make: Callable[[], Trace]) -> None:
    made = make()
    emitted = tokens(made).dropna(subset="position").sort_values("position")
    assert list(emitted["position"]) == list(range(len(made.tokens)))
    assert "".join(emitted["text"]) == made.text


@every_trace
def test_frames_add_up_to_the_metrics(make: Callable[[], Trace]) -> None:
    made = make()
    numbers, per_step, per_token = metrics(made), steps(made), tokens(made)
    for name in ("drafted", "accepted", "rejected", "ignored", "emitted", "truncated", "target_calls", "draft_calls"):
        assert per_step[name].sum() == numbers[name], name
    for name in ("accepted", "rejected", "ignored"):
        assert (per_token["status"] == name).sum() == numbers[name], name
    assert per_step["total_ms"].sum() == near(numbers["times_ms"]["total_ms"])


def test_the_token_frame_shows_where_a_token_was_cut() -> None:
    made = traces.chain()
    frame = tokens(made)
    cut = frame[frame["status"] == "rejected"].iloc[0]
    node = made.steps[1].draft[2]
    assert (cut["step"], cut["node"], cut["depth"]) == (1, 2, 3)
    assert (cut["p"], cut["q"], cut["u"]) == (node.p, node.q, node.u)
    assert cut["overlap"] == made.steps[1].positions[2].overlap
    assert math.isnan(cut["position"]) if isinstance(cut["position"], float) else cut["position"] is not None
