"""The pages of sections: who looks at what, which piece of work goes on, and how it takes turns at the engine.

A page makes its sections; here they are kept per browser session, so that leaving a page and coming back changes
nothing, and sent as JSON. One piece of work at a time per session; it can be stopped between two turns.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from specviz.errors import SpecvizError
from specviz.models.memory import is_out_of_memory
from specviz.session.workbench import BackgroundTask, Workbench
from specviz.trace.file import Trace
from specviz.ui.registry import Registry
from specviz.ui.reports.section import Look, Place, Props, Section, Work
from specviz.ui.reports.sessions import Desk, Desks, Turn, at_rest
from specviz.views import blocks

NEVER = object()
SLICE_S = 0.25  # between two words about what is being loaded
_numbers = itertools.count()


class Report:
    """One page of sections, for all browser sessions."""

    def __init__(self, sections: Sequence[Section], registry: Registry, bench: Workbench) -> None:
        self._sections = {section.name: section for section in sections}
        self._registry, self._bench = registry, bench
        self._desks = Desks(name for name, section in self._sections.items() if section.opening is not None)

    def look(self, session: str, data: Mapping[str, Any]) -> Iterator[str]:
        """The whole page for what is looked at now; what depends on nothing that has changed stays as it was."""
        desk = self._desks.at(session, data.get("tab"))
        desk.look = self._seen(data)
        self._renew(desk)
        whole = [desk.shown[name] for name in self._sections]
        turn = desk.claim() if desk.due else None
        if turn is None:  # whoever is at work does what is due as well
            yield _message(whole, order=list(self._sections), busy=desk.busy)
            return
        try:
            yield _message(whole, order=list(self._sections), busy=desk.due[0])
            yield from self._openings(desk, turn)
        finally:
            desk.free(turn)

    def act(self, session: str, data: Mapping[str, Any]) -> Iterator[str]:
        """What a button of a section does. Raises SpecvizError."""
        desk = self._desks.at(session, data.get("tab"))
        section = self._sections.get(str(data.get("section")))
        action = section and section.acts.get(str(data.get("do")))
        if action is None:
            yield _message([], busy=desk.busy)
            raise SpecvizError("this page has no such button any more: load it again")
        turn = desk.claim()
        if turn is None:
            yield _message([], busy=desk.busy)
            raise SpecvizError("one piece of work at a time: wait for the one that goes on, or stop it")
        try:
            self._look_there(desk, data)
            yield from self._acted(desk, section, partial(action, desk.look, _texts(data.get("values"))), turn)
            yield from self._openings(desk, turn)
        finally:
            desk.free(turn)

    def _look_there(self, desk: Desk, data: Mapping[str, Any]) -> None:
        """A page shows what was looked at when it was opened; one that the server has forgotten begins anew."""
        if Place.told(data.get("place")).run != desk.look.place.run or not desk.shown:
            desk.look = self._seen(data)
            self._renew(desk)

    def halt(self, session: str) -> None:
        """Ends the work that goes on, after its present turn."""
        if (desk := self._desks.known(session)) is not None:
            desk.stop.set()

    def leave(self, session: str) -> None:
        self.halt(session)
        self._desks.leave(session)

    def _seen(self, data: Mapping[str, Any]) -> Look:
        place = Place.told(data.get("place"))
        view = self._registry.get(place.run)
        return Look(place, None if view is None or view.trace.header is None else Trace(view.trace.events()))

    def _renew(self, desk: Desk, kept: str | None = None) -> list[str]:
        """Begins the sections anew whose contents depend on something else than before, and gives their names; what
        `kept` has found stays."""
        with desk.renewing:
            return [name for name, section in self._sections.items() if self._renewed(desk, section, name == kept)]

    def _renewed(self, desk: Desk, section: Section, stays: bool) -> bool:
        """Whether the section was begun anew."""
        name, key = section.name, section.key(desk.look)
        if desk.keys.get(name, NEVER) == key:
            return False
        desk.keys[name] = key
        if stays:
            return False
        desk.shown[name] = _begun(section, desk.look, desk.shown.get(name))
        if section.opening is not None and name not in desk.due:
            desk.due.append(name)
        return True

    def _openings(self, desk: Desk, turn: Turn) -> Iterator[str]:
        """Does what is due, then says that the page is idle."""
        while desk.due and not desk.stop.is_set():
            section = self._sections[desk.due.pop(0)]
            try:
                yield from self._driven(desk, section, section.opening(desk.look), turn)
            except Exception as error:  # nobody has asked for it: it is said in its own place
                desk.shown[section.name] |= {"blocks": [blocks.words(in_words(error))]}
        while desk.due:
            desk.keys.pop(desk.due.pop())  # stopped: another look begins it anew
        yield self._last(desk, turn)

    def _acted(self, desk: Desk, section: Section, work: Callable[[], Work], turn: Turn) -> Iterator[str]:
        """Loads what the work needs, does it, and begins anew what depends on what it found."""
        try:
            models = yield from self._loaded(desk, section)
            if not desk.stop.is_set():
                yield from self._driven(desk, section, work(), turn)
            del models
        except Exception as error:  # whatever models of strangers, and traces of strangers, make of it
            turn.touched[section.name] = None
            yield self._last(desk, turn)
            raise SpecvizError(in_words(error)) from error
        turn.say = _said(desk.shown[section.name])
        turn.touched |= dict.fromkeys((section.name, *self._renew(desk, kept=section.name)))

    def _last(self, desk: Desk, turn: Turn) -> str:
        """The page is idle. All that has changed comes once more: a page may have missed what came between."""
        desk.free(turn)
        return _message([desk.shown[name] for name in turn.touched], say=turn.say)

    def _loaded(self, desk: Desk, section: Section) -> Generator[str, None, list[object]]:
        """The models that the section's work needs, held by whoever holds the list; nobody's engine waits for them."""
        held = []
        for name in section.needs(desk.look):
            loading = BackgroundTask(partial(self._bench.library.load, name))
            while not loading.wait(SLICE_S) and not desk.stop.is_set():
                message, fraction = loading.news
                bar = blocks.progress(round(100 * (fraction or 0)), 100, message or f"loading {name}")
                shown = desk.shown[section.name]
                yield _message([{**shown, "blocks": [bar, *shown["blocks"]]}], busy=section.name)
            if desk.stop.is_set():
                loading.abandon()
                return held
            held.append(loading.result())
        return held

    def _driven(self, desk: Desk, section: Section, work: Work, turn: Turn) -> Iterator[str]:
        """Does the work in turns, until it is stopped or the section has come to depend on something else."""
        desk.busy, key, before = section.name, desk.keys[section.name], desk.shown[section.name]
        turn.touched[section.name] = None
        try:
            for props in self._bench.in_turns(work) if section.engine else work:
                if desk.keys[section.name] != key:
                    return
                desk.shown[section.name] = shown = _above(props, before) if section.keeps else props
                yield _message([shown], busy=section.name)
                if desk.stop.is_set():
                    return
        finally:
            work.close()
            desk.shown[section.name] = at_rest(desk.shown[section.name])


def _begun(section: Section, look: Look, before: Props | None = None) -> Props:
    """The section before anything is pressed; what cannot be made says so in its own place."""
    try:
        return section.begin(look) if before is None or section.again is None else section.again(look, before)
    except Exception as error:  # a trace may come from anywhere
        return blocks.section(section.name, section.name.replace("_", " "), "", (), [blocks.words(in_words(error))])


def _above(props: Props, before: Props) -> Props:
    """How far the work is, above what was found before it."""
    if not all(map(_is_progress, props["blocks"])):
        return props
    found = [block for block in before["blocks"] if not (_is_progress(block) or blocks.is_passing(block))]
    return {**before, "blocks": [*props["blocks"], *found]}


def _is_progress(block: Props) -> bool:
    return block["kind"] == "progress" or block.get("stopped", False)


def in_words(error: Exception) -> str:
    if isinstance(error, SpecvizError):
        return str(error)
    if is_out_of_memory(error):
        return "there is not enough memory on the device for this; choose a shorter text or a smaller model"
    return f"this could not be done: {type(error).__name__}: {str(error)[:300]}"


def _said(props: Props) -> str:
    """The verdicts of a section that is done, for those who listen. One that still shows how far it is was stopped."""
    if any(map(_is_progress, props["blocks"])):
        return f"{props['title']}: stopped"
    found = [block["words"] for block in props["blocks"] if block["kind"] == "verdict"]
    words = [each if isinstance(each, str) else "".join(each) for each in found]
    return ". ".join([f"{props['title']}: done", *words])


def _texts(values: Any) -> dict[str, str]:
    given = values if isinstance(values, dict) else {}
    return {str(name): value for name, value in given.items() if isinstance(value, str)}


def _message(
    sections: Sequence[Props], *, order: Sequence[str] | None = None, busy: str | None = None, say: str = ""
) -> str:
    """Numbered, because a page hears only of values that differ from the one before."""
    message: Props = {"number": next(_numbers), "sections": list(sections), "busy": busy, "say": say}
    if order is not None:
        message["order"] = list(order)
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # Gradio looks for script tags in texts
