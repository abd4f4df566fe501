"""Endless jobs as children of a test, and consumers that want ever more of them."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from pipelines.engines.flink import FlinkCluster
from tests.pipelines.small_streams import LANES, ROOT, environment
from tests.processes import children
from transforms.read_documents import _ReadParts
from zephon_beam.consumers import ACKNOWLEDGED, Consumer, encode_consumer
from zephon_beam.errors import ZephonBeamError
from zephon_beam.inspection import inspect_stream
from zephon_beam.layout import consumer_name
from zephon_beam.manifest import read_manifest
from zephon_beam.sequences import PartKey
from zephon_beam.store.base import open_store

DEADLINE_SECS = 120
# Bundles of a second hold everything up; those of a checkpoint have to end before it.
FLINK_STREAMING = ["--parallelism=2", "--max_bundle_time_mills=200"]
FLINK_CHECKPOINTS = [
    *FLINK_STREAMING,
    "--checkpointing_interval=1000",
    "--finish_bundle_before_checkpointing",
    "--unaligned_checkpoint_enabled",
    "--max_bundle_size=8",
    "--number_of_execution_retries=20",
    "--execution_retry_delay=1000",
]

# The command line, with an endless job on every engine.
_COMMAND = """
from pipelines import endless
from pipelines.main import console
endless._LASTING = ("PrismRunner", "FlinkRunner")
console()
"""


@contextmanager
def endless_command(
    recipe: Path, stream: Path, log: Path, flags: Sequence[str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `zephon-beam run --follow --endless` beside the block."""
    words = [sys.executable, "-c", _COMMAND, "run", str(recipe), "--stream", str(stream)]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*words, "--follow", "--endless", *flags],
            env=environment(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        ) as command,
    ):
        try:
            yield command
        finally:
            # Killed at once, it would leave its engine behind.
            command.terminate()
            try:
                command.wait(60)
            except subprocess.TimeoutExpired:
                command.kill()


def complete_samples(stream: Path) -> int:
    """Return the length of the gapless prefix; 0 if there is no stream yet."""
    try:
        return int(inspect_stream(str(stream), by_states=True)["complete_samples"])
    except (ZephonBeamError, FileNotFoundError):
        return 0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something of a job."""
    end = time.monotonic() + DEADLINE_SECS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def wait_for_samples(stream: Path, count: int, *, secs: float = DEADLINE_SECS) -> int:
    """Wait until a stream is so long; return how long it is then."""
    end = time.monotonic() + secs
    while (found := complete_samples(stream)) < count:
        assert time.monotonic() < end, f"{found} samples, {count} wanted"
        time.sleep(0.2)
    return found


def tell(stream: Path, position: int, *, beat: int = 0) -> None:
    """Say as a consumer that it reads from a sample on, and needs none before it."""
    store = open_store(str(stream))
    consumer = Consumer(
        name="run",
        fingerprint=read_manifest(store).fingerprint,
        position=position,
        pins={ACKNOWLEDGED: position},
        beat=beat,
    )
    store.replace(consumer_name("run"), encode_consumer(consumer))


@contextmanager
def reading(stream: Path, *, samples_per_sec: int) -> Iterator[list[int]]:
    """Consume a stream in a thread, at most so fast; yields where it reads."""
    places = [0]
    left = threading.Event()

    def read() -> None:
        beat = 0
        while not left.wait(1.0):
            done = complete_samples(stream)
            if done:
                places.append(min(done, places[-1] + samples_per_sec) // LANES * LANES)
                beat += 1
                tell(stream, places[-1], beat=beat)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield places
    finally:
        left.set()
        thread.join()


def record_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, PartKey]]:
    """Return the list to which workers in this process add the lane and part that they read."""
    reads: list[tuple[int, PartKey]] = []
    usual = _ReadParts._read

    @wraps(usual)
    def read(self: Any, lane: int, key: PartKey) -> Any:
        reads.append((lane, key))
        return usual(self, lane, key)

    monkeypatch.setattr(_ReadParts, "_read", read)
    return reads


def ask_flink(flink: FlinkCluster, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask the job manager, or tell it something."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{flink.master}/{path}", data=data)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def newest_flink_job(flink: FlinkCluster) -> dict[str, Any]:
    """Return what the job manager says of the job that was started last."""
    jobs: list[dict[str, Any]] = ask_flink(flink, "jobs/overview")["jobs"]
    return max(jobs, key=lambda job: int(job["start-time"]))


def descendants(process: int) -> set[int]:
    """Return what a process has started, and what those have."""
    found = children(process)
    return found.union(*(descendants(child) for child in found))
