"""A store in a bucket: one request an operation, and large objects kept on the local disk."""

import time
from collections.abc import Iterator, Sequence

from zephon_beam.errors import StoreError
from zephon_beam.store.ahead import fetch_ahead
from zephon_beam.store.base import Expand, SameContent
from zephon_beam.store.bucket import Bucket, ObjectInfo, split_address
from zephon_beam.store.cache import CopyKey, LocalCache
from zephon_beam.store.rules import split_name, verify_equal

SMALL_BYTES = 256 * 1024
"""Objects up to this size are not worth a file on the local disk."""
ADVICE_SECS = 2.0
"""Objects that only advise are overwritten no more often."""
_REMEMBERED = 16_384
"""Descriptions that listings and look-ups leave for the read that follows; about 5 MB."""
_ATTEMPTS = 3


class RemoteStore:
    """Objects of a bucket below a prefix.

    The bucket decides atomically who creates an object, so nothing is looked up before. An
    object whose creation was tried again after a lost answer meets itself and is found equal.

    Raises:
        ValueError: a name leaves the root or is not a plain relative path.
        RecipeError: there is no such bucket.
        StoreError: the store refuses, or failed for too long.
    """

    def __init__(self, bucket: Bucket, prefix: str, cache: LocalCache | None = None) -> None:
        """Use a bucket; without a cache, objects are read into memory."""
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._cache = cache
        # Without a lock, which a fork could find held by a thread that it does not have.
        self._known: dict[str, ObjectInfo] = {}
        self._next_advice: dict[str, float] = {}

    @property
    def uri(self) -> str:
        """The address of the prefix."""
        return f"{self._bucket.uri}/{self._prefix}".rstrip("/")

    def put_if_absent(self, name: str, data: bytes, same: SameContent | None = None) -> bool:
        """Create an object, or verify the one that exists; see `Store.put_if_absent`."""
        key = self._key(name)
        self._take(key)
        for _ in range(_ATTEMPTS):
            if self._bucket.create(key, data):
                return True
            try:
                stored = self._bucket.read(key)
            except FileNotFoundError:
                continue
            verify_equal(self._place(name), stored, data, same)
            return False
        raise StoreError(
            f"{self._place(name)} must stay once it exists: it was deleted again and again while "
            "it was written; what is stored is intact; find out who deletes it, and run again"
        )

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Overwrite an object, atomically.

        What need not be durable is left out if it comes too soon after the last time: buckets
        refuse to overwrite one object more than about once a second.
        """
        key = self._key(name)
        now = time.monotonic()
        if not durable and now < self._next_advice.get(key, now):
            return
        self._take(key)
        self._bucket.write(key, data)
        self._next_advice[key] = now + ADVICE_SECS

    def get(self, name: str) -> bytes:
        """Read a whole object."""
        return self._bucket.read(self._key(name))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Read a stretch of an object."""
        key = self._key(name)
        return self._bucket.read_range(key, start, length) if length else b""

    def open_mmap(self, name: str, expand: Expand | None = None) -> memoryview:
        """Map a copy on the local disk, shared by the processes of the host; see `LocalCache`.

        The copy is of what `expand` makes of the object. Small objects are read into memory, as
        they are.
        """
        key = self._key(name)
        for _ in range(_ATTEMPTS):
            info = self._take(key) or self._bucket.stat(key)
            if info is None:
                break
            try:
                return self._open(info, expand)
            except FileNotFoundError:
                # What was known of it is outdated: it has been replaced or deleted.
                continue
        raise FileNotFoundError(2, "No such object", self._place(name))

    def expect(self, name: str, expand: Expand | None = None) -> None:
        """Copy an object to the local disk in the background, if it is known and large."""
        info = self._known.get(self._key(name))
        if info is not None and self._cache is not None and self._is_copied(info):
            copy = self._copy(info, expand)
            if not self._cache.holds(copy):
                fetch_ahead(lambda: self._open(info, expand))

    def exists(self, name: str) -> bool:
        """Ask whether an object exists."""
        info = self._bucket.stat(self._key(name))
        if info is not None:
            self._remember(info)
        return info is not None

    def list(self, prefix: str) -> Iterator[str]:
        """Yield names in the order of their bytes, page by page.

        Raises:
            StoreError: the bucket lists its objects in no order.
        """
        previous = ""
        for info in self._bucket.list(self._prefix + prefix):
            if info.key <= previous:
                raise StoreError(
                    f"{self._bucket.uri} must list objects by name, got {info.key!r} after "
                    f"{previous!r}; streams cannot be kept there; use a general purpose bucket"
                )
            previous = info.key
            self._remember(info)
            yield info.key[len(self._prefix) :]

    def list_after(self, name: str) -> Sequence[str]:
        """Ask for the names that follow in the folder, and remember what they are."""
        key = self._key(name)
        found = self._bucket.list_after(key, key[: key.rindex("/") + 1] if "/" in key else "")
        for info in found:
            self._remember(info)
        return [info.key[len(self._prefix) :] for info in found]

    def delete(self, name: str) -> None:
        """Delete an object; it may already be gone."""
        key = self._key(name)
        self._take(key)
        self._bucket.delete(key)

    def peek_end(self, name: str, length: int) -> None:
        """Ask nothing: objects are whole."""
        del name, length

    def remove_strays(self, *, only_count: bool = False) -> int:
        """Find none: in a bucket an object is there as a whole, or not at all."""
        del only_count
        return 0

    def _key(self, name: str) -> str:
        split_name(name)
        return self._prefix + name

    def _place(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def _open(self, info: ObjectInfo, expand: Expand | None) -> memoryview:
        """Read the very version that was described, from the local disk if it is there."""

        def fetch() -> bytes:
            content = self._bucket.read(info.key, info.version)
            return content if expand is None else expand(content)

        if self._cache is None or not self._is_copied(info):
            return memoryview(self._bucket.read(info.key, info.version))
        return self._cache.open(self._copy(info, expand), fetch)

    def _copy(self, info: ObjectInfo, expand: Expand | None) -> CopyKey:
        form = "" if expand is None else expand.__name__
        return CopyKey(f"{self._bucket.uri}/{info.key}", info.version, info.size, form)

    def _is_copied(self, info: ObjectInfo) -> bool:
        return self._cache is not None and info.size > SMALL_BYTES

    def _remember(self, info: ObjectInfo) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known = {}
        self._known[info.key] = info

    def _take(self, key: str) -> ObjectInfo | None:
        """Return what was last learnt of an object, once: the next read asks again."""
        return self._known.pop(key, None)


def open_bucket(scheme: str, name: str) -> Bucket:
    """Return the bucket of a remote address.

    Raises:
        RecipeError: the library for it is not installed.
    """
    if scheme == "gs":
        from zephon_beam.store.gcs import GcsBucket

        return GcsBucket(name)
    from zephon_beam.store.object_stores import ObstoreBucket

    return ObstoreBucket(scheme, name)


def open_remote_store(uri: str) -> RemoteStore:
    """Open the store at `gs://`, `s3://` or `az://`.

    Raises:
        RecipeError: the address is not well formed, or the library for it is not installed.
    """
    scheme, name, prefix = split_address(uri)
    return RemoteStore(open_bucket(scheme, name), prefix, LocalCache.from_environment())
