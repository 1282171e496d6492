"""The Check page's section "End to end": whole texts against the target's probability of each token. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.views import blocks
from specviz.views.blocks import Options, PageBlock, PageSection, TableBlock
from specviz.views.check.sections import Names, cell_bars, effort_words, seed_control, state_blocks
from specviz.views.compare.plan_charts import curve
from specviz.views.explore.charts import Chart, axes_of, chart_of, line_of
from specviz.views.words import percent

if TYPE_CHECKING:
    from specviz.checks.end_to_end import EndToEnd, FirstToken
    from specviz.checks.greedy import Greedy
    from specviz.checks.statistics import Evidence

TOKENS = (100, 2_000, 1_000_000)  # fewest, at first, most
CALLED_OUT = 6  # log10 of the evidence E that calls a rule wrong
POWER_CAPTION = (
    "From each rule's exact probabilities at these positions, where it judges one token; "
    "detected nine times in ten."
)
LIMIT = "from this line on the rule is called wrong, whatever comes after"
END_TO_END = (
    "end_to_end",
    "End to end",
    "The engine writes texts; the target alone then reads them. It knows the exact probability of every token, so "
    "each token is checked, and you may watch the evidence grow. Then the first token of one prompt is drawn many "
    "times. False alarms: under 2 in a million, both checks together.",
)


def end_to_end(
    options: Options,
    rule: str,
    result: EndToEnd | None,
    names: Names,
    *,
    first: FirstToken | None = None,
    greedy: Greedy | None = None,
    tokens: int = TOKENS[1],
    seed: int = 0,
    made_by: str = "",
    refusal: str = "",
) -> PageSection:
    """The section "End to end".

    first: one prompt's first token, drawn many times. greedy: the check at temperature 0, without the other two.
    made_by: the writer of the texts, in words. refusal: why there is nothing to check.
    """
    if refusal:
        return blocks.PageSection(*END_TO_END, blocks=[blocks.WordsBlock(refusal)])
    controls = [
        blocks.ChoiceControl("rule", "Rule", options, rule),
        blocks.CountControl("tokens", "Tokens", tokens, TOKENS[0], TOKENS[2]),
        seed_control(seed),
        blocks.ButtonControl("write", "Write and judge", primary=True),
    ]
    shown = []
    if greedy is not None:
        shown += _greedy_blocks(greedy)
    if result is not None:
        shown += _evidence_blocks(result)
    if first is not None:
        words = f"{first.done:,} of {first.total:,} first tokens; the verdict comes after the last"
        bars = cell_bars(first.cells, first.tokens, names, is_done=first.outcome is not None)
        lead = blocks.WordsBlock("The first token after one prompt, drawn with many seeds:")
        shown += [lead, *state_blocks(first, words), bars]
    if not shown:
        writer = made_by or "the pair and the settings of Explore"
        words = f"No text yet. Press Write and judge: texts are written with {writer}."
        shown.append(blocks.WordsBlock(words))
    return blocks.PageSection(*END_TO_END, controls, shown)


def _evidence_blocks(result: EndToEnd) -> list[PageBlock]:
    shown = state_blocks(result, f"{result.done:,} of {result.total:,} tokens written and judged")
    if result.done:
        shown += [_features_table(result.evidence), blocks.ChartBlock(evidence_chart(result.track))]
    if result.power:
        title = "Which wrong rules would this many tokens show?"
        shown.append(blocks.DetailsBlock(title, [_power_table(result)]))
    return shown


def _power_table(result: EndToEnd) -> TableBlock:
    """How many tokens each wrong or lossy rule needs to be detected, the fewest first."""
    needs = []
    for power in result.power:
        needs.append((power.tokens_needed or math.inf, power))
    needs.sort(key=lambda need: need[0])
    rows = []
    for needed, power in needs:
        effort = effort_words(power.tokens_needed, "tokens")
        rows.append([power.rule.title, effort, "yes" if needed <= result.done else "no"])
    columns = ("wrong or lossy rule", "tokens needed", f"shown by {result.done:,}")
    return blocks.TableBlock(columns, rows, caption=POWER_CAPTION)


def _features_table(evidence: Evidence) -> TableBlock:
    """How often the tokens had each feature, beside how often they should."""
    n = max(1, evidence.num_tokens)
    features = zip(
        evidence.features,
        evidence.observed.tolist(),
        evidence.expected.tolist(),
        evidence.shifts,
        evidence.z,
        evidence.smallest_shifts(),
        strict=True,
    )
    rows = []
    for name, seen, expected, shift, z, smallest in features:
        shares = [percent(seen / n), percent(expected / n)]
        least = f"{100 * smallest:.1f} points" if math.isfinite(smallest) else "none yet"
        rows.append([name, *shares, f"{100 * shift:+.1f} points", f"{z:+.1f}", least])
    columns = (
        "how often the token was",
        "written",
        "expected",
        "shift",
        "z",
        "smallest detectable shift",
    )
    caption = "z is a guide only; the verdict rests on the evidence below."
    return blocks.TableBlock(columns, rows, caption=caption)


def evidence_chart(track: Sequence[tuple[int, float]]) -> Chart:
    """The chart of log10 E against tokens, with the line that calls a rule wrong as soon as E reaches it."""
    x = [0, *(tokens for tokens, _ in track)]
    y = [0.0, *(round(level, 3) for _, level in track)]
    hover = "after %{x} tokens: E = 10^%{y:.1f}"
    run = curve("evidence against the rule", "p", x, y, hover)
    limit = line_of(LIMIT, "rejected", LIMIT)
    limit |= {"x": [0, x[-1]], "y": [CALLED_OUT, CALLED_OUT]}
    limit["line"]["dash"] = "dash"
    axes = axes_of("tokens", {"title": {"text": "log10 of E"}}, rangemode="tozero")
    table = [["tokens", 0, "x"], ["log10 of E", 0, "y"]]
    return chart_of("Evidence against the rule, token by token", [run, limit], axes, table)


def _greedy_blocks(greedy: Greedy) -> list[PageBlock]:
    words = "At temperature 0, the text must be the target's own greedy text, token for token:"
    progress = f"{greedy.done} of {greedy.total} prompts compared"
    shown = [blocks.WordsBlock(words), *state_blocks(greedy, progress)]
    if greedy.differences:
        rows = []
        for difference in greedy.differences:
            ours = f"{difference.ours} ({difference.our_logit:.6f})"
            expected = f"{difference.expected} ({difference.expected_logit:.6f})"
            rows.append([f"{difference.prompt + 1}", f"{difference.place + 1}", ours, expected])
        columns = ("prompt", "token", "written id (logit)", "the target's own id (logit)")
        shown.append(blocks.TableBlock(columns, rows, caption="Where the texts first differ."))
    return shown
