"""The pages of sections: what every browser session sees of one, which work goes on, how it takes turns at the engine.

A page declares its sections. Here they are stored per session, so that leaving a page and coming back changes nothing,
and sent as JSON. A button starts one job; a session has one job at a time, which can be stopped between two turns.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from specviz.decoding.device import is_out_of_memory
from specviz.decoding.turns import Asker, Unwanted
from specviz.errors import SpecvizError
from specviz.session.workbench import BackgroundTask, Workbench
from specviz.settings import settings
from specviz.trace import Trace
from specviz.ui.registry import Registry
from specviz.ui.reports.section import Act, Look, Section, StagePlace, Work
from specviz.ui.visitors import visitor_of
from specviz.views import blocks
from specviz.views.blocks import (
    ChoiceControl,
    CountControl,
    ExampleBlock,
    PageBlock,
    PageMessage,
    PageSection,
    ProgressBlock,
    VerdictBlock,
    WordsBlock,
)
from specviz.views.words import duration

NEVER = object()
NOT_TIMED = "How long it takes is not measured yet on this machine."
LAST_RESULT = "Your last result. The run on Explore has changed since."
MOST_TIMES = 500
SLICE_S = 0.25  # between two messages about what is being loaded
MOST_SESSIONS = 500
MOST_CHARACTERS = 48_000_000
"""Characters of all that the sessions of one page see; each takes about 3 bytes."""
TAB = re.compile(r"[0-9a-f]{32}")
KEPT_S = 600.0
"""Seconds in which a tab that has left may come back."""
_numbers = itertools.count()


class ReportWork:
    """A job of a session: the sections that it has changed, and what is said aloud at its end."""

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}  # in order
        self.say = ""


class Session:
    """The page as one browser session sees it. Of the run that it looks at it stores the id, and how far the run
    was."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.place = StagePlace()
        self.num_events = 0  # of the run, when it was looked at
        self.num_characters = 0  # of all that is shown
        self.keys: dict[str, object] = {}
        self.shown: dict[str, PageSection] = {}
        self.due: list[str] = []  # sections whose opening work is still to be done
        self.stop = threading.Event()
        self.busy: str | None = None  # the section of the job
        # two looks at once: the second finds what the first has begun
        self.renewing = threading.Lock()
        self.left_at: float | None = None
        self._job: ReportWork | None = None
        self._guard = threading.Lock()

    def copy(self, name: str, opening: Collection[str]) -> Session:
        """A copy of the page for the session of this name, which takes this one's place. A job is left where it was.

        opening: the sections that begin their work by themselves, and so begin it again.
        """
        session = Session(name)
        session.place = self.place
        session.num_events = self.num_events
        session.due = list(self.due)
        session.keys = dict(self.keys)
        session.shown = {name: end_bars(section) for name, section in self.shown.items()}
        if self.busy in opening:
            session.keys.pop(self.busy, None)
        return session

    def start_job(self) -> ReportWork | None:
        """A new job; None while another one goes on."""
        with self._guard:
            if self._job is not None:
                return None
            self._job = ReportWork()
            self.stop.clear()
            return self._job

    def end_job(self, job: ReportWork) -> None:
        with self._guard:
            if self._job is job:
                self._job = None
                self.busy = None


class Sessions:
    """The sessions of one page by name, and by the tab of the browser."""

    def __init__(self, opening: Iterable[str]) -> None:
        """Begins with no session. opening: the sections that begin their work by themselves."""
        self._opening = frozenset(opening)
        self._by_name: dict[str, Session] = {}
        self._by_tab: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> Session | None:
        return self._by_name.get(name)

    def open(self, name: str, tab: Any = None) -> Session:
        """The session of this name. A new one begins with what its tab had before a reload or a lost connection.

        tab: the browser's own id of the tab, which nobody else knows.
        """
        if (session := self._by_name.get(name)) is not None:
            return session
        self._make_room()
        if not isinstance(tab, str) or not TAB.fullmatch(tab):
            tab = None
        before = self._by_tab.pop(tab, None)
        session = Session(name) if before is None else before.copy(name, self._opening)
        self._by_name[name] = session
        if tab is not None:
            self._by_tab[tab] = session
        return session

    def leave(self, name: str) -> None:
        if (session := self._by_name.pop(name, None)) is not None:
            session.left_at = time.monotonic()

    def _make_room(self) -> None:
        """Drops sessions and tabs until there is room for one more of each: those that left too long ago, the
        oldest."""
        latest = time.monotonic() - KEPT_S
        for tab, session in list(self._by_tab.items()):
            if session.left_at is not None and session.left_at <= latest:
                self._by_tab.pop(tab, None)
        for sessions in (self._by_name, self._by_tab):
            size = sum(session.num_characters for session in list(sessions.values()))
            while len(sessions) >= MOST_SESSIONS or (sessions and size > MOST_CHARACTERS):
                oldest = sessions.pop(next(iter(sessions)))
                size -= oldest.num_characters


class ReportPage:
    """A page of sections, for all browser sessions."""

    def __init__(self, sections: Sequence[Section], registry: Registry, bench: Workbench) -> None:
        self._sections = {section.name: section for section in sections}
        self._registry = registry
        self._bench = bench
        self._took: dict[tuple[str, ...], str] = {}
        opening = [section.name for section in sections if section.opening is not None]
        self._sessions = Sessions(opening)

    def look(self, name: str, data: Mapping[str, Any]) -> Iterator[str]:
        """Yields the whole page for the place that is looked at now, then what its opening work finds. A section with
        an unchanged key stays as it was."""
        session = self._sessions.open(name, data.get("tab"))
        self._look_at(session, StagePlace.from_data(data.get("place")))
        self._renew(session)
        whole = [session.shown[name] for name in self._sections]
        job = session.start_job() if session.due else None
        busy = session.busy if job is None else session.due[0]
        message = _message(whole, order=list(self._sections), busy=busy)
        session.num_characters = len(message)
        if job is None:  # the job that goes on does what is due as well
            yield message
            return
        try:
            yield message
            yield from self._do_due(session, job)
        finally:
            session.end_job(job)

    def act(self, name: str, data: Mapping[str, Any]) -> Iterator[str]:
        """Does the job of a section's button. Raises SpecvizError."""
        session = self._sessions.open(name, data.get("tab"))
        section = self._sections.get(str(data.get("section")))
        action = None if section is None else section.acts.get(str(data.get("do")))
        if action is None:
            yield _message([], busy=session.busy)
            raise SpecvizError("this page has changed: load it again")
        job = session.start_job()
        if job is None and not section.engine:
            yield from self._do_beside(session, section, action, _texts_in(data.get("values")))
            return
        if job is None:
            yield _message([], busy=session.busy)
            raise SpecvizError("one task at a time: wait for the running one, or stop it")
        try:
            place = StagePlace.from_data(data.get("place"))
            # a section without a key was forgotten, or stopped before
            if place.run != session.place.run or section.name not in session.keys:
                self._look_at(session, place)
                self._renew(session)
            work = self._do(session, section, action, _texts_in(data.get("values")), job)
            yield from self._as_job(session, job, work)
            yield from self._do_due(session, job)
        finally:
            session.end_job(job)

    def halt(self, name: str) -> None:
        """Ends the job that goes on, after its present turn."""
        if (session := self._sessions.find(name)) is not None:
            session.stop.set()

    def leave(self, name: str) -> None:
        self.halt(name)
        self._sessions.leave(name)

    def _look_at(self, session: Session, place: StagePlace) -> None:
        """Makes the session look at this place from now on, in its run as it is now."""
        view = self._registry.get(place.run)
        session.place = place
        session.num_events = 0 if view is None else len(tuple(view.trace.events()))

    def _look(self, session: Session) -> Look:
        """The place that the session looks at, with the trace as it was then."""
        view = self._registry.get(session.place.run)
        if view is None or view.trace.header is None or session.num_events == 0:
            return Look(session.place, None)
        return Look(session.place, Trace(islice(view.trace.events(), session.num_events)))

    def _renew(self, session: Session, done: Section | None = None) -> list[str]:
        """Begins every section with a key that has changed, and returns their names.

        done: the section whose work has just ended; what it found stays. While a section works that can be made from
        what it shows, it waits for the end.
        """
        renewed = []
        look = self._look(session)
        with session.renewing:
            for name, section in self._sections.items():
                key = section.key(look)
                if session.keys.get(name, NEVER) == key:
                    continue
                if section.again is not None and session.busy == name and done is None:
                    continue
                session.keys[name] = key
                if section is done and section.again is None:
                    continue
                before = session.shown.get(name)
                begun = _begin(section, look, before)
                session.shown[name] = _filled(section, begun, before, self._takes(section, look))
                if section.opening is not None and name not in session.due:
                    session.due.append(name)
                renewed.append(name)
        return renewed

    def _as_job(self, session: Session, job: ReportWork, work: Iterator[str]) -> Iterator[str]:
        """Yields what the work yields, as one of the visitor's jobs. Raises SpecvizError where he has too many."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._registry.job(session.name, settings().max_runs))
            except SpecvizError:
                yield self._end(session, job)
                raise
            yield from work

    def _do_due(self, session: Session, job: ReportWork) -> Iterator[str]:
        """Does the opening work that is due, then yields the message that the page is idle."""
        if session.due:
            yield from self._as_job(session, job, self._open(session, job))
        while session.due:
            session.keys.pop(session.due.pop())  # stopped: another look begins it again
        yield self._end(session, job)

    def _open(self, session: Session, job: ReportWork) -> Iterator[str]:
        """Does the opening work of the sections where it is due, until it is stopped."""
        while session.due and not session.stop.is_set():
            section = self._sections[session.due.pop(0)]
            is_done = False
            try:
                key = self._begin_work(session, section)
                work = section.opening(self._look(session))
                yield from self._take_turns(session, section, work, job, key)
                is_done = not session.stop.is_set()
            except Exception as error:
                # nobody has asked for this work: its section shows the error
                words = WordsBlock(describe_error(error))
                session.shown[section.name] = _with_blocks(session.shown[section.name], [words])
                is_done = True
            finally:
                if not is_done:
                    session.keys.pop(section.name, None)

    def _do(
        self,
        session: Session,
        section: Section,
        action: Act,
        values: Mapping[str, str],
        job: ReportWork,
    ) -> Iterator[str]:
        """Loads what the work needs, does it, and renews the sections that depend on what it found."""
        try:
            key = self._begin_work(session, section)
            look = self._look(session)
            models = yield from self._load_models(session, section)
            if not session.stop.is_set():
                begun_at = time.monotonic()
                work = action(look, values)
                is_done = yield from self._take_turns(session, section, work, job, key)
                if is_done and section.tells_time and action is next(iter(section.acts.values())):
                    self._note_time(session, section, values, time.monotonic() - begun_at)
            del models
        except Exception as error:  # models and traces of strangers may raise anything
            job.changed[section.name] = None
            yield self._end(session, job)
            raise SpecvizError(describe_error(error)) from error
        job.say = _verdicts(session.shown[section.name])
        renewed = self._renew(session, done=section)
        job.changed |= dict.fromkeys((section.name, *renewed))

    def _do_beside(
        self, session: Session, section: Section, action: Act, values: Mapping[str, str]
    ) -> Iterator[str]:
        """Does work that asks no model, beside the job that goes on."""
        try:
            for shown in action(self._look(session), values):
                session.shown[section.name] = shown
                yield _message([shown], busy=session.busy)
        except Exception as error:
            yield _message([], busy=session.busy)
            raise SpecvizError(describe_error(error)) from error

    def _takes(self, section: Section, look: Look) -> str:
        """The words on how long the section's work took the last time, where that is told; empty before it."""
        return self._took.get(_work_key(section, look), "") if section.tells_time else ""

    def _note_time(
        self, session: Session, section: Section, values: Mapping[str, str], seconds: float
    ) -> None:
        """Keeps for all visitors how long the work of the section's first button took."""
        shown = session.shown[section.name]
        settings = _list_settings(shown, values)
        words = f"It took {duration(seconds)} the last time on this machine{settings}."
        self._took[_work_key(section, self._look(session))] = words
        while len(self._took) > MOST_TIMES:
            self._took.pop(next(iter(self._took)))
        session.shown[section.name] = _filled(section, shown, None, words)

    def _end(self, session: Session, job: ReportWork) -> str:
        """Ends the job: the page is idle. All that has changed is sent once more: a page may have missed a message."""
        session.end_job(job)
        return _message([session.shown[name] for name in job.changed], say=job.say)

    def _load_models(
        self, session: Session, section: Section
    ) -> Generator[str, None, list[object]]:
        """Loads the models that the section's work needs; they stay loaded as long as the list lives. The engine is
        free."""
        held = []
        for name in section.needs(self._look(session)):
            loading = BackgroundTask(partial(self._bench.pool.load, name))
            while not loading.wait(SLICE_S) and not session.stop.is_set():
                message, fraction = loading.news
                percent = round(100 * (fraction or 0))
                bar = blocks.progress(percent, 100, message or f"loading {name}")
                shown = session.shown[section.name]
                with_bar = _with_blocks(shown, [bar, *shown.blocks])
                yield _message([with_bar], busy=section.name)
            if session.stop.is_set():
                loading.abandon()
                return held
            held.append(loading.result())
        return held

    def _begin_work(self, session: Session, section: Section) -> object:
        """The key for which the section works from now on. A look that renews the section meanwhile comes first."""
        with session.renewing:
            session.busy = section.name
            return session.keys[section.name]

    def _take_turns(
        self, session: Session, section: Section, work: Work, job: ReportWork, key: object
    ) -> Generator[str, None, bool]:
        """Does the work in turns, until it is stopped or the section's key is another one; returns whether it came to
        its end."""
        name = section.name
        takes = self._takes(section, self._look(session))
        before = session.shown[name]
        job.changed[name] = None
        turns = work
        if section.engine:
            asker = Asker(visitor_of(session.name), session.stop.is_set)
            turns = self._bench.in_turns(work, asker)
        try:
            for shown in turns:
                shown = _filled(section, _put_above(shown, before), before, takes)
                with session.renewing:
                    if session.keys[name] != key:
                        return False
                    session.shown[name] = shown
                yield _message([shown], busy=name)
                if session.stop.is_set():
                    return False
            return True
        except Unwanted:
            return False
        finally:
            work.close()
            session.shown[name] = end_bars(session.shown[name])


def _texts_in(values: Any) -> dict[str, str]:
    """The values of a section's controls that are texts; nothing of them has been checked."""
    if not isinstance(values, dict):
        return {}
    return {str(name): value for name, value in values.items() if isinstance(value, str)}


def _begin(section: Section, look: Look, before: PageSection | None = None) -> PageSection:
    """The section before anything is pressed; an error stands in its own place."""
    try:
        if before is None or section.again is None:
            return section.begin(look)
        return section.again(look, before)
    except Exception as error:  # a trace may come from anywhere
        words = WordsBlock(describe_error(error))
        return PageSection(section.name, section.name.replace("_", " "), "", (), [words])


def _work_key(section: Section, look: Look) -> tuple[str, ...]:
    """A value that changes with what decides how long the section's work takes: the models that it needs."""
    try:
        return (section.name, *section.needs(look))
    except SpecvizError:
        return (section.name,)


def _list_settings(section: PageSection, values: Mapping[str, str]) -> str:
    """The settings of work that was done: the fields in sight, and every number."""
    words = []
    for control in (*section.controls, *section.options):
        if isinstance(control, CountControl):
            words.append(f"{control.label} {values.get(control.name)}")
        elif isinstance(control, ChoiceControl) and control in section.controls:
            chosen = values.get(control.name)
            words += [
                f"{control.label} {each}" for each, value in control.options if value == chosen
            ]
    return f", with {', '.join(words)}" if words else ""


def _filled(
    section: Section, shown: PageSection, before: PageSection | None, takes: str
) -> PageSection:
    """The section with something to look at, and with how long its work takes.

    Without a result, it shows its last one, from before the run on Explore changed, else its example.
    """
    if section.example is None:
        return shown
    if section.tells_time and shown.controls:
        words = takes or shown.takes or NOT_TIMED
        shown = msgspec.structs.replace(shown, takes=words)
    if any(blocks.is_picture(block) for block in shown.blocks):
        return shown
    found = [] if before is None else before.blocks
    examples = [block for block in found if isinstance(block, ExampleBlock)]
    if not examples and any(blocks.is_picture(block) for block in found):
        last = [block for block in found if not (_is_progress(block) or blocks.is_passing(block))]
        examples = [ExampleBlock(LAST_RESULT, last)]
    return _with_blocks(shown, [*shown.blocks, *(examples or [section.example()])])


def _with_blocks(section: PageSection, shown: Sequence[PageBlock]) -> PageSection:
    """The section with these blocks in place of its own."""
    return msgspec.structs.replace(section, blocks=shown)


def end_bars(section: PageSection) -> PageSection:
    """The section without work: a progress bar becomes the words where the work was left."""
    return _with_blocks(section, [_end_bar(block) for block in section.blocks])


def _end_bar(block: PageBlock) -> PageBlock:
    if isinstance(block, ProgressBlock):
        return WordsBlock(f"Stopped at: {block.words}", small=True, stopped=True)
    return block


def _is_progress(block: PageBlock) -> bool:
    if isinstance(block, WordsBlock):
        return block.stopped is True
    return isinstance(block, ProgressBlock)


def _put_above(section: PageSection, before: PageSection) -> PageSection:
    """The progress of the work, above what was found before it."""
    if not all(_is_progress(block) for block in section.blocks):
        return section
    found = [
        block for block in before.blocks if not (_is_progress(block) or blocks.is_passing(block))
    ]
    return _with_blocks(before, [*section.blocks, *found])


def describe_error(error: Exception) -> str:
    if isinstance(error, SpecvizError):
        return str(error)
    if is_out_of_memory(error):
        return "not enough memory on the device; choose a shorter text or a smaller model"
    return f"this could not be done: {type(error).__name__}: {str(error)[:300]}"


def _verdicts(section: PageSection) -> str:
    """The verdicts of a section that is done, for screen readers. One that still shows its progress was stopped."""
    if any(_is_progress(block) for block in section.blocks):
        return f"{section.title}: stopped"
    sentences = [f"{section.title}: done"]
    for block in section.blocks:
        if isinstance(block, VerdictBlock):
            sentences.append("".join(block.words))
    return ". ".join(sentences)


def _message(
    sections: Sequence[PageSection],
    *,
    order: Sequence[str] | UnsetType = UNSET,
    busy: str | None = None,
    say: str = "",
) -> str:
    """A message for the page. It is numbered, because a page hears only of values that differ from the one before."""
    message = PageMessage(sections, order, busy, say, next(_numbers))
    return blocks.dump(message).replace("<", "\\u003c")  # Gradio looks for script tags in texts
