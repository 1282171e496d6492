"""Laws of the charts: growing equals building whole, numbers are the metrics', colours come from the palette alone."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specviz.trace import Trace
from specviz.trace.counters import Counters
from specviz.trace.metrics import metrics
from specviz.views import palette
from specviz.views.explore.charts import DEEPEST, KINDS, PHASES, Figures
from specviz.views.words import percent
from tests.helpers import traces
from tests.helpers.growing_charts import grown, points_of

ROOT_FOLDER = Path(__file__).parents[2]
PALETTE = json.loads((ROOT_FOLDER / "assets" / "web" / "palette.json").read_text("utf-8"))
STATUSES = ("accepted", "rejected", "ignored", "resampled", "bonus", "plain", "scratch")
BACKGROUNDS = {"light": "#ffffff", "dark": "#1f2937"}
every_trace = pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL.keys())
every_chart = pytest.mark.parametrize("name", KINDS)


def column(chart: dict, trace: int, attribute: str, *inner: int) -> list:
    """A column of a chart's table, as the browser reads it."""
    values = chart["data"][trace][attribute]
    for index in inner:
        values = [value[index] for value in values]
    return values


def four_digits(shares: list[float | None]) -> list[float | None]:
    return [None if share is None else round(share, 4) for share in shares]


@every_trace
def test_plotly_takes_every_chart_of_every_trace_as_it_is(make: Callable[[], Trace]) -> None:
    from plotly.graph_objects import Figure

    for chart in grown(make()).values():
        taken = json.loads(Figure(chart).to_json())
        for each in (taken, chart):
            each["layout"].pop("template")  # plotly puts its own there
        assert taken == chart


@every_trace
def test_charts_and_points_are_json(make: Callable[[], Trace]) -> None:
    shown = [Figures(Counters()).initial(), *points_of(make().steps)]
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_bars_by_hand() -> None:
    kept, cut, not_judged, rate = grown(traces.chain())["step_bars"]["data"]
    assert kept["x"] == rate["x"] == [1, 2, 3, 4, 5, 6, 7]
    assert kept["y"] == [4, 2, 0, 3, 1, 4, 2]
    assert cut["y"] == [0, 1, 1, 1, 1, 0, 1]
    assert not_judged["y"] == [0, 1, 3, 0, 2, 0, 1]
    assert rate["y"] == four_digits([4 / 4, 6 / 7, 6 / 8, 9 / 12, 10 / 14, 14 / 18, 16 / 21])


def test_the_running_rate_is_missing_until_something_was_judged() -> None:
    assert grown(traces.lookup())["step_bars"]["data"][3]["y"][:2] == [None, 0.6667]


@every_trace
def test_the_last_rate_is_the_metric(make: Callable[[], Trace]) -> None:
    made = make()
    rates = grown(made)["step_bars"]["data"][3]["y"]
    assert rates[-1:] == four_digits([metrics(made)["acceptance_rate_judged"]])[: len(rates)]


@every_trace
def test_depth_points_are_the_metric(make: Callable[[], Trace]) -> None:
    made = make()
    joint, conditional = grown(made)["acceptance_by_depth"]["data"]
    rows = metrics(made)["acceptance_by_depth"] or []
    assert joint["x"] == conditional["x"] == [row["depth"] for row in rows]
    assert joint["y"] == four_digits([row["joint"] for row in rows])
    assert conditional["y"] == four_digits([row["conditional"] for row in rows])
    assert [n for _, n, *_ in joint["customdata"]] == [row["drafted"] for row in rows]
    assert [n for _, n, *_ in conditional["customdata"]] == [row["judged"] for row in rows]
    for row, up, down in zip(rows, joint["error_y"]["array"], joint["error_y"]["arrayminus"], strict=True):
        distances = [row["joint"] - row["joint_low"], row["joint_high"] - row["joint"]]
        assert [down, up] == four_digits([max(0.0, distance) for distance in distances])


def test_rates_from_few_observations_are_hollow() -> None:
    few = grown(traces.long(19))["acceptance_by_depth"]["data"][0]["marker"]["symbol"]
    enough = grown(traces.long(20))["acceptance_by_depth"]["data"][0]["marker"]["symbol"]
    assert (few[0], enough[0]) == ("circle-open", "circle")


def test_the_selection_effect_is_said_in_one_line() -> None:
    (note,) = grown(traces.chain())["acceptance_by_depth"]["layout"]["annotations"]
    assert note["text"].startswith("Selection effect:")
    assert "\n" not in note["text"]
    assert "<br>" not in note["text"]


def test_the_overlap_of_a_token_is_that_of_the_draw_that_decided_it() -> None:
    made = traces.chain()
    kept, replaced, missing = grown(made)["overlap_strip"]["data"]
    tokens = [token for step in made.steps for token in step.emitted]
    assert kept["x"] == replaced["x"] == missing["x"] == list(range(1, len(tokens) + 1))
    assert [at.split(":")[1] for at, _ in kept["customdata"]] == [
        "last" if token.node is None else str(token.node) for token in tokens
    ]
    values = [[row["y"][place] for row in (kept, replaced)] for place in range(len(tokens))]
    scored = made.scores[0].overlap
    for token, pair, gap, value in zip(tokens, values, missing["y"], scored, strict=True):
        shown = next((number for number in pair if number is not None), None)
        assert shown == (None if token.kind == "bonus" else round(value, 4))
        assert (gap == 0) == (shown is None)


@every_trace
def test_tokens_against_calls_end_at_the_metrics(make: Callable[[], Trace]) -> None:
    made = make()
    run, alone = grown(made)["tokens_by_calls"]["data"]
    values = metrics(made)
    assert (run["x"][-1], run["y"][-1]) == (values["target_calls"], values["emitted"])
    assert alone["x"] == alone["y"] == run["x"]


@every_trace
def test_the_times_of_a_step_add_up_to_its_total_without_waiting(make: Callable[[], Trace]) -> None:
    made = make()
    bars = grown(made)["time_by_step"]["data"]
    assert [bar["name"] for bar in bars] == list(PHASES)
    for place, step in enumerate(made.steps):
        spent = sum(bar["y"][place] for bar in bars)
        assert spent == pytest.approx(step.timing.total_ms - step.timing.wait_ms, abs=0.03)


@every_trace
@every_chart
def test_every_place_of_a_chart_selects_a_token_or_a_step_of_the_trace(make: Callable[[], Trace], name: str) -> None:
    made = make()
    chart = grown(made)[name]
    places = [at for at, *_ in chart["data"][0]["customdata"] if at]
    for at in places:
        step, _, ref = at.partition(":")
        assert int(step) < len(made.steps)
        assert not ref or ref == "last" or int(ref) < len(made.steps[int(step)].draft)
    drawn = any(step.draft for step in made.steps) if name == "acceptance_by_depth" else bool(made.steps)
    assert bool(places) == drawn


@every_chart
def test_the_table_has_a_column_for_whatever_is_drawn(name: str) -> None:
    chart = grown(traces.chain())[name]
    columns = [column(chart, *place) for _, *place in chart["layout"]["meta"]["table"]]
    assert len({len(values) for values in columns}) == 1
    assert len(columns[0]) > 3


def test_the_depth_table_says_n_and_the_interval() -> None:
    chart = grown(traces.chain())["acceptance_by_depth"]
    titles = [title for title, *_ in chart["layout"]["meta"]["table"]]
    assert titles.count("n") == titles.count("95 % interval (Wilson)") == 2
    first = {title: column(chart, *place)[0] for title, *place in chart["layout"]["meta"]["table"][:4]}
    assert first["n"] == 7
    row = metrics(traces.chain())["acceptance_by_depth"][0]
    low, high = (percent(row[name]) for name in ("joint_low", "joint_high"))
    assert first["95 % interval (Wilson)"] == f"{low} to {high}"


def test_extending_costs_the_same_at_step_one_and_two_hundred() -> None:
    sizes = [len(json.dumps(points)) for points in points_of(traces.long(200).steps)]
    assert sizes[-1] <= 1.3 * max(sizes[:10])


def test_a_very_deep_draft_does_not_swell_every_later_step() -> None:
    *_, last = points_of(traces.Builder().chain(300, 0).chain(2, 1).trace.steps)
    points = last["acceptance_by_depth"]
    assert len(points["x"][0]) == DEEPEST


@every_chart
def test_backgrounds_are_clear_and_colours_are_the_palettes(name: str) -> None:
    chart = json.dumps(grown(traces.chain())[name])
    allowed = {entry["light"] for group in PALETTE.values() for entry in group.values()}
    used = {word for word in chart.split('"') if word.startswith("#")}
    assert used
    assert used <= allowed
    assert chart.count("rgba(0,0,0,0)") == 2
    assert '"font": {"color"' not in chart


# ---------------------------------------------------------------- the palette


def test_the_palette_names_every_status_and_series() -> None:
    assert tuple(PALETTE["statuses"]) == STATUSES
    assert list(PALETTE["series"]) == ["p", "q"]
    assert tuple(PALETTE["phases"]) == PHASES
    for entry in PALETTE["statuses"].values():
        assert entry.keys() >= {"light", "dark", "label", "mark"}
    assert PALETTE["statuses"]["ignored"]["label"] == "not judged"


def test_statuses_never_differ_by_colour_alone() -> None:
    marks = [entry["mark"] for entry in PALETTE["statuses"].values()]
    assert len(set(marks)) == len(marks)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("status", STATUSES)
def test_text_in_a_status_colour_is_readable(status: str, theme: str) -> None:
    shown, background = (luminance(colour) for colour in (palette.colour(status, theme), BACKGROUNDS[theme]))
    light, dark = max(shown, background), min(shown, background)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.1."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# ---------------------------------------------------------------- imports


def test_views_and_numbers_load_nothing_heavy() -> None:
    code = (
        "import sys, specviz.trace.file, specviz.trace.metrics, specviz.views.explore.charts, specviz.views.terminal\n"
        "specviz.views.explore.charts.Figures(None).initial()\n"
        "heavy = {'torch', 'gradio', 'transformers', 'plotly', 'pandas', 'numpy'} & set(sys.modules)\n"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT_FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
