"""Where a stream begins after old shards were deleted.

Objects in `base/` hold the first shard that each lane keeps. One is written before anything is
deleted and never changed, named after its content, and what holds is the largest entry of each
lane over all of them. So the beginning only moves forward, however many delete at once.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b

from zephon_beam.errors import CorruptObjectError
from zephon_beam.layout import base_name
from zephon_beam.sample_order import SampleOrder
from zephon_beam.store.base import Store

_FOLDER = "base/"


def read_first_shards(store: Store, lanes: int) -> list[int]:
    """Return the first shard that each lane keeps; 0 where nothing was deleted.

    Raises:
        CorruptObjectError: an object is damaged.
    """
    while True:
        first = [0] * lanes
        try:
            for name in store.list(_FOLDER):
                stored = _decode(store.get(name), name, lanes)
                first = [max(pair) for pair in zip(first, stored, strict=True)]
        except FileNotFoundError:
            # A newer one has taken its place since the listing, and is not in it.
            continue
        return first


def write_first_shards(store: Store, first: Sequence[int]) -> None:
    """Move the beginning forward, durably, then drop what that replaced.

    Args:
        store: of the stream.
        first: first shard of each lane to keep, nowhere below what is stored.
    """
    content = (json.dumps({"format_version": 1, "first_shards": list(first)}) + "\n").encode()
    name = _name_of(first, content)
    store.put_if_absent(name, content)
    for older in [listed for listed in store.list(_FOLDER) if listed != name]:
        try:
            stored = _decode(store.get(older), older, len(first))
        except FileNotFoundError:
            continue
        if all(old <= new for old, new in zip(stored, first, strict=True)):
            store.delete(older)


def first_retained_sample(
    order: SampleOrder, first_shards: Sequence[int], samples_per_shard: int
) -> int:
    """Return the global number of the sample from which on none was deleted."""
    numbers = [
        order.number_of(lane, first * samples_per_shard - 1) + 1
        for lane, first in enumerate(first_shards)
        if first
    ]
    return max(numbers, default=0)


def _name_of(first: Sequence[int], content: bytes) -> str:
    return base_name(sum(first), blake2b(content, digest_size=4).hexdigest())


def _decode(data: bytes, name: str, lanes: int) -> list[int]:
    try:
        raw = json.loads(data)
        first = raw["first_shards"]
        counts = [n for n in first if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
        if raw["format_version"] != 1 or len(counts) != lanes or len(first) != lanes:
            raise ValueError(f"expected version 1 with {lanes} counts")
        if name != _name_of(counts, data):
            raise ValueError(f"its content belongs to {_name_of(counts, data)}")
        return counts
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"{name} is corrupt: {error}; where the stream begins is unknown; if no shard was ever "
            "deleted, delete it, else restore it from a copy"
        ) from error
