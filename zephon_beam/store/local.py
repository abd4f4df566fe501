"""A store in a local or shared POSIX folder: durable, atomic, and without stray files.

An immutable object is written to an unnamed file and linked to its name only when complete and
synced, so a process killed at any moment leaves either the whole object or nothing. What is
replaced has to be written under a temporary name; its writer holds a lock on it, so that what a
killed one has left can be told from what is being written.
"""

import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from zephon_beam.errors import StoreError
from zephon_beam.store.base import Expand, SameContent
from zephon_beam.store.rules import split_name, verify_equal

_TEMPORARY = ".tmp-"
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
_POPULATE_BYTES = 8 * 1024 * 1024
"""Files up to this size are mapped at once: a fault for each page costs more than the copy."""
_NOT_LOCKED = (errno.EWOULDBLOCK, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""A writer is at work, or nobody can say."""
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.EPERM)


class LocalStore:
    """Objects as files below a folder, created when the first object is written.

    Raises:
        ValueError: a name leaves the root or is not a plain relative path.
    """

    def __init__(self, root: str | Path) -> None:
        """Open the folder; it need not exist yet."""
        self._root = Path(root).expanduser().absolute()

    @property
    def uri(self) -> str:
        """The absolute path of the folder."""
        return str(self._root)

    def put_if_absent(self, name: str, data: bytes, same: SameContent | None = None) -> bool:
        """Create a file durably and atomically; see `Store.put_if_absent`."""
        path = self._path(name)
        with _told_by_path(path, "write"):
            if path.exists():
                verify_equal(str(path), path.read_bytes(), data, same)
                return False
            _make_folder(path.parent)
            with _opened_folder(path.parent) as folder:
                try:
                    _link_new(path, data, folder)
                except FileExistsError:
                    verify_equal(str(path), path.read_bytes(), data, same)
                    return False
                os.fsync(folder)
            return True

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a named temporary file and rename it over the old one."""
        path = self._path(name)
        with _told_by_path(path, "write"):
            self._replace(path, data, durable=durable)

    def _replace(self, path: Path, data: bytes, *, durable: bool) -> None:
        _make_folder(path.parent)
        with _temporary_file(path.parent) as (file, temporary):
            _write(file, data)
            if durable:
                os.fsync(file)
            os.replace(temporary, path)

    def get(self, name: str) -> bytes:
        """Read a whole file."""
        path = self._path(name)
        with _told_by_path(path, "read"):
            return path.read_bytes()

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Read a stretch of a file."""
        path = self._path(name)
        with _told_by_path(path, "read"), path.open("rb") as file:
            return os.pread(file.fileno(), length, start)

    def open_mmap(self, name: str, expand: Expand | None = None) -> memoryview:
        """Map a file read-only; the pages stay shared with every other reader of the host."""
        del expand  # There is no copy that could be another one.
        path = f"{self._root}/{'/'.join(split_name(name))}"
        with _told_by_path(path, "read"):
            file = os.open(path, os.O_RDONLY)
            try:
                size = os.fstat(file).st_size
                if size == 0:
                    return memoryview(b"")
                flags = mmap.MAP_SHARED | (_POPULATE if size <= _POPULATE_BYTES else 0)
                return memoryview(mmap.mmap(file, size, flags=flags, prot=mmap.PROT_READ))
            finally:
                os.close(file)

    def expect(self, name: str, expand: Expand | None = None) -> None:
        """Do nothing: the system reads ahead."""

    def list_after(self, name: str) -> Sequence[str]:
        """Return nothing: a folder is read whole or not at all."""
        del name
        return []

    def exists(self, name: str) -> bool:
        """Say whether the file exists."""
        return self._path(name).is_file()

    def list(self, prefix: str) -> Iterator[str]:
        """Yield names below a folder in sorted order, without temporary files."""
        inner = prefix.rstrip("/")
        folder = self._path(inner) if inner else self._root
        yield from _walk(folder, f"{inner}/" if inner else "")

    def delete(self, name: str) -> None:
        """Delete a file if it is there."""
        path = self._path(name)
        with _told_by_path(path, "delete"):
            path.unlink(missing_ok=True)

    def peek_end(self, name: str, length: int) -> bytes | None:
        """Read the last bytes of a file, which a disk or a copy that broke off may lack."""
        path = self._path(name)
        try:
            with _told_by_path(path, "read"), path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                return os.pread(file.fileno(), length, max(0, size - length))
        except FileNotFoundError:
            return None

    def remove_strays(self, *, only_count: bool = False) -> int:
        """Remove the temporary files that killed writers have left; see `Store.remove_strays`."""
        found = 0
        for name in _walk(self._root, temporary=True):
            path = self._root / name
            with _told_by_path(path, "delete"):
                found += _remove_stray(path, only_look=only_count)
        return found

    def _path(self, name: str) -> Path:
        return self._root.joinpath(*split_name(name))


class _told_by_path:
    """Name the object and the repair where the system only gives a number.

    Raises:
        FileNotFoundError: an object that is to be read is not there.
        StoreError: anything else that the system refuses.
    """

    __slots__ = ("_doing", "_path")

    def __init__(self, path: str | Path, doing: str) -> None:
        self._path = path
        self._doing = doing

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raise anew what the system raised."""
        if not isinstance(error, OSError) or isinstance(error, StoreError):
            return
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) and self._doing == "read":
            raise FileNotFoundError(error.errno, error.strerror, str(self._path)) from error
        raise _store_error(self._path, self._doing, error) from error


def _store_error(path: str | Path, doing: str, error: OSError) -> StoreError:
    return StoreError(
        f"store must be able to {doing} {path}: "
        f"{error.strerror or error}; what is stored is intact; check the path, its permissions and "
        "the free space, and run again"
    )


def _walk(folder: Path, prefix: str = "", *, temporary: bool = False) -> Iterator[str]:
    """Yield the names of the files below a folder, sorted by their parts, as they are found.

    Args:
        folder: to look below.
        prefix: what names begin with.
        temporary: yield the temporary files instead of all others.
    """
    with _told_by_path(folder, "list"):
        entries = sorted(os.scandir(folder), key=lambda e: e.name) if folder.is_dir() else []
    for entry in entries:
        if entry.is_dir():
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", temporary=temporary)
        elif entry.is_file() and entry.name.startswith(_TEMPORARY) == temporary:
            yield prefix + entry.name


def _link_new(path: Path, data: bytes, folder: int) -> None:
    """Give complete, synced data a name in an open folder that must not exist yet."""
    with _unnamed_file(path.parent) as (file, source):
        _write(file, data)
        os.fsync(file)
        if source is not None:
            os.link(source, path)
            return
        # Passing a folder descriptor makes Python call linkat, which follows the /proc link.
        os.link(f"/proc/self/fd/{file}", path.name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _unnamed_file(folder: Path) -> Iterator[tuple[int, str | None]]:
    """Yield (descriptor, None) of a file without a name; without O_TMPFILE, (descriptor, name)."""
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o644)
    except AttributeError:
        file = -1
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
        file = -1
    if file >= 0:
        try:
            yield file, None
        finally:
            os.close(file)
        return
    with _temporary_file(folder) as (file, name):
        yield file, name


@contextmanager
def _temporary_file(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield a new file and its name, locked while the block lasts; removed if not renamed."""
    while True:
        file, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=folder)
        with suppress(OSError):  # where nothing can be locked, nothing is removed as a stray either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            break
        os.close(file)  # taken for a stray before it was locked
    try:
        # Pipeline and trainer may be run by different users.
        os.fchmod(file, 0o644)
        yield file, name
    finally:
        # Under the lock: whoever finds it unlocked may take the name for a stray.
        Path(name).unlink(missing_ok=True)
        os.close(file)


def _remove_stray(path: Path, *, only_look: bool) -> bool:
    """Remove a temporary file unless its writer is at work; say whether it was a stray."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not only_look:
            path.unlink(missing_ok=True)
        return True
    except OSError as error:
        if error.errno in _NOT_LOCKED:
            return False
        raise
    finally:
        os.close(file)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(file, view) :]


def _make_folder(folder: Path) -> None:
    """Create missing folders and sync the one that gained an entry."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    with _opened_folder(folder) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _opened_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
