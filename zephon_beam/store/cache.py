"""Copies of remote objects on the local disk, shared by the processes of a host.

    <folder>/objects/<key>      content, then a trailer that proves it whole
    <folder>/objects/.tmp-…     a copy that is being written, locked by its writer
    <folder>/locks/<xx>         256 files: held by who fetches an object whose key begins so
    <folder>/room               held by who makes room

A copy appears under its name only when complete, and is removed when others need the room. To
remove a copy that is mapped is harmless: its pages stay until the last mapping is gone. A writer
that was killed leaves a temporary file which nobody locks; whoever makes room next removes it.

To check a copy takes as long as to read it into a batch, so it is done by the first who opens it
after it was written, altered, or the machine was started: a copy that was checked bears a mark as
its time of modification, which every way of altering it replaces. The time of its last access is
that of its last use.
"""

import fcntl
import logging
import mmap
import os
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from zephon_beam.errors import RecipeError

CACHE_FOLDER = "ZEPHON_BEAM_CACHE"
"""Environment variable: folder of the copies, or `none` to keep no copies."""
CACHE_BYTES = "ZEPHON_BEAM_CACHE_BYTES"
"""Environment variable: most bytes of copies."""
DEFAULT_BYTES = 8 << 30

_TEMPORARY = ".tmp-"
_TRAILER = struct.Struct("<8sQI")
_MAGIC = b"zb-copy1"
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MOST_SECONDS = 1 << 31
"""Times that every file system can keep."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyKey:
    """What a copy is of; another object, version or form is another copy."""

    address: str
    version: str
    size: int
    """Bytes of this version in the bucket."""
    form: str = ""
    """What was made of it; empty: it is as in the bucket, and so is its size."""

    @property
    def digest(self) -> str:
        """The name of the copy's file."""
        parts = (self.address, self.version, str(self.size), *filter(None, [self.form]))
        return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()

    def is_whole(self, content: bytes | memoryview) -> bool:
        """Say whether content may be this one, by its size."""
        return bool(self.form) or len(content) == self.size


class LocalCache:
    """A folder of copies that stays below a size.

    A disk that is full or cannot be written costs speed and never an error: objects are then read
    into memory.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        """Use a folder, made when the first copy is.

        Args:
            folder: of the copies; every process of the host may use the same.
            limit_bytes: most bytes of copies; None: 8 GiB, or a quarter of what is free or held
                by copies, if that is less.
        """
        self._objects = folder / "objects"
        self._locks = folder / "locks"
        self._room = folder / "room"
        self._limit = limit_bytes
        self._has_warned = False

    @classmethod
    def from_environment(cls) -> "LocalCache | None":
        """Return the cache that the environment names, None if it asks for none.

        Raises:
            RecipeError: the size is not a number of bytes.
        """
        named = os.environ.get(CACHE_FOLDER, "")
        size = os.environ.get(CACHE_BYTES, "")
        if size and not size.isdecimal():
            raise RecipeError(
                f"{CACHE_BYTES} must be a number of bytes, got {size!r}; write e.g. 8589934592"
            )
        if named == "none":
            return None
        limit = int(size) if size else None
        if named:
            return cls(Path(named).expanduser().absolute(), limit)
        base = os.environ.get("XDG_CACHE_HOME", "")
        try:
            parent = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
        except RuntimeError:
            return None
        return cls(parent / "zephon-beam", limit)

    def holds(self, key: CopyKey) -> bool:
        """Say whether there is a copy, without a look into it."""
        return (self._objects / key.digest).exists()

    def open(self, key: CopyKey, fetch: Callable[[], bytes]) -> memoryview:
        """Map the copy of an object, fetching it first if there is none.

        Of several processes that want an object at once one fetches it and the others wait.

        Args:
            key: what the copy is of.
            fetch: reads that version in that form; what it raises is passed on.
        """
        path = self._objects / key.digest
        found = _map(path)
        if found is not None:
            return found
        with self._fetching(key.digest) as usable:
            found = _map(path) if usable else None
            if found is not None:
                return found
            content = fetch()
            if not usable or not key.is_whole(content):
                return memoryview(content)
            try:
                self._add(path, content)
            except OSError as error:
                self._warn(error)
                return memoryview(content)
            found = _map(path)
            return found if found is not None else memoryview(content)

    @contextmanager
    def _fetching(self, digest: str) -> Iterator[bool]:
        """Hold the lock of an object; yield whether the folder can be used at all."""
        try:
            self._make_folders()
            lock = _lock(self._locks / digest[:2])
        except OSError as error:
            self._warn(error)
            yield False
            return
        try:
            yield True
        finally:
            _let_go(lock)

    def _make_folders(self) -> None:
        for folder in (self._objects, self._locks):
            if not folder.is_dir():
                # What is read may be for its owner only.
                folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                folder.mkdir(exist_ok=True, mode=0o700)

    def _add(self, path: Path, content: bytes) -> None:
        """Write a copy and give it its name, after making room for it."""
        needed = len(content) + _TRAILER.size
        with _temporary(self._objects) as (file, name):
            _write(file, content)
            _write(file, _TRAILER.pack(_MAGIC, len(content), zlib.crc32(content)))
            room = _lock(self._room)
            try:
                if self._make_room(needed, path):
                    # Taken for an orphan before it was locked, it is gone: then there is no copy.
                    with suppress(FileNotFoundError):
                        os.rename(name, path)
            finally:
                _let_go(room)

    def _make_room(self, needed: int, wanted: Path) -> bool:
        """Remove the copies that were used longest ago; say whether there is room now."""
        copies = []
        for entry in os.scandir(self._objects):
            if entry.name.startswith(_TEMPORARY):
                _remove_orphan(entry.path)
                continue
            with suppress(FileNotFoundError):
                status = entry.stat()
                copies.append((status.st_atime_ns, entry.name, status.st_size))
        held = sum(size for _, _, size in copies)
        limit = self._limit
        if limit is None:
            limit = min(DEFAULT_BYTES, (shutil.disk_usage(self._objects).free + held) // 4)
        if needed > limit:
            self._warn(OSError(f"an object of {needed} bytes is larger than the limit {limit}"))
            return False
        for _, name, size in sorted(copies):
            if held + needed <= limit:
                break
            if name != wanted.name:
                with suppress(FileNotFoundError):
                    os.unlink(self._objects / name)
                held -= size
        return True

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOGGER.warning(
                "the local cache %s cannot be used (%s): objects are read into memory, by each "
                "process for itself; set %s to a folder with room, or to `none` to silence this",
                self._objects.parent,
                error,
                CACHE_FOLDER,
            )


def _map(path: Path) -> memoryview | None:
    """Map a copy if it is there and whole, and note that it was used; remove a damaged one."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        size = status.st_size - _TRAILER.size
        if size >= 0:
            mapped = mmap.mmap(file, 0, flags=mmap.MAP_SHARED | _POPULATE, prot=mmap.PROT_READ)
            content = memoryview(mapped)[:size]
            magic, length, checksum = _TRAILER.unpack_from(mapped, size)
            mark = _mark(mapped[size:])
            if (magic, length) == (_MAGIC, size) and (
                status.st_mtime_ns == mark or zlib.crc32(content) == checksum
            ):
                with suppress(OSError):
                    os.utime(file, ns=(time.time_ns(), mark))
                return content
    finally:
        os.close(file)
    _LOGGER.warning("the copy %s is damaged: it is removed and fetched anew", path)
    with suppress(OSError):
        os.unlink(path)
    return None


def _mark(trailer: bytes) -> int:
    """Return the time, in nanoseconds, that marks a copy as checked since the machine started."""
    digest = int.from_bytes(blake2b(_boot() + trailer, digest_size=8).digest(), "little")
    seconds, fraction = divmod(digest, 1_000_000_000)
    return seconds % _MOST_SECONDS * 1_000_000_000 + fraction


@cache
def _boot() -> bytes:
    """Return what names the time since the machine was started, else this process."""
    try:
        return _BOOT.read_bytes()
    except OSError:
        return os.urandom(16)


def _lock(path: Path) -> int:
    """Open a file and wait until no other holds it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except BaseException:
        os.close(file)
        raise
    return file


def _let_go(file: int) -> None:
    """Unlock and close; a process that was forked meanwhile holds the same lock."""
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


@contextmanager
def _temporary(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield a new file and its name, locked while the block lasts; removed if not renamed."""
    file, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file, name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
        _let_go(file)


def _remove_orphan(path: str) -> None:
    """Remove a temporary file unless its writer is at work."""
    with suppress(OSError):
        file = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(file)


def _write(file: int, content: bytes) -> None:
    view = memoryview(content)
    while len(view):
        view = view[os.write(file, view) :]
