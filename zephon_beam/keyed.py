"""Keyed hashing and keyed pseudo-random permutations: the only source of randomness.

Every random choice is a function of named fields, hashed by BLAKE2b. Neither `random` nor NumPy
generators are used for order: their streams may change between versions.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Field = int | str | bytes

_ROUNDS = 6
_MAX_DOMAIN = 1 << 62
_MAX_TABLE = 1 << 20
_WORD = (1 << 64) - 1


def keyed_digest(*fields: Field, size: int = 8) -> bytes:
    """Hash a sequence of typed fields; no two different sequences share an encoding.

    Args:
        *fields: integers (any size), text or bytes; the order counts.
        size: length of the digest in bytes, 1 to 64.

    Returns:
        The BLAKE2b digest, `size` bytes.

    Raises:
        TypeError: a field is of another type (a bool too: it would hash like an integer).

    Determinism: depends on the fields and `size` alone.
    """
    return blake2b(b"".join(map(_encode_field, fields)), digest_size=size).digest()


def _encode_field(field: Field) -> bytes:
    if isinstance(field, bool) or not isinstance(field, (int, str, bytes)):
        raise TypeError(f"field must be int, str or bytes, got {field!r}")
    if isinstance(field, int):
        tag, body = b"i", str(field).encode()
    elif isinstance(field, str):
        tag, body = b"s", field.encode()
    else:
        tag, body = b"b", field
    return tag + len(body).to_bytes(8, "little") + body


def keyed_int(*fields: Field) -> int:
    """Hash typed fields to an integer in [0, 2^64)."""
    return int.from_bytes(keyed_digest(*fields), "little")


def keyed_ints(fields: Sequence[Field], last: Iterable[int]) -> list[int]:
    """Return `keyed_int(*fields, number)` for many numbers, at a third of its cost each."""
    start = b"".join(map(_encode_field, fields))
    return [
        int.from_bytes(blake2b(start + _encode_field(number), digest_size=8).digest(), "little")
        for number in last
    ]


def keyed_bound(fraction: Fraction) -> int:
    """Return the bound below which `keyed_int` is for this fraction of all keys, exactly.

    For integers, `number < fraction · 2^64` and `number < ceil(fraction · 2^64)` are the same.
    """
    return -(-(fraction * 2**64) // 1)


class Permutation:
    """A keyed bijection of [0, size), evaluated at any place in O(1) without a table.

    A balanced Feistel network on the smallest even number of bits that holds `size`; values that
    fall outside walk the cycle until they are inside, which keeps it a bijection. Small domains
    are where few Feistel rounds would show, hence six of them.

    Determinism: depends on `size` and the key fields alone; literals are pinned in tests.
    Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), cycle-walking.
    """

    def __init__(self, size: int, *key: Field) -> None:
        """Derive the round keys.

        Args:
            size: number of places, 0 ≤ size ≤ 2^62.
            *key: fields that name this permutation, e.g. (seed, "chunks", data set, pass).

        Raises:
            ValueError: size is out of range.
        """
        if not 0 <= size <= _MAX_DOMAIN:
            raise ValueError(f"size must be in [0, 2^62], got {size!r}")
        self.size = size
        bits = max(2, (size - 1).bit_length() if size > 1 else 0)
        self._half = (bits + 1) // 2
        self._mask = (1 << self._half) - 1
        material = keyed_digest("permutation", *key, size=8 * _ROUNDS)
        self._keys = [int.from_bytes(material[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS)]

    def __len__(self) -> int:
        """Return the number of places."""
        return self.size

    def __call__(self, place: int) -> int:
        """Return the value at one place, in [0, size)."""
        if not 0 <= place < self.size:
            raise IndexError(f"place must be in [0, {self.size}), got {place!r}")
        # Plain integers: an array of one element would take ten times as long.
        value = place
        while True:
            left, right = value >> self._half, value & self._mask
            for key in self._keys:
                left, right = right, left ^ (_mix_int(right ^ key) & self._mask)
            value = left << self._half | right
            if value < self.size:
                return value

    def all(self) -> npt.NDArray[np.int64]:
        """Return the values at all places in order, int64[size]."""
        domain = 1 << (2 * self._half)
        if domain > _MAX_TABLE:
            return self.take(np.arange(self.size, dtype=np.uint64))
        # One step from every number of the domain; walking is then looking up.
        steps = self._steps(domain)
        values = steps[: self.size].copy()
        outside = np.flatnonzero(values >= self.size)
        while len(outside):
            values[outside] = steps[values[outside]]
            outside = outside[values[outside] >= self.size]
        return values

    def _steps(self, domain: int) -> npt.NDArray[np.int64]:
        """Run the network once over all numbers of its domain, int64[domain].

        A round scrambles the right half alone, of which there are few: those of all rounds are
        scrambled at once, and each round looks its own up.
        """
        halves = np.arange(1 << self._half, dtype=np.uint64)
        keys = np.array(self._keys, dtype=np.uint64)[:, np.newaxis]
        scrambled = (_mix(halves ^ keys) & np.uint64(self._mask)).astype(np.int64)
        numbers = np.arange(domain, dtype=np.int64)
        left, right = numbers >> self._half, numbers & self._mask
        for table in scrambled:
            left, right = right, left ^ table[right]
        return (left << self._half) | right

    def take(self, places: Sequence[int] | npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the values at many places, int64[len(places)]; places must be in [0, size)."""
        values = np.array(places, dtype=np.uint64)
        pending = np.arange(len(values))
        while len(pending):
            walked = self._rounds(values[pending])
            values[pending] = walked
            pending = pending[walked >= np.uint64(self.size)]
        return values.astype(np.int64)

    def _rounds(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Run the Feistel network once over uint64[n]."""
        half, mask = np.uint64(self._half), np.uint64(self._mask)
        left, right = values >> half, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ np.uint64(key)) & mask)
        return (left << half) | right


def _mix_int(value: int) -> int:
    """Scramble one 64-bit integer as `_mix` does."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _WORD
    return value ^ (value >> 31)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble uint64[n]; unsigned arithmetic wraps. Source: the SplitMix64 finalizer."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
