"""Cancelling a job, of an engine that may not answer."""

import threading
from contextlib import suppress

import grpc
from apache_beam.runners.runner import PipelineResult, PipelineState

CANCEL_SECS = 20.0
"""In which an engine takes the wish to cancel a job; one that is stopped never does."""


def cancel(result: PipelineResult) -> bool:
    """Cancel a job unless it has ended, and say whether its engine answered."""
    asking = threading.Thread(target=_ask, args=(result,), name="cancel-job", daemon=True)
    asking.start()
    asking.join(CANCEL_SECS)
    return not asking.is_alive()


def _ask(result: PipelineResult) -> None:
    with suppress(Exception):
        if not _has_ended(result):
            result.cancel()


def _has_ended(result: PipelineResult) -> bool:
    try:
        return bool(PipelineState.is_terminal(result.state))
    except grpc.RpcError:
        return True
