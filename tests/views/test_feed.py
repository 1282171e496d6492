"""Laws of the page's props: every width, number and sentence follows from the trace; increments add up to the whole."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specviz.analysis.rounds import Timings, log_median, turns
from specviz.bench.speed import ALONE, ASKED, ROUNDS, Measuring, Speed
from specviz.bench.speed import speed_of as speed_of_timings
from specviz.rules import RULES
from specviz.trace import DraftToken, EmittedToken, Footer, Models, Prompt, Step, Token, Trace
from specviz.trace.first_difference import first_difference, should_be_one_text
from specviz.trace.metrics import METRICS, count, metrics, rounding_words
from specviz.views.compare.side_by_side_player import comparison_words, difference_words
from specviz.views.document import palette_head
from specviz.views.explore.feed import MOST_PROMPT, MOST_SENT, PROMPT_SHOWN, Feed, show_state
from specviz.views.explore.inspector import MOST_SIBLINGS, looks
from specviz.views.explore.library import entry
from specviz.views.explore.steps import show_step
from specviz.views.explore.titles import judged_title, replacement_note
from specviz.views.terminal import numbers_text
from specviz.views.words import label, percent, percents, prose, quote, random_draw, shorten
from tests.helpers import evidence_traces, traces
from tests.helpers.messages import as_json

WEB = Path(__file__).parents[2] / "assets" / "web"
RUNNING = show_state("running")
every_trace = pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL.keys())


def whole(made: Trace) -> dict:
    return json.loads(Feed.from_trace(made, "run").message(0, None))


def end_of(step: Step) -> DraftToken | None:
    """The last token that was cut behind the path, where no sibling of it was kept."""
    path = [node for node, token in enumerate(step.draft) if token.status == "accepted"]
    last = max(path, default=-1)
    cut = [token for token in step.draft if token.status == "rejected" and token.parent == last]
    return cut[-1] if cut else None


def as_looks(step: Step) -> dict:
    return as_json(looks(step))


def steps_of(made: Trace) -> Iterator[tuple[Step, dict]]:
    yield from zip(made.steps, whole(made)["steps"], strict=True)


@pytest.mark.parametrize(
    ("params", "evidence", "filled"),
    [
        ({}, {}, None),
        ({"bias": "on"}, {"filled": "together"}, "together"),
        ({"bias": "on"}, {"filled": "in turn"}, "in turn"),
        ({"bias": "off"}, {"filled": ["together"]}, None),
        ({}, {"heads": 3}, "together"),
        ({"bias": "off"}, {"heads": 3}, "together"),
        ({"bias": "on"}, {"heads": 3}, None),
    ],
    ids=str,
)
def test_a_step_is_filled_in_one_pass_only_where_its_record_says_so(params, evidence, filled):
    """Older records of Medusa do not say it: their heads had no bias yet."""
    made = traces.Builder().chain(changed={"params": params}, evidence=evidence).trace
    assert whole(made)["steps"][0].get("filled") == filled


def texts_in(value: object) -> Iterator[str]:
    """All texts that are shown; "written" goes to the clipboard alone."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        items = ((name, item) for name, item in value.items()) if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            if name != "written":
                yield from texts_in(item)


# ---- lanes and text -----------------------------------------------------------------------------------------------


@every_trace
def test_a_lane_shows_each_drafted_token_with_its_fate_chance_and_draw(make):
    for step, props in steps_of(make()):
        drafted = [token for token in step.draft if token.status != "scratch"]
        if step.is_tree:
            drafted = [token for token in drafted if token.status == "accepted" or token is end_of(step)]
        assert [cell["status"] for cell in props["cells"]] == [token.status for token in drafted]
        assert [step.draft[int(cell["ref"])] for cell in props["cells"]] == drafted
        for token, cell in zip(drafted, props["cells"], strict=True):
            assert cell.get("fill") == (round(100 * token.accept_prob, 1) if token.is_judged else None)
            assert cell.get("tick") == (round(100 * token.u, 1) if token.is_judged else None)


@every_trace
def test_the_last_cell_is_the_token_that_was_not_drafted(make):
    for step, props in steps_of(make()):
        last = [token for token in step.emitted if token.node is None]
        assert (props["last"] or {}).get("status") == (last[0].kind if last else None)


@pytest.mark.parametrize("make", [traces.chain, traces.tree, traces.changed_k, traces.truncated, traces.lookup])
def test_pieces_that_were_not_cut_join_to_the_text(make):
    made = make()
    pieces = [piece for props in whole(made)["steps"] for piece in props["pieces"]]
    assert "".join(text for text, status, _ in pieces if status != "rejected").replace("⏎", "") == made.text


@every_trace
def test_what_was_cut_stands_before_what_came_instead(make):
    for step, props in steps_of(make()):
        refs = [ref for _, _, ref in props["pieces"]]
        shown_cut = [ref for _, status, ref in props["pieces"] if status == "rejected"]
        for ref in shown_cut:
            after = refs[refs.index(ref) + 1]
            parent = step.draft[int(ref)].parent
            assert after == "last" or step.draft[int(after)].parent == parent
        if not step.truncated:
            assert [step.draft[int(ref)] for ref in shown_cut] == [end for end in [end_of(step)] if end]


def test_a_half_character_is_shown_as_bytes_and_never_lost():
    made = traces.halves()
    pieces = [piece for props in whole(made)["steps"] for piece in props["pieces"]]
    assert any(re.fullmatch(r"<[0-9A-F ]+>", text) for text, _, _ in pieces)
    shown = "".join(text for text, status, _ in pieces if status != "rejected" and not text.startswith("<"))
    assert shown == made.text


@every_trace
def test_what_is_copied_is_exactly_the_text(make):
    made = make()
    assert "".join(props["written"] for props in whole(made)["steps"]) == made.text


# ---- the inspector ------------------------------------------------------------------------------------------------


def judged_looks(made: Trace) -> Iterator[tuple[Step, DraftToken, object, dict]]:
    for step in made.steps:
        for position in step.positions:
            if position.child is not None:
                yield step, step.draft[position.child], position, as_looks(step)[str(position.child)]


def axis_end(look: dict) -> float:
    """The share at the right end of the axis, read from its last tick."""
    return float(look["axis"][-1][1].removesuffix("\u00a0%")) / 100


@every_trace
def test_solid_and_hatched_is_the_target_solid_and_dotted_the_draft(make):
    for _, _, position, look in judged_looks(make()):
        rows, end = look["rows"], axis_end(look)
        total = {name: sum(rows[name]) * end for name in ("both", "excess", "shortfall")}
        assert total["both"] + total["shortfall"] == pytest.approx(100, abs=0.1)
        assert total["both"] + total["excess"] == pytest.approx(100, abs=0.1)
        if position.overlap is not None:
            assert total["both"] == pytest.approx(100 * position.overlap, abs=0.1)
            assert look["foot"][0] == pytest.approx(100 * position.overlap, abs=0.01)


@every_trace
def test_the_drafted_row_comes_first_and_its_draw_is_in_the_solid_part_exactly_when_kept(make):
    for _, token, _, look in judged_looks(make()):
        rows, mark = look["rows"], look["draw"]
        assert rows["role"][0] in ("drafted", "both")
        assert mark["accepted"] == (token.status == "accepted")
        assert (mark["x"] < mark["fill"] + 0.011) if mark["accepted"] else (mark["x"] > mark["fill"] - 0.011)
        q = 1 if token.q is None else token.q
        assert mark["x"] * axis_end(look) == pytest.approx(100 * token.u * q, abs=0.01)
        assert mark["bar"] == pytest.approx(rows["both"][0] + rows["excess"][0], abs=0.02)


@every_trace
def test_at_most_eight_tokens_are_shown_and_the_emitted_one_is_among_them(make):
    for step in make().steps:
        for ref, look in as_looks(step).items():
            if "rows" not in look:
                continue
            roles = look["rows"]["role"]
            assert len([role for role in roles if role != "others"]) <= 8
            drawn_here = ref == "last" or len(step.emitted) >= step.draft[int(ref)].depth
            assert any(role in ("emitted", "both") for role in roles) == drawn_here


@every_trace
def test_every_token_that_can_be_clicked_has_a_look(make):
    for _, props in steps_of(make()):
        refs = {cell["ref"] for cell in props["cells"]} | {ref for _, _, ref in props["pieces"]} | {props["focus"]}
        assert refs <= set(props["looks"]) | {"0"}
        assert (props["looks"] or {props["focus"]: None}).keys() >= {props["focus"]}


def rejection(p: float, q: float | None, u: float, temperature: float = 1.0) -> Step:
    """A step that drafts dog, cuts it and writes fox."""
    step = traces.chain().steps[2]
    chance = min(1.0, p / (1.0 if q is None else q))
    place = {"parent": -1, "depth": 1, "status": "rejected"}
    dog = DraftToken(1, " dog", **place, p=p, q=q, p_judged=p, accept_prob=chance, u=u)
    fox = EmittedToken(2, " fox", node=None, kind="resampled", p=0.3, q=0.1)
    return replace(step, draft=(dog,), emitted=(fox,), settings=replace(step.settings, temperature=temperature))


def written(step: Step) -> str:
    return "".join(judged_title(step, 0, step.emitted[0])).replace("\u00a0", " ")


def test_the_title_tells_a_rejection_with_the_traces_numbers():
    assert written(rejection(0.25, 0.4, 0.71)) == (
        "The draft gave dog 40 %, the target only 25 %: accept it 25/40 = 63 % of the time. "
        "The random draw fell at 0.71: rejected, resampled as fox."
    )


def test_the_title_of_a_point_mass_and_of_temperature_zero():
    assert written(rejection(0.25, None, 0.71)) == (
        "The draft proposed dog, which counts as 100 %; the target gave it 25 %: accept it that often. "
        "The random draw fell at 0.71: rejected, resampled as fox."
    )
    greedy = written(rejection(0, 1, 0.5, 0))
    assert "only its most likely token. The draft wrote dog, another token: rejected" in greedy


def test_the_title_never_rounds_a_verdict_away():
    assert "62.50 % of the time. The random draw fell at 0.6251" in written(rejection(0.25, 0.4, 0.6251))
    assert "39.9/40.0" in written(rejection(0.399, 0.4, 0.999))


def test_a_quotient_is_told_only_as_far_as_its_rounded_numbers_bear_it_out():
    assert "54 %, the target only 0.002 %: accept it less than 0.1 % of the time." in written(
        rejection(0.000021, 0.53994, 0.7)
    )
    assert "18 %, the target only 9.2 %: accept it 9.2/18 = about 50 % of the time." in written(
        rejection(0.0918, 0.1836, 0.7)
    )
    assert "99.93 %, the target only 99.89 %: accept it more than 99.9 % of the time." in written(
        rejection(0.9989, 0.9993, 0.9999)
    )


def test_the_note_says_where_the_replacement_came_from():
    step = rejection(0.25, 0.4, 0.71)
    assert "".join(replacement_note(step, step.draft[0], 0.57)).replace("\u00a0", " ") == (
        "fox was resampled from the hatched parts; it makes up 57 % of them."
    )


def test_siblings_stand_beside_each_other_with_the_targets_own_probabilities_and_those_judged_against():
    step = traces.tree().steps[0]
    look = as_looks(step)["1"]
    assert [ref for ref, *_ in look["siblings"]] == ["0", "1", "2"]
    for ref, text, status, own, judged, drafted in look["siblings"]:
        token = step.draft[int(ref)]
        assert (text, status) == (label(token.text, token.bytes), token.status)
        assert (own, drafted) == (percent(token.p), percent(token.q))
        assert judged == ("–" if token.p_judged is None else percent(token.p_judged))
    token = step.draft[1]
    assert token.p != token.p_judged
    assert look["heading"] == "judged"
    note = "".join(look["note"])
    assert f" {percent(token.p)}. After {quote(step.draft[0])} was rejected" in note
    assert f"the remaining probability gives it {percent(token.p_judged)}." in note
    assert look["numbers"][5] == f"{token.p:.4f}"


def test_a_chain_has_no_siblings():
    assert not any("siblings" in look for step in traces.chain().steps for look in as_looks(step).values())


def test_a_wide_place_shows_few_siblings_and_always_the_token_itself():
    words = [f" word{number}".encode() for number in range(100)]
    step = traces.Builder(words).step((-1,) * 30, {20}).trace.steps[0]
    for node in (0, 3, 20):
        refs = [ref for ref, *_ in as_looks(step)[str(node)]["siblings"]]
        assert str(node) in refs
        assert len(refs) <= MOST_SIBLINGS


def test_another_rule_gets_its_own_threshold_bar():
    step = rejection(0.25, 0.4, 0.71)
    original = traces.chain().steps[2]
    other = replace(original, settings=replace(original.settings, rule="typical_acceptance", lossless=False))
    look = next(iter(as_looks(other).values()))
    assert look["view"] == "threshold"
    assert look["title"][0] == "The rule “typical acceptance” accepts "
    assert look["draw"]["fill"] == pytest.approx(100 * other.draft[0].accept_prob, abs=0.01)
    assert step.settings.rule == "speculative_sampling"


def test_raw_probabilities_are_sent_only_where_they_differ():
    step = traces.chain().steps[0]
    assert "p_raw" not in as_looks(step)["0"]["rows"]
    warm = replace(step.positions[0], top=tuple((*row[:5], row[5] / 2, row[6]) for row in step.positions[0].top))
    assert "p_raw" in as_looks(replace(step, positions=(warm, *step.positions[1:])))["0"]["rows"]


# ---- words and numbers --------------------------------------------------------------------------------------------


PERCENTAGES = {
    0: "0 %", 1: "100 %", 0.625: "63 %", 0.0634: "6.3 %", 0.004: "0.4 %", 1e-9: "<0.1 %", 0.0996: "10 %",
    0.9999: ">99.9 %", 0.997: "99.7 %",
}  # fmt: skip


@pytest.mark.parametrize(("share", "words"), PERCENTAGES.items())
def test_percent(share, words):
    assert percent(share).replace("\u00a0", " ") == words


@given(st.floats(0, 1) | st.decimals(0, 1, places=4).map(float))
def test_percent_is_the_nearest_of_its_decimals(share):
    words = percent(share).removesuffix("\u00a0%")
    if words[0] in "<>":
        assert 0 < share < 0.0005 if words == "<0.1" else 0.9995 <= share < 1
        return
    decimals = len(words.partition(".")[2])
    assert words == f"{100 * share + 1e-9:.{decimals}f}"
    assert decimals == (0 < share < 0.0995 or 0.995 <= share < 1 - 1e-9)


@given(st.floats(0, 1e5) | st.decimals(0, 100, places=3).map(float), st.sampled_from([1, 2]))
def test_shorten_is_round(value, digits):
    assert shorten(value, digits) == round(value, digits)


def test_words_keep_different_numbers_apart():
    assert percents(0.25, 0.4) == ("25", "40")
    assert percents(0.401, 0.402) == ("40.1", "40.2")
    assert percents(0.000021, 0.53994) == ("0.002", "54")
    assert percents(0.00016, 0.1877) == ("0.016", "19")
    assert percents(0.3, 0.3) == ("30", "30")
    assert random_draw(0.63, 0.71) == ("63\u00a0%", "0.71")
    assert random_draw(0.6299, 0.6301) == ("62.99\u00a0%", "0.6301")
    assert random_draw(1.0, 0.99999) == ("100.000\u00a0%", "0.99999")
    assert random_draw(0.0, 0.0001) == ("0.00\u00a0%", "0.0001")


def test_spaces_line_breaks_and_directions_are_visible():
    assert label(" dog") == "␣dog"
    assert label("\n") == "⏎"
    assert label("a\u202eb") == "a⟨202E⟩b"
    assert label("", "f09f") == "<F0 9F>"
    assert prose("a\nb\u2066") == "a⏎\nb⟨2066⟩"
    assert len(label("x" * 1000)) <= 48
    assert label("👩\u200d🚀") == "👩\u200d🚀"


@every_trace
def test_nothing_sent_steers_a_page_or_its_reading_direction(make):
    for text in texts_in(whole(make())):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]", text), (
            text
        )


@every_trace
def test_running_totals_are_the_metrics_of_the_steps_so_far(make):
    made = make()
    for index, props in enumerate(whole(made)["steps"]):
        values = metrics(count(Trace([made.header, *made.models, *made.steps[: index + 1]])))
        totals = props["totals"]
        kept = values["acceptance_rate_judged"]
        assert totals["accepted"] == ("" if kept is None else METRICS["acceptance_rate_judged"].spell(kept))
        assert totals["tokens_per_call"] == f"{values['tokens_per_target_call']:.1f}"
        assert totals["counts"]["resampled"] == values["resampled"]
        assert totals["counts"]["ignored"] == values["ignored"]


def test_the_bars_count_what_befell_the_draft():
    for step, props in steps_of(traces.tree()):
        for status, number in props["bar"].items():
            assert number == sum(token.status == status for token in step.draft)


def test_live_changes_are_said_before_their_step_and_change_the_sentence():
    steps = whole(traces.changed_k())["steps"]
    assert [step["changes"] for step in steps] == [[], [], ["K 4 → 2"], [], ["K 2 → 8"], []]
    assert [step["sentence"][1] for step in steps if "sentence" in step] == ["4", "2", "8"]
    assert "The text is distributed exactly as if the target had written alone." in steps[0]["sentence"][2]


# ---- exact, lossy, lossy in part ------------------------------------------------------------------------------------


def mixed() -> Trace:
    """Two lossy steps, two lossless ones."""
    made = traces.Builder().chain(4, 4, changed={"rule": "typical", "lossless": False}).chain(4, 2)
    return made.chain(4, 3, changed={"rule": "speculative_sampling", "lossless": True}).chain(4, 1).finish()


@pytest.mark.parametrize("held", ["Q4_1, computed from its dequantised weights", "weights int4 (bitsandbytes)"])
def test_a_model_whose_weights_were_or_are_held_otherwise_says_so(held):
    made = traces.chain()
    target = replace(made.models[0].target, dtype=f"float32, {held}")
    read = (replace(each, target=target) if isinstance(each, Models) else each for each in made.events())
    context = dict(whole(Trace(read))["steps"][0]["context"])
    assert context["target"] == f"fable-target 26 M, {held}"
    assert context["draft"] == "fable-draft 3 M"


def test_a_target_that_reads_chains_only_says_so_on_the_stage():
    header, *events = traces.chain().events()
    why = "its numbers in a token tree are not those of the same tokens in a row"
    said = [f"{header.request['target']}: it reads chains only, as {why}"]
    for told, expected in ((why, said), (7, []), (None, [])):
        begun = replace(header, environment={**header.environment, "chains_only": told})
        context = whole(Trace([begun, *events]))["steps"][0]["context"]
        assert [words for role, words in context if role == "unused"] == expected


def test_the_sampling_names_the_filters_that_are_on():
    changes = {"top_k": 151_936, "top_p": 0.95, "min_p": 0.05, "draft_min_p": 0.0}
    made = traces.Builder().chain().chain(changed=changes).finish()
    said = [dict(step["context"])["sampling"] for step in whole(made)["steps"]]
    assert said == ["temperature 1", "temperature 1, top-k 151936, top-p 0.95, min-p 0.05, draft min-p 0"]


def test_the_rule_and_what_it_promises_are_named():
    (exact,) = [step["context"][0] for step in whole(traces.chain())["steps"] if "context" in step]
    assert exact == ["exact", "exact · Speculative sampling"]
    assert whole(mixed())["steps"][0]["context"][0] == ["lossy", "lossy · Typical acceptance"]


def rounded(made: Trace, dtype: str) -> Trace:
    """The same run by a target of this number format."""
    return Trace(
        replace(event, target=replace(event.target, dtype=dtype)) if isinstance(event, Models) else event
        for event in made.events()
    )


@pytest.mark.parametrize(("dtype", "name"), [("bfloat16", "bf16"), ("float16, weights int8 (torchao)", "fp16")])
def test_where_the_format_rounds_every_badge_says_so_in_the_same_words(dtype, name):
    words = f"exact rule; {name} rounding may change the text at near-ties"
    made = rounded(traces.chain(), dtype)
    first = whole(made)["steps"][0]
    assert first["context"][0] == ["exact", f"{words} · Speculative sampling"]
    assert first["sentence"][2].endswith(f"The text is distributed as if the target had written alone ({words}).")
    assert numbers_text(made).startswith(f"{words}\n")
    assert words in entry(made).facts
    assert rounding_words(count(traces.chain())) == rounding_words(count(rounded(mixed(), dtype))) == ""


def test_two_runs_that_should_be_one_text_say_what_may_have_parted_them():
    greedy = {"temperature": 0.0}
    drafted = traces.Builder().chain(4, 2, changed=greedy).chain(4, 4).finish()
    plain = traces.Builder(seed=1).chain(0, 0, changed=greedy | {"method": "none", "draft_model": None, "k": 0})
    plain = plain.chain(0, 0).chain(0, 0).finish()
    part = first_difference(drafted, plain)
    assert should_be_one_text(drafted, plain)
    assert part is not None
    halves = [rounded(made, "bfloat16") for made in (drafted, plain)]
    words = "".join(difference_words(*halves, ("A", "B")))
    assert words.endswith("Exact rule; bf16 rounding may change the text at near-ties.")
    assert "rounding" not in "".join(difference_words(drafted, plain, ("A", "B")))
    assert not should_be_one_text(halves[0], plain)
    assert not should_be_one_text(plain, plain)
    assert not should_be_one_text(traces.chain(), plain)
    assert comparison_words(drafted, plain).startswith(f"differs from the run without a draft at token {part + 1}: ")
    assert comparison_words(plain, drafted).startswith(f"differs from the run with a draft at token {part + 1}: ")


def test_a_run_that_was_lossy_stays_marked():
    message = whole(mixed())
    told = [step for step in message["steps"] if "context" in step]
    assert told[-1]["context"][0] == ["lossy", "lossy in part (steps 1–2) · Speculative sampling"]
    assert told[-1]["sentence"][-1].endswith("This rule is exact, but earlier steps were lossy.")
    assert "(lossy in part)" in message["speed"]["words"]
    numbers = dict(zip(METRICS, message["numbers"], strict=True))
    for name in ("speedup", "tokens_per_s", "lossy_steps"):
        assert "lossy in part (steps 1–2)" in numbers[name]
    assert "lossy" not in "".join(whole(traces.chain())["numbers"])


def test_no_draft_after_lossy_steps_says_so():
    made = traces.Builder().chain(changed={"lossless": False, "rule": "typical"})
    made.chain(0, 0, changed={"lossless": True, "rule": "speculative_sampling", "method": "none", "draft_model": None})
    told = whole(made.finish())["steps"][1]
    assert told["sentence"][0].endswith("Earlier steps were lossy.")
    assert ["method", "No draft"] in told["context"]
    assert told["context"][0] == ["lossy", "lossy in part (step 1)"]


def test_what_was_measured_of_a_lossy_run_says_so():
    made = traces.Builder().chain(changed={"lossless": False, "rule": "typical"}).trace
    assert "faster (lossy), measured here" in speed_of(made.events(), measured=measurement(1.4))["words"]
    shown = speed_of(made.events(), measured=measurement(1.02))
    assert (shown["value"], shown["words"]) == ("", "about as fast (1.0×, between 1.0× and 1.0×) (lossy)")


# ---- other rules --------------------------------------------------------------------------------------------------


def said_by(rule: str, drafted: int = 4, kept: int = 2) -> tuple[dict, dict]:
    """The look at the token that was cut, and its cell."""
    made = traces.Builder().chain(drafted, kept, changed={"rule": rule, "lossless": False}).finish()
    (props,) = whole(made)["steps"]
    return props["looks"][str(kept)], props["cells"][kept]


@pytest.mark.parametrize("rule", [name for name in RULES if name not in ("speculative_sampling", "graded")])
def test_every_rule_says_what_came_instead_and_where_from(rule):
    look, _ = said_by(rule)
    *_, lead, replacement, _ = look["title"]
    assert lead.endswith("rejected, resampled as ")
    assert look["note"][1] == replacement
    assert look["note"][2].startswith(" was ")
    assert "{" not in look["note"][2]


@pytest.mark.parametrize(("rule", "has_draw"), [("typical", False), ("lenience", True), ("ensemble", True)])
def test_a_rule_without_a_random_draw_shows_none(rule, has_draw):
    look, cell = said_by(rule)
    assert ("draw" in look) == ("tick" in cell) == (", draw " in cell["say"]) == has_draw
    assert "random draw fell" in "".join(look["title"]) or not has_draw


def test_siblings_rejected_before_are_said_in_order():
    step = traces.Builder().step((-1, -1, -1), {2}).trace.steps[0]
    lead = " rejected first. From the remaining probability the target gives it "
    assert lead not in "".join(judged_title(step, 0, None))
    assert f"; 1 other guess for this place was{lead}" in "".join(judged_title(step, 1, None))
    assert f"; 2 other guesses for this place were{lead}" in "".join(judged_title(step, 2, None))


def test_a_refused_reasoning_step_is_seen_and_counted():
    message = whole(evidence_traces.refused())
    first, waiting, kept = message["steps"]
    assert first["refused"] == {"text": ["13", " tokens"], "say": "a reasoning step of 13 tokens, rejected"}
    assert (first["has_rejected"], waiting["has_rejected"]) == (True, False)  # the page goes there by itself
    assert (first["bar"]["refused"], waiting["bar"]["refused"], kept["refused"]) == (13, 0, None)
    assert "The target rejected a reasoning step of 13 tokens." in first["looks"]["last"]["title"][0]
    assert "still writing its own" in waiting["looks"]["last"]["title"][0]
    assert "accepted the whole reasoning step of 4 tokens" in kept["looks"]["last"]["title"][0]
    totals = [(step["totals"]["accepted"], step["totals"]["accepted_words"]) for step in message["steps"]]
    assert totals == [(count, "reasoning steps accepted") for count in ("0 of 1", "0 of 1", "1 of 2")]
    assert "reasoning step of 13 tokens rejected" in first["say"]


def test_what_was_kept_behind_the_end_of_the_text_is_faded():
    made = traces.Builder().chain(4, 4, truncated=3).finish("eos")
    (props,) = whole(made)["steps"]
    assert [cell.get("behind_end", False) for cell in props["cells"]] == [False, False, True, True]
    assert "after the end of the text" in props["cells"][3]["say"]
    assert "The text had already ended, so this token is not part of it." in props["looks"]["3"]["note"][0]
    assert "ended" not in "".join(props["looks"]["1"]["note"])


def test_the_lane_of_a_tree_shows_the_path_and_its_end_and_counts_the_rest():
    words = [f" word{number}".encode() for number in range(100)]
    made = traces.Builder(words).step((-1,) * 60, {40}).finish()
    props = as_json(show_step(made.steps[0], count(made)))
    assert [cell["ref"] for cell in props["cells"]] == ["40"]
    assert (props["more"], props["more_words"]) == (59, ["+59", " on other branches"])
    assert props["focus"] == "last"
    none_kept = traces.Builder(words).step((-1,) * 60, set()).finish()
    props = as_json(show_step(none_kept.steps[0], count(none_kept)))
    assert [cell["ref"] for cell in props["cells"]] == ["59"] == [props["focus"]]


def test_a_long_chain_shows_every_judged_token_and_counts_the_rest():
    words = [f" word{number}".encode() for number in range(100)]
    made = traces.Builder(words).chain(60, 40).finish()
    props = as_json(show_step(made.steps[0], count(made)))
    assert [cell["ref"] for cell in props["cells"]] == [str(node) for node in range(41)]
    assert (props["more"], props["more_words"]) == (19, ["+19"])


# ---- the third number ---------------------------------------------------------------------------------------------


def speed_of(events: list, recorded: bool = False, measured: Speed | None = None) -> dict:
    feed = Feed("run", recorded=recorded)
    for event in events:
        feed.add(event)
    if measured:
        feed.measured = measured
    return json.loads(feed.message(0, None))["speed"]


def measurement(*speedups: float, per_call: float = 100.0, **more: bool) -> Speed:
    """What rounds find in which the method is so many times as fast as no draft; of one number, in all rounds."""
    timings = Timings()
    for number, speedup in enumerate(speedups if len(speedups) > 1 else speedups * ROUNDS, 1):
        for contender, time in ((ALONE, 1 / 31), (ASKED, 1 / 31 / speedup)) * 2:
            timings.add(contender, number, time)
    return speed_of_timings(timings, per_call, 64, **{"drafts": True, "is_shared": False, **more})


def test_speed_is_said_only_where_it_was_measured():
    unmeasured = traces.Builder().chain().finish(baseline=None)
    shown = speed_of(unmeasured.events())
    assert (shown["value"], shown["note"], shown["can_measure"], shown["progress"]) == ("", "", True, None)
    assert re.fullmatch(r"\d+ tokens/s; the ratio is not measured yet", shown["words"])
    words = speed_of(unmeasured.events(), recorded=True)["words"]
    assert re.fullmatch(r"[\d.]+ tokens/s; no baseline was measured beside it", words)
    assert not speed_of(unmeasured.events(), recorded=True)["can_measure"]
    assert speed_of(traces.chain().events(), recorded=True)["value"].endswith("×")


def test_a_speed_after_a_prompt_that_had_been_read_before_says_so():
    made = [*traces.Builder().chain().trace.events(), Footer("length", None, None, extra={"read_before": 5})]
    for recorded in (False, True):
        words = speed_of(made, recorded=recorded)["words"]
        assert re.match(r"[\d.]+ tokens/s \(its prompt, or the beginning of it, had been read before\); ", words)


def test_a_baseline_of_another_moment_gives_no_ratio():
    """As runs had it that were saved before: a speed that was measured once and remembered."""
    remembered = {name: value for name, value in traces.BASELINE.items() if name != "rounds"}
    shown = speed_of(traces.Builder().chain().finish(baseline=remembered).events(), recorded=True)
    assert shown["value"] == ""
    assert re.fullmatch(r"\d+ tokens/s; no baseline was measured beside it", shown["words"])
    measured_in_turn = traces.Builder().chain().finish(baseline={**traces.BASELINE, "tokens_per_s": 1.0})
    assert speed_of(measured_in_turn.events(), recorded=True)["value"] == "", "above its tokens per target call"


def test_a_slower_pace_gives_no_speed():
    paced = traces.Builder().chain(wait_ms=250.0).finish()
    assert speed_of(paced.events())["words"] == "not measured yet"


@pytest.mark.parametrize(("speedup", "words"), [(1.4, "faster"), (0.8, "slower")])
def test_a_measured_speed_is_said_plainly_whichever_way_it_went(speedup, words):
    shown = speed_of(traces.truncated().events(), measured=measurement(speedup))
    assert shown["value"] == f"{speedup}×"
    told = f"{words}, measured here: 31 → {31 * speedup:.0f} tokens/s ({speedup}× to {speedup}×)"
    assert shown["words"].replace("\u00a0", " ") == told


def test_a_measurement_that_says_nothing_is_shown_as_words_and_no_ratio():
    events = list(traces.chain().events())
    for found, words in (
        (measurement(1.5, drafts=False), "this is the baseline"),
        (measurement(1.5, is_shared=True), "under load: others used the engine meanwhile"),
        (measurement(0.2, 0.4, 1.1, 1.1, 2.0, 3.0), "no clear difference"),
        (measurement(9.0, per_call=2.5), "No ratio: the rounds gave more than the tokens per target call"),
    ):
        shown = speed_of(events, measured=found)
        assert (shown["value"], shown["can_measure"]) == ("", True)
        assert shown["words"].startswith(words)


def test_a_measurement_tells_how_far_it_is():
    feed = Feed("run")
    for event in traces.chain().events():
        feed.add(event)
    told = []
    for feed.measuring in (Measuring(), Measuring(1, 26), Measuring(13, 26, round=3)):
        shown = json.loads(feed.message(0, None))["speed"]
        assert (shown["value"], shown["can_measure"]) == ("", False)
        told.append((shown["progress"]["words"], shown["progress"]["width"]))
    assert told == [("waiting for its turn", 0), ("warming up", 3.8), (f"round 3 of {ROUNDS}", 50.0)]


def busy(seed: int) -> tuple[Trace, Speed]:
    """A run, and a measurement of it on a machine that slows down one side or the other at random, up to 30 times."""
    lots = Random(seed)
    made = traces.Builder()
    for _ in range(lots.randrange(1, 12)):
        made = made.chain(4, lots.randrange(5))
    run, timings = made.finish(baseline=None), Timings()
    counters = count(run)
    per_call = counters.num_emitted / counters.calls["target"]
    true_ratio = lots.uniform(0.3, 1.0) * per_call
    slowed = lots.choice(((1, 0), (0, 1), (1, 1)))
    for turn in turns(2, ROUNDS, lots):
        slow_down = 1 + slowed[turn.contender] * lots.choice((0, 29, 29, 29)) * lots.random()
        timings.add(turn.contender, turn.round, slow_down / (true_ratio if turn.contender == ASKED else 1))
    return run, speed_of_timings(timings, per_call, 64, drafts=True, is_shared=False)


def test_no_ratio_above_the_tokens_per_target_call_is_ever_shown_of_200_busy_measurements():
    raw = []
    for seed in range(200):
        run, found = busy(seed)
        feed = Feed("run")
        for event in run.events():
            feed.add(event)
        feed.measured = found
        per_call = metrics(run)["tokens_per_target_call"]
        live = json.loads(feed.message(0, None))["speed"]
        (saved, *_) = feed.recorded_parts("file")
        for shown in (live, as_json(saved.speed)):
            told = " ".join((shown["value"], shown["words"], shown["note"]))
            ratios = [float(ratio) for ratio in re.findall(r"([\d.]+)[×x]", told)]
            assert all(ratio <= per_call + 1e-9 for ratio in ratios), (seed, per_call, told)
        raw.append(log_median(found.found.ratios) / per_call)
    assert sum(share > 1.5 for share in raw) > 20, "the machine was not busy enough to try this"


def test_a_run_under_load_or_under_two_distributions_gives_no_speedup():
    shared = [
        *traces.Builder().chain().trace.events(),
        Footer("length", None, traces.BASELINE, extra={"shared_engine": True}),
    ]
    assert "under load" in speed_of(shared)["words"]
    assert "changed" in speed_of(traces.resampling_changed().events())["words"]
    assert speed_of(traces.resampling_changed().events(), measured=measurement(1.4))["value"] == ""
    assert speed_of(shared, measured=measurement(1.4))["value"] == "1.4×", "it was measured later, in runs of its own"


# ---- messages -----------------------------------------------------------------------------------------------------


@every_trace
def test_increments_add_up_to_the_whole(make):
    made, feed, steps = make(), Feed("run"), []
    for event in made.events():
        feed.add(event)
        message = json.loads(feed.message(len(steps), RUNNING))
        assert message["run"] == "run"
        assert message["from"] == len(steps)
        assert ("head" in message) == (not steps)
        steps += message["steps"]
        assert message["total"] == len(steps)
    assert steps == whole(made)["steps"]
    assert ("done" in message) == (made.footer is not None)


def test_a_pull_gives_what_is_missing_in_bounded_parts():
    feed = Feed.from_trace(traces.long(MOST_SENT + 30), "run")
    first, second = as_json(feed.since(0)), as_json(feed.since(MOST_SENT))
    assert len(first["steps"]) == MOST_SENT
    assert [step["index"] for step in second["steps"]] == list(range(MOST_SENT, MOST_SENT + 30))
    assert first["total"] == MOST_SENT + 30
    assert "head" in first
    assert "head" not in second
    assert feed.since(10**9).steps == []


def test_a_step_is_as_heavy_at_the_end_as_at_the_beginning():
    sizes = [len(json.dumps(step)) for step in whole(traces.long(150))["steps"]]
    assert max(sizes[-20:]) < 1.2 * max(sizes[:20])
    assert sum(sizes) / len(sizes) < 8_100


def test_state_and_end_are_said_in_words():
    feed = Feed("run")
    waiting = show_state("queued", "waiting for the engine", ahead=2)
    assert json.loads(feed.message(0, waiting))["state"]["words"] == "waiting for the engine, 2 ahead"
    assert whole(traces.changed_k())["end"]["words"].startswith("done: the model ended its text · ")
    assert json.loads(Feed.from_trace(traces.chain(), "run").message(0, None, "play"))["play"] is True


def prompted(text: str, tokens: list[str]) -> dict:
    made = traces.empty()
    prompt = Prompt(text, tuple(Token(number, token) for number, token in enumerate(tokens)))
    feed = Feed("run")
    feed.add(replace(made.header, prompt=prompt))
    return json.loads(feed.message(0, None))["head"]


def text_of(head):
    return "".join(text for text, _ in head["prompt"])


def test_a_short_prompt_is_shown_whole():
    assert "hidden" not in prompted("word " * 96, ["word "] * 96)
    assert text_of(prompted("a\nb", ["a", "\n", "b"])) == "a⏎\nb"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
            [
                ("<|im_start|>system⏎\n", "system"),
                ("Be kind.", ""),
                ("<|im_end|>⏎\n<|im_start|>user⏎\n", "user"),
                ("Why?", ""),
                ("<|im_end|>⏎\n<|im_start|>assistant⏎\n", "assistant"),
            ],
        ),
        (
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
            [("<|start_header_id|>user<|end_header_id|>⏎\n⏎\n", "user"), ("Hi", ""), ("<|eot_id|>", "…")],
        ),
        ("<start_of_turn>model\nyes", [("<start_of_turn>model⏎\n", "model"), ("yes", "")]),
        ("[INST] a user asks [/INST]", [("[INST] ", "…"), ("a user asks ", ""), ("[/INST]", "…")]),
        ("if a <| b |> c: user\n", [("if a <| b |> c: user⏎\n", "")]),
    ],
)  # fmt: skip
def test_the_marks_of_a_template_are_folded_and_nothing_is_lost(text, parts):
    head = prompted(text, [text])
    assert [tuple(part) for part in head["prompt"]] == parts
    assert text_of(head) == prose(text)


def test_a_long_prompt_shows_its_end_and_says_what_is_before_it():
    head = prompted("word " * 300, ["word "] * 300)
    assert text_of(head) == "word " * (PROMPT_SHOWN // 5)
    assert head["hidden"]["text"] + text_of(head) == "word " * 300
    num_tokens = 300 - PROMPT_SHOWN // 5
    assert head["hidden"]["words"] == f"{1500 - PROMPT_SHOWN:,} characters ({num_tokens} tokens) before this"


def test_a_prompt_is_never_cut_inside_a_token():
    head = prompted("sixteen letters " * 100, ["sixteen letters "] * 100)
    assert text_of(head).startswith("sixteen letters ")
    other = prompted("x" * 1000, ["not", "these"])
    assert len(text_of(other)) == PROMPT_SHOWN
    assert other["hidden"]["words"] == f"{1000 - PROMPT_SHOWN} characters before this"


def test_of_a_huge_prompt_only_the_end_travels_and_that_is_said():
    head = prompted("x" * 50_000, ["x"] * 50_000)
    assert head["hidden"]["text"].startswith("30,000 characters are not on this page … xxx")
    assert len(head["hidden"]["text"]) < MOST_PROMPT + 60


@pytest.mark.parametrize(
    ("fraction", "progress"),
    [
        (None, None),
        (0, {"width": 0.0, "words": "0 %"}),
        (0.434, {"width": 43.4, "words": "43 %"}),
        (7, {"width": 100.0, "words": "100 %"}),
    ],
)
def test_how_far_loading_has_come_is_a_width_and_a_word(fraction, progress):
    said = as_json(show_state("loading", "loading a model", fraction=fraction).progress)
    assert (said and said | {"words": said["words"].replace("\u00a0", " ")}) == progress


def test_an_empty_trace_has_a_page():
    assert whole(traces.empty())["steps"] == []


def test_a_run_without_its_first_event_sends_no_head_for_a_stage_keeps_the_first_that_it_gets():
    assert "head" not in json.loads(Feed("run").message(0))


def test_the_whole_table_of_numbers_travels_in_the_order_of_the_metrics():
    message = whole(traces.chain())
    assert len(message["numbers"]) == len(message["head"]["metrics"]) == len(METRICS)
    assert message["numbers"][0] == METRICS["tokens_per_target_call"].spell(
        metrics(traces.chain())["tokens_per_target_call"]
    )


# ---- the files ----------------------------------------------------------------------------------------------------


def test_the_template_can_never_be_taken_for_code():
    html = (WEB / "stage/stage.html").read_text("utf-8")
    assert not re.search(r"\$\{|\{\{|`|\\|<script|\son\w+=", html)


def test_the_first_example_says_how_its_bar_is_drawn():
    words = re.sub(r"<[^>]*>", "", (WEB / "stage/stage.html").read_text("utf-8"))
    found = re.search(
        r"gave dog (\d+) %, the target model only (\d+) %. So the bar is (\d+) points long, and (.*) solid", words
    )
    drafted, target, length, solid = found.groups()
    assert (length, solid) == (drafted, f"{target} of the {drafted} are")
    assert f"{target}/{drafted} = {percent(int(target) / int(drafted)).replace(chr(160), ' ')} of the time" in words
    widths = re.findall(
        r"\.sv-welcome-bar \.sv-(?:both|excess) .*width: ([\d.]+)%", (WEB / "stage/stage.css").read_text("utf-8")
    )
    share = 100 * int(target) / int(drafted)
    assert [float(width) for width in widths] == [share, 100 - share]


def test_the_palette_is_the_only_place_of_status_colours():
    head = palette_head()
    assert "</script><" not in head.removesuffix("</script>")
    colours = re.findall(r"#[0-9a-f]{6}", (WEB / "palette.json").read_text("utf-8"))
    assert all(colour in head for colour in colours)
    own = set(
        re.findall(
            r"--sv-(accepted|rejected|ignored|resampled|bonus|plain):", (WEB / "stage/stage.css").read_text("utf-8")
        )
    )
    assert not own


def test_the_feed_loads_no_model_no_page_and_no_chart_library():
    code = (
        "import sys, specviz.views.explore.feed; print([m for m in ('torch', 'gradio', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
