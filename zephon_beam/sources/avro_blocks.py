"""Avro object container files by byte ranges: which blocks belong to a range.

    header                 block 0          block 1                     block 2
    magic metadata marker | n size … marker | n size … … … … … marker | n size … marker |
    ranges       [0 …        ) [ …       ) [ …       ) [ …       ) [ …
    blocks       0             1            none        2            none

A block belongs to the range that holds its first byte, which follows the marker of the block
before. A reader looks for the marker from 16 bytes before its range and from there goes from block
to block.

Data may hold the marker by chance or on purpose. A place behind a marker counts as a block only if
its header is plausible and a marker follows where the header says that it ends; if one is found
that does not, the start is found by walking from the file's first block, which cannot err. What no
range can tell by itself, whole blocks inside of a record, is found by the reader of the range in
which that record's block begins, and refused.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from zephon_beam.errors import SourceError

Read = Callable[[int, int], bytes]
"""Reads `length` bytes from `start` of a file: `read(start, length)`."""

MAGIC = b"Obj\x01"
SYNC_BYTES = 16

_HEADER_STEP = 64 * 1024
_HEADER_LIMIT = 64 * 1024 * 1024
_VARINT_BYTES = 10
_RERUN = "then run the recipe into a new place"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """What the header of an object container file says."""

    schema: Any
    """As JSON gives it."""
    codec: str
    sync: bytes
    first_block: int
    """Place of the first byte behind the header."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A block: bytes [offset, stop) of its file, the marker included."""

    offset: int
    count: int
    """Records."""
    stop: int


class _Short(Exception):
    """The bytes at hand end too early."""


class _NoBlock(Exception):
    """There is no block at a place; the message says why."""


def read_container(read: Read, size: int, file: str) -> Container:
    """Read the header of a file of `size` bytes.

    Raises:
        SourceError: not an Avro object container file, or its header is damaged.
    """
    step = _HEADER_STEP
    while True:
        data = read(0, min(step, size))
        try:
            return _parse_header(data)
        except _Short:
            if len(data) == size or step >= _HEADER_LIMIT:
                raise _unreadable(file, "it ends inside its header") from None
            step *= 4
        except (ValueError, KeyError, RecursionError) as error:
            raise _unreadable(file, str(error)) from error


def read_blocks(
    read: Read, size: int, container: Container, start: int, stop: int, file: str
) -> Iterator[tuple[Block, bytes]]:
    """Yield the blocks whose first byte is in [start, stop), and their bytes.

    One read of the range and the 16 bytes before it, and one for the rest of the last block.

    Raises:
        SourceError: the file is damaged, or a record holds what cannot be told from blocks.
    """
    window = _Window(read, size, max(0, start - SYNC_BYTES), stop)
    place = _first_block(window, container, start, stop, file)
    while place is not None and place < stop:
        block = _block_or_damage(window, container, place, file)
        if block.stop > stop:
            _refuse_hidden_blocks(window, container, block, stop, file)
        yield block, window.get(block.offset, block.stop)
        place = block.stop


class _Window:
    """A file of which one stretch is in memory."""

    def __init__(self, read: Read, size: int, first: int, stop: int) -> None:
        self.size = size
        self._read = read
        self._first = first
        self._stop = stop
        self._data = read(first, stop - first)

    def get(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop), fewer at the file's end; reads only what is not at hand."""
        stop = min(stop, self.size)
        if not self._first <= start < self._stop:
            return self._read(start, stop - start) if start < stop else b""
        known = self._data[start - self._first : stop - self._first]
        missing = stop - self._stop
        return known + self._read(self._stop, missing) if missing > 0 else known


def _first_block(
    window: _Window, container: Container, start: int, stop: int, file: str
) -> int | None:
    """Return the place of the first block at or behind `start`, None if it is behind `stop`."""
    if start <= container.first_block:
        return container.first_block
    data = window.get(start - SYNC_BYTES, stop)
    found = data.find(container.sync)
    place = start + found
    if found < 0 or place >= stop:
        return None
    try:
        _block_at(window, container, place)
    except _NoBlock:
        # Either the marker is part of a record, or the block behind it is damaged.
        place = container.first_block
        while place < start:
            place = _block_or_damage(window, container, place, file).stop
    return place


def _refuse_hidden_blocks(
    window: _Window, container: Container, block: Block, stop: int, file: str
) -> None:
    """Make sure that readers of later ranges, from `stop` on, find no block inside of this one."""
    first = max(0, stop - SYNC_BYTES)
    data = window.get(first, block.stop - 1)
    found = data.find(container.sync)
    while found >= 0:
        place = first + found + SYNC_BYTES
        try:
            _block_at(window, container, place)
        except _NoBlock:
            found = data.find(container.sync, found + 1)
            continue
        raise SourceError(
            f"{file}: expected blocks that can be told from records, found at byte {place} a whole "
            f"block with the file's own sync marker inside of the block at byte {block.offset}; "
            "ranges of the file would begin in the middle of a record; write the file with another "
            f"marker, {_RERUN}"
        )


def _block_or_damage(window: _Window, container: Container, place: int, file: str) -> Block:
    try:
        return _block_at(window, container, place)
    except _NoBlock as error:
        raise damaged(file, place, str(error)) from error


def _block_at(window: _Window, container: Container, place: int) -> Block:
    """Return the block at a place; `_NoBlock` if there can be none."""
    head = window.get(place, place + 2 * _VARINT_BYTES)
    try:
        count, used = _long(head, 0)
        length, used = _long(head, used)
    except _Short:
        raise _NoBlock("the file ends inside of a block") from None
    except ValueError as error:
        raise _NoBlock(str(error)) from error
    stop = place + used + length + SYNC_BYTES
    # Of records that hold a text or a list, each takes a byte at the least.
    if count < 0 or length < 0 or (container.codec == "null" and count > length):
        raise _NoBlock(f"a block of {count} records in {length} bytes")
    if stop > window.size:
        raise _NoBlock(f"a block of {length} bytes, {stop - window.size} of them behind the end")
    if window.get(stop - SYNC_BYTES, stop) != container.sync:
        raise _NoBlock(f"no sync marker behind a block of {length} bytes")
    return Block(offset=place, count=count, stop=stop)


def _parse_header(data: bytes) -> Container:
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise ValueError(f"it starts with {data[: len(MAGIC)]!r}")
    metadata: dict[bytes, bytes] = {}
    place = len(MAGIC)
    while True:
        count, place = _long(data, place)
        if not count:
            break
        if count < 0:
            # A negative count is followed by the bytes of the entries.
            _, place = _long(data, place)
        for _ in range(abs(count)):
            key, place = _bytes(data, place)
            metadata[key], place = _bytes(data, place)
    sync = data[place : place + SYNC_BYTES]
    if len(sync) < SYNC_BYTES:
        raise _Short
    return Container(
        schema=json.loads(metadata[b"avro.schema"]),
        codec=metadata.get(b"avro.codec", b"null").decode(),
        sync=sync,
        first_block=place + SYNC_BYTES,
    )


def _bytes(data: bytes, place: int) -> tuple[bytes, int]:
    length, place = _long(data, place)
    if length < 0:
        raise ValueError(f"a text of {length} bytes in its header")
    if place + length > len(data):
        raise _Short
    return data[place : place + length], place + length


def _long(data: bytes, place: int) -> tuple[int, int]:
    """Decode a zigzag varint; returns (the number, place behind it)."""
    value = 0
    for used, byte in enumerate(data[place : place + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * used)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place + used + 1
    if len(data) - place < _VARINT_BYTES:
        raise _Short
    raise ValueError(f"a number of more than {_VARINT_BYTES} bytes")


def encode_header(schema: Any, container: Container) -> bytes:
    """Encode a header with another schema for the same blocks."""
    metadata = {
        b"avro.schema": json.dumps(schema).encode(),
        b"avro.codec": container.codec.encode(),
    }
    pieces = [MAGIC, _varint(len(metadata))]
    for entry in metadata.items():
        for text in entry:
            pieces += [_varint(len(text)), text]
    return b"".join([*pieces, _varint(0), container.sync])


def _varint(value: int) -> bytes:
    """Encode a number of at least 0 as a zigzag varint."""
    value <<= 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def damaged(file: str, place: int, reason: str) -> SourceError:
    """Return the error for a block that cannot be read."""
    return SourceError(
        f"{file}: expected whole Avro data, found damage in the block at byte {place} ({reason}); "
        f"every run would stop here; restore it, or leave it out of `files`, {_RERUN}"
    )


def _unreadable(file: str, reason: str) -> SourceError:
    return SourceError(
        f"{file}: expected an Avro object container file, found none ({reason}); nothing can be "
        "read from it; restore the file, or leave it out of `files`"
    )
