"""The lane state: everything a lane needs to go on after a shard, and its Avro form.

A function of what was consumed, never of what was merely supplied, so it is byte-identical
whatever the arrival order. Its size is bounded by data sets · interleave places and by the
tokens of open bins and of packs that wait for their shard, whatever the progress.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from zephon_beam.avro_records import decode_records, encode_records
from zephon_beam.channel import DatasetCounters
from zephon_beam.errors import CorruptObjectError
from zephon_beam.pieces import GatheredPieces, PieceColumns

FORMAT_VERSION = 1


class SlotState(NamedTuple):
    """Place in one open chunk; number -1: the slot opens the next chunk."""

    number: int
    part: int
    document: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetState:
    """Place in one channel, what the mixture took in this phase, and the counters."""

    next_number: int
    turn: int
    slots: list[SlotState]
    taken: int
    counters: DatasetCounters


class BinState(NamedTuple):
    """An open bin: its group, its number in order of creation, and how many pieces it holds."""

    group: int
    created: int
    pieces: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneState:
    """A lane between two pieces."""

    fingerprint: str
    lane: int
    samples: int
    """Samples in committed shards."""
    phase: int
    flushed: bool
    """Whether the lane has ended and closed its bins; packs may still wait for their shard."""
    next_bin: int
    datasets: list[DatasetState]
    bins: list[BinState]
    packs: list[int]
    """Pieces of each finished pack that waits for its shard."""
    pieces: GatheredPieces
    """Of the bins in order, then of the packs."""
    format_version: int = FORMAT_VERSION


_COLUMNS: dict[str, Any] = {
    "datasets": np.dtype("<u2"),
    "files": np.dtype("<u4"),
    "documents": np.dtype("<i8"),
    "outputs": np.dtype("<u4"),
    "offsets": np.dtype("<i4"),
    "passes": np.dtype("<u4"),
    "nexts": np.dtype("<i4"),
}
_LENGTHS = np.dtype("<i4")


def _record(name: str, fields: list[tuple[str, Any]]) -> dict[str, Any]:
    described = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "namespace": "zephon_beam", "fields": described}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


SCHEMA: Any = _record(
    "LaneState",
    [
        ("format_version", "int"),
        ("fingerprint", "string"),
        ("lane", "int"),
        ("samples", "long"),
        ("phase", "int"),
        ("flushed", "boolean"),
        ("next_bin", "long"),
        (
            "datasets",
            _array(
                _record(
                    "DatasetState",
                    [
                        ("next_number", "long"),
                        ("turn", "int"),
                        (
                            "slots",
                            _array(
                                _record(
                                    "SlotState",
                                    [
                                        ("number", "long"),
                                        ("part", "long"),
                                        ("document", "long"),
                                        ("offset", "long"),
                                    ],
                                )
                            ),
                        ),
                        ("taken", "long"),
                        (
                            "counters",
                            _record(
                                "DatasetCounters",
                                [
                                    ("documents", "long"),
                                    ("read_tokens", "long"),
                                    ("truncated_tokens", "long"),
                                    ("dropped_tokens", "long"),
                                    ("quarantined_documents", "long"),
                                    ("opened_bytes", "long"),
                                    ("opened_tokens", "long"),
                                ],
                            ),
                        ),
                    ],
                )
            ),
        ),
        (
            "bins",
            _array(_record("BinState", [("group", "int"), ("created", "long"), ("pieces", "int")])),
        ),
        ("packs", _array("int")),
        ("token_bytes", "int"),
        ("lengths", "bytes"),
        *[(name, "bytes") for name in _COLUMNS if name != "datasets"],
        ("sources", "bytes"),
        ("tokens", "bytes"),
        ("loss_mask", ["null", "bytes"]),
    ],
)
"""Avro schema of a lane state; arrays of pieces are little-endian bytes."""


def state_to_record(state: LaneState) -> dict[str, Any]:
    """Return the Avro record of a state."""
    pieces = state.pieces
    columns = {
        name: _bytes(getattr(pieces.columns, name), dtype) for name, dtype in _COLUMNS.items()
    }
    sources = columns.pop("datasets")
    return {
        "format_version": state.format_version,
        "fingerprint": state.fingerprint,
        "lane": state.lane,
        "samples": state.samples,
        "phase": state.phase,
        "flushed": state.flushed,
        "next_bin": state.next_bin,
        "datasets": [
            {
                **_record_of(dataset),
                "slots": [slot._asdict() for slot in dataset.slots],
                "counters": _record_of(dataset.counters),
            }
            for dataset in state.datasets
        ],
        "bins": [row._asdict() for row in state.bins],
        "packs": state.packs,
        "token_bytes": pieces.tokens.dtype.itemsize,
        "lengths": _bytes(pieces.lengths, _LENGTHS),
        **columns,
        "sources": sources,
        "tokens": _bytes(pieces.tokens, pieces.tokens.dtype.newbyteorder("<")),
        "loss_mask": None if pieces.loss_mask is None else pieces.loss_mask.tobytes(),
    }


def state_from_record(record: Any, name: str) -> LaneState:
    """Return the state of an Avro record.

    Raises:
        CorruptObjectError: of a format version that this version does not read, or damaged.
    """
    version = record.get("format_version")
    if version != FORMAT_VERSION:
        raise CorruptObjectError(
            f"{name}: format version must be {FORMAT_VERSION}, got {version!r}; use the version of "
            "zephon-beam that wrote it"
        )
    try:
        columns = {
            column: np.frombuffer(record["sources" if column == "datasets" else column], dtype)
            for column, dtype in _COLUMNS.items()
        }
        mask = record["loss_mask"]
        pieces = GatheredPieces(
            lengths=np.frombuffer(record["lengths"], _LENGTHS),
            tokens=np.frombuffer(record["tokens"], np.dtype(f"<u{record['token_bytes']}")),
            loss_mask=None if mask is None else np.frombuffer(mask, np.uint8),
            columns=PieceColumns(**columns),
        )
        return LaneState(
            fingerprint=record["fingerprint"],
            lane=record["lane"],
            samples=record["samples"],
            phase=record["phase"],
            flushed=record["flushed"],
            next_bin=record["next_bin"],
            datasets=[_dataset_from(entry) for entry in record["datasets"]],
            bins=[BinState(**entry) for entry in record["bins"]],
            packs=record["packs"],
            pieces=pieces,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptObjectError(f"{name} is corrupt: {error}; delete it and run again") from error


def encode_state(state: LaneState) -> bytes:
    """Encode a state as an Avro container file.

    Determinism: depends on the state alone.
    """
    return encode_records(SCHEMA, [state_to_record(state)], state.fingerprint)


def decode_state(data: bytes | memoryview, name: str) -> LaneState:
    """Decode a state.

    Raises:
        CorruptObjectError: truncated, altered, or of another format version.
    """
    return state_from_record(_single(data, name), name)


def same_state(stored: bytes, computed: bytes) -> bool:
    """Say whether two encodings hold the same state, whichever library version wrote them.

    Raises:
        CorruptObjectError: one of them is damaged.
    """
    return bool(_single(stored, "stored state") == _single(computed, "computed state"))


def read_counters(data: bytes | memoryview, name: str = "lane state") -> list[DatasetCounters]:
    """Read only the counters of a state, per data set in recipe order."""
    return [dataset.counters for dataset in decode_state(data, name).datasets]


def _single(data: bytes | memoryview, name: str) -> Any:
    records = list(decode_records(data, name))
    if len(records) != 1:
        raise CorruptObjectError(
            f"{name} must hold one record, found {len(records)}; delete it and run again"
        )
    return records[0]


def _dataset_from(entry: Any) -> DatasetState:
    return DatasetState(
        next_number=entry["next_number"],
        turn=entry["turn"],
        slots=[SlotState(**slot) for slot in entry["slots"]],
        taken=entry["taken"],
        counters=DatasetCounters(**entry["counters"]),
    )


def _record_of(entry: Any) -> dict[str, Any]:
    """Return the fields of a dataclass; unlike `asdict`, without copying what they hold."""
    return {name.name: getattr(entry, name.name) for name in fields(entry)}


def _bytes(values: Any, dtype: Any) -> bytes:
    return np.ascontiguousarray(values, dtype=dtype).tobytes()
