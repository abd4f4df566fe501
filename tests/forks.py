"""Processes that need not load Beam each time: forks of a server, started and killed at will.

A fork runs one function of a module, by name. What its death leaves behind falls to the server,
which the kernel makes the parent of orphans, so that none of them goes unnoticed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.processes import children, is_running

ROOT = Path(__file__).parents[1]
DEADLINE_SECS = 120

_SERVER = """
import ctypes, importlib, json, os, sys, traceback
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    request = json.loads(line)
    if "wait" in request:
        print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
        continue
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            os.environ.update(request["environment"])
            module, _, name = request["call"].partition(":")
            getattr(importlib.import_module(module), name)(**request["with"])
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(child, flush=True)
"""


class Forks:
    """Starts functions in processes of their own, and waits for them."""

    def __init__(self, server: "subprocess.Popen[str]", said: Path) -> None:
        """Use a running server, which writes what processes say to a file."""
        self._server = server
        self._said = said

    @property
    def pid(self) -> int:
        """The server."""
        return self._server.pid

    def start(
        self, call: str, options: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> int:
        """Start `module:function` with keyword arguments; return its process."""
        request = {"call": call, "with": options, "environment": dict(environment or {})}
        return self._ask(request)

    def wait(self, process: int) -> int:
        """Wait for the end of a process and return its status, negative for a signal."""
        return self._ask({"wait": process})

    def kill(self, process: int) -> bool:
        """Kill a process; return whether it was killed, else it had ended by itself and well."""
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        status = self.wait(process)
        assert status in (0, -signal.SIGKILL), (status, self.said())
        return status != 0

    def said(self) -> str:
        """Return the last lines of what processes have written to standard error."""
        return "\n".join(self._said.read_text(errors="replace").splitlines()[-40:])

    def orphans(self) -> list[int]:
        """Return running processes that were left behind, once each process was waited for.

        Those that notice the end of their parent get the time to do so.
        """
        end = time.monotonic() + DEADLINE_SECS
        while found := [child for child in children(self._server.pid) if is_running(child)]:
            if time.monotonic() > end:
                return found
            time.sleep(0.05)
        return []

    def _ask(self, request: Mapping[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


@contextmanager
def serve_forks(
    modules: Sequence[str],
    folder: Path,
    *,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Forks]:
    """Start a server that has loaded some modules; it ends with the block.

    Args:
        modules: to load.
        folder: where what processes say is kept.
        before: words of the program that starts the server.
        environment: variables of the server and its processes.
    """
    said = folder / "forks.log"
    with (
        said.open("a") as errors,
        subprocess.Popen(
            [*before, sys.executable, "-c", _SERVER, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            cwd=ROOT,
            text=True,
        ) as server,
    ):
        assert server.stdin is not None
        try:
            yield Forks(server, said)
        finally:
            server.stdin.close()


def wait_until(condition: Callable[[], bool]) -> bool:
    """Look at a condition again and again until it holds."""
    end = time.monotonic() + DEADLINE_SECS
    while not condition():
        assert time.monotonic() < end, "the moment never came"
        time.sleep(0.001)
    return True
