"""The messages of an Arrow IPC file or stream, found without reading their bodies.

    stream   schema | dictionary … | batch | batch | … | end mark
    file     ARROW1 | a stream     | footer | length | ARROW1

Each message says how long it is, so a few bytes of each are read and the rest is skipped. What is
read of a message's metadata is a table of FlatBuffers:

    message       1 kind, 2 header, 3 bytes of the body
    batch         0 rows, 2 places of its buffers in the body, 3 compression
    dictionary    0 number, 2 whether it adds to the one before

Source: the Arrow columnar format, https://arrow.apache.org/docs/format/Columnar.html, and the
encoding of FlatBuffers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct, error

from zephon_beam.errors import SourceError

Read = Callable[[int, int], bytes]
"""Reads `length` bytes from `start` of a file: `read(start, length)`."""

MAGIC = b"ARROW1"
SCHEMA, DICTIONARY, BATCH = 1, 2, 3

_FEATHER_1 = b"FEA1"
_CONTINUATION = 0xFFFFFFFF
_PADDED_MAGIC = 8
_STEP = 4096
_LARGEST_METADATA = 1 << 28
_LARGEST_BATCH = 1 << 48
"""Rows and bytes; more of them are damage."""
_UNCOMPRESSED = -1
_U32, _I32, _U16, _I64 = Struct("<I"), Struct("<i"), Struct("<H"), Struct("<q")
_BUFFER = Struct("<qq")


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message: bytes [start, stop) of its file."""

    kind: int
    start: int
    stop: int
    rows: int = 0
    """Of a batch."""
    expanded_bytes: int = 0
    """Of a batch: its buffers before compression."""
    dictionary: int = -1
    """Number of a dictionary."""
    is_delta: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What messages a file consists of."""

    is_file: bool
    """Whether it has a footer; else it is a stream."""
    schema: Message
    dictionaries: tuple[Message, ...]
    batches: tuple[Message, ...]

    def needed(self, batch: int) -> list[Message]:
        """Return the messages of a stream without which a batch cannot be read, and the batch."""
        found = self.batches[batch]
        dictionaries: dict[int, list[Message]] = {}
        for message in self.dictionaries:
            if message.start < found.start:
                known = dictionaries.get(message.dictionary, [])
                dictionaries[message.dictionary] = (
                    [*known, message] if message.is_delta else [message]
                )
        parts = [message for messages in dictionaries.values() for message in messages]
        return [self.schema, *sorted(parts, key=lambda message: message.start), found]


def read_layout(read: Read, size: int, file: str) -> Layout:
    """Find the messages of a file of `size` bytes.

    Raises:
        SourceError: not Arrow IPC, or its messages do not follow each other to its end.
    """
    start = read(0, min(size, _PADDED_MAGIC))
    is_file = start.startswith(MAGIC)
    if start.startswith(_FEATHER_1):
        raise _unreadable(file, "it is Feather version 1, which has no record batches")
    place, stop = 0, size
    if is_file:
        place, stop = _PADDED_MAGIC, size - len(MAGIC) - _I32.size
        tail = read(max(stop, 0), size - max(stop, 0))
        length = _I32.unpack_from(tail)[0] if len(tail) == size - stop else -1
        stop -= length
        if not tail.endswith(MAGIC) or length <= 0 or stop < place:
            raise _unreadable(file, "it has no footer at its end")
    try:
        messages = list(_messages(read, place, stop, is_file))
    except (error, IndexError, ValueError) as problem:
        raise _unreadable(file, str(problem)) from problem
    schemas = [message for message in messages if message.kind == SCHEMA]
    if len(schemas) != 1 or messages[0].kind != SCHEMA:
        raise _unreadable(file, "it does not begin with a schema")
    return Layout(
        is_file=is_file,
        schema=schemas[0],
        dictionaries=tuple(message for message in messages if message.kind == DICTIONARY),
        batches=tuple(message for message in messages if message.kind == BATCH),
    )


def _messages(read: Read, place: int, stop: int, is_file: bool) -> Iterator[Message]:
    """Yield the messages in [place, stop) up to the end mark; `ValueError` if they do not fit."""
    while place < stop:
        head = read(place, min(_STEP, stop - place))
        (length,), prefix = _U32.unpack_from(head), _U32.size
        if length == _CONTINUATION:
            (length,), prefix = _U32.unpack_from(head, prefix), 2 * prefix
        first = place + prefix
        if not length:
            if first != stop and not is_file:
                raise ValueError(f"{stop - first} bytes follow the end of its stream")
            return
        if length > _LARGEST_METADATA or first + length > stop:
            raise ValueError(f"a message of {length} bytes at byte {place} ends behind its end")
        metadata = head[prefix:]
        if length > len(metadata):
            metadata = read(first, length)
        yield _message(read, place, first + length, metadata, stop)
        place = first + length + _body_bytes(metadata)


def _message(read: Read, start: int, body: int, metadata: bytes, limit: int) -> Message:
    """Read the metadata of one message, whose body begins at `body`."""
    message = _Table.root(metadata)
    kind = message.number(1, 1)
    stop = body + _body_bytes(metadata)
    if not body <= stop <= limit:
        raise ValueError(f"a message at byte {start} ends at byte {stop}, behind its end")
    header = message.table(2)
    if kind == DICTIONARY:
        number, delta = header.number(0, 8), bool(header.number(2, 1))
        return Message(kind=kind, start=start, stop=stop, dictionary=number, is_delta=delta)
    if kind == SCHEMA:
        return Message(kind=kind, start=start, stop=stop)
    if kind != BATCH:
        raise ValueError(f"a message of kind {kind} at byte {start}")
    rows, expanded = header.number(0, 8), stop - body
    if header.has(3):
        expanded = sum(_expanded(read, body, stop, *buffer) for buffer in header.buffers(2))
    if not 0 <= rows <= _LARGEST_BATCH or expanded > _LARGEST_BATCH:
        raise ValueError(f"a batch of {rows} rows in {expanded} bytes at byte {start}")
    return Message(kind=kind, start=start, stop=stop, rows=rows, expanded_bytes=expanded)


def _expanded(read: Read, body: int, stop: int, offset: int, length: int) -> int:
    """Return the size of a compressed buffer, which stands before it."""
    if not length:
        return 0
    if not 0 <= offset <= offset + length <= stop - body:
        raise ValueError(f"a buffer of {length} bytes at byte {body + offset}")
    (size,) = _I64.unpack(read(body + offset, _I64.size))
    return length - _I64.size if size == _UNCOMPRESSED else max(0, int(size))


def _body_bytes(metadata: bytes) -> int:
    return _Table.root(metadata).number(3, 8)


class _Table:
    """A table of FlatBuffers: fields by number, each absent or somewhere behind."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self._place = place
        self._fields = place - _I32.unpack_from(data, place)[0]

    @classmethod
    def root(cls, data: bytes) -> "_Table":
        return cls(data, _U32.unpack_from(data)[0])

    def has(self, field: int) -> bool:
        return self._offset(field) != 0

    def number(self, field: int, width: int) -> int:
        """Return a signed integer of some bytes; 0 if it is absent."""
        offset = self._offset(field)
        if not offset:
            return 0
        place = self._place + offset
        data = self._data[place : place + width]
        if len(data) < width:
            raise IndexError(f"a field of {width} bytes at byte {place} of {len(self._data)}")
        return int.from_bytes(data, "little", signed=True)

    def table(self, field: int) -> "_Table":
        if not self.has(field):
            raise ValueError("a message without a header")
        return _Table(self._data, self._target(field))

    def buffers(self, field: int) -> list[tuple[int, int]]:
        """Return a vector of (offset, length)."""
        if not self.has(field):
            return []
        start = self._target(field)
        (count,) = _U32.unpack_from(self._data, start)
        stop = start + _U32.size + count * _BUFFER.size
        return list(_BUFFER.iter_unpack(self._data[start + _U32.size : stop]))

    def _target(self, field: int) -> int:
        place = self._place + self._offset(field)
        return place + int(_U32.unpack_from(self._data, place)[0])

    def _offset(self, field: int) -> int:
        place = _U16.size * (2 + field)
        if self._fields < 0 or place >= _U16.unpack_from(self._data, self._fields)[0]:
            return 0
        return int(_U16.unpack_from(self._data, self._fields + place)[0])


def _unreadable(file: str, reason: str) -> SourceError:
    return SourceError(
        f"{file}: expected an Arrow IPC file or stream, found none ({reason}); nothing can be read "
        "from it; restore the file, or leave it out of `files`"
    )
