"""Asking the kernel about processes."""

from pathlib import Path


def is_running(process: int) -> bool:
    """Say whether a process exists and is more than an exit status."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
