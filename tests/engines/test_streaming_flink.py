"""An endless job on a real Flink cluster makes the samples of advances; so if a machine dies."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipelines import endless
from pipelines.engines.flink import FlinkCluster
from tests.engines.endless_runs import (
    FLINK_CHECKPOINTS,
    FLINK_STREAMING,
    ask_flink,
    complete_samples,
    endless_command,
    newest_flink_job,
    wait_for_samples,
    wait_until,
)
from tests.engines.engine_streams import ENGINE_MARKS
from tests.pipelines.small_streams import (
    LANES,
    SHARD_SAMPLES,
    SmallStream,
    assert_same_prefix,
    run,
    tree,
)
from zephon_beam.verification import verify_stream

pytestmark = [*ENGINE_MARKS, pytest.mark.long]

UNTIL = 900
LOOKAHEAD = 6 * LANES * SHARD_SAMPLES


def test_without_checkpoints_until_interrupted(
    flink: FlinkCluster, flink_flags: list[str], endless_stream: SmallStream, tmp_path: Path
) -> None:
    """Lanes wait for consumers; then the job is cancelled, and advances go on."""
    stream, log = tmp_path / "s", tmp_path / "log"
    flags = [*flink_flags, *FLINK_STREAMING, f"--lookahead={LOOKAHEAD}", "--advance-bytes=64KiB"]
    with endless_command(endless_stream.recipe, stream, log, flags) as command:
        wait_for_samples(stream, LOOKAHEAD)
        command.send_signal(signal.SIGINT)
        assert command.wait() == 130, log.read_text()
    wait_until(lambda: newest_flink_job(flink)["state"] == "CANCELED", "the job goes on")
    verify_stream(str(stream))
    assert_same_prefix(tree(stream), endless_stream.tree, LOOKAHEAD)
    run(endless_stream.recipe, stream, until_samples=UNTIL)
    assert_same_prefix(tree(stream), endless_stream.tree, UNTIL)


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
            found = ask_flink(flink, f"jobs/{newest_flink_job(flink)['jid']}/checkpoints")
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
            options=[*flink_flags, *FLINK_CHECKPOINTS],
        )
        wait_until(has_checkpoint, "no checkpoint was taken")
        job = newest_flink_job(flink)["jid"]
        flink.kill_task_manager()
        flink.add_task_manager()
        running.result()
    restored = ask_flink(flink, f"jobs/{job}/checkpoints")["counts"]["restored"]
    assert restored >= 1
    assert_same_prefix(tree(stream), endless_stream.tree, 2 * UNTIL)
    flink.wait()
