"""A real Flink cluster writes the stream of one process, also when a machine of it dies."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipelines.engines.flink import FlinkCluster
from tests.engines.engine_streams import (
    ENGINE_MARKS,
    assert_one_tree,
    damaged_recipe,
    slow_tokenizer,
)
from tests.pipelines.small_streams import ROOT, SmallStream, environment, run, tree
from zephon_beam.errors import BadRecordError

pytestmark = ENGINE_MARKS

# The command line, with a tokenizer that waits.
_INTERRUPTED = """
import sys, time
from functools import wraps
from pipelines.main import main
from transforms import tokenize_documents
usual = tokenize_documents._TokenizeParts.process
@wraps(usual)
def process(self, element):
    sys.stderr.write("tokenizing\\n")
    sys.stderr.flush()
    time.sleep(1)
    return usual(self, element)
tokenize_documents._TokenizeParts.process = process
sys.exit(main())
"""


def test_several_advances_on_two_task_managers_with_shuffled_arrivals(
    flink_flags: list[str], expected: SmallStream, tmp_path: Path
) -> None:
    """Parts are spread over both, and lanes too."""
    flags = [*flink_flags, "--parallelism=2"]
    assert_one_tree(expected, tmp_path / "s", flags, shuffled=2, advance_bytes=1, advances=2)


def test_one_advance_on_one_task_manager(
    flink_flags: list[str], expected: SmallStream, tmp_path: Path
) -> None:
    """With workers that live no longer than a stage, as Flink has them by default."""
    flags = [*flink_flags, "--parallelism=1", "--environment_cache_millis=0"]
    assert_one_tree(expected, tmp_path / "s", flags)


def test_worker_processes_of_the_task_managers(
    flink_flags: list[str], expected: SmallStream, worker_program: Path, tmp_path: Path
) -> None:
    """They do the work, not this process, and end without being asked."""
    environment = json.dumps({"command": str(worker_program)})
    flags = [
        *(*flink_flags, "--parallelism=2"),
        *("--environment_type=PROCESS", f"--environment_config={environment}"),
    ]
    assert_one_tree(expected, tmp_path / "s", flags, advance_bytes=1, advances=2)


@pytest.mark.parametrize("moment", ["tokenizing", "writing"])
def test_a_task_manager_that_is_killed_and_replaced_changes_no_byte(
    flink: FlinkCluster,
    flink_flags: list[str],
    expected: SmallStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """Flink repeats what the lost one did, shards and all."""
    note, stream = tmp_path / "note", tmp_path / "s"

    def has_come() -> bool:
        return note.exists() if moment == "tokenizing" else any(stream.glob("shards/*/*.arrow"))

    flags = [*flink_flags, "--parallelism=2"]
    restarts = flink.restart_count
    # Processes end with the thread that started them, so that this one starts the new one.
    with slow_tokenizer(monkeypatch, note, 0.1), ThreadPoolExecutor(1) as driver:
        running = driver.submit(run, expected.recipe, stream, options=flags)
        while not has_come():
            assert not running.done(), running.result()
            time.sleep(0.01)
        flink.kill_task_manager()
        unfinished = not running.done()
        flink.add_task_manager()
        facts = running.result()
    assert unfinished
    assert flink.restart_count > restarts
    assert facts["finished"]
    assert tree(stream) == expected.tree
    flink.wait()


def test_what_a_worker_met_is_one_line(
    flink_flags: list[str], expected: SmallStream, tmp_path: Path
) -> None:
    """It comes back through Java as text, and is told as if it had been raised here."""
    recipe = damaged_recipe(expected, tmp_path)
    with pytest.raises(BadRecordError, match=r"part-1\.jsonl.*line 5") as caught:
        run(recipe, tmp_path / "s", options=flink_flags)
    assert "\n" not in str(caught.value)


def test_a_run_that_was_interrupted_goes_on_beside_the_job_that_it_left(
    flink_flags: list[str], expected: SmallStream, tmp_path: Path
) -> None:
    """Beam's job server does not end the job in the cluster: both compute the same advance."""
    stream = tmp_path / "s"
    words = [sys.executable, "-c", _INTERRUPTED, "run", expected.recipe, "--stream", stream]
    with subprocess.Popen(
        [str(word) for word in [*words, *flink_flags]],
        env=environment(),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stderr is not None
        for line in command.stderr:
            if line == "tokenizing\n":
                break
        command.send_signal(signal.SIGINT)
        told = command.stderr.read()
        assert command.wait() == 130, told
    assert "interrupted; the stream is intact" in told
    assert run(expected.recipe, stream, options=flink_flags)["finished"]
    assert tree(stream) == expected.tree
