"""The training demo, with real ranks, a real kill and a drawing."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines import train_demo
from tests.processes import children, is_running
from tests.streams import random_lanes, write_stream

ROOT = Path(__file__).parents[2]
PATIENCE_SECS = 120


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and the status of a wrong command."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert train_demo.main([]) == 2
    assert "torch must be installed to train" in capsys.readouterr().err


def test_all_worlds_and_a_killed_run_train_on_the_same_samples(tmp_path: Path) -> None:
    """Losses differ by rounding only, also after the kill; the curves are drawn."""
    pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    lanes = random_lanes([20, 30], seed=3, vocab=60)
    stream = write_stream(tmp_path / "s", lanes, vocab_size=64)
    told: list[str] = []
    plot = tmp_path / "losses.png"
    facts = train_demo.run_train_demo(
        stream.uri, worlds=(1, 2), steps=4, batch=7, plot=str(plot), say=told.append
    )
    assert len(set(facts["digests"])) == 4
    assert list(facts["losses"]) == ["1 ranks", "2 ranks", "2 ranks, killed, 3 ranks"]
    first, *others = facts["losses"].values()
    assert first[-1] < first[0]
    for losses in others:
        assert losses == pytest.approx(first, rel=1e-3)
    assert plot.exists() or "matplotlib is missing" in told[-1]


def descendants(process: int) -> set[int]:
    """Return the processes that a process and those it has started have started."""
    found = children(process)
    return found.union(*(descendants(child) for child in found))


def test_no_rank_survives_a_killed_demo(tmp_path: Path) -> None:
    """Nor do the processes that start them, though the ranks wait for samples."""
    pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    stream = write_stream(tmp_path, random_lanes([4], seed=3, vocab=60), finite=False)
    command = [sys.executable, "-m", "pipelines.train_demo", "--stream", stream.uri]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as demo:
        end = time.monotonic() + PATIENCE_SECS
        # The process that forks ranks, that which tidies up after it, and the one rank.
        while len(started := descendants(demo.pid)) < 3:
            assert time.monotonic() < end, started
            assert demo.poll() is None
            time.sleep(0.1)
        demo.send_signal(signal.SIGKILL)
    end = time.monotonic() + PATIENCE_SECS
    while any(is_running(process) for process in started):
        assert time.monotonic() < end, started
        time.sleep(0.1)
