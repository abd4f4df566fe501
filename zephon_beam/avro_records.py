"""Avro containers with fixed bytes: the same records always make the same file.

Avro marks blocks with a random marker and offers codecs whose builds differ; here the marker is
derived from the stream's fingerprint and nothing is compressed.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fastavro

from zephon_beam.errors import CorruptObjectError
from zephon_beam.keyed import keyed_digest


def encode_records(schema: Any, records: Iterable[Any], fingerprint: str) -> bytes:
    """Encode records as one Avro container file.

    Determinism: depends on the arguments and the Avro format, on no clock and no random marker.
    """
    sink = io.BytesIO()
    marker = keyed_digest("avro", fingerprint, size=16)
    fastavro.writer(sink, schema, records, codec="null", sync_marker=marker)
    return sink.getvalue()


def decode_records(data: bytes | memoryview, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a container.

    Raises:
        CorruptObjectError: truncated, altered, or no Avro container.
    """
    try:
        yield from fastavro.reader(io.BytesIO(data))
    except (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise CorruptObjectError(
            f"{name} is corrupt: {error or type(error).__name__}; the lane cannot go on from it; "
            "delete it and run the recipe again, which goes back to the state before it"
        ) from error
