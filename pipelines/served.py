"""The command line as the child process of `zephon_beam.serve`: it ends when its parent does."""

import ctypes
import os
import select
import signal
import sys
import threading
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LOOK_SECS = 1.0


def main() -> None:
    """Run a command whose words follow the parent's number, a status file and who watches.

    The status file gets the exit status as the last thing that happens, so whoever finds none
    knows that the process was killed.
    """
    parent, status, watcher = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    sys.argv[:] = ["zephon-beam", *sys.argv[4:]]
    if watcher == "kernel":
        die_with_parent()
    threading.Thread(target=_end_without, args=(parent,), daemon=True).start()
    from pipelines.main import console

    try:
        console()
    except SystemExit as exiting:
        status.write_text(str(exiting.code or 0))
        raise


def die_with_parent() -> None:
    """Have this process killed with the parent's main thread, whatever it is doing then."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_without(parent: int) -> None:
    """End this process and what it has started once the parent's end of standard input closes.

    A process that the parent has forked may hold that end open, so its number is looked at too.
    """
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], _LOOK_SECS)
        if ready and not os.read(0, 4096):
            break
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
