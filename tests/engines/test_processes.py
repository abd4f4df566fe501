"""Processes of engines end with the one that started them, and with no other."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.engines import processes
from pipelines.engines.processes import Process, free_ports, is_listening, wait_until
from tests.pipelines.small_streams import ROOT, environment
from tests.processes import is_running
from zephon_beam.errors import ZephonBeamError

pytestmark = pytest.mark.timeout(60)

_PARENT = """
import sys, time
from pathlib import Path
from pipelines.engines.processes import Process
print(Process(["sleep", "600"], Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the kernel of Linux")
def test_a_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Nothing of ours runs then that could end it."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while Path(f"/proc/{child}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        os.kill(parent.pid, signal.SIGKILL)
    while is_running(child):
        time.sleep(0.01)


def test_a_process_keeps_the_id_of_what_was_started(tmp_path: Path) -> None:
    """Whoever kills it kills the program, not something in front of it."""
    process = Process([sys.executable, "-c", "import os; print(os.getpid())"], tmp_path / "log")
    while process.is_running():
        time.sleep(0.01)
    assert (tmp_path / "log").read_text() == f"{process.pid}\n"


def test_an_engine_that_ends_while_it_starts_is_told_with_its_last_words(tmp_path: Path) -> None:
    """Instead of a wait to the end of patience."""
    process = Process(["sh", "-c", "echo no memory; exit 3"], tmp_path / "log")
    with pytest.raises(ZephonBeamError, match=r"the engine must start, but .* ended: no memory"):
        wait_until(lambda: False, [process], "the engine")


def test_an_engine_that_is_never_ready_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its output is named."""
    monkeypatch.setattr(processes, "STARTED_IN_TIME_SECS", 0.0)
    process = Process(["sleep", "600"], tmp_path / "log")
    with pytest.raises(ZephonBeamError, match=rf"the engine must be ready .*{tmp_path}"):
        wait_until(lambda: False, [process], "the engine")
    assert process.is_running()
    process.stop()
    assert not process.is_running()


def test_free_ports_are_free_and_different() -> None:
    """Nobody listens there."""
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert not any(map(is_listening, ports))
