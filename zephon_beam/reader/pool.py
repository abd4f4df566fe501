"""Arrays that are used again: new memory costs more than filling it.

The kernel hands out memory page by page, and clears each page first; an array that was filled
before has its pages. Whether someone still holds an array, or a view of it, is what Python counts
anyway: NumPy keeps the owner of a view's memory alive by a reference to it, and so do tensors that
share that memory.
"""

import sys
from typing import Any

import numpy as np

from zephon_beam.samples import Array

MOST_BYTES = 64 << 20
"""Memory that may be kept; what callers hold beyond it is theirs alone."""


class ArrayPool:
    """Gives arrays of undefined content that nobody else holds.

    Determinism: it decides where arrays lie, never what is written into them.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[tuple[int, ...], Any], list[Array]] = {}
        self._bytes = 0
        self._ramps: dict[tuple[int, Any], Array] = {}

    def take(self, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
        """Return an array that is contiguous and writable; its content is undefined."""
        kept = self._arrays.setdefault((shape, dtype), [])
        for array in kept:
            if sys.getrefcount(array) == _IDLE:
                return array
        array = np.empty(shape, dtype)
        if self._bytes + array.nbytes > MOST_BYTES:
            self._arrays.clear()
            self._bytes = 0
        if _COUNTS_ARE_EXACT:
            self._arrays.setdefault((shape, dtype), []).append(array)
            self._bytes += array.nbytes
        return array

    def ramp(self, length: int, seq_len: int, dtype: "np.dtype[Any]") -> Array:
        """Return 0, 1, …, seq_len - 1, again and again up to a length; read only."""
        found = self._ramps.get((seq_len, dtype))
        if found is None or len(found) < length:
            found = np.resize(np.arange(seq_len, dtype=dtype), length)
            self._ramps[seq_len, dtype] = found
        return found[:length]


def _count_of_idle() -> int:
    """Count the references to an array that only a list holds, as `take` sees them."""
    arrays: list[Array] = [np.empty(1)]
    for array in arrays:
        return sys.getrefcount(array)
    return 0


_IDLE = _count_of_idle()
_COUNTS_ARE_EXACT = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Without the interpreter's lock references are counted in several places."""
