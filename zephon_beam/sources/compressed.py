"""The bytes of a source file read forward in small steps, expanded if it is compressed.

    file        [gzip member][gzip member]             concatenated members are one stream
    expanded    0 ───────────────────────────▶ offset  every offset is that of the expanded bytes

Memory holds one step, whatever the file. A file that ends early or cannot be expanded gives all
the bytes before the damage, then says where it is. Both are exact: what one step of the fast way
loses is won back by expanding again, byte by byte from shortly before the damage, so that no
version of a library moves the place.
"""

import bz2
import lzma
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from zephon_beam.errors import BadRecordError
from zephon_beam.sources.faults import bad_record
from zephon_beam.sources.open_source import SourceFile

STEP_BYTES = 64 * 1024
"""The most that one read returns."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
"""Endings of file names, in lower case, and how such a file is compressed."""

_SHORT_ENDINGS = {".tgz": (".tar", "gzip")}
_FAULTS = (zlib.error, lzma.LZMAError, EOFError, OSError, pa.ArrowException)
_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"PK\x03\x04", "zip"),
    (b"\x04\x22\x4d\x18", "lz4"),
)
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
MAGIC_BYTES = 10


def split_ending(name: str) -> tuple[str, str | None]:
    """Return (ending that tells the format, compression or None) of a file name, in lower case."""
    stem, ending = os.path.splitext(name.lower())
    if ending in _SHORT_ENDINGS:
        return _SHORT_ENDINGS[ending]
    if ending in COMPRESSIONS:
        return os.path.splitext(stem)[1], COMPRESSIONS[ending]
    return ending, None


def sniff_compression(first_bytes: bytes) -> str | None:
    """Return what the first `MAGIC_BYTES` of a file say it is compressed with."""
    for magic, compression in _MAGIC:
        if first_bytes.startswith(magic):
            # "BZh" alone could be the beginning of a text.
            if compression == "bzip2" and first_bytes[4:10] not in _BZIP2_BLOCKS:
                continue
            return compression
    return None


class DamageError(Exception):
    """The bytes of a file end here, although its data does not."""

    def __init__(self, found: str) -> None:
        """Say what is there instead of data."""
        super().__init__(found)
        self.found = found


def damaged_record(source: SourceFile, locator: int, offset: int, found: str) -> BadRecordError:
    """Return the error for the record that damage cut off, and for all behind it.

    Args:
        source: the file.
        locator: the record's locator.
        offset: expanded bytes that can be read.
        found: what a `DamageError` found.
    """
    return bad_record(
        source.name,
        locator,
        f"expanded byte {offset}",
        rule="file must be whole",
        found=found,
        reason="damaged",
        repair="restore the file, or leave it out of `files`, then run the recipe into a new place",
    )


class ByteStream(Protocol):
    """The expanded bytes of a file, from its start to its end."""

    offset: int
    """Place of the next byte."""

    def read(self, limit: int = STEP_BYTES) -> bytes:
        """Return the next bytes, at most `limit` and `STEP_BYTES`; none at the end.

        Raises:
            DamageError: there are no more, but there should be.
            OSError: the file cannot be read now.
        """

    def skip(self, count: int) -> None:
        """Pass over bytes.

        Raises:
            DamageError: the file ends before.
        """


def open_bytes(source: SourceFile) -> ByteStream:
    """Open a source file once more, at its start; it stays open as long as what is returned."""
    compression = split_ending(source.name)[1]
    own = _OwnFile(source)
    return _PlainBytes(own) if compression is None else _ExpandedBytes(own, compression)


class _OwnFile:
    """A source file with a descriptor of its own, which is closed with it."""

    def __init__(self, source: SourceFile) -> None:
        self.source = replace(source, file=source.file.duplicate())

    def __del__(self) -> None:
        source = getattr(self, "source", None)
        if source is not None:
            source.file.close()


class _PlainBytes:
    """A file that is not compressed; passing over bytes costs nothing."""

    def __init__(self, own: _OwnFile) -> None:
        self.offset = 0
        self._own = own

    def read(self, limit: int = STEP_BYTES) -> bytes:
        source = self._own.source
        data = source.read(self.offset, min(limit, STEP_BYTES, source.size - self.offset))
        self.offset += len(data)
        return data

    def skip(self, count: int) -> None:
        size = self._own.source.size
        if self.offset + count > size:
            self.offset = size
            raise DamageError("an end of the file")
        self.offset += count


class _ExpandedBytes:
    """A compressed file; passing over bytes expands them."""

    def __init__(self, own: _OwnFile, compression: str) -> None:
        self.offset = 0
        self._own = own
        self._compression = compression
        self._damage: DamageError | None = None
        self._open(None)
        if not own.source.size:
            self._damage = DamageError(f"an empty file, which is no {compression} data")

    def read(self, limit: int = STEP_BYTES) -> bytes:
        if self._damage is not None:
            raise self._damage
        try:
            data: bytes = self._stream.read(min(limit, self._step))
        except _FAULTS as error:
            # Arrow and bz2 report damage as an OSError without a number; the system's have one.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if self._step == 1:
                self._damage = DamageError(self._describe(error))
                raise self._damage from error
            self._expand_finely()
            return self.read(limit)
        self.offset += len(data)
        return data

    def skip(self, count: int) -> None:
        while count:
            data = self.read(count)
            if not data:
                raise DamageError("an end of the file")
            count -= len(data)

    def _open(self, fine_from: int | None) -> None:
        self._raw = _Pieces(self._own.source, fine_from)
        self._step = STEP_BYTES
        self._stream: Any
        if self._compression == "zstd":
            self._stream = pa.CompressedInputStream(pa.PythonFile(self._raw, mode="r"), "zstd")
        else:
            self._stream = _Members(self._raw, self._compression)

    def _expand_finely(self) -> None:
        """Expand again up to here, in small pieces from the one that holds the damage."""
        target = self.offset
        self._open(self._raw.piece_start)
        while target:
            target -= len(self._stream.read(min(target, STEP_BYTES)))
        self._step = 1

    def _describe(self, error: Exception) -> str:
        if isinstance(error, EOFError) or "Truncated" in str(error):
            return f"an end of the file inside its {self._compression} data"
        return f"damaged {self._compression} data"


class _Pieces:
    """A file in pieces of `STEP_BYTES`, from a place on in single bytes."""

    closed = False

    def __init__(self, source: SourceFile, fine_from: int | None) -> None:
        self.piece_start = 0
        """Place of the last piece that was read."""
        self._source = source
        self._fine_from = source.size if fine_from is None else fine_from
        self._position = 0

    def read(self, size: int = STEP_BYTES) -> bytes:
        start, rest = self._position, self._source.size - self._position
        step = 1 if start >= self._fine_from else min(STEP_BYTES, self._fine_from - start)
        data = self._source.read(start, min(size, step, rest))
        if data:
            self.piece_start = start
        self._position += len(data)
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Leave the file open; its owner closes it."""


class _Members:
    """Concatenated gzip, bzip2 or xz streams; of gzip and xz, zero padding may follow each."""

    def __init__(self, raw: _Pieces, compression: str) -> None:
        self._raw = raw
        self._new = _DECODERS[compression]
        self._is_padded = compression != "bzip2"
        self._decoder: Any = None
        self._input = b""
        self._started = False

    def read(self, limit: int) -> bytes:
        while True:
            if not self._input and (self._decoder is None or self._decoder.needs_input):
                self._input = self._raw.read()
                if not self._input:
                    if self._decoder is not None or not self._started:
                        raise EOFError("it ends inside a member")
                    return b""
            if self._decoder is None:
                if self._started and self._is_padded:
                    self._input = self._input.lstrip(b"\0")
                    if not self._input:
                        continue
                self._decoder, self._started = self._new(), True
            data, self._input = self._input, b""
            expanded: bytes = self._decoder.decompress(data, limit)
            if self._decoder.eof:
                self._input = self._decoder.unused_data
                self._decoder = None
            if expanded:
                return expanded


class _GzipDecoder:
    """zlib with the interface that bz2 and lzma have."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        expanded = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        # A full step may leave more behind even where all the input was taken.
        self.needs_input = not self._inflate.unconsumed_tail and len(expanded) < max_length
        return expanded


_DECODERS: dict[str, Callable[[], Any]] = {
    "gzip": _GzipDecoder,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
}
