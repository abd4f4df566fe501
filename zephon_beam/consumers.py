"""Consumers: what the trainers that read a stream say of themselves.

One object a training run, `consumers/<name>.json`, written by its rank 0 and by nobody else:

    position   where it reads; moved every few seconds, drives how far a pipeline runs ahead
    pins       samples from which it may want to read again; drive what may be deleted

The two are apart because a trainer reads on between two checkpoints: were only checkpoints told,
trainer and pipeline would wait for each other as soon as those lie further apart than the
pipeline runs ahead.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from zephon_beam.errors import CorruptObjectError, RecipeError
from zephon_beam.layout import consumer_name
from zephon_beam.sealed import seal, unseal
from zephon_beam.store.base import Store

FORMAT_VERSION = 1
ACKNOWLEDGED = "acknowledged"
"""The pin that `acknowledge` moves."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FOLDER = "consumers/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Consumer:
    """One training run, as its object says."""

    name: str
    fingerprint: str
    position: int
    """Global number of the sample that its next step begins with."""
    pins: Mapping[str, int] = field(default_factory=dict)
    """First sample that must stay readable, by the name of a pin."""
    beat: int = 0
    """Grows with every write, so that whoever watches can tell a live run from a dead one."""
    finished: bool = False
    """Whether it has said that it reads no more; its pins stay."""

    @property
    def first_needed(self) -> int:
        """The first sample that must not be deleted."""
        return min(self.pins.values(), default=0)


def check_consumer_name(name: str) -> None:
    """Refuse a name that cannot be a file's.

    Raises:
        RecipeError: it holds other characters, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise RecipeError(
            f"consumer must be a name of letters, digits, '.', '_' and '-', got {name!r}; it names "
            "a file in the stream; use e.g. run-17"
        )


def encode_consumer(consumer: Consumer) -> bytes:
    """Encode a consumer as one line of JSON."""
    content = {
        "format_version": FORMAT_VERSION,
        "fingerprint": consumer.fingerprint,
        "position": consumer.position,
        "pins": dict(sorted(consumer.pins.items())),
        "beat": consumer.beat,
        "finished": consumer.finished,
    }
    return (json.dumps(seal(content)) + "\n").encode()


def decode_consumer(data: bytes, name: str) -> Consumer:
    """Decode a consumer.

    Args:
        data: the object.
        name: name of the consumer.

    Raises:
        CorruptObjectError: damaged or of another format version.
    """
    try:
        raw = json.loads(data)
        if raw["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {raw['format_version']!r} is not {FORMAT_VERSION}")
        raw = unseal(raw)
        return Consumer(
            name=name,
            fingerprint=str(raw["fingerprint"]),
            position=_count(raw["position"]),
            pins={str(pin): _count(sample) for pin, sample in raw["pins"].items()},
            beat=_count(raw["beat"]),
            finished=bool(raw["finished"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptObjectError(
            f"{consumer_name(name)} is corrupt: {error}; what this consumer still needs is "
            "unknown, so nothing is deleted; delete it if the run is over, else let the trainer "
            "acknowledge its last checkpoint again"
        ) from error


def read_consumer(store: Store, name: str) -> Consumer | None:
    """Read one consumer, None if there is none of that name.

    Raises:
        CorruptObjectError: its object is damaged.
    """
    try:
        return decode_consumer(store.get(consumer_name(name)), name)
    except FileNotFoundError:
        return None


def read_consumers(store: Store) -> list[Consumer]:
    """Read all consumers, sorted by name.

    Raises:
        CorruptObjectError: an object is damaged.
    """
    found = []
    for listed in store.list(_FOLDER):
        name = listed.removeprefix(_FOLDER).removesuffix(".json")
        if listed == consumer_name(name):
            consumer = read_consumer(store, name)
            if consumer is not None:
                found.append(consumer)
    return found


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected a count, got {value!r}")
    return value
