"""How much source an advance reads unless `--advance-bytes` says so: what workers have room for.

The size of an advance changes the speed and the memory, never a byte of a stream.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)

from pipelines.engine_defaults import DIRECT_RUNNERS, is_on_this_machine

MIB = 1024 * 1024
MOST_BYTES_A_WORKER = 256 * MIB
"""Some 60 M tokens, against a third of a second that an advance costs in process and a few seconds
elsewhere: larger ones gain a few per cent, and whoever was killed repeats more."""
LEAST_BYTES = 16 * MIB
"""Smaller ones save little memory, and lanes need their open chunks anyway."""
MEMORY_SHARE = 16
"""Engines that hold in memory what they shuffle need eight times the source of an advance
(measured), and half of the memory is left to everything else."""
MEMORY_ELSEWHERE = 2048 * MIB
"""Of a worker on another machine, which cannot be asked from here."""

# Where the first version of control groups limits memory, and where the second does.
_GROUP_FILES = {"memory": ("memory", "memory.limit_in_bytes"), "": ("", "memory.max")}


def advance_size(memory_bytes: int, workers: int) -> int:
    """Return how many bytes of source an advance reads, given the memory of all its workers.

    Args:
        memory_bytes: what all workers have together, bytes.
        workers: how many there are, at least 1.

    Determinism: depends on the arguments alone.
    """
    most = MOST_BYTES_A_WORKER * workers
    return max(LEAST_BYTES, min(memory_bytes // MEMORY_SHARE, most))


def default_advance_bytes(options: PipelineOptions) -> int:
    """Return the size of an advance for an engine: see `advance_size`.

    Workers of an engine on this machine share the memory that this process may use.
    """
    workers = _worker_count(options)
    here = is_on_this_machine(options)
    return advance_size(usable_memory() if here else workers * MEMORY_ELSEWHERE, workers)


def usable_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use.

    It is the machine's memory, or the limit of a control group that this process is in.

    Args:
        root: where `proc` and `sys` are.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups and of those that hold them."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        for folder, file in filter(None, map(_GROUP_FILES.get, controllers.split(","))):
            # A container often sees its own group as the root, whatever its path is called.
            for place in (Path(path), *Path(path).parents):
                inner = str(place).strip("/")
                yield from _limit(root / "sys/fs/cgroup" / folder / inner / file)


def _limit(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdecimal():
        yield int(text)


def _worker_count(options: PipelineOptions) -> int:
    """Return how many workers the options ask for; 1 where they leave it to the engine."""
    runner = options.view_as(StandardOptions).runner
    if runner in DIRECT_RUNNERS:
        # Beam takes 0 for as many as there are processors.
        return options.view_as(DirectOptions).direct_num_workers or os.cpu_count() or 1
    if runner == "DataflowRunner":
        workers = options.view_as(WorkerOptions)
        return workers.num_workers or workers.max_num_workers or 1
    return max(1, options.view_as(FlinkRunnerOptions).parallelism)
