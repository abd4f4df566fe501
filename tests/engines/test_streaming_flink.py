"""An endless job on a real Flink cluster makes the samples of advances; so if a machine dies."""

import json
import signal
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipelines import endless
from pipelines.engines.flink import FlinkCluster
from pipelines.main import main
from tests.engines.endless_runs import (
    complete_samples,
    endless_command,
    record_reads,
    wait_for_samples,
)
from tests.engines.engine_streams import CHANGES, ENGINE_MARKS
from tests.pipelines.small_streams import (
    LANES,
    SHARD_SAMPLES,
    SmallStream,
    assert_same_prefix,
    run,
    tree,
    write_recipe,
    write_small_corpus,
)
from zephon_beam.verification import verify_stream

pytestmark = [*ENGINE_MARKS, pytest.mark.long]

UNTIL = 900
LOOKAHEAD = 6 * LANES * SHARD_SAMPLES
DEADLINE_SECS = 120
# Bundles of a second hold everything up; those of a checkpoint have to end before it.
STREAMING = ["--parallelism=2", "--max_bundle_time_mills=200"]
CHECKPOINTS = [
    *STREAMING,
    "--checkpointing_interval=1000",
    "--finish_bundle_before_checkpointing",
    "--unaligned_checkpoint_enabled",
    "--max_bundle_size=8",
    "--number_of_execution_retries=20",
    "--execution_retry_delay=1000",
]


@pytest.fixture(scope="module")
def endless_stream(tmp_path_factory: pytest.TempPathFactory) -> SmallStream:
    """Return an endless stream as advances in this process write it."""
    corpus = tmp_path_factory.mktemp("endless_corpus")
    write_small_corpus(corpus)
    recipe = write_recipe(corpus / "recipe.yaml", changes=CHANGES)
    folder = tmp_path_factory.mktemp("endless_expected") / "stream"
    facts = run(recipe, folder, until_samples=2 * UNTIL)
    return SmallStream(recipe=recipe, folder=folder, tree=tree(folder), facts=facts)


def ask(flink: FlinkCluster, path: str) -> Any:
    """Ask the job manager."""
    with urllib.request.urlopen(f"http://{flink.master}/{path}", timeout=10) as answer:
        return json.load(answer)


def newest_job(flink: FlinkCluster) -> dict[str, Any]:
    """Return what the job manager says of the job that was started last."""
    jobs: list[dict[str, Any]] = ask(flink, "jobs/overview")["jobs"]
    return max(jobs, key=lambda job: int(job["start-time"]))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something of a job."""
    end = time.monotonic() + DEADLINE_SECS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_without_checkpoints_until_interrupted(
    flink: FlinkCluster, flink_flags: list[str], endless_stream: SmallStream, tmp_path: Path
) -> None:
    """Lanes wait for consumers; then the job is cancelled, and advances go on."""
    stream, log = tmp_path / "s", tmp_path / "log"
    flags = [*flink_flags, *STREAMING, f"--lookahead={LOOKAHEAD}", "--advance-bytes=64KiB"]
    with endless_command(endless_stream.recipe, stream, log, flags) as command:
        wait_for_samples(stream, LOOKAHEAD)
        command.send_signal(signal.SIGINT)
        assert command.wait() == 130, log.read_text()
    wait_until(lambda: newest_job(flink)["state"] == "CANCELED", "the job goes on")
    verify_stream(str(stream))
    assert_same_prefix(tree(stream), endless_stream.tree, LOOKAHEAD)
    run(endless_stream.recipe, stream, until_samples=UNTIL)
    assert_same_prefix(tree(stream), endless_stream.tree, UNTIL)


@pytest.mark.parametrize(
    ("flags", "state"),
    [
        pytest.param(STREAMING, "FINISHED", id="without checkpoints"),
        # The sources of these stay, so their jobs are ended from outside.
        pytest.param(CHECKPOINTS, "CANCELED", id="with checkpoints"),
    ],
)
def test_a_job_that_is_drained_commits_all_that_it_has_read(
    flags: list[str],
    state: str,
    flink: FlinkCluster,
    flink_flags: list[str],
    endless_stream: SmallStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends with its run, no lane ends, and whoever goes on reads no part twice."""
    stream = tmp_path / "s"
    monkeypatch.setattr(endless, "_LASTING", ("FlinkRunner",))
    reads = record_reads(monkeypatch)
    with ThreadPoolExecutor(1) as driver:
        running = driver.submit(
            run,
            *(endless_stream.recipe, stream),
            follow=True,
            endless=True,
            lookahead=LOOKAHEAD,
            advance_bytes=64 * 1024,
            options=[*flink_flags, *flags],
        )
        wait_for_samples(stream, LANES * SHARD_SAMPLES)
        assert main(["drain", str(stream)]) == 0
        facts = running.result()
    job = newest_job(flink)
    wait_until(lambda: newest_job(flink)["state"] == state, str(job))
    assert not facts["finished"]
    assert sorted(path.name for path in (stream / "carry").glob("*/*")) == LANES * ["000000.avro"]
    before = len(reads)
    run(endless_stream.recipe, stream, until_samples=UNTIL, advance_bytes=64 * 1024)
    assert_same_prefix(tree(stream), endless_stream.tree, UNTIL)
    assert len(reads) > before > 0
    assert len(set(reads)) == len(reads)


def test_a_task_manager_that_is_killed_and_replaced_changes_no_byte(
    flink: FlinkCluster,
    flink_flags: list[str],
    endless_stream: SmallStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job is restored from a checkpoint and goes on from there."""
    stream = tmp_path / "s"
    monkeypatch.setattr(endless, "_LASTING", ("FlinkRunner",))
    lookahead = 1 << 40

    def has_checkpoint() -> bool:
        assert not running.done(), running.result()
        try:
            found = ask(flink, f"jobs/{newest_job(flink)['jid']}/checkpoints")
        except (OSError, ValueError):
            return False
        return bool(found["counts"]["completed"] >= 2 and complete_samples(stream) >= LOOKAHEAD)

    with ThreadPoolExecutor(1) as driver:
        running = driver.submit(
            run,
            *(endless_stream.recipe, stream),
            follow=True,
            endless=True,
            lookahead=lookahead,
            until_samples=2 * UNTIL,
            advance_bytes=64 * 1024,
            options=[*flink_flags, *CHECKPOINTS],
        )
        wait_until(has_checkpoint, "no checkpoint was taken")
        job = newest_job(flink)["jid"]
        flink.kill_task_manager()
        flink.add_task_manager()
        running.result()
    restored = ask(flink, f"jobs/{job}/checkpoints")["counts"]["restored"]
    assert restored >= 1
    assert_same_prefix(tree(stream), endless_stream.tree, 2 * UNTIL)
    flink.wait()
