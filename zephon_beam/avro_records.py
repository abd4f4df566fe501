"""Avro containers with fixed bytes: the same records always make the same file.

Avro marks blocks with a random marker and offers codecs whose builds differ; here the marker is
derived from the stream's fingerprint and nothing is compressed. Avro would also read altered bytes
as other values, so the header holds a digest of the whole file (taken with zeros in its place).
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import fastavro

from zephon_beam.errors import CorruptObjectError
from zephon_beam.keyed import keyed_digest

_DIGEST_KEY = "zephon_beam.digest"
_DIGEST_BYTES = 16
_UNKNOWN = b"0" * (2 * _DIGEST_BYTES)


def encode_records(schema: Any, records: Iterable[Any], fingerprint: str) -> bytes:
    """Encode records as one Avro container file.

    Determinism: depends on the arguments and the Avro format, on no clock and no random marker.
    """
    sink = io.BytesIO()
    marker = end_mark(fingerprint)
    metadata = {_DIGEST_KEY: _UNKNOWN.decode()}
    fastavro.writer(sink, schema, records, codec="null", sync_marker=marker, metadata=metadata)
    data = bytearray(sink.getbuffer())
    place = _digest_place(data)
    digest = blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
    data[place : place + len(_UNKNOWN)] = digest.encode()
    return bytes(data)


def end_mark(fingerprint: str) -> bytes:
    """Return the last bytes of every whole file of a stream."""
    return keyed_digest("avro", fingerprint, size=16)


def decode_records(data: bytes | memoryview, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a container.

    Raises:
        CorruptObjectError: truncated, altered, or no Avro container; before the first record.
    """
    try:
        _verify(data)
        records: Any = fastavro.reader(io.BytesIO(data))
        yield from records
    except (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise CorruptObjectError(
            f"{name} is corrupt: {error or type(error).__name__}; the lane cannot go on from it; "
            "delete it and run the recipe again, which goes back to the state before it"
        ) from error


def _digest_place(data: bytes | bytearray) -> int:
    """Return where the digest of a file starts; the header comes first, so the first match counts.

    Raises:
        ValueError: there is none.
    """
    return data.index(_DIGEST_KEY.encode()) + len(_DIGEST_KEY) + 1


def _verify(data: bytes | memoryview) -> None:
    """Compare a file with its digest.

    Raises:
        ValueError: it has none, or is not what was written.
    """
    content = bytearray(data)
    place = _digest_place(content)
    expected = bytes(content[place : place + len(_UNKNOWN)])
    content[place : place + len(_UNKNOWN)] = _UNKNOWN
    found = blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
    if found.encode() != expected:
        raise ValueError(f"digest: expected {expected.decode(errors='replace')}, found {found}")
