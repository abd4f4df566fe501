"""Asking the kernel about processes."""

from pathlib import Path


def is_running(process: int) -> bool:
    """Say whether a process exists and is more than an exit status."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children(parent: int) -> set[int]:
    """Return the processes that a process has started."""
    found = set()
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            found.update(map(int, task.read_text().split()))
        except OSError:
            continue
    return found
