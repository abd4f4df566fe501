"""What travels towards a lane before it is tokens: pointers, documents, and the lane's head.

Stages that only concern documents hand heads on untouched, so that one stream of elements keyed
by lane reaches `PackLanes` and nothing needs a side input.
"""

import json
from dataclasses import astuple, dataclass

import apache_beam as beam
import numpy as np
import pyarrow as pa

from zephon_beam.sequences import PartKey
from zephon_beam.sources.documents import Documents, Quarantined, Spans, TokenLists

SupplyItem = tuple[int, int, int, int]
"""(data set, chunk number, first part, parts), or `HEAD_ITEM`, `NUDGE_ITEM` or a `drain_item`."""

HEAD_ITEM: SupplyItem = (-1, -1, -1, -1)
NUDGE_ITEM: SupplyItem = (-2, -2, -2, -2)
"""Asks a lane of an endless job to say where it stands."""
_DRAIN = -3


def drain_item(parts: int) -> SupplyItem:
    """Return what tells a lane that nothing comes but the parts, so many, of its endless job."""
    return _DRAIN, _DRAIN, _DRAIN, parts


def drained_parts(item: SupplyItem) -> int | None:
    """Return the parts of a `drain_item`, None if it is none."""
    return item[3] if item[0] == _DRAIN else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneDocuments:
    """The documents of one part on their way to the tokenizer, or a head that passes through.

    With neither it is the end of a job that is drained, or a nudge; these pass through too.
    """

    head: bytes | None = None
    all_parts: int | None = None
    """Of a drain: how many parts the job has supplied the lane with."""
    key: PartKey | None = None
    pass_number: int = 0
    documents: Documents | None = None


class LaneDocumentsCoder(beam.coders.Coder):
    """Encodes `LaneDocuments` where a runner cuts the graph before the tokenizer."""

    def encode(self, value: LaneDocuments) -> bytes:
        """Encode as a kind byte and the head, or an Arrow stream of the documents."""
        if value.head is not None:
            return b"H" + value.head
        if value.all_parts is not None:
            return b"E%d" % value.all_parts
        if value.key is None or value.documents is None:
            return b"N"
        return b"D" + _encode_documents(value.key, value.pass_number, value.documents)

    def decode(self, encoded: bytes) -> LaneDocuments:
        """Decode what `encode` made."""
        if encoded[:1] == b"H":
            return LaneDocuments(head=encoded[1:])
        if encoded[:1] == b"E":
            return LaneDocuments(all_parts=int(encoded[1:]))
        if encoded[:1] == b"N":
            return LaneDocuments()
        return _decode_documents(encoded[1:])

    def estimate_size(self, value: LaneDocuments) -> int:
        """Say about how many bytes `encode` would make; runners ask this of sampled elements."""
        documents = value.documents
        return documents.source_bytes if documents is not None else len(value.head or b"")

    def is_deterministic(self) -> bool:
        """Equal values have equal encodings."""
        return True

    def to_type_hint(self) -> type[LaneDocuments]:
        """Return the type this coder is registered for."""
        return LaneDocuments


beam.coders.registry.register_coder(LaneDocuments, LaneDocumentsCoder)


def _encode_documents(key: PartKey, pass_number: int, documents: Documents) -> bytes:
    metadata = {
        "dataset": str(key.dataset),
        "number": str(key.number),
        "part": str(key.part),
        "pass": str(pass_number),
        "last": str(int(documents.last)),
        "source_bytes": str(documents.source_bytes),
        "quarantined": json.dumps([astuple(entry) for entry in documents.quarantined]),
    }
    columns = {
        "text": pa.array(documents.texts, pa.large_string()),
        "file": pa.array(documents.files, pa.uint32()),
        "locator": pa.array(documents.locators, pa.int64()),
        "output": pa.array(documents.outputs, pa.uint32()),
    }
    lists = documents.tokens
    if lists is not None:
        bounds = pa.array(lists.offsets, pa.int64())
        columns["tokens"] = pa.LargeListArray.from_arrays(bounds, pa.array(lists.tokens))
        if lists.learned is not None:
            columns["learned"] = pa.LargeListArray.from_arrays(bounds, pa.array(lists.learned))
    if documents.spans is not None:
        bounds = pa.array(documents.spans.bounds, pa.int64())
        pieces = pa.array(documents.spans.pieces, pa.large_string())
        special = pa.array(documents.spans.special, pa.bool_())
        columns["pieces"] = pa.LargeListArray.from_arrays(bounds, pieces)
        columns["special"] = pa.LargeListArray.from_arrays(bounds, special)
        if documents.spans.repeats is not None:
            repeats = pa.array(documents.spans.repeats, pa.int64())
            columns["repeats"] = pa.LargeListArray.from_arrays(bounds, repeats)
    schema = pa.schema([(name, column.type) for name, column in columns.items()], metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(list(columns.values()), schema=schema))
    return sink.getvalue().to_pybytes()


def _decode_documents(data: bytes) -> LaneDocuments:
    reader = pa.ipc.open_stream(pa.py_buffer(data))
    metadata = {name.decode(): json.loads(value) for name, value in reader.schema.metadata.items()}
    batch = reader.read_next_batch()
    documents = Documents(
        texts=batch.column("text").to_pylist(),
        files=np.asarray(batch.column("file")),
        locators=np.asarray(batch.column("locator")),
        outputs=np.asarray(batch.column("output")),
        source_bytes=metadata["source_bytes"],
        last=bool(metadata["last"]),
        tokens=_decode_tokens(batch),
        spans=_decode_spans(batch),
        quarantined=tuple(
            Quarantined(place=place, file=file, locator=locator, reason=reason, message=message)
            for place, file, locator, reason, message in metadata["quarantined"]
        ),
    )
    key = PartKey(dataset=metadata["dataset"], number=metadata["number"], part=metadata["part"])
    return LaneDocuments(key=key, pass_number=metadata["pass"], documents=documents)


def _decode_tokens(batch: pa.RecordBatch) -> TokenLists | None:
    if "tokens" not in batch.schema.names:
        return None
    tokens = batch.column("tokens")
    learned = batch.column("learned").values if "learned" in batch.schema.names else None
    return TokenLists(
        tokens=np.asarray(tokens.values),
        offsets=np.asarray(tokens.offsets),
        learned=None if learned is None else np.asarray(learned),
    )


def _decode_spans(batch: pa.RecordBatch) -> Spans | None:
    if "pieces" not in batch.schema.names:
        return None
    pieces = batch.column("pieces")
    repeats = batch.column("repeats").values if "repeats" in batch.schema.names else None
    return Spans(
        pieces=pieces.values.to_pylist(),
        special=batch.column("special").values.to_numpy(zero_copy_only=False),
        bounds=np.asarray(pieces.offsets),
        repeats=None if repeats is None else np.asarray(repeats),
    )
