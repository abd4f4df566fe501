"""A run that is killed at an edge of an advance, or with its workers, and started again.

For kills at any moment see `test_chaos_kills`.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.forks import DEADLINE_SECS, Forks, serve_forks, wait_until
from tests.pipelines.small_streams import ROOT, SmallStream, environment, tree
from tests.processes import children, is_running

Moment = Callable[[Path], bool]


class Runs:
    """Starts runs of one recipe and kills them."""

    def __init__(self, forks: Forks, recipe: Path) -> None:
        """Use a server of processes."""
        self._forks = forks
        self._recipe = recipe
        self.kills = 0

    def run(self, stream: Path, *, kill_when: Moment, **options: Any) -> bool:
        """Run a stream, killing the process as soon as a moment has come.

        Returns:
            Whether it was killed; otherwise it ended by itself and well.
        """
        words = {"recipe": str(self._recipe), "stream": str(stream), **options}
        process = self._forks.start("pipelines.run:run_stream", words)
        wait_until(lambda: kill_when(stream) or not is_running(process))
        killed = self._forks.kill(process)
        self.kills += killed
        return killed


@pytest.fixture
def runs(narrow: SmallStream, tmp_path: Path) -> Iterator[Runs]:
    """Return a way to run and kill the narrow stream."""
    with serve_forks(["pipelines.run"], tmp_path) as forks:
        yield Runs(forks, narrow.recipe)


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


def assert_no_stray_files(stream: Path) -> None:
    """Check that no half-written object is left where readers look."""
    for kind in ("shards", "state", "end", "carry", "advances"):
        assert not list((stream / kind).rglob(".tmp-*"))
