"""An endless job that is asked to end commits all that it has read, on whatever engine."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipelines import endless
from pipelines.engines.flink import FlinkCluster
from pipelines.main import main
from tests.engines.endless_runs import (
    FLINK_CHECKPOINTS,
    FLINK_STREAMING,
    ask_flink,
    complete_samples,
    endless_command,
    newest_flink_job,
    record_reads,
    wait_for_samples,
    wait_until,
)
from tests.engines.engine_streams import ENGINE_MARKS, slow_tokenizer
from tests.pipelines.small_streams import (
    LANES,
    SHARD_SAMPLES,
    SmallStream,
    assert_same_prefix,
    run,
    tree,
)
from zephon_beam.sequences import PartKey

pytestmark = [*ENGINE_MARKS, pytest.mark.long]

SOME = LANES * SHARD_SAMPLES
WINDOW_BYTES = 256 * 1024
SLOW_SECS = 0.2
"""For each part, so that some are under way when a lane is told how many there are."""

Reads = list[tuple[int, PartKey]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Reads]:
    """Offer endless jobs, slow their workers down, and return what they read."""
    monkeypatch.setattr(endless, "_LASTING", ("PrismRunner", "FlinkRunner"))
    with slow_tokenizer(monkeypatch, tmp_path / "note", SLOW_SECS):
        yield record_reads(monkeypatch)


@contextmanager
def running(
    source: SmallStream, stream: Path, flags: list[str]
) -> Iterator["Future[dict[str, Any]]"]:
    """Run an endless job beside the block, which begins when every lane has a shard."""
    with ThreadPoolExecutor(1) as driver:
        job = driver.submit(
            run,
            *(source.recipe, stream),
            follow=True,
            endless=True,
            lookahead=1 << 40,
            advance_bytes=WINDOW_BYTES,
            options=flags,
        )
        # Longer than a job on Prism that is given no bundle is waited for.
        wait_for_samples(stream, SOME, secs=300)
        yield job


def assert_nothing_is_read_twice(
    source: SmallStream, stream: Path, reads: Reads, facts: dict[str, Any]
) -> None:
    """Go on with a stream, whose job was drained, by advances."""
    assert not facts["finished"]
    assert not (stream / "end").exists()
    number = max(int(path.stem) for path in (stream / "advances").iterdir())
    carries = [path.stem for path in (stream / "carry").glob("*/*")]
    assert carries == LANES * [f"{number:06d}"]
    before = len(reads)
    assert before
    until = complete_samples(stream) + 2 * SOME
    run(source.recipe, stream, until_samples=until, advance_bytes=WINDOW_BYTES)
    assert_same_prefix(tree(stream), source.tree, until)
    assert len(reads) > before
    assert len(set(reads)) == len(reads)


def test_on_prism(
    prism_flags: list[str], endless_stream: SmallStream, tmp_path: Path, reads: Reads
) -> None:
    """The job ends with its sources."""
    stream = tmp_path / "s"
    with running(endless_stream, stream, prism_flags) as job:
        assert main(["drain", str(stream)]) == 0
        facts = job.result()
    assert_nothing_is_read_twice(endless_stream, stream, reads, facts)


@pytest.mark.parametrize(
    ("flags", "state"),
    [
        pytest.param(FLINK_STREAMING, "FINISHED", id="without checkpoints"),
        # The sources of these stay, so they are ended from outside.
        pytest.param(FLINK_CHECKPOINTS, "CANCELED", id="with checkpoints"),
    ],
)
def test_on_flink(
    flags: list[str],
    state: str,
    flink: FlinkCluster,
    flink_flags: list[str],
    endless_stream: SmallStream,
    tmp_path: Path,
    reads: Reads,
) -> None:
    """The job ends with its sources, or is cancelled once nothing is left."""
    stream = tmp_path / "s"
    with running(endless_stream, stream, [*flink_flags, *flags]) as job:
        assert main(["drain", str(stream)]) == 0
        facts = job.result()
    wait_until(lambda: newest_flink_job(flink)["state"] == state, str(newest_flink_job(flink)))
    assert_nothing_is_read_twice(endless_stream, stream, reads, facts)


def test_a_job_whose_run_was_killed(
    flink: FlinkCluster,
    flink_flags: list[str],
    worker_program: Path,
    endless_stream: SmallStream,
    tmp_path: Path,
) -> None:
    """Nobody looks after it any more, and it ends all the same."""
    stream = tmp_path / "s"
    program = json.dumps({"command": str(worker_program)})
    flags = ["--environment_type=PROCESS", f"--environment_config={program}", *FLINK_STREAMING]
    flags += [f"--lookahead={1 << 40}", "--advance-bytes=256KiB"]
    with endless_command(
        endless_stream.recipe, stream, tmp_path / "log", [*flink_flags, *flags]
    ) as command:
        wait_for_samples(stream, SOME)
        command.kill()
        command.wait()
    made = complete_samples(stream)
    wait_for_samples(stream, made + SOME)
    assert main(["drain", str(stream)]) == 0
    wait_until(lambda: newest_flink_job(flink)["state"] == "FINISHED", "the job goes on")
    assert len(list((stream / "carry").glob("*/*"))) == LANES


def test_flinks_own_drain_ends_with_ours(
    flink: FlinkCluster,
    flink_flags: list[str],
    endless_stream: SmallStream,
    tmp_path: Path,
    reads: Reads,
) -> None:
    """A stop with drain waits for the sources; once they have ended, it takes its savepoint."""
    stream = tmp_path / "s"
    with running(endless_stream, stream, [*flink_flags, *FLINK_CHECKPOINTS]) as job:
        name = newest_flink_job(flink)["jid"]
        wish = {"drain": True, "targetDirectory": (tmp_path / "savepoints").as_uri()}
        trigger = ask_flink(flink, f"jobs/{name}/stop", wish)["request-id"]
        assert main(["drain", str(stream)]) == 0
        facts = job.result()
    wait_until(lambda: newest_flink_job(flink)["state"] == "FINISHED", "the job goes on")
    saved = ask_flink(flink, f"jobs/{name}/savepoints/{trigger}")
    assert "location" in saved["operation"], saved
    assert_nothing_is_read_twice(endless_stream, stream, reads, facts)
