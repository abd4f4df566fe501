"""The store protocol and the way from a URI to a store."""

from collections.abc import Callable, Iterator
from typing import Protocol

from zephon_beam.checks import nearest
from zephon_beam.errors import RecipeError

SameContent = Callable[[bytes, bytes], bool]
"""Says whether two encodings hold the same logical content, e.g. shards of another codec."""


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

    def open_mmap(self, name: str) -> memoryview:
        """Map a whole object for reading, without copying where the store allows it."""

    def exists(self, name: str) -> bool:
        """Say whether an object of that name exists."""

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names of objects below a `/`-ended prefix, in sorted order."""

    def delete(self, name: str) -> None:
        """Delete an object; it may already be gone."""


def open_store(uri: str) -> Store:
    """Open the store at a URI or local path.

    Raises:
        RecipeError: the scheme is not one that this version supports.
    """
    from zephon_beam.store.local import LocalStore

    scheme, separator, rest = uri.partition("://")
    if not separator:
        return LocalStore(uri)
    if scheme == "file":
        return LocalStore(rest)
    hint = nearest(scheme, ["file"])
    repair = f"did you mean {hint}://?" if hint else "use a local path or file://"
    raise RecipeError(f"stream must be a local path or a file:// URI, got {uri!r}; {repair}")
