"""The reader's state: where the next microbatch begins, as one small dict.

Steps are numbered from the start of the stream: step s is samples
[step_base + s·B, step_base + (s + 1)·B) for the global batch size B in force. A change of B moves
`step_base`, so step numbers go on and the formula stays true:

    B = 4, steps 0-2, then B = 8    samples 0 4 8 12       20
                                    steps   0 1 2 3 …      4     step_base = 12 - 3·8 = -12

Every value is an int, a str or a bool and the keys never change: distributed checkpoints use a
fresh state as the template and drop what is not in it, such as items of a list that grew. That is
why skipped steps are one text, `"1000:1010,2500:2501"`, half-open ranges.
"""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zephon_beam.errors import DriftError, ResumeError
from zephon_beam.reader.ranks import microbatch_count

STATE_VERSION = 1
_RANGE = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """What a position inside a step depends on."""

    dp_world_size: int
    micro_batch_size: int
    global_batch_size: int
    placement: str

    @property
    def microbatches_per_step(self) -> int:
        """Microbatches that every rank yields in every step."""
        return microbatch_count(self.global_batch_size, self.dp_world_size, self.micro_batch_size)


@dataclass(kw_only=True, slots=True)
class Cursor:
    """A position between two microbatches; the same on every rank, advanced by its reader."""

    next_sample: int
    """First sample of the step that comes next or is under way."""
    step_base: int
    """May be negative after the batch size has grown."""
    microbatch: int = 0
    """Microbatches of the step already delivered; 0 at a step edge."""
    skipped: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of steps that are left out, sorted and disjoint."""
    ended: bool = False
    """The end of the stream was reported; the next iteration starts it again."""


def encode_state(cursor: Cursor, topology: Topology, fingerprint: str) -> dict[str, Any]:
    """Encode a cursor; the keys and types are the same for every cursor."""
    return {
        "version": STATE_VERSION,
        "fingerprint": fingerprint,
        "next_sample": cursor.next_sample,
        "microbatch": cursor.microbatch,
        "dp_world_size": topology.dp_world_size,
        "micro_batch_size": topology.micro_batch_size,
        "global_batch_size": topology.global_batch_size,
        "placement": topology.placement,
        "step_base": cursor.step_base,
        "skipped_steps": ",".join(f"{first}:{last}" for first, last in cursor.skipped),
        "ended": cursor.ended,
    }


def decode_state(state: Mapping[str, Any], topology: Topology, fingerprint: str) -> Cursor:
    """Decode and check a state for a reader of the given topology.

    At a step edge the topology is free: the cursor is rebased on the reader's batch size and keeps
    its step number.

    Raises:
        DriftError: the state belongs to another stream.
        ResumeError: not a state of this version, or inside a step of another topology.
    """
    next_sample = first_sample_of(state, fingerprint, 0)
    batch = _integer(state, "global_batch_size", 1)
    base = _integer(state, "step_base", None)
    step, rest = divmod(next_sample - base, batch)
    if rest or step < 0:
        raise ResumeError(
            f"next_sample must be step_base plus a multiple of global_batch_size, got "
            f"{next_sample}, {base} and {batch}; the state was altered; load an unaltered one"
        )
    microbatch = _integer(state, "microbatch", 0)
    if microbatch:
        _check_same_topology(state, topology, microbatch)
    return Cursor(
        next_sample=next_sample,
        step_base=next_sample - step * topology.global_batch_size,
        microbatch=microbatch,
        skipped=_ranges(_text(state, "skipped_steps")),
        ended=bool(_value(state, "ended")),
    )


def first_sample_of(state: Mapping[str, Any], fingerprint: str, start_sample: int) -> int:
    """Return the first sample that a saved state needs; `{}` is the start.

    Raises:
        DriftError: the state belongs to another stream.
        ResumeError: not a state of this version.
    """
    if not state:
        return start_sample
    version = _integer(state, "version", 1)
    if version != STATE_VERSION:
        raise ResumeError(
            f"state version must be {STATE_VERSION}, got {version}; its fields may mean something "
            "else; load it with the version of zephon-beam that saved it"
        )
    found = _text(state, "fingerprint")
    if found != fingerprint:
        raise DriftError(
            f"fingerprint of the reader state: expected {fingerprint!r} (this stream), found "
            f"{found!r}; the saved position means other samples here; open the stream that the "
            "checkpoint was trained on, or start this one with load_state_dict({})"
        )
    return _integer(state, "next_sample", 0)


def add_range(
    ranges: tuple[tuple[int, int], ...], first: int, last: int
) -> tuple[tuple[int, int], ...]:
    """Add the half-open range [first, last) to sorted disjoint ranges, merging what touches."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted([*ranges, (first, last)]):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def without_skipped(cursor: Cursor, global_batch_size: int) -> Cursor:
    """Move a cursor at a step edge past the steps that are left out."""
    if cursor.microbatch or not cursor.skipped:
        return cursor
    step = (cursor.next_sample - cursor.step_base) // global_batch_size
    for first, last in cursor.skipped:
        if first <= step < last:
            return replace(cursor, next_sample=cursor.step_base + last * global_batch_size)
    return cursor


def following_step(cursor: Cursor, global_batch_size: int) -> Cursor:
    """Return the edge of the step that is delivered after the cursor's."""
    following = cursor.next_sample + global_batch_size
    edge = replace(cursor, next_sample=following, microbatch=0)
    return without_skipped(edge, global_batch_size)


def advance(cursor: Cursor, topology: Topology, microbatches: int) -> Cursor:
    """Return the position after so many more microbatches."""
    place = cursor.microbatch + microbatches
    while place >= topology.microbatches_per_step:
        cursor = following_step(cursor, topology.global_batch_size)
        place -= topology.microbatches_per_step
    return replace(cursor, microbatch=place)


def _check_same_topology(state: Mapping[str, Any], topology: Topology, microbatch: int) -> None:
    saved = Topology(
        dp_world_size=_integer(state, "dp_world_size", 1),
        micro_batch_size=_integer(state, "micro_batch_size", 1),
        global_batch_size=_integer(state, "global_batch_size", 1),
        placement=_text(state, "placement"),
    )
    for field in ("dp_world_size", "micro_batch_size", "global_batch_size", "placement"):
        expected, found = getattr(topology, field), getattr(saved, field)
        if expected != found:
            raise ResumeError(
                f"{field} must be {found!r}, that of the saved state, got {expected!r}; the state "
                f"was taken inside a step, after microbatch {microbatch}, and which samples the "
                "ranks had by then depends on it, so some would be repeated or missed; resume "
                "with the saved value, or from a state taken at a step edge (microbatch 0)"
            )
    if microbatch >= saved.microbatches_per_step:
        raise ResumeError(
            f"microbatch of the reader state must be below {saved.microbatches_per_step}, the "
            f"microbatches of a step, got {microbatch}; the state was altered; load an unaltered "
            "one"
        )


def _value(state: Mapping[str, Any], key: str) -> Any:
    if key not in state:
        raise ResumeError(
            f"reader state must have the key {key!r}, got {sorted(map(str, state))}; the position "
            "is incomplete; pass what state_dict() returned, or {} to start at the beginning"
        )
    return state[key]


def _integer(state: Mapping[str, Any], key: str, minimum: int | None) -> int:
    """Read an integer, also one that came back from a checkpoint as a scalar array."""
    value = _value(state, key)
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (minimum is not None and number < minimum):
        rule = "an integer" if minimum is None else f"an integer of at least {minimum}"
        raise ResumeError(
            f"{key} of the reader state must be {rule}, got {value!r}; the position is unknown; "
            "pass what state_dict() returned"
        )
    return number


def _text(state: Mapping[str, Any], key: str) -> str:
    value = _value(state, key)
    if not isinstance(value, str):
        raise ResumeError(
            f"{key} of the reader state must be a text, got {value!r}; the position is unknown; "
            "pass what state_dict() returned"
        )
    return value


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    ranges: tuple[tuple[int, int], ...] = ()
    for item in filter(None, text.split(",")):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ResumeError(
                f"skipped_steps of the reader state must be ranges like '10:12,20:21', got "
                f"{text!r}; the steps to leave out are unknown; pass what state_dict() returned"
            )
        ranges = add_range(ranges, int(match.group(1)), int(match.group(2)))
    return ranges
