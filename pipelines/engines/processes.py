"""Processes of engines: each dies with the process that started it, and only those are ended."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zephon_beam.errors import ZephonBeamError

STARTED_IN_TIME_SECS = 180.0
_STOPPED_IN_TIME_SECS = 10.0
_LAST_LINES = 15

# The kernel ends the process with the thread that started it, also when that one is killed; `exec`
# keeps both the request and the process id.
_BOUND = """
import os, signal, sys
if sys.platform.startswith("linux"):
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def bound_to_parent(words: Sequence[str]) -> list[str]:
    """Return the words of a command that ends with the thread of this process that starts it."""
    return [sys.executable, "-S", "-c", _BOUND, str(os.getpid()), *words]


class Process:
    """A process that was started here, with its output in a file."""

    def __init__(
        self, words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a program; call this in the main thread, with which the process ends."""
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                bound_to_parent(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        self.pid = self._child.pid

    def is_running(self) -> bool:
        """Say whether the process has not ended."""
        return self._child.poll() is None

    def kill(self) -> None:
        """End the process at once, as a crash of its machine would."""
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        """Ask the process to end, and end it if it does not."""
        self._child.terminate()
        try:
            self._child.wait(_STOPPED_IN_TIME_SECS)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self) -> str:
        """Return the end of what the process has written."""
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that nobody uses at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def is_listening(port: int) -> bool:
    """Say whether something answers at a port of the loopback address."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], processes: Sequence[Process], what: str) -> None:
    """Wait for a condition while processes run.

    Raises:
        ZephonBeamError: one of them ended, or it takes too long.
    """
    end = time.monotonic() + STARTED_IN_TIME_SECS
    while not condition():
        ended = next((process for process in processes if not process.is_running()), None)
        if ended is not None:
            raise ZephonBeamError(
                f"{what} must start, but process {ended.pid} ended: {ended.last_words()}"
            )
        if time.monotonic() > end:
            raise ZephonBeamError(
                f"{what} must be ready within {STARTED_IN_TIME_SECS:.0f} s; see "
                f"{processes[0].log.parent}: {processes[-1].last_words()}"
            )
        time.sleep(0.1)
