"""Where the bytes of images and videos come from, and how large they may be."""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from zephon_beam.media.content import MediaFault, MediaPart, resolve_path
from zephon_beam.sources.places import OpenFile, RangeStream, open_file
from zephon_beam.store.base import is_remote

MOST_PIXELS = 1 << 26
"""Of one frame."""

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
_READ_BYTES = 1 << 18


@contextmanager
def open_media(part: MediaPart, root: str) -> Iterator[io.BufferedIOBase]:
    """Open the bytes of an item, which may lie in a bucket.

    Raises:
        MediaFault: there is no such file, or its path leads out of the root.
        OSError: it cannot be read now; trying again may help.
    """
    if part.data is not None:
        yield io.BytesIO(part.data)
        return
    if part.path is None:
        raise MediaFault("content", "item must be a file or bytes")
    # A file of the catalog is where the catalog says, also if a link leads to it.
    path = resolve_path(root, part.path) if part.range is None else os.path.join(root, part.path)
    missing = MediaFault("missing", f"{part.path!r} must be a file, found none")
    try:
        # Opening a pipe would wait for somebody who writes into it.
        if not is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode):
            raise missing
        file = open_file(path)
    except OSError as error:
        if error.errno in _MISSING:
            raise missing from error
        raise
    wanted = file if part.range is None else _Window(file, *part.range)
    with io.BufferedReader(RangeStream(wanted), _READ_BYTES) as stream:
        yield stream


class _Window:
    """A stretch of an open file, as a file."""

    def __init__(self, file: OpenFile, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self.size = size
        self.version = file.version
        self.identity = file.identity

    def pread(self, length: int, start: int) -> bytes:
        length = max(0, min(length, self.size - start))
        return self._file.pread(length, self._start + start) if length else b""

    def duplicate(self) -> "_Window":
        return _Window(self._file.duplicate(), self._start, self.size)

    def close(self) -> None:
        self._file.close()


def check_pixels(height: int, width: int) -> None:
    """Refuse frames that are too large to be decoded.

    Raises:
        MediaFault: too many pixels, or none.
    """
    if height < 1 or width < 1 or height * width > MOST_PIXELS:
        raise MediaFault(
            "too_large", f"frame must have from 1 to {MOST_PIXELS} pixels, got {width} x {height}"
        )


def said(error: Exception) -> str:
    """Return what a library says, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
