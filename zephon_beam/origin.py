"""The origin of a fork: the point of another stream that it begins at.

A fork keeps a lane state of its own for each lane to begin with, in `origin/`, so it needs nothing
of the stream that it came from. Their digest enters its fingerprint: a fork is a function of its
recipe and its origin.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from zephon_beam.errors import CorruptObjectError
from zephon_beam.lane_state import LaneState, decode_state, state_to_record
from zephon_beam.layout import origin_name
from zephon_beam.manifest import Origin
from zephon_beam.store.base import Store

_DIGEST_BYTES = 16


def states_digest(states: Sequence[LaneState]) -> str:
    """Digest the lane states of a fork's beginning, in the order of lanes.

    Determinism: depends on what the states hold, but not on the fingerprint in them, which
    follows from this digest.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for state in states:
        record = state_to_record(replace(state, fingerprint=""))
        text = json.dumps(record, default=bytes.hex, separators=(",", ":"), sort_keys=True)
        digest.update(blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest())
    return digest.hexdigest()


def read_origin_state(store: Store, lane: int, fingerprint: str) -> LaneState:
    """Read the state that a lane of a fork begins with.

    Args:
        store: of the fork.
        lane: of the fork.
        fingerprint: of the fork.

    Raises:
        CorruptObjectError: it is missing, damaged or of another stream.
    """
    name = origin_name(lane)
    repair = "restore it from a copy, or fork the older stream again"
    try:
        state = decode_state(store.get(name), name)
    except FileNotFoundError as error:
        raise CorruptObjectError(
            f"{name} must exist in a stream that was forked, found none in {store.uri!r}; the lane "
            f"cannot begin; {repair}"
        ) from error
    if state.fingerprint != fingerprint or state.lane != lane:
        raise CorruptObjectError(
            f"{name} must belong to lane {lane} of {fingerprint}, found lane {state.lane} of "
            f"{state.fingerprint}; the lane would begin elsewhere; {repair}"
        )
    return state


def origin_fault(store: Store, origin: Origin, lanes: int, fingerprint: str) -> str | None:
    """Say what is wrong with the states that a fork begins with; None if nothing is."""
    try:
        states = [read_origin_state(store, lane, fingerprint) for lane in range(lanes)]
    except CorruptObjectError as error:
        return str(error)
    found = states_digest(states)
    if found != origin.states_digest:
        return (
            f"origin/: digest: expected {origin.states_digest}, found {found}; the states that "
            "the fork begins with were altered; restore them from a copy"
        )
    return None
