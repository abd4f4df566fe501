"""Entry point of local worker processes."""

import ctypes
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run Beam's worker, without the working directory on its path, and die with the parent.

    Whoever starts this has put the folder of our packages in front of the path.
    """
    _die_with_parent()
    # Ctrl-C reaches every process of the terminal; it is the parent's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = [entry for entry in sys.path if entry]
    from pipelines.failures import printed_once

    with printed_once():
        runpy.run_module("apache_beam.runners.worker.sdk_worker_main", run_name="__main__")


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, also by SIGKILL (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
