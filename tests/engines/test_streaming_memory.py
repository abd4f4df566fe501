"""An endless job takes no more memory in its last minutes than in its first.

Slow: `python -m pytest -m "engines and long" tests/engines/test_streaming_memory.py -s`. With `-s`
it prints what it saw; ZEPHON_BEAM_MEMORY_SECS is the length of a run, ten minutes by default.
"""

import os
import statistics
import sys
import time
from pathlib import Path

import pytest

from pipelines.engines.flink import FlinkCluster
from tests.engines.endless_runs import descendants, endless_command, reading
from tests.engines.engine_streams import CHANGES
from tests.pipelines.small_streams import (
    LANES,
    SHARD_SAMPLES,
    run,
    write_recipe,
    write_small_corpus,
)
from zephon_beam.verification import verify_stream

SECS = float(os.environ.get("ZEPHON_BEAM_MEMORY_SECS", "600"))
WARM_UP = 0.15
"""Of the time: caches and JVM heaps fill."""
GROWTH = 1.10
SLACK_MB = 24.0
SAMPLES_PER_SEC = 300
LOOKAHEAD = 8 * LANES * SHARD_SAMPLES

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.timeout(SECS + 600)]


class MemoryGrewError(Exception):
    """A process took more in the second half than in the first."""


def resident_mb(process: int) -> float:
    """Return the resident memory of a process, 0 if it is gone."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0.0


def watch(
    recipe: Path, stream: Path, log: Path, flags: list[str], others: dict[str, int]
) -> dict[str, list[float]]:
    """Run an endless job for long; return the memory of each process, second by second."""
    seen: dict[str, list[float]] = {}
    words = [*flags, f"--lookahead={LOOKAHEAD}", "--retain=pins"]
    with (
        endless_command(recipe, stream, log, words) as command,
        reading(stream, samples_per_sec=SAMPLES_PER_SEC) as places,
    ):
        started = time.monotonic()
        while time.monotonic() - started < SECS:
            time.sleep(1.0)
            assert command.poll() is None, log.read_text()
            started_here = {f"child {number}": number for number in descendants(command.pid)}
            for name, process in {"worker": command.pid, **started_here, **others}.items():
                seen.setdefault(name, []).append(resident_mb(process))
    assert places[-1] > SECS * SAMPLES_PER_SEC / 10, places[-1]
    return seen


def assert_flat(seen: dict[str, list[float]]) -> None:
    """Compare the two halves of each process's life."""
    told = []
    for name, values in seen.items():
        if len(values) < SECS / 4:
            continue
        steady = values[int(len(values) * WARM_UP) :]
        half = len(steady) // 2
        first, second = statistics.median(steady[:half]), statistics.median(steady[half:])
        told.append(
            f"{name}: {first:.0f} MB, then {second:.0f} MB, at most {max(values):.0f}, last "
            f"{values[-1]:.0f}; every minute: {[round(v) for v in values[::60]]}"
        )
        if second > first * GROWTH + SLACK_MB:
            told.append(f"{name} grows")
    sys.stdout.write("\n" + "\n".join(told) + "\n")
    if any(line.endswith("grows") for line in told):
        raise MemoryGrewError("\n".join(told))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Return an endless recipe over a small corpus."""
    (tmp_path / "corpus").mkdir()
    write_small_corpus(tmp_path / "corpus")
    return write_recipe(tmp_path / "corpus" / "recipe.yaml", changes=CHANGES)


def test_prism(prism_flags: list[str], recipe: Path, tmp_path: Path) -> None:
    """Prism and its worker; what was kept is what advances make."""
    stream = tmp_path / "stream"
    assert_flat(watch(recipe, stream, tmp_path / "log", prism_flags, {}))
    verify_stream(str(stream))
    run(recipe, stream, until_samples=10)


def test_flink(flink: FlinkCluster, flink_flags: list[str], recipe: Path, tmp_path: Path) -> None:
    """The job manager, both task managers, the job server and the worker.

    Flat because there is a key group a task (`pipelines.engines.flink_state`).
    """
    others = {process.log.stem: process.pid for process in flink.processes}
    flags = [*flink_flags, "--parallelism=2", "--max_bundle_time_mills=200"]
    flags.append("--advance-bytes=1MiB")
    assert_flat(watch(recipe, tmp_path / "stream", tmp_path / "log", flags, others))
