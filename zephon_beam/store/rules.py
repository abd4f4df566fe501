"""What every store does alike: names, and proof that a second writer computed the same."""

from hashlib import blake2b

from zephon_beam.errors import CorruptObjectError, DeterminismError
from zephon_beam.store.base import SameContent


def split_name(name: str) -> list[str]:
    """Return the parts of an object's name.

    Raises:
        ValueError: the name leaves the root or is not a plain relative path.
    """
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"name must be a plain relative path, got {name!r}")
    return parts


def verify_equal(place: str, stored: bytes, data: bytes, same: SameContent | None) -> None:
    """Make sure that an object that exists is the one that was to be created.

    Args:
        place: path or address of the object.
        stored: what it holds.
        data: what was computed now.
        same: compares the two by meaning if their bytes differ.

    Raises:
        DeterminismError: they differ; names both digests.
        CorruptObjectError: what is stored cannot be read.
    """
    try:
        if stored == data or (same is not None and same(stored, data)):
            return
    except CorruptObjectError as error:
        raise CorruptObjectError(f"{place}: {error}") from error
    found, computed = (blake2b(side, digest_size=16).hexdigest() for side in (stored, data))
    raise DeterminismError(
        f"{place} exists with other content: stored {found}, computed {computed}; the same "
        "recipe and sources must give the same bytes, so one of the two runs is wrong; keep "
        "both for comparison and rebuild the stream in a new place"
    )
