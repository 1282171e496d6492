"""Laws of the charts on the stage: loaded when opened, drawn from the points, one selection with all other views."""

import pytest

from specviz.views.explore.charts import KINDS
from tests.browser.stage_page import PHONE, part, push, settle, shown, stages, whole
from tests.helpers import traces
from tests.helpers.growing_charts import grown

stage = pytest.fixture(stages)


def opened(page) -> None:
    page.evaluate("document.querySelector('.sv-charts').open = true")
    page.wait_for_function("document.querySelectorAll('.sv-plot').length === 5")
    page.evaluate("document.querySelector('.sv-charts').scrollIntoView()")
    page.wait_for_function("[...document.querySelectorAll('.sv-plot')].every((plot) => plot.data)")


def column(page, name: str, trace: int, attribute: str) -> list:
    return page.evaluate(
        "([name, trace, attribute]) => document.querySelector(`[data-chart=${name}]`).data[trace][attribute]",
        [name, trace, attribute],
    )


def marked(page) -> dict:
    """Per chart, where its line stands."""
    at = "(plot) => [plot.dataset.chart, (plot.layout.shapes || []).map(({ x0 }) => x0)]"
    return dict(shown(page, ".sv-plot", at))


@pytest.fixture
def chain(stage):
    """A tall stage with all charts open and drawn."""
    page = stage(height=1600)
    push(page, whole(traces.chain()))
    assert page.evaluate("window.Plotly === undefined")
    opened(page)
    return page


@pytest.mark.slow
def test_charts_show_the_figures_of_the_trace_and_follow_the_theme(chain):
    for name, chart in grown(traces.chain()).items():
        for trace, expected in enumerate(chart["data"]):
            assert column(chain, name, trace, "x") == expected["x"]
            assert column(chain, name, trace, "y") == [
                y if y is None else pytest.approx(y, abs=1e-4) for y in expected["y"]
            ]
    chain.evaluate("document.body.classList.add('dark')")
    colour = "document.querySelector('[data-chart={}]').data[0].marker.color === specviz.palette().{}.dark"
    chain.wait_for_function(colour.format("step_bars", "statuses.accepted"))
    chain.wait_for_function(colour.format("time_by_step", "phases.draft"))


def test_each_chart_has_a_title_and_a_table_and_notes_stand_as_text(chain):
    names = shown(chain, ".sv-plot", "(plot) => plot.dataset.chart")
    assert names == list(KINDS)
    for place, name in enumerate(names):
        chain.locator(".sv-chart-table summary").nth(place).click()
        length = len(column(chain, name, 0, "x"))
        chain.wait_for_function(
            "([place, length]) => document.querySelectorAll('.sv-chart-table table')[place].rows.length === length + 1",
            arg=[place, length],
        )
    depth = shown(chain, ".sv-chart:nth-child(2) tr:nth-child(2) :is(th, td)")
    assert depth[:3] == ["1", "86\u00a0%", "7"]
    assert " to " in depth[3]
    assert chain.inner_text(".sv-chart-note").startswith("Selection effect")
    assert len(set(shown(chain, ".sv-plot", "(plot) => plot.getAttribute('aria-label')"))) == 5


def over_bar(page, step: int) -> None:
    bars = page.locator("[data-chart=step_bars] .barlayer .trace").nth(0).locator(".point")
    box = bars.nth(step).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("(step) => hub.hovered && hub.hovered.step === step", arg=step)


@pytest.mark.slow
def test_a_click_on_a_bar_pins_its_step_and_hovering_looks_at_it(chain):
    over_bar(chain, 3)
    assert chain.evaluate("hub.pinned.step") == 1
    chain.mouse.down()
    chain.mouse.up()
    chain.wait_for_function("hub.pinned.step === 3")
    chain.mouse.move(5, 5)
    chain.wait_for_function("hub.hovered === null")
    assert chain.evaluate("hub.selected().step") == 3


REDRAWN = """async () => {
    await Plotly.relayout(document.querySelector('[data-chart=step_bars]'), {'xaxis.title.text': 'again'});
    document.dispatchEvent(new MouseEvent('mouseup', {bubbles: true}));
}"""


@pytest.mark.slow
def test_a_click_counts_also_when_the_chart_is_redrawn_while_the_button_is_down(chain):
    over_bar(chain, 3)
    chain.mouse.down()
    chain.evaluate(REDRAWN)
    assert chain.evaluate("hub.pinned.step") == 3


@pytest.mark.slow
def test_a_click_in_any_chart_selects_what_it_stands_for(chain):
    click = "([name, place]) => document.querySelector(`[data-chart=${name}]`).emit('plotly_click', {points: [place]})"
    for name in KINDS:
        for place in (1, len(column(chain, name, 0, "x")) - 1):
            step, _, ref = column(chain, name, 0, "customdata")[place][0].partition(":")
            chain.evaluate(click, [name, {"pointNumber": place}])
            focus = chain.evaluate("(step) => hub.steps[step].focus", int(step))
            assert chain.evaluate("[hub.pinned.step, hub.pinned.ref]") == [int(step), ref or focus]


@pytest.mark.slow
def test_the_selection_is_marked_in_every_chart_without_a_request(chain):
    chain.evaluate("hub.pin(4, '0')")
    settle(chain)
    settle(chain)
    before = sum(len(step.emitted) for step in traces.chain().steps[:4])
    calls = 5
    expected = {"step_bars": [5], "tokens_by_calls": [calls], "time_by_step": [5], "overlap_strip": [before + 1]}
    assert expected.items() <= marked(chain).items()
    chain.evaluate("hub.hover({step: 1, ref: 'last'})")
    settle(chain)
    settle(chain)
    assert marked(chain)["time_by_step"] == [2]
    chain.evaluate("hub.hover(null)")
    settle(chain)
    settle(chain)
    assert marked(chain)["time_by_step"] == [5]
    assert chain.evaluate("[pulls.length, triggers.length]") == [0, 1]


@pytest.mark.slow
def test_charts_grow_while_tokens_arrive_and_begin_anew_with_a_new_run(stage):
    page, message = stage(height=2400), whole(traces.chain(), recorded=False)
    push(page, part(message, 0, 2))
    opened(page)
    assert column(page, "time_by_step", 0, "x") == [1, 2]
    push(page, part(message, 2, 6))
    page.wait_for_function("document.querySelector('[data-chart=time_by_step]').data[0].x.length === 6")
    push(page, whole(traces.tree(), run="other"))
    page.wait_for_function("document.querySelector('[data-chart=time_by_step]')?.data?.[0].x.length === 5")
    assert column(page, "step_bars", 0, "y") == [step["bar"]["accepted"] for step in whole(traces.tree())["steps"]]


@pytest.mark.slow
def test_charts_out_of_sight_are_not_drawn(stage):
    page = stage(**PHONE)
    push(page, whole(traces.chain()))
    page.evaluate("document.querySelector('.sv-charts').open = true")
    page.locator(".sv-chart").first.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('[data-chart=step_bars]').data")
    assert page.evaluate("document.querySelector('[data-chart=time_by_step]').data === undefined")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator(".sv-chart").last.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('[data-chart=time_by_step]').data")
