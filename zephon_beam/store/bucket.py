"""What a store asks of an object store's client, and how an address names a place in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from zephon_beam.errors import RecipeError

REQUEST_SECS = 30.0
"""Longest silence of a server within one request."""
DEADLINE_SECS = 120.0
"""After so long no request is tried again."""
AHEAD = 128
"""Objects that are looked for ahead in one request: it must be over before it is missed."""
FIRST_PAUSE_SECS = 0.25
LONGEST_PAUSE_SECS = 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """What an object store says of an object, without its content."""

    key: str
    """Full name in the bucket."""
    size: int
    """Bytes."""
    version: str
    """Tells apart the contents that a key had at different times: a generation or an ETag."""
    checksum: str
    """Depends on the content where the store has such a thing, else equal to the version."""


class Bucket(Protocol):
    """Objects of one bucket by their full names; every call is one request if all goes well.

    What may go away (throttling, errors of the server, broken connections) is tried again for
    `DEADLINE_SECS`.

    Raises:
        FileNotFoundError: there is no such object.
        RecipeError: there is no such bucket.
        StoreError: permission was refused, or the store failed for too long.
    """

    @property
    def uri(self) -> str:
        """The bucket's address, without a slash at its end."""

    def create(self, key: str, data: bytes) -> bool:
        """Create an object unless one of that name exists; say whether it was created.

        After a lost answer False may mean an object that this very call created.
        """

    def write(self, key: str, data: bytes) -> None:
        """Create or overwrite an object."""

    def read(self, key: str, version: str | None = None) -> bytes:
        """Read an object; with a version, `FileNotFoundError` if it is not the current one."""

    def read_range(self, key: str, start: int, length: int, version: str | None = None) -> bytes:
        """Read up to `length` > 0 bytes from `start`; fewer at the object's end."""

    def stat(self, key: str) -> ObjectInfo | None:
        """Describe an object, None if there is none."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Describe the objects whose names begin with a prefix, by name, page by page."""

    def list_after(self, key: str, prefix: str) -> Sequence[ObjectInfo]:
        """Describe objects whose names follow one and begin with a prefix, by name.

        As many as one request tells; none if the service cannot begin a listing in the middle.
        """

    def delete(self, key: str) -> None:
        """Delete an object; it may be gone already."""


def split_address(uri: str, field: str = "stream") -> tuple[str, str, str]:
    """Split `scheme://bucket/prefix` into its three parts.

    Raises:
        RecipeError: it has no bucket, or the prefix is not a plain path.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    parts = prefix.split("/") if prefix else []
    if not bucket or any(part in ("", ".", "..") for part in parts):
        raise RecipeError(
            f"{field} must be an address like {scheme}://bucket/folder, got {uri!r}; name a bucket "
            "and a plain path in it"
        )
    return scheme, bucket, prefix


def missing_bucket(uri: str) -> RecipeError:
    """Word the error for a bucket that is not there."""
    return RecipeError(
        f"bucket must exist, found none named {uri!r}; nothing can be stored or read there; "
        "correct the address or create the bucket"
    )


def missing_library(uri: str, library: str, extra: str) -> RecipeError:
    """Word the error for an address whose client is not installed."""
    scheme = uri.partition("://")[0]
    return RecipeError(
        f"{scheme}:// addresses need {library}, which is not installed, got {uri!r}; install it "
        f"with: pip install 'zephon-beam[{extra}]'"
    )


def describe_refusal(place: str, doing: str, reason: str) -> str:
    """Word the message for an object that the store does not let us touch."""
    return (
        f"store must be able to {doing} {place}: {reason}; what is stored is intact; give the "
        "account that runs this the right to list, read, create and delete objects of the bucket"
    )


def describe_failure(place: str, doing: str, reason: str) -> str:
    """Word the message for a store that failed for too long."""
    return (
        f"store must be able to {doing} {place}: {reason}; it was tried again for up to "
        f"{DEADLINE_SECS:g} s; what is stored is intact; check the network and the state of the "
        "service, and run again"
    )
