"""An endless job that is dead is noticed, and another one goes on from what it has left."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from pipelines import cancelling, liveness
from tests.engines.endless_runs import (
    complete_samples,
    descendants,
    endless_command,
    wait_until,
)
from tests.engines.engine_streams import ENGINE_MARKS
from tests.pipelines.small_streams import SmallStream, assert_same_prefix, run, tree
from tests.processes import is_running
from transforms import supply_endless, tokenize_documents
from zephon_beam.errors import ZephonBeamError

pytestmark = ENGINE_MARKS

UNTIL = 450
FAR = 1 << 40
"""More samples ahead of consumers than a test makes."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply_endless, "TRACE_SECS", 0.5)
    monkeypatch.setattr(liveness, "SILENT_SECS", 5.0)
    monkeypatch.setattr(liveness, "_DOUBT_SECS", 1.0)
    monkeypatch.setattr(cancelling, "CANCEL_SECS", 1.0)


def run_endless(recipe: Path, stream: Path, flags: list[str]) -> None:
    """Run endless jobs with little under way, until the stream is long enough."""
    run(
        *(recipe, stream),
        follow=True,
        endless=True,
        lookahead=FAR,
        until_samples=UNTIL,
        advance_bytes=64 * 1024,
        options=flags,
    )


def prisms(parent: int | None = None) -> set[int]:
    """Return the Prism servers that a process has started, this one if none is named."""
    return {
        process
        for process in descendants(parent or os.getpid())
        if b"prism" in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0]
    }


@contextmanager
def stopped_prism(stream: Path, samples: int) -> Iterator[list[int]]:
    """Stop the Prism of the job that a stream gets these samples from, beside the block."""
    before = prisms()
    stopped: list[int] = []
    left = threading.Event()

    def stop() -> None:
        while not left.wait(0.05):
            if complete_samples(stream) >= samples:
                stopped.extend(prisms() - before)
                for process in stopped:
                    os.kill(process, signal.SIGSTOP)
                return

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        left.set()
        thread.join()


def deaths(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of jobs that died."""
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if "counts as dead" in text]


def test_an_engine_that_stops_is_ended_and_another_job_goes_on(
    prism_flags: list[str],
    endless_stream: SmallStream,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stopped process answers nobody and gives no bundle, like one that schedules none."""
    stream = tmp_path / "s"
    with caplog.at_level(logging.WARNING), stopped_prism(stream, UNTIL // 4) as stopped:
        run_endless(endless_stream.recipe, stream, prism_flags)
    assert len(stopped) == 1
    assert not is_running(stopped[0])
    assert_same_prefix(tree(stream), endless_stream.tree, UNTIL)
    assert len(list((stream / "advances").iterdir())) > 1
    told = deaths(caplog)
    assert told
    assert "its source was not polled" in told[0]
    assert "the stream is intact" in told[0]


def test_a_function_that_never_returns_is_left_behind(
    prism_flags: list[str],
    endless_stream: SmallStream,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its source is polled, and no lane gets what it waits for."""
    monkeypatch.setattr(liveness, "STILL_SECS", 7.0)
    usual = tokenize_documents._TokenizeParts.process
    calls = []
    thaw = threading.Event()

    @wraps(usual)
    def process(self: Any, *args: Any, **others: Any) -> Any:
        calls.append(args)
        if len(calls) == 20:
            thaw.wait()
        return usual(self, *args, **others)

    monkeypatch.setattr(tokenize_documents._TokenizeParts, "process", process)
    stream = tmp_path / "s"
    try:
        with caplog.at_level(logging.WARNING):
            run_endless(endless_stream.recipe, stream, prism_flags)
    finally:
        thaw.set()
    assert_same_prefix(tree(stream), endless_stream.tree, UNTIL)
    assert "no lane has moved" in "".join(deaths(caplog))


@pytest.mark.long
def test_jobs_that_all_die_are_an_error(
    prism_flags: list[str],
    endless_stream: SmallStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What, where, consequence and repair, in one line; no engine is left."""
    monkeypatch.setattr(liveness, "SILENT_SECS", 3.0)
    monkeypatch.setattr(liveness, "_MOST_RESTARTS", 1)
    binary = prism_flags[1].partition("=")[2]
    program = tmp_path / "prism"
    program.write_text(f'#!/bin/sh\n(sleep 1; kill -STOP $$) &\nexec {binary} "$@"\n')
    program.chmod(0o755)
    before = prisms()
    begun = time.monotonic()
    with pytest.raises(
        ZephonBeamError,
        match=r"found 2 jobs on PrismRunner .*lane 0 has 0 of.*intact: run it again",
    ) as caught:
        run_endless(
            endless_stream.recipe,
            tmp_path / "s",
            ["--runner=PrismRunner", f"--prism_location={program}"],
        )
    assert "\n" not in str(caught.value)
    assert time.monotonic() - begun >= 9.0
    assert prisms() <= before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_ends_with_its_command(
    prism_flags: list[str], endless_stream: SmallStream, tmp_path: Path, number: signal.Signals
) -> None:
    """However that ends; where all its group is told to, it cancels its job and says one line."""
    stream, log = tmp_path / "s", tmp_path / "log"
    flags = [*prism_flags, "--lookahead", str(FAR)]
    with endless_command(endless_stream.recipe, stream, log, flags) as command:
        wait_until(lambda: complete_samples(stream) > 0, "samples")
        engines = prisms(command.pid)
        assert len(engines) == 1
        os.killpg(command.pid, number)
        command.wait(60)
        wait_until(lambda: not any(map(is_running, engines)), "the end of the engine")
    text = log.read_text()
    assert "Traceback" not in text
    if number == signal.SIGTERM:
        assert "interrupted" in text
