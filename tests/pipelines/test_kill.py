"""A run that is killed at any moment and started again ends in the same stream."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.small_streams import ROOT, SmallStream, environment, tree
from tests.processes import is_running
from zephon_beam.keyed import keyed_int

ADVANCE_SIZES = (1, 24 * 1024, 1 << 27, 1)
"""Source bytes an advance, taken in turn: a run may go on with other ones."""
DEADLINE_SECS = 120

# Loads Beam once and runs each stream in a fork, which is killed like any other process.
_SERVER = """
import json, os, sys, traceback
from pipelines.run import run_stream
for line in sys.stdin:
    recipe, stream, options = json.loads(line)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run_stream(recipe, stream, **options)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

Moment = Callable[[Path], bool]


class Runs:
    """Starts runs of one recipe and kills them."""

    def __init__(self, server: "subprocess.Popen[str]", recipe: Path) -> None:
        """Use a running server."""
        self._server = server
        self._recipe = recipe
        self._started = 0
        self.kills = 0

    def run(self, stream: Path, *, kill_when: Moment | None = None, **options: Any) -> bool:
        """Run a stream, killing the process as soon as a moment has come.

        Returns:
            Whether it was killed; otherwise it ended by itself and well.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        if "advance_bytes" not in options:
            options["advance_bytes"] = ADVANCE_SIZES[self._started % len(ADVANCE_SIZES)]
            self._started += 1
        self._server.stdin.write(json.dumps([str(self._recipe), str(stream), options]) + "\n")
        self._server.stdin.flush()
        process = int(self._server.stdout.readline())
        if kill_when is not None and wait_until(
            lambda: kill_when(stream) or not is_running(process)
        ):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        status = int(self._server.stdout.readline())
        assert status in (0, -signal.SIGKILL), status
        self.kills += status != 0
        return status != 0


@pytest.fixture
def runs(narrow: SmallStream) -> Iterator[Runs]:
    """Return a way to run and kill the narrow stream."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
        text=True,
    ) as server:
        yield Runs(server, narrow.recipe)
        assert server.stdin is not None
        server.stdin.close()


def test_killed_at_every_edge_of_every_advance(
    runs: Runs, narrow: SmallStream, tmp_path: Path
) -> None:
    """When catalogs, manifest, and each advance's plan, first shard, carry or end appear."""
    stream = tmp_path / "s"
    for edge in ("catalog/code.arrow", "stream.json"):
        assert runs.run(stream, kill_when=exists(edge), advance_bytes=1)
    advance, alive = 0, True
    while alive:
        for edge in (
            exists(f"advances/{advance:06d}.json"),
            more_than(stream, "shards"),
            either(exists(f"carry/*/{advance:06d}.avro"), more_than(stream, "end")),
        ):
            alive = runs.run(stream, kill_when=edge, advance_bytes=1)
            assert_no_stray_files(stream)
        advance += 1
    assert advance >= 6
    assert runs.kills >= 12
    assert tree(stream) == narrow.tree


@pytest.mark.parametrize(("seed", "kills"), [(1, 20), pytest.param(2, 200, marks=pytest.mark.long)])
def test_killed_at_random_moments(
    runs: Runs, narrow: SmallStream, tmp_path: Path, seed: int, kills: int
) -> None:
    """Several times a stream, going on with another size of advances each time."""
    began = time.monotonic()
    runs.run(tmp_path / "whole")
    longest = 0.35 * (time.monotonic() - began)
    streams = attempts = 0
    while runs.kills < kills:
        stream = tmp_path / str(streams)
        killed = True
        while killed and runs.kills < kills:
            attempts += 1
            assert attempts <= 4 * kills
            killed = runs.run(stream, kill_when=after(longest * share(seed, attempts)))
            assert_no_stray_files(stream)
        if killed:
            runs.run(stream)
        assert tree(stream) == narrow.tree
        streams += 1


def test_the_command_killed_with_its_workers_leaves_none_behind(
    narrow: SmallStream, tmp_path: Path
) -> None:
    """Worker processes end with their parent, and the command goes on with the stream."""
    stream = tmp_path / "s"
    words = [sys.executable, "-m", "pipelines.main", "run", str(narrow.recipe)]
    words += ["--stream", str(stream)]
    parallel = [
        "--advance-bytes=1",
        "--direct_running_mode=multi_processing",
        "--direct_num_workers=2",
    ]
    with command([*words, *parallel]) as process:
        assert wait_until(lambda: exists("shards/*/*.arrow")(stream))
        workers = children(process.pid)
        assert len(workers) >= 2
        process.send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE_SECS) == -signal.SIGKILL
    assert wait_until(lambda: not any(map(is_running, workers)))
    assert_no_stray_files(stream)
    with command(words) as process:
        assert process.wait(DEADLINE_SECS) == 0
    assert tree(stream) == narrow.tree


@contextmanager
def command(words: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the command line from a checkout; it is not left behind when a test fails."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, env=environment(), cwd=ROOT, stdout=quiet, stderr=quiet) as child:
        try:
            yield child
        finally:
            child.kill()


def exists(pattern: str) -> Moment:
    """Return the moment when an object of a name or pattern is there."""
    return lambda stream: next(stream.glob(pattern), None) is not None


def more_than(stream: Path, kind: str) -> Moment:
    """Return the moment when there are more objects of a kind than now."""
    before = sum(1 for _ in (stream / kind).rglob("*.*"))
    return lambda stream: sum(1 for _ in (stream / kind).rglob("*.*")) > before


def either(*moments: Moment) -> Moment:
    """Return the earlier one of two moments."""
    return lambda stream: any(moment(stream) for moment in moments)


def after(seconds: float) -> Moment:
    """Return the moment so long after now."""
    end = time.monotonic() + seconds
    return lambda _stream: time.monotonic() >= end


def share(seed: int, number: int) -> float:
    """Return a share of 1, always the same for the same arguments."""
    return keyed_int(seed, "moment", number) / 2**64


def wait_until(condition: Callable[[], bool]) -> bool:
    """Look at a condition again and again until it holds."""
    end = time.monotonic() + DEADLINE_SECS
    while not condition():
        assert time.monotonic() < end, "the moment never came"
        time.sleep(0.001)
    return True


def children(parent: int) -> set[int]:
    """Return the processes that a process has started."""
    found = set()
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            found.update(map(int, task.read_text().split()))
        except OSError:
            continue
    return found


def assert_no_stray_files(stream: Path) -> None:
    """Check that no half-written object is left where readers look."""
    for kind in ("shards", "state", "end", "carry", "advances"):
        assert not list((stream / kind).rglob(".tmp-*"))
