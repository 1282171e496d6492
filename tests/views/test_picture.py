"""The lessons' pictures: each is drawn from the lesson's own recorded runs."""

import pytest

from specviz.lessons.load import found_lessons
from specviz.trace.shipped import shipped_trace
from specviz.views.learn.lesson import lesson_props
from specviz.views.learn.picture import MOST_ROWS, picture

LESSONS = found_lessons().lessons


@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_has_a_picture_of_one_of_its_own_runs(name):
    shown, lesson = picture(LESSONS[name]), LESSONS[name]
    steps = [step for run in lesson.runs() for step in shipped_trace(run).steps]
    texts = {token.text.strip() for step in steps for token in (*step.draft, *step.emitted)}
    rows = shown.lanes or shown.bars
    assert shown.words
    assert 1 <= len(rows) <= 2 * MOST_ROWS
    for _, cells in shown.lanes or ():
        assert {text.strip("␣⏎") for text, _ in cells} <= {text.strip("\n") for text in texts}
        assert {status for _, status in cells} <= {"accepted", "rejected", "ignored", "resampled", "bonus", "plain"}
    for bar in shown.bars or ():
        assert sum(width for _, width in bar.parts) <= 100.001
        assert 0 <= bar.tick <= 100


def test_the_draw_of_the_third_lesson_is_the_one_that_was_recorded():
    token = shipped_trace("first-visit").steps[0].draft[1]
    (bar,) = picture(LESSONS["acceptance-rule"]).bars
    assert bar.parts[0] == ("both", round(100 * token.accept_prob, 3))
    assert bar.tick == round(100 * token.u, 3)
    assert token.status == "rejected"


def test_a_screen_lights_what_it_is_about():
    lit = {name: [screen.lit for screen in lesson_props(name).screens] for name in LESSONS}
    assert lit["why-slow"][:2] == [["text", "lanes", "numbers"], ["text", "lanes", "numbers", "player"]]
    assert lit["acceptance-rule"][1] == ["text", "lanes", "inspector", "tools"]
    assert lit["residual"][2] == []  # two runs side by side, which is no stage of one run
