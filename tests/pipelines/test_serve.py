"""A pipeline as the child of a trainer: it feeds, it fails loudly, and it never outlives it."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.small_streams import ROOT, environment, write_recipe
from tests.processes import is_running
from zephon_beam.errors import PipelineError, RecipeError, StreamTimeoutError
from zephon_beam.reader import StreamReader
from zephon_beam.serve import serve

DEADLINE_SECS = 60


@pytest.fixture(scope="module")
def recipe(corpus: Path) -> Path:
    """Return an endless recipe whose first samples come early."""
    changes = [("interleave: 3", "interleave: 1"), ("16KiB", "4KiB")]
    return write_recipe(corpus / "served.yaml", changes=changes)


def open_reader(stream: object) -> StreamReader:
    """Open a reader of steps of eight samples."""
    return StreamReader(stream, global_batch_size=8, micro_batch_size=8, timeout=DEADLINE_SECS)


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended."""
    end = time.monotonic() + DEADLINE_SECS
    while is_running(pid):
        assert time.monotonic() < end, pid
        time.sleep(0.05)


def test_a_block_reads_what_its_child_computes_and_ends_it(recipe: Path, tmp_path: Path) -> None:
    """The stream need not exist; a second block goes on with it, also with wrong neighbours."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text("raise RuntimeError('shadowed')")
    seen = []
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(2):
            with serve(recipe, tmp_path / "stream", lookahead=300) as stream:
                assert is_running(stream.pid)
                with open_reader(stream) as reader:
                    seen.append([next(reader)["input_ids"].tolist() for _ in range(3)])
            assert not is_running(stream.pid)
    finally:
        os.chdir(before)
    assert seen[0] == seen[1]


def test_a_reader_that_waits_is_told_what_went_wrong(recipe: Path, tmp_path: Path) -> None:
    """A pipeline that is killed is reported by the reader, its copies, and the end of the block."""
    block = serve(recipe, tmp_path / "stream", lookahead=100)
    stream = block.__enter__()
    copy = pickle.loads(pickle.dumps(stream))  # noqa: S301 - our own
    copy.check()
    os.kill(stream.pid, signal.SIGKILL)
    wait_until_gone(stream.pid)
    with pytest.raises(PipelineError, match="killed"):
        copy.check()
    reader = open_reader(stream)
    reader.advance(10**6)
    with pytest.raises(PipelineError, match="killed"):
        next(reader)
    with pytest.raises(PipelineError, match="without a word, so it was killed"):
        block.__exit__(None, None, None)


def test_a_pipeline_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The message is that of the command line."""
    missing = serve(tmp_path / "missing.yaml", tmp_path / "stream")
    with pytest.raises(PipelineError, match=r"with status 2: recipe must be a file .*missing"):
        missing.__enter__()


def test_a_recipe_that_drifted_fails_the_block(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    """Though the stream could be opened at once."""
    with serve(recipe, tmp_path / "stream", lookahead=10):
        pass
    other = write_recipe(corpus / "drifted.yaml", changes=[("seed: 7", "seed: 8")])
    block = serve(other, tmp_path / "stream")
    wait_until_gone(block.__enter__().pid)
    with pytest.raises(PipelineError, match=r"with status 1: .*seed"):
        block.__exit__(None, None, None)


def test_an_error_of_the_block_is_not_replaced(recipe: Path, tmp_path: Path) -> None:
    """And the child is ended."""
    with pytest.raises(KeyError, match="mine"), serve(recipe, tmp_path / "stream") as stream:
        raise KeyError("mine")
    assert not is_running(stream.pid)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"recipe": {"name": "x"}}, RecipeError, "recipe must be the path of a recipe file"),
        ({"lookahead": -1}, RecipeError, "lookahead"),
        ({"timeout": 0}, StreamTimeoutError, r"stream\.json must exist within timeout=0 s"),
    ],
)
def test_a_block_that_cannot_begin_leaves_nothing_behind(
    recipe: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Neither a process nor, unless it was under way already, a stream."""
    arguments = {"recipe": recipe, "stream": tmp_path / "stream", **changes}
    with pytest.raises(error, match=message):
        serve(**arguments).__enter__()
    assert error is StreamTimeoutError or not (tmp_path / "stream").exists()


_TRAINER = """
    import os, sys, threading, time
    from zephon_beam.serve import serve

    def hold():
        with serve(sys.argv[1], sys.argv[2]) as stream:
            if os.fork() == 0:  # a process that holds the pipe open
                time.sleep(3600)
            print(stream.pid, flush=True)
            time.sleep(3600)

    assert not any(name.startswith("apache_beam") for name in sys.modules)
    if sys.argv[3] == "main":
        hold()
    else:
        threading.Thread(target=hold).start()
"""


@pytest.mark.parametrize("thread", ["main", "other"])
def test_the_pipeline_dies_with_a_killed_trainer(recipe: Path, tmp_path: Path, thread: str) -> None:
    """Whichever thread serves, and though another process keeps the pipe open."""
    command = [sys.executable, "-c", textwrap.dedent(_TRAINER), recipe, tmp_path / "s", thread]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, start_new_session=True
    ) as trainer:
        assert trainer.stdout is not None
        pid = int(trainer.stdout.readline())
        assert is_running(pid)
        os.kill(trainer.pid, signal.SIGKILL)
        wait_until_gone(pid)
        os.killpg(trainer.pid, signal.SIGKILL)
