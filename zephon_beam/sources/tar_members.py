"""The members of a tar archive, read forward from header to header.

    [extra headers][header][body, padded] [header][body, padded] … [zero blocks]

The standard library parses single headers; walking them is done here, because `tarfile` takes a
damaged header for the end of the archive, and an archive that was cut off at a header for a whole
one. Here only zero blocks end an archive, and nothing but zeros may follow them.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from zephon_beam.sources.compressed import STEP_BYTES, ByteStream, DamageError

_BLOCK = tarfile.BLOCKSIZE
_LARGEST_HEADER = 1 << 20
_SPARSE_NEXT = 504
_SPARSE_FIRST = 482


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One member of an archive; its body is what the stream gives next."""

    name: str
    offset: int
    """Place of its first header in the expanded archive."""
    size: int
    """Bytes of its body as stored, without padding."""
    is_file: bool
    """Whether the body is the content of a file; links, folders and devices have none."""
    is_sparse: bool


class MemberWalker:
    """Goes through an archive; the body of each member is read or skipped before the next one."""

    def __init__(self, stream: ByteStream) -> None:
        """Start where the stream is."""
        self._stream = stream
        self._size = 0
        self._left = 0
        """Bytes of the body and its padding that are still to come."""

    def next(self) -> Member | None:
        """Return the next member, or None at the archive's end.

        Raises:
            DamageError: the archive ends early or a header is damaged.
        """
        self.skip_body()
        offset = self._stream.offset
        extra: dict[str, str] = {}
        while True:
            block = self._exactly(_BLOCK)
            if not block.strip(b"\0"):
                self._expect_zeros()
                return None
            header = self._parse(block)
            padded = header.size + -header.size % _BLOCK
            if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                extra.update(_pax_fields(self._small_body(header.size)))
            elif header.type == tarfile.GNUTYPE_LONGNAME:
                name = self._small_body(header.size).partition(b"\0")[0]
                extra["path"] = name.decode("utf-8", "surrogateescape")
            elif header.type in (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
                self._stream.skip(padded)
            else:
                return self._member(header, block, extra, offset)

    def read_body(self) -> bytes:
        """Return the body of the member.

        Raises:
            DamageError: the archive ends inside.
        """
        pieces = []
        size = self._size
        while size:
            piece = self._stream.read(min(size, STEP_BYTES))
            if not piece:
                raise DamageError("an end of the file inside a member")
            pieces.append(piece)
            size -= len(piece)
            self._left -= len(piece)
        return b"".join(pieces)

    def pass_over_body(self) -> None:
        """Pass over the body as `read_body` does.

        Raises:
            DamageError: the archive ends inside.
        """
        self._left -= self._size
        self._stream.skip(self._size)

    def skip_body(self) -> None:
        """Pass over what is left of the body and its padding.

        Raises:
            DamageError: the archive ends inside.
        """
        left, self._left = self._left, 0
        self._stream.skip(left)

    def _member(
        self, header: tarfile.TarInfo, block: bytes, extra: dict[str, str], offset: int
    ) -> Member:
        size = header.size
        if "size" in extra:
            size = _number(extra["size"])
        is_sparse = header.type == tarfile.GNUTYPE_SPARSE
        if is_sparse:
            self._skip_sparse_map(block)
        has_body = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES
        self._size = size if has_body else 0
        self._left = self._size + -self._size % _BLOCK
        return Member(
            name=extra.get("GNU.sparse.name") or extra.get("path") or header.name,
            offset=offset,
            size=self._size,
            is_file=header.isreg(),
            is_sparse=is_sparse or any(key.startswith("GNU.sparse.") for key in extra),
        )

    def _parse(self, block: bytes) -> tarfile.TarInfo:
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise DamageError(f"a damaged header at expanded byte {self._at_block()}") from error
        if header.size < 0:
            raise DamageError(f"a header with a negative size at expanded byte {self._at_block()}")
        return header

    def _at_block(self) -> int:
        return self._stream.offset - _BLOCK

    def _skip_sparse_map(self, block: bytes) -> None:
        """Pass over the blocks that go on with the map of a sparse file."""
        goes_on = block[_SPARSE_FIRST]
        while goes_on:
            goes_on = self._exactly(_BLOCK)[_SPARSE_NEXT]

    def _small_body(self, size: int) -> bytes:
        if size > _LARGEST_HEADER:
            raise DamageError(f"a name of {size} bytes at expanded byte {self._at_block()}")
        return self._exactly(size + -size % _BLOCK)[:size]

    def _exactly(self, count: int) -> bytes:
        data = self._stream.read(count)
        while len(data) < count:
            piece = self._stream.read(count - len(data))
            if not piece:
                what = "inside a header" if data else "before the archive's own"
                raise DamageError(f"an end of the file {what}")
            data += piece
        return data

    def _expect_zeros(self) -> None:
        """Read what follows the archive; of a compressed one, that checks its end too."""
        while data := self._stream.read():
            if data.strip(b"\0"):
                raise DamageError("data behind the archive's end, as if two were joined")


def _pax_fields(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of an extended header: lines of `length key=value`."""
    while data.strip(b"\0"):
        length, space, _ = data.partition(b" ")
        end = int(length) if length.isdigit() and len(length) < 9 else 0
        line = data[len(length) + 1 : end]
        if not space or not line.endswith(b"\n") or b"=" not in line:
            raise DamageError("a damaged extended header")
        key, _, value = line[:-1].partition(b"=")
        yield key.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape")
        data = data[end:]


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise DamageError(f"a member of {text!r} bytes in an extended header")
    return int(text)
