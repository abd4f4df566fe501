"""A part of a tokenized chunk: what travels from the tokenizer to the lanes as one element.

The chunk is the unit of order, the part the unit of supply: parts of a chunk are numbered and
the last one is marked. On the wire a part is one Arrow IPC stream with flat token arrays.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_beam.errors import CorruptObjectError

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartKey:
    """Where a part belongs: the place that order is restored by."""

    dataset: int
    """Place of the data set in the recipe."""
    number: int
    """Number of the chunk in the channel of this lane and data set: 0, 1, 2, …"""
    part: int
    """Number of the part in its chunk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SequencePart:
    """The sequences of one part, one per document, in the order the lane takes them.

    tokens: uint16 or uint32 [sum of lengths].
    offsets: int64[documents + 1], bounds of each document's tokens.
    files, locators, outputs: uint32, int64, uint32 [documents]; where each document came from.
    loss_mask: uint8 like tokens, or None.
    quarantined: bool[documents] or None: documents set aside as unusable. Each keeps its place
        with an empty sequence, so that no other document moves.
    """

    key: PartKey
    last: bool
    """Whether this is the last part of its chunk."""
    pass_number: int
    source_bytes: int
    tokens: Array
    offsets: Array
    files: Array
    locators: Array
    outputs: Array
    loss_mask: Array | None = None
    quarantined: Array | None = None

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = (self.tokens, self.offsets, self.files, self.locators, self.outputs)
        masks = (self.loss_mask, self.quarantined)
        return sum(array.nbytes for array in (*arrays, *masks) if array is not None)


def encode_part(part: SequencePart) -> bytes:
    """Encode a part as an Arrow IPC stream.

    Determinism: depends on the part alone.
    """
    offsets = pa.array(part.offsets, pa.int64())
    columns = {
        "tokens": pa.LargeListArray.from_arrays(offsets, pa.array(part.tokens)),
        "file": pa.array(part.files, pa.uint32()),
        "locator": pa.array(part.locators, pa.int64()),
        "output": pa.array(part.outputs, pa.uint32()),
    }
    if part.loss_mask is not None:
        columns["loss_mask"] = pa.LargeListArray.from_arrays(offsets, pa.array(part.loss_mask))
    if part.quarantined is not None and bool(part.quarantined.any()):
        columns["quarantined"] = pa.array(part.quarantined, pa.bool_())
    metadata = {
        "dataset": str(part.key.dataset),
        "number": str(part.key.number),
        "part": str(part.key.part),
        "last": str(int(part.last)),
        "pass": str(part.pass_number),
        "source_bytes": str(part.source_bytes),
    }
    schema = pa.schema([(name, column.type) for name, column in columns.items()], metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(list(columns.values()), schema=schema))
    return bytes(sink.getvalue())


def decode_part(data: bytes) -> SequencePart:
    """Decode a part; its arrays refer to `data` without copying.

    Raises:
        CorruptObjectError: not a part.
    """
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(data))
        metadata = {key.decode(): int(value) for key, value in reader.schema.metadata.items()}
        batch = reader.read_next_batch()
        key = PartKey(dataset=metadata["dataset"], number=metadata["number"], part=metadata["part"])
        tokens = batch.column("tokens")
        has_mask = "loss_mask" in batch.schema.names
        has_quarantined = "quarantined" in batch.schema.names
        return SequencePart(
            key=key,
            last=bool(metadata["last"]),
            pass_number=metadata["pass"],
            source_bytes=metadata["source_bytes"],
            tokens=np.asarray(tokens.values),
            offsets=np.asarray(tokens.offsets),
            files=np.asarray(batch.column("file")),
            locators=np.asarray(batch.column("locator")),
            outputs=np.asarray(batch.column("output")),
            loss_mask=np.asarray(batch.column("loss_mask").values) if has_mask else None,
            quarantined=(
                batch.column("quarantined").to_numpy(zero_copy_only=False)
                if has_quarantined
                else None
            ),
        )
    except (pa.ArrowInvalid, OSError, KeyError, AttributeError, StopIteration) as error:
        raise CorruptObjectError(
            f"tokenized part is corrupt: {error}; the advance that supplied it cannot go on; "
            "run the recipe again, which supplies it anew"
        ) from error
