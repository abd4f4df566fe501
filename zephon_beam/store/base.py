"""The store protocol and the way from a URI to a store."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from zephon_beam.checks import nearest
from zephon_beam.errors import RecipeError

REMOTE_SCHEMES = ("gs", "s3", "az")
_OTHER_NAMES = {
    **dict.fromkeys(("gcs", "gfs", "google"), "gs"),
    **dict.fromkeys(("s3a", "s3n", "aws"), "s3"),
    **dict.fromkeys(("abfs", "abfss", "adl", "azure", "wasb", "wasbs"), "az"),
}

SameContent = Callable[[bytes, bytes], bool]
"""Says whether two encodings hold the same logical content, e.g. shards of another codec."""


Expand = Callable[[bytes], bytes]
"""Makes of an object's content what is to be mapped in its place, e.g. expands it."""


class Store(Protocol):
    """Objects under one root, named by relative `/`-separated paths.

    Determinism: `put_if_absent` is the only way to create immutable objects; of several writers
    exactly one creates it and the others verify that they computed the same content.
    """

    @property
    def uri(self) -> str:
        """The root, as users may name it."""

    def put_if_absent(self, name: str, data: bytes, same: SameContent | None = None) -> bool:
        """Create an object durably; True if this call created it.

        Raises:
            DeterminismError: it exists with other content (by bytes, or by `same`).
        """

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Create or overwrite an advisory object atomically; if `durable`, for good."""

    def get(self, name: str) -> bytes:
        """Read a whole object.

        Raises:
            FileNotFoundError: there is none of that name.
        """

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`; shorter at the object's end."""

    def open_mmap(self, name: str, expand: Expand | None = None) -> memoryview:
        """Map a whole object for reading, without copying where the store allows it.

        With `expand` it may be what that makes of the object, where it is kept on the local disk:
        the work is then done once a host.
        """

    def expect(self, name: str, expand: Expand | None = None) -> None:
        """Hint that an object which was seen is to be mapped soon; changes nothing but speed."""

    def list_after(self, name: str) -> Sequence[str]:
        """Return some of the names that follow one in its folder, in order, with none between.

        As many as one request tells; none where to ask for each by `exists` is as cheap.
        """

    def exists(self, name: str) -> bool:
        """Say whether an object of that name exists."""

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names of objects below a `/`-ended prefix, in sorted order."""

    def delete(self, name: str) -> None:
        """Delete an object; it may already be gone."""

    def peek_end(self, name: str, length: int) -> bytes | None:
        """Read the last bytes of an object if it is there and that costs no request.

        None also where objects cannot be cut off: in buckets they are there as a whole or not.
        """

    def remove_strays(self, *, only_count: bool = False) -> int:
        """Remove what writers that were killed have left, or count it; objects are not touched.

        What others are writing meanwhile stays. Returns how many there were.
        """


def open_store(uri: str) -> Store:
    """Open the store at a URI or local path; nothing is read yet.

    Raises:
        RecipeError: the scheme is not one that this version supports, the address is not well
            formed, or the library for it is not installed.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        from zephon_beam.store.local import LocalStore

        return LocalStore(rest if separator else uri)
    if scheme in REMOTE_SCHEMES:
        from zephon_beam.store.remote import open_remote_store

        return open_remote_store(uri)
    raise unknown_scheme("stream", uri)


def is_remote(uri: str) -> bool:
    """Say whether a path, pattern or address is one of something in a bucket."""
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme in REMOTE_SCHEMES


def unknown_scheme(field: str, uri: str) -> RecipeError:
    """Word the error for an address of a kind that this version does not know."""
    scheme = uri.partition("://")[0]
    known = ("file", *REMOTE_SCHEMES)
    hint = _OTHER_NAMES.get(scheme) or nearest(scheme, known)
    repair = f"did you mean {hint}://?" if hint else "use one of these"
    names = ", ".join(f"{name}://" for name in known)
    return RecipeError(
        f"{field} must be a local path or an address that begins with one of {names}, got "
        f"{uri!r}; {repair}"
    )
