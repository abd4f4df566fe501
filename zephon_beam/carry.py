"""The carry: a lane between two advances, including what was supplied and not yet used.

Its first record is enough to plan the next advance; the parts that wait follow one by one.
Readers never see a carry, and losing one costs time only: lane states are enough to go on.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zephon_beam.avro_records import decode_records, encode_records
from zephon_beam.errors import CorruptObjectError
from zephon_beam.lane_state import SCHEMA as STATE_SCHEMA
from zephon_beam.lane_state import LaneState, state_from_record, state_to_record
from zephon_beam.sequences import PartKey

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingPart:
    """A part that was supplied and not used up, without its content."""

    key: PartKey
    last: bool
    source_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CarryHead:
    """A lane after an advance: its state, and what waits for it."""

    advance: int
    state: LaneState
    waiting: list[WaitingPart]


_SCHEMA: list[Any] = [
    {
        "type": "record",
        "name": "CarryHead",
        "namespace": "zephon_beam",
        "fields": [
            {"name": "format_version", "type": "int"},
            {"name": "advance", "type": "int"},
            {"name": "state", "type": STATE_SCHEMA},
            {
                "name": "waiting",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "WaitingPart",
                        "fields": [
                            {"name": "dataset", "type": "int"},
                            {"name": "number", "type": "long"},
                            {"name": "part", "type": "long"},
                            {"name": "last", "type": "boolean"},
                            {"name": "source_bytes", "type": "long"},
                        ],
                    },
                },
            },
        ],
    },
    "bytes",
]


def encode_carry(head: CarryHead, payloads: Sequence[bytes]) -> bytes:
    """Encode a carry.

    Args:
        head: the state and the description of what waits.
        payloads: the encoded part of each entry of `head.waiting`, in that order.

    Determinism: depends on the arguments alone.
    """
    record = {
        "format_version": FORMAT_VERSION,
        "advance": head.advance,
        "state": state_to_record(head.state),
        "waiting": [
            {**asdict(part.key), "last": part.last, "source_bytes": part.source_bytes}
            for part in head.waiting
        ],
    }
    return encode_records(_SCHEMA, [record, *payloads], head.state.fingerprint)


def decode_carry_head(data: bytes | memoryview, name: str) -> CarryHead:
    """Decode a carry without its payloads.

    Raises:
        CorruptObjectError: truncated, altered, or of another format version.
    """
    return _head(next(decode_records(data, name), None), name)


def decode_carry(data: bytes | memoryview, name: str) -> tuple[CarryHead, list[bytes]]:
    """Decode a whole carry.

    Raises:
        CorruptObjectError: truncated, altered, or of another format version.
    """
    records: list[Any] = list(decode_records(data, name))
    head = _head(records[0] if records else None, name)
    payloads = records[1:]
    if len(payloads) != len(head.waiting):
        raise CorruptObjectError(
            f"{name} must hold {len(head.waiting)} parts, found {len(payloads)}; delete it and run "
            "again, which goes back to the lane state"
        )
    return head, payloads


def same_carry(stored: bytes, computed: bytes) -> bool:
    """Say whether two carries are of the same lane of the same stream after the same advance.

    That is enough: what waits in a carry depends on no order that matters, so one that exists is
    accepted as it is.
    """
    heads = [decode_carry_head(data, "carry") for data in (stored, computed)]
    places = [(head.state.fingerprint, head.state.lane, head.advance) for head in heads]
    return places[0] == places[1]


def _head(record: Any, name: str) -> CarryHead:
    version = record.get("format_version") if isinstance(record, dict) else None
    if version != FORMAT_VERSION:
        raise CorruptObjectError(
            f"{name}: format version must be {FORMAT_VERSION}, got {version!r}; use the version of "
            "zephon-beam that wrote it, or delete it, which goes back to the lane state"
        )
    waiting = [
        WaitingPart(
            key=PartKey(dataset=entry["dataset"], number=entry["number"], part=entry["part"]),
            last=entry["last"],
            source_bytes=entry["source_bytes"],
        )
        for entry in record["waiting"]
    ]
    return CarryHead(
        advance=record["advance"],
        state=state_from_record(record["state"], name),
        waiting=waiting,
    )
