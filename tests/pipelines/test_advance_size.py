"""The size of an advance follows the memory of its workers, and never changes a byte."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import advance_size as module
from pipelines.advance_size import (
    LEAST_BYTES,
    MEMORY_ELSEWHERE,
    MEMORY_SHARE,
    MIB,
    MOST_BYTES_A_WORKER,
    advance_size,
    default_advance_bytes,
    usable_memory,
)
from pipelines.options import parse_beam_options
from tests.pipelines.small_streams import SmallStream, run, tree

GIB = 1024 * MIB
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("memory", "workers", "expected"),
    [
        (64 * MIB, 1, 16 * MIB),
        (512 * MIB, 1, 32 * MIB),
        (1 * GIB, 1, 64 * MIB),
        (2 * GIB, 1, 128 * MIB),
        (64 * GIB, 1, 256 * MIB),
        (2 * GIB, 8, 128 * MIB),
        (64 * GIB, 8, 2048 * MIB),
    ],
)
def test_the_rule(memory: int, workers: int, expected: int) -> None:
    """A sixteenth of the memory, from 16 MiB on and up to 256 MiB for each worker."""
    assert advance_size(memory, workers) == expected


@given(st.integers(0, 1 << 45), st.integers(1, 10_000))
def test_an_advance_takes_half_of_the_memory_at_most(memory: int, workers: int) -> None:
    """It is held eight times where it is shuffled in memory; only a tiny machine gets the least."""
    size = advance_size(memory, workers)
    assert size == LEAST_BYTES or 8 * size <= memory / 2
    assert LEAST_BYTES <= size <= MOST_BYTES_A_WORKER * workers
    assert size <= advance_size(memory + 1, workers)
    assert size <= advance_size(memory, workers + 1)


def groups(root: Path, membership: str, **limits: str) -> Path:
    """Write what the kernel says of control groups: the process's, and limits by folder."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for name, limit in limits.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_of_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return root


SECOND = "0::/kube/pod\n"
FIRST = "9:name=systemd:/x\n4:memory,hugetlb:/docker/abc\n0::/\n"


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        (SECOND, {"kube__pod__memory_of_max": "1000"}, 1000),
        (SECOND, {"kube__pod__memory_of_max": "max", "kube__memory_of_max": "900"}, 900),
        (SECOND, {"kube__pod__memory_of_max": "1000", "kube__memory_of_max": "2000"}, 1000),
        (SECOND, {"memory_of_max": "800"}, 800),
        (SECOND, {"kube__other__memory_of_max": "1"}, MACHINE),
        (SECOND, {"kube__pod__memory_of_max": "max"}, MACHINE),
        (FIRST, {"memory__docker__abc__memory_of_limit_in_bytes": "700"}, 700),
        (FIRST, {"memory__memory_of_limit_in_bytes": "600"}, 600),
        (FIRST, {"memory__memory_of_limit_in_bytes": str(1 << 63)}, MACHINE),
        (FIRST, {"x__memory_of_max": "5"}, MACHINE),
    ],
)
def test_limits_of_control_groups_are_kept(
    tmp_path: Path, membership: str, limits: dict[str, str], expected: int
) -> None:
    """Of both versions, of the process's own group and of those around it."""
    assert usable_memory(groups(tmp_path, membership, **limits)) == expected


def test_a_system_without_control_groups_has_the_memory_of_the_machine(tmp_path: Path) -> None:
    """As macOS."""
    assert usable_memory(tmp_path) == MACHINE
    assert 0 < usable_memory() <= MACHINE


@pytest.mark.parametrize(
    ("flags", "workers", "is_here"),
    [
        ([], 1, True),
        (["--direct_num_workers=4", "--direct_running_mode=multi_processing"], 4, True),
        (["--direct_num_workers=0"], os.cpu_count() or 1, True),
        (["--runner=prism"], 1, True),
        (["--runner=flink", "--flink_master=localhost:1", "--parallelism=3"], 3, True),
        (["--runner=flink", "--flink_master=flink.example:1", "--parallelism=32"], 32, False),
        (["--runner=flink", "--flink_master=flink.example:1"], 1, False),
        (["--runner=spark", "--job_endpoint=spark.example:1"], 1, False),
        (["--runner=dataflow", "--num_workers=5", "--max_num_workers=9"], 5, False),
        (["--runner=dataflow", "--max_num_workers=9"], 9, False),
        (["--runner=dataflow"], 1, False),
    ],
)
def test_workers_here_share_this_memory_and_others_have_their_own(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], workers: int, is_here: bool
) -> None:
    """Those of a cluster cannot be asked from here."""
    monkeypatch.setattr(module, "usable_memory", lambda: 640 * MIB)
    memory = 640 * MIB if is_here else workers * MEMORY_ELSEWHERE
    expected = advance_size(memory, workers)
    assert default_advance_bytes(parse_beam_options(flags)) == expected
    assert expected == (40 * MIB if is_here else memory // MEMORY_SHARE)


def test_little_memory_makes_more_advances_and_the_same_stream(
    finite: SmallStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a flag says wins over it."""
    monkeypatch.setattr(module, "LEAST_BYTES", 1)
    monkeypatch.setattr(module, "usable_memory", lambda: 48 * 1024 * MEMORY_SHARE)
    facts = run(finite.recipe, tmp_path / "little")
    assert facts["advances"] > finite.facts["advances"] == 1
    assert tree(tmp_path / "little") == finite.tree
    assert run(finite.recipe, tmp_path / "given", advance_bytes=1 << 30)["advances"] == 1
