"""Run the command line in processes of its own that need not load Beam each time."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.pipelines.small_streams import ROOT, environment

# Beam is loaded once; each command is a fork whose output goes to files.
_SERVER = """
import json, os, sys, traceback
import pipelines.commands.run, pipelines.main, pipelines.run
for line in sys.stdin:
    words, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        status = 99
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        try:
            status = pipelines.main.main(words)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a command left."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """Return the one line in which an error is told, without the program's name."""
        assert "Traceback" not in self.err, self.err
        lines = self.err.splitlines()
        told = ("advance ", "WARNING:pipelines.create_stream:")
        assert all(line.startswith(told) for line in lines[:-1]), self.err
        assert lines, self.status
        assert lines[-1].startswith("zephon-beam: error: "), self.err
        return lines[-1].removeprefix("zephon-beam: error: ")


class Commands:
    """The command line, as a user meets it."""

    def __init__(self, server: "subprocess.Popen[str]", folder: Path) -> None:
        """Use a running server and a folder for what commands print."""
        self._server = server
        self._out, self._err = folder / "out", folder / "err"

    def __call__(self, *words: str | Path) -> Outcome:
        """Run a command to its end."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = [[str(word) for word in words], str(self._out), str(self._err)]
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        return Outcome(status=status, out=self._out.read_text(), err=self._err.read_text())


@contextmanager
def serve_commands(folder: Path, options: Sequence[str] = ()) -> Iterator[Commands]:
    """Start a server of commands that ends with the block."""
    with subprocess.Popen(
        [sys.executable, *options, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
        text=True,
    ) as server:
        assert server.stdin is not None
        try:
            yield Commands(server, folder)
        finally:
            server.stdin.close()
