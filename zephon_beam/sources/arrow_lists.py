"""Arrow list columns as token ids, without a Python object for any of them.

    offsets    0     3  3        6
    ids        5 6 7    1 2 3          of int32 or uint32: a view of Arrow's own buffer
    learned    1 0 1    1 1 1

Rows with a fault come out empty.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_beam.sources.documents import Content, TokenLists
from zephon_beam.sources.token_lists import (
    TokenFault,
    length_fault,
    list_fault,
    mask_fault,
    range_fault,
)

Array = npt.NDArray[Any]


class ListRows:
    """Rows of a list column, and of the column of their loss masks if there is one."""

    def __init__(self, array: Any, mask: Any, content: Content) -> None:
        """Check all rows of two arrays of the same length.

        Args:
            array: list, large list or fixed-size list of integers.
            mask: the same of integers or booleans, or None.
            content: names of the fields and the limit of ids.
        """
        self._ids = _Lists(array)
        self._mask = None if mask is None else _Lists(mask)
        found: dict[int, TokenFault] = {}
        for row, fault in self._find(content):
            found.setdefault(row, fault)
        self.faults = sorted(found.items())
        """(row, what is wrong with it), in order of rows, one a row."""

    def lists(self) -> TokenLists:
        """Return the tokens of all rows; those of rows with a fault are left out."""
        ids, offsets = self._ids.values, self._ids.offsets
        learned = None if self._mask is None else self._mask.values
        if self.faults:
            good = np.ones(len(offsets) - 1, bool)
            good[[row for row, _ in self.faults]] = False
            if self._mask is not None and learned is not None:
                learned = learned[np.repeat(good, np.diff(self._mask.offsets))]
            lengths = np.diff(offsets)
            ids = ids[np.repeat(good, lengths)]
            offsets = np.zeros(len(offsets), np.int64)
            np.cumsum(np.where(good, lengths, 0), out=offsets[1:])
        return TokenLists(
            tokens=_as_uint32(ids),
            offsets=offsets,
            learned=None if learned is None else learned.astype(np.uint8, copy=False),
        )

    def _find(self, content: Content) -> Iterator[tuple[int, TokenFault]]:
        """Yield (row, fault); of a row the first one counts."""
        ids, mask = self._ids, self._mask
        for row in ids.null_rows:
            yield row, list_fault(content.field, "null")
        for row in ids.rows_of(ids.null_places):
            yield row, list_fault(content.field, "null in it")
        wrong = _outside(ids.values, content.id_limit)
        for place, row in zip(wrong.tolist(), ids.rows_of(wrong), strict=True):
            yield row, range_fault(content.field, int(ids.values[place]), content.id_limit)
        if mask is None:
            return
        name = content.loss_mask or ""
        for row in mask.null_rows:
            yield row, mask_fault(name, "be a list of 0 and 1", "null")
        for row in mask.rows_of(mask.null_places):
            yield row, mask_fault(name, "be a list of 0 and 1", "null in it")
        wrong = _outside(mask.values, 2)
        for place, row in zip(wrong.tolist(), mask.rows_of(wrong), strict=True):
            yield row, mask_fault(name, "be a list of 0 and 1", f"{mask.values[place]} in it")
        lengths, expected = np.diff(mask.offsets), np.diff(ids.offsets)
        for row in np.flatnonzero(lengths != expected).tolist():
            yield row, length_fault(name, int(lengths[row]), int(expected[row]))


class _Lists:
    """A list array as flat values and offsets that begin at 0."""

    def __init__(self, array: Any) -> None:
        bounds = _bounds(array)
        first = int(bounds[0])
        flat = array.values.slice(first, int(bounds[-1]) - first)
        self.offsets = bounds - first
        self.null_rows: list[int] = (
            np.flatnonzero(array.is_null()).tolist() if array.null_count else []
        )
        self.null_places = np.zeros(0, np.int64)
        if flat.null_count:
            self.null_places = np.flatnonzero(flat.is_null())
            flat = flat.fill_null(False if pa.types.is_boolean(flat.type) else 0)
        self.values: Array = flat.to_numpy(zero_copy_only=not pa.types.is_boolean(flat.type))

    def rows_of(self, places: Array) -> list[int]:
        """Return the rows of places among the values."""
        rows: list[int] = (np.searchsorted(self.offsets, places, side="right") - 1).tolist()
        return rows


def _bounds(array: Any) -> Array:
    """Return where the lists begin and end among all values, int64[rows + 1]."""
    count = len(array)
    if pa.types.is_fixed_size_list(array.type):
        places = np.arange(count + 1, dtype=np.int64) + array.offset
        return np.asarray(places * array.type.list_size, np.int64)
    if not count:
        return np.zeros(1, np.int64)
    dtype = np.int64 if pa.types.is_large_list(array.type) else np.int32
    offsets = np.frombuffer(array.buffers()[1], dtype=dtype)
    bounds: Array = offsets[array.offset : array.offset + count + 1]
    return bounds.astype(np.int64, copy=False)


def _outside(values: Array, limit: int) -> Array:
    """Return the places of values that are not in [0, limit), int64[places]."""
    if not len(values) or (int(values.min()) >= 0 and int(values.max()) < limit):
        return np.zeros(0, np.int64)
    # Of signed values a negative one becomes large; a type too narrow for the limit holds it all.
    unsigned = values.view(f"u{values.dtype.itemsize}")
    largest = min(limit - 1, int(np.iinfo(unsigned.dtype).max) >> int(values.dtype.kind == "i"))
    return np.flatnonzero(unsigned > unsigned.dtype.type(largest))


def _as_uint32(ids: Array) -> Array:
    """Narrow or widen ids of at least 0; those of 32 bits are only looked at otherwise."""
    if ids.dtype.itemsize == np.dtype(np.uint32).itemsize:
        return ids.view(np.uint32)
    return ids.astype(np.uint32)
