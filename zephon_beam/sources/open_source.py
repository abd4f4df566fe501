"""Open a source file and make sure that it is the one the catalog was built from."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from zephon_beam.catalog.identity import EDGE_BYTES, content_identity, edges_identity
from zephon_beam.errors import DriftError, SourceError
from zephon_beam.sources.places import OpenFile, open_file, opened_file

_NOT_FOUND = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_AND = "+"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """An open source file, known by its name relative to the data set's root."""

    path: str
    name: str
    size: int
    """Bytes, as the catalog says; the file had this size when it was opened."""
    identity: str
    version: tuple[int, int]
    """Tells apart the contents that a path had at different times, for caches in this process."""
    file: OpenFile
    companion_identity: str = ""
    """Identity of the file that belongs to this one, for formats of two files."""

    def read(self, start: int, length: int) -> bytes:
        """Read bytes [start, start + length).

        Raises:
            DriftError: the file became shorter after it was opened.
        """
        pieces = []
        while length:
            try:
                piece = self.file.pread(length, start)
            except FileNotFoundError as error:
                raise _drift(self.path, self.name, "it", "it replaced or deleted") from error
            if not piece:
                raise _drift(self.path, self.name, f"{self.size} bytes", f"an end at {start}")
            pieces.append(piece)
            start += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_whole(self) -> bytes:
        """Read the file and check the identity of what was read.

        Raises:
            DriftError: the content is not that of the catalog.
        """
        content = self.read(0, self.size)
        found = self.file.identity or content_identity(content)
        if found != self.identity:
            raise _drift(self.path, self.name, f"identity {self.identity}", found)
        return content

    def check_edges(self) -> None:
        """Check the identity, once for each file and process.

        Raises:
            DriftError: the start or the end of the file is not that of the catalog.
        """
        found = self.file.identity or _identity(self.path, self.size, self.version)
        if found != self.identity:
            raise _drift(self.path, self.name, f"identity {self.identity}", found)


@contextmanager
def open_source(path: str, *, name: str, size: int, identity: str) -> Iterator[SourceFile]:
    """Open a file of a catalog and check its size.

    Args:
        path: where it is.
        name: what the catalog and messages call it.
        size: its bytes, as the catalog says.
        identity: its identity, as the catalog says; checked by the methods of `SourceFile`.

    Raises:
        SourceError: there is no such file.
        DriftError: it has another size.
        OSError: it cannot be read now; trying again may help.
    """
    identity, _, companion_identity = identity.partition(_AND)
    with _opened(path, name, identity) as file:
        if file.size != size:
            raise _drift(path, name, f"{size} bytes", str(file.size))
        yield SourceFile(
            path=path,
            name=name,
            size=size,
            identity=identity,
            version=file.version,
            file=file,
            companion_identity=companion_identity,
        )


@contextmanager
def unchecked_source(path: str) -> Iterator[SourceFile]:
    """Open a file that no catalog describes yet; messages call it by its path.

    Raises:
        OSError: it cannot be opened; `FileNotFoundError` if there is none.
    """
    with opened_file(path) as file:
        yield SourceFile(
            path=path, name=path, size=file.size, identity="", version=file.version, file=file
        )


@contextmanager
def open_companion(source: SourceFile, path: str, name: str) -> Iterator[SourceFile]:
    """Open the file that belongs to a source file and check its identity.

    Args:
        source: the open file, whose identity in the catalog covers both.
        path: where the other one is.
        name: what messages call it.

    Raises:
        SourceError: there is no such file.
        DriftError: its start, its end or its size is not that of the catalog.
        OSError: it cannot be read now; trying again may help.
    """
    with _opened(path, name, source.companion_identity) as file:
        companion = SourceFile(
            path=path,
            name=name,
            size=file.size,
            identity=source.companion_identity,
            version=file.version,
            file=file,
        )
        companion.check_edges()
        yield companion


@contextmanager
def _opened(path: str, name: str, identity: str) -> Iterator[OpenFile]:
    try:
        file = open_file(path, identity=identity)
    except OSError as error:
        if error.errno in _NOT_FOUND:
            raise _missing(path, name) from error
        raise
    try:
        yield file
    finally:
        file.close()


def joint_identity(identity: str, companion: str) -> str:
    """Return the identity of two files that belong together."""
    return f"{identity}{_AND}{companion}"


def read_identity(file: OpenFile, size: int) -> str:
    """Return the identity of an open file: what its store says, else by reading its two ends."""
    if file.identity is not None:
        return file.identity
    first = file.pread(EDGE_BYTES, 0)
    last = file.pread(EDGE_BYTES, max(0, size - EDGE_BYTES))
    return edges_identity(first, last, size)


@lru_cache(maxsize=4096)
def _identity(path: str, size: int, _version: tuple[int, int]) -> str:
    with opened_file(path) as file:
        return read_identity(file, size)


def _missing(path: str, name: str) -> SourceError:
    return SourceError(
        f"{name}: expected a file, found none ({path}); the stream was built from it and cannot go "
        "on without it; restore it, or run the recipe into a new place without it"
    )


def _drift(path: str, name: str, expected: str, found: str) -> DriftError:
    return DriftError(
        f"{name}: expected {expected}, found {found} ({path}); the stream was built from other "
        "content, so its bytes would differ from here on; restore the file, or start a new stream "
        "from what it is now"
    )
