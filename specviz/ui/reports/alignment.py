"""Many prompts on the Compare page: which prompts and models are asked, and the work in turns.

The models are those of the process's workbench, which a served page uses, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from specviz.alignment.job import align_steps
from specviz.alignment.outputs import Alignment
from specviz.alignment.report import live as view
from specviz.alignment.report.texts import read_texts, texts_block
from specviz.alignment.types import KS, ShardTables
from specviz.analysis.costs import Costs
from specviz.errors import SpecvizError
from specviz.prompts import prompts_file
from specviz.request import Request
from specviz.session.workbench import Workbench
from specviz.ui.choices import Offer, list_drafts
from specviz.ui.reports.section import Look, Props, Section, Work, one_of, whole_number
from specviz.ui.reports.trace_models import is_at_hand, names_of
from specviz.views.explore.sentences import counted

SHARD = 4  # prompts per turn: others wait for the engine no longer than that takes


class AlignmentSection:
    """The section. Its result stays while other runs are looked at, because it names its own settings."""

    def __init__(self, bench: Workbench, offer: Offer, costs: Mapping[tuple[str, str | None], Costs]) -> None:
        self._bench, self._offer, self._costs = bench, offer, costs
        kinds = prompts_file()["kinds"]
        self._kinds = tuple((kind["title"], kind["name"]) for kind in kinds)
        self._ready = [
            {"id": prompt["name"], "prompt": prompt["text"], "tags": [kind["name"]]}
            for kind in kinds
            for prompt in kind["prompts"]
        ]

    def section(self) -> Section:
        analyse = {"analyse": self._analyse}
        return Section(view.NAME, lambda look: (), self._props, analyse, needs=self._names, keeps=True)

    def _props(self, look: Look, **state: object) -> Props:
        return view.many_prompts(self._kinds, **state)

    def _names(self, look: Look) -> list[str]:
        """The target and those of its drafts that are at hand: a click here downloads nothing. Raises SpecvizError."""
        first = self._offer.first
        own = [first.target, first.draft] if look.run is None else names_of(look.run, self._bench, self._offer)
        target, *others = (name for name in own if name is not None)
        here = [name for _, name in list_drafts(target, *others) if is_at_hand(name, self._bench)]
        if not here:
            raise SpecvizError(f"no draft model for {target} is at hand: run it with one on Explore first")
        return [target, *here]

    def _analyse(self, look: Look, values: Mapping[str, str]) -> Work:
        target, *drafts = self._names(look)
        known = {name: costs for (of, name), costs in self._costs.items() if of == target and name in drafts}
        prompts, words = self._prompts(values)
        settings = self._offer.first if look.settings is None else look.settings
        sampling = {name: getattr(settings, name) for name in Request.SAMPLING}
        work = align_steps(
            prompts,
            target=target,
            draft=drafts,
            k=min(max(1, settings.to_dict()["k"]), KS[-1]),
            max_new_tokens=whole_number(values, "tokens", view.TOKENS[0], view.TOKENS[2]),
            costs=known,
            shard_size=SHARD,
            **sampling,
        )
        with closing(work):
            for progress in work:
                done = f"{progress.words}: {progress.done} of {progress.total} prompts"
                yield self._props(look, progress=(progress.done, progress.total, done))
        yield self._props(look, summary=progress.result.summary, asked=words, texts=_texts_of(progress.result))

    def _prompts(self, values: Mapping[str, str]) -> tuple[Sequence[str | Mapping[str, object]], str]:
        """The chosen prompts, and the choice in words. Raises SpecvizError."""
        titles = {view.EVERY: "all kinds", **{name: title for title, name in self._kinds}}
        chosen = one_of(values, "prompts", [view.OWN, *titles])
        if chosen == view.OWN:
            own = _split_own(values.get("own", ""))
            return own, counted(len(own), "own prompt")
        ready = [prompt for prompt in self._ready if chosen in (view.EVERY, *prompt["tags"])]
        return ready, f"{counted(len(ready), 'ready prompt')}: {titles[chosen]}"


def _split_own(text: str) -> list[str]:
    """The lines of the box. Raises SpecvizError."""
    if len(text.encode("utf-16-le", "surrogatepass")) // 2 > view.MOST_CHARACTERS:  # as the browser counts them
        raise SpecvizError(
            f"at most {view.MOST_CHARACTERS:,} characters in the box (yours is longer): use python -m specviz align "
            "for more"
        )
    own = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(own) <= view.MOST_PROMPTS:
        raise SpecvizError(f"write from 1 to {view.MOST_PROMPTS} prompts, one per line (got {len(own)})")
    return own


def _texts_of(alignment: Alignment) -> Props | None:
    summary = alignment.summary
    tokens, prompts = (
        {name: frame[name].to_numpy() for name in frame} for frame in (alignment.tokens, alignment.prompts)
    )
    views = read_texts(ShardTables(tokens, prompts, {}, {}, (), ()))
    return texts_block(views, [draft.name for draft in summary.drafts], summary.num_prompts)
