"""Waiting for samples that the pipeline has not written yet, visibly and within a limit."""

import logging
import sys
from collections.abc import Callable

from zephon_beam.errors import StreamTimeoutError

FIRST_PAUSE_SECS = 0.02
LONGEST_PAUSE_SECS = 1.0
SHOW_SECS = 1.0
"""The line is rewritten at most so often."""
FIRST_WARNING_SECS = 30.0

logger = logging.getLogger(__name__)


class Waiting:
    """One wait for one step: pauses that grow, one updating line, a time limit.

    A terminal shows a line that is rewritten in place, once a second at most, and removed at the
    end. The log gets one line when the wait begins, and warnings after 30 s, 60 s, 120 s and so on.
    """

    def __init__(
        self,
        who: str,
        *,
        timeout: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        on_pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to wait.

        Args:
            who: names the reader in progress lines.
            timeout: seconds to wait in all, or None for ever.
            clock: seconds that never run backwards.
            sleep: pauses for a number of seconds.
            on_pause: called before each pause.
        """
        self._who = who
        self._on_pause = on_pause
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._pause = FIRST_PAUSE_SECS
        self._warn_at = FIRST_WARNING_SECS
        self._width = 0
        self._shown = float("-inf")
        self._announced = False
        self._first_lag = 0

    @property
    def waited(self) -> float:
        """Seconds since the wait began."""
        return self._clock() - self._began

    @property
    def expired(self) -> bool:
        """Whether the time limit has been reached."""
        return self._timeout is not None and self.waited >= self._timeout

    def pause(self, what: str, lag: int | None = None, reason: str = "") -> None:
        """Report and sleep once, longer each time, never past the limit.

        Args:
            what: is waited for.
            lag: samples that are missing; how fast they come is shown with it.
            reason: why it may be missing, if that is known.
        """
        waited = self.waited
        line = f"{self._who}: waited {waited:.0f} s for {what}"
        if lag is not None:
            self._first_lag = self._first_lag or lag
            rate = (self._first_lag - lag) / waited if waited > 0 else 0.0
            line += f", {lag} samples behind, {rate:.1f} samples/s"
        if reason:
            line += f"; {reason}"
        if not self._announced:
            logger.info("%s: waiting for %s", self._who, what)
            self._announced = True
        if waited >= self._warn_at:
            logger.warning("%s%s", line, "" if reason else "; is the pipeline running?")
            self._warn_at *= 2
        if waited - self._shown >= SHOW_SECS:
            self._shown = waited
            self._show(line)
        self._on_pause()
        left = self._pause if self._timeout is None else self._timeout - waited
        self._sleep(max(0.0, min(self._pause, left)))
        self._pause = min(self._pause * 1.5, LONGEST_PAUSE_SECS)

    def give_up(self, what: str, reason: str = "") -> None:
        """Report that the limit is reached.

        Args:
            what: was waited for.
            reason: why it may be missing, if that is known.

        Raises:
            StreamTimeoutError: always.
        """
        why = f"; {reason}" if reason else ""
        raise StreamTimeoutError(
            f"{what} must exist within timeout={self._timeout:g} s, waited {self.waited:.1f} s"
            f"{why}; nothing can be read until then; check that the pipeline is running and ahead "
            "of the trainer (`zephon-beam inspect STREAM`), raise timeout, or pass timeout=None to "
            "wait for ever"
        )

    def close(self) -> None:
        """Remove the progress line."""
        self._show("")

    def _show(self, line: str) -> None:
        if not sys.stderr.isatty():
            return
        if line or self._width:
            sys.stderr.write("\r" + line.ljust(self._width) + ("" if line else "\r"))
            sys.stderr.flush()
        self._width = len(line)
