"""The section of the Compare page that asks many prompts: what to ask, the progress, and the findings as a report.

Takes plain values, returns a section of `blocks`.
"""

import json
from collections.abc import Sequence

from specviz.alignment.report.command import command_of
from specviz.alignment.report.sections import BY_DEPTH, compact
from specviz.alignment.summary import Summary
from specviz.views import blocks
from specviz.views.blocks import BarsBlock, PageBlock, PageControl, PageSection, TextsBlock
from specviz.views.words import draft_label, percent, reveal

NAME = "many-prompts"
TITLE = "Many prompts"
LEAD = (
    "One run says little about a draft model: prompts differ too much. Here, the target writes a text for each of "
    "many prompts, every draft model on this machine reads them all once, and the drafts are compared prompt by "
    "prompt. Draft heads can be asked as well: their agreement changes with depth in the draft."
)
MODELS, HEADS, BOTH = "models", "heads", "both"
DRAFTS = (("Models", MODELS), ("Heads", HEADS), ("Models and heads", BOTH))
"""Who is asked."""
EVERY = "every"
OWN = "own"
MOST_PROMPTS = 100
MOST_CHARACTERS = 50_000  # of own prompts
TOKENS = (8, 32, 128)  # per prompt: least, usual, most
OPTIONS = (blocks.CountControl("tokens", "Tokens per prompt", TOKENS[1], TOKENS[0], TOKENS[2]),)
NOT_YET = "The settings are those of the run on Explore, or the defaults before there is one."


def many_prompts(
    kinds: Sequence[tuple[str, str]],
    *,
    summary: Summary | None = None,
    asked: str = "",
    texts: TextsBlock | None = None,
    progress: tuple[int, int, str] | None = None,
    with_heads: bool = False,
    refused: Sequence[str] = (),
) -> PageSection:
    """The whole section.

    kinds: (title, name) of the ready prompts. asked: the prompts that the summary is about, in words. texts: the block
    of `texts_block`. progress: prompts done, prompts in all, and words. with_heads: whether draft heads were asked.
    refused: the heads that could not be asked, and why.
    """
    shown: list[PageBlock] = [blocks.progress(*progress)] if progress is not None else []
    if summary is None:
        shown = shown or [blocks.WordsBlock(NOT_YET)]
        return blocks.PageSection(NAME, TITLE, LEAD, _controls(kinds, True), shown, OPTIONS)
    if asked:
        shown.append(blocks.WordsBlock(f"{asked}."))
    shown += [blocks.VerdictBlock("unsure", reveal(words)) for words in refused]
    shown += compact(summary, texts, opened=[BY_DEPTH] if with_heads else ())
    words = ["For more prompts, and a report to keep: ", command_of(summary)]
    shown.append(blocks.WordsBlock(words, small=True))
    text = json.dumps(summary.to_dict(), ensure_ascii=False, indent=1)
    shown.append(blocks.DownloadBlock("Save the summary as JSON", "summary.json", text))
    return blocks.PageSection(NAME, TITLE, LEAD, _controls(kinds, False), shown, OPTIONS)


def agreement_bars(runs: Sequence[tuple[str, float]], first: str) -> BarsBlock:
    """The agreement of each run, the mean of its sum min(p, q), by a name. first: what the name is of."""
    rows = []
    for name, alpha in runs:
        rows.append(blocks.bar(draft_label(name), [("accepted", 100 * alpha)], [percent(alpha)]))
    return BarsBlock(rows, heads=["agreement, sum min(p, q)"], first=first)


def _controls(kinds: Sequence[tuple[str, str]], is_new: bool) -> list[PageControl]:
    options = [("All ready-made prompts", EVERY), *kinds, ("Own prompts, from the box", OWN)]
    hint = f"one prompt per line, at most {MOST_PROMPTS}"
    return [
        blocks.ChoiceControl("drafts", "Drafts", DRAFTS, MODELS),
        blocks.ChoiceControl("prompts", "Prompts", options, EVERY),
        blocks.LinesControl("own", "Own prompts", "", hint, MOST_CHARACTERS),
        blocks.ButtonControl("analyse", "Analyse", primary=is_new),
    ]
