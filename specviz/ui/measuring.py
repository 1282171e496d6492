"""The measurement of the speed of the run on a stage. It knows no Gradio.

It has a thread of its own, so it goes on, whoever watches, until it is over or stopped. Its feed tells how far it is
and what it found.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing

from specviz.bench.speed import Measuring
from specviz.decoding.turns import Asker, Unwanted
from specviz.errors import SpecvizError
from specviz.session.workbench import Workbench
from specviz.views.explore.feed import Feed


class Measurement:
    """A measurement that goes on in its own thread."""

    def __init__(
        self,
        feed: Feed,
        work: Generator[Measuring, None, None],
        bench: Workbench,
        visitor: str = "",
    ) -> None:
        """Begins to measure.

        work: `measure_in_rounds` of the run's settings; it takes turns at the engine with what others do there.
        visitor: who asked for it.
        """
        self.refusal = ""  # why it could not be made
        self._asker = Asker(visitor, lambda: not self.goes_on)
        self._feed = feed
        self._work = work
        self._bench = bench
        self._guard = threading.Lock()
        self._is_over = threading.Event()
        feed.measuring = Measuring()
        threading.Thread(target=self._do, daemon=True, name="measuring").start()

    @property
    def goes_on(self) -> bool:
        return not self._is_over.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it is over, after at most this long."""
        return self._is_over.wait(seconds)

    def stop(self) -> None:
        """Ends it at once for those who look, and after the turn it is in for the engine; what it found is dropped."""
        self._report(None)

    def _do(self) -> None:
        try:
            with closing(self._bench.in_turns(self._work, self._asker)) as turns:
                for progress in turns:
                    if not self._report(progress):
                        return
        except Unwanted:
            pass  # it was stopped
        except SpecvizError as error:
            self.refusal = str(error)
        except Exception as error:  # a stranger's model may fail in any way
            self.refusal = (
                f"the speed could not be measured: {type(error).__name__}: {error!s:.300}"
            )
        finally:
            self._report(None)

    def _report(self, progress: Measuring | None) -> bool:
        """Puts the progress on the page, and returns whether the measurement goes on. Without progress, and with the
        result, it is over."""
        with self._guard:
            if self._is_over.is_set():
                return False
            speed = None if progress is None else progress.speed
            is_last = progress is None or speed is not None
            self._feed.measuring = None if is_last else progress
            self._feed.measured = speed
            if is_last:
                self._is_over.set()
            return not is_last
