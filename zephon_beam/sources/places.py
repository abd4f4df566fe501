"""Where source files are: on this machine, or in a bucket, read by ranges either way.

A path is local, or the address of an object like `gs://bucket/data/a.jsonl`. An object is described
with one request for each file and process; every read then names the version that was described,
so that one which is replaced meanwhile is noticed.
"""

import errno
import io
import os
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Protocol

from zephon_beam.errors import StoreError
from zephon_beam.store.base import is_remote
from zephon_beam.store.bucket import Bucket, ObjectInfo

_REMEMBERED = 65_536
"""Descriptions of objects that a process keeps; about 20 MB."""


class OpenFile(Protocol):
    """A file that is open for reading at any place."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def version(self) -> tuple[int, int]:
        """Tells apart the contents that a path had at different times, for caches."""

    @property
    def identity(self) -> str | None:
        """What the store says of the content; None where reading the file's ends has to tell."""

    def pread(self, length: int, start: int) -> bytes:
        """Read up to `length` bytes from `start`; fewer at the end, and maybe elsewhere.

        Raises:
            FileNotFoundError: the content is not there any more.
            OSError: it cannot be read now; trying again may help.
        """

    def duplicate(self) -> "OpenFile":
        """Open it once more; the two are closed independently."""

    def close(self) -> None:
        """Let go of it."""


def open_file(path: str, *, identity: str | None = None) -> OpenFile:
    """Open a file or an object.

    Args:
        path: absolute path, or address of an object.
        identity: what its content is believed to be; an object that was described before and
            had this identity is not described again.

    Raises:
        OSError: it cannot be opened; `FileNotFoundError` if there is none.
    """
    return _Object(path, identity) if is_remote(path) else _LocalFile(path)


@contextmanager
def opened_file(path: str) -> Iterator[OpenFile]:
    """Open a file or an object for the length of a block."""
    file = open_file(path)
    try:
        yield file
    finally:
        file.close()


def open_stream(path: str, *, identity: str | None = None) -> Any:
    """Return what Arrow and others can open: a path, or a seekable stream over an object."""
    return RangeStream(open_file(path, identity=identity)) if is_remote(path) else path


class RangeStream(io.RawIOBase):
    """A seekable stream over an open file, which is closed with it."""

    def __init__(self, file: OpenFile) -> None:
        """Begin at the start."""
        super().__init__()
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; nothing is read."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._file.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with one range."""
        length = min(len(buffer), max(0, self._file.size - self._place))
        data = self._file.pread(length, self._place) if length else b""
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def close(self) -> None:
        """Close the file, too."""
        if not self.closed:
            self._file.close()
        super().close()


class _LocalFile:
    """A file on this machine, or in a folder that it shares."""

    identity = None

    def __init__(self, path: str, descriptor: int = -1) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY) if descriptor < 0 else descriptor
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self.version = (status.st_mtime_ns, status.st_ino)

    def pread(self, length: int, start: int) -> bytes:
        return os.pread(self._descriptor, length, start)

    def duplicate(self) -> "_LocalFile":
        return _LocalFile(self._path, os.dup(self._descriptor))

    def close(self) -> None:
        os.close(self._descriptor)


class _Object:
    """An object of a bucket, at the version that it had when it was described."""

    def __init__(self, path: str, identity: str | None = None) -> None:
        self._path = path
        self._bucket, self._key = bucket_of(path)
        info = _known.get(path)
        if info is None or object_identity(info) != identity:
            info = self._describe()
        self._take(info)

    def pread(self, length: int, start: int) -> bytes:
        if not length:
            return b""
        try:
            return self._read(length, start)
        except FileNotFoundError:
            info = self._describe()
            if object_identity(info) != self.identity:
                raise
        # It was written once more with the content that it had.
        self._take(info)
        return self._read(length, start)

    def duplicate(self) -> "_Object":
        return _Object(self._path, self.identity)

    def close(self) -> None:
        pass

    def _read(self, length: int, start: int) -> bytes:
        with _numbered():
            return self._bucket.read_range(self._key, start, length, self._version)

    def _describe(self) -> ObjectInfo:
        _known.pop(self._path, None)
        with _numbered():
            info = self._bucket.stat(self._key)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        remember(self._path, info)
        return info

    def _take(self, info: ObjectInfo) -> None:
        self._version = info.version
        self.size = info.size
        self.identity = object_identity(info)
        digest = blake2b(info.version.encode(), digest_size=7).digest()
        self.version = (int.from_bytes(digest, "little"), info.size)


@contextmanager
def _numbered() -> Iterator[None]:
    """Give a fault of the store the number that faults of the system have.

    Arrow reports damage as an `OSError` without one, and what reads by Arrow tells them apart so.
    """
    try:
        yield
    except StoreError as error:
        error.errno = errno.EIO
        raise


_known: dict[str, ObjectInfo] = {}
_buckets: dict[tuple[str, str], Bucket] = {}


def remember(path: str, info: ObjectInfo) -> None:
    """Keep what a listing or a look-up said of an object."""
    if len(_known) >= _REMEMBERED:
        _known.clear()
    _known[path] = info


def known_object(path: str) -> ObjectInfo | None:
    """Return what was last said of an object, None if that is forgotten."""
    return _known.get(path)


def bucket_of(path: str) -> tuple[Bucket, str]:
    """Return the bucket of an address, opened once for each process, and the rest of it."""
    from zephon_beam.store.remote import open_bucket

    scheme, _, rest = path.partition("://")
    name, _, key = rest.partition("/")
    found = _buckets.get((scheme, name))
    if found is None:
        found = _buckets[scheme, name] = open_bucket(scheme, name)
    return found, key


def object_identity(info: ObjectInfo) -> str:
    """Return the identity of an object's content, as a catalog keeps it.

    CRC32C where the store has it, as Google Cloud Storage does, else the ETag. It is that of the
    whole content, so an edit anywhere is seen.
    """
    if info.checksum != info.version:
        return f"crc32c-{b64decode(info.checksum).hex()}"
    return f"etag-{info.version.strip(chr(34))}"
