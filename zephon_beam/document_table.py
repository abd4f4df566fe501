"""The document table: where the documents lie that a lane has open, and where they come from.

One row a document (or a piece of one, from a restored state), sorted by address, one array a
column. Views bring their rows; a document is found from the address of any of its tokens.
"""

from typing import Any, NamedTuple

import numpy as np

from zephon_beam.pieces import Array


class Rows(NamedTuple):
    """Documents of a view: one array a column, or one value for all of them."""

    starts: Array
    """int64, first token of each document in its view, ascending."""
    stops: Array
    """int64, the token behind its last one that is delivered."""
    files: Array
    documents: Array
    outputs: Array
    dataset: Any
    pass_number: Any
    offset: Any = 0
    """First token of each in the whole document."""
    following: Any = -1
    """The token behind the last one, -1: the document ends there."""


_NO_ROWS = Rows(
    starts=np.empty(0, np.int64),
    stops=np.empty(0, np.int64),
    files=np.empty(0, np.uint32),
    documents=np.empty(0, np.int64),
    outputs=np.empty(0, np.uint32),
    dataset=np.empty(0, np.uint16),
    pass_number=np.empty(0, np.uint32),
    offset=np.empty(0, np.int32),
    following=np.empty(0, np.int32),
)
_FIRST_ROWS = 1024


class DocumentTable:
    """Rows in ascending order of address.

    Rows are joined to the others when something is looked up: for many views at once that costs
    little more than for one.
    """

    __slots__ = ("_columns", "_count", "_new")

    def __init__(self) -> None:
        """Start without a row."""
        self._columns = Rows(*(np.resize(column, _FIRST_ROWS) for column in _NO_ROWS))
        self._count = 0
        self._new: list[tuple[int, Rows]] = []

    def append(self, base: int, rows: Rows) -> None:
        """Append the rows of a view at an address behind all others."""
        if self._new and type(rows.dataset) is not type(self._new[0][1].dataset):
            self._join()
        self._new.append((base, rows))

    def find(self, addresses: Array) -> Rows:
        """Return the rows that hold tokens at these addresses, as new arrays."""
        self._join()
        # Of rows that start at one address all but the last are empty.
        starts = self._columns.starts[: self._count]
        places = np.searchsorted(starts, addresses, side="right") - 1
        return Rows(*(column[places] for column in self._columns))

    def keep(self, is_kept: Array) -> None:
        """Remove all rows but some.

        Args:
            is_kept: bool[rows].
        """
        self._join()
        places = np.flatnonzero(is_kept)
        for column in self._columns:
            column[: len(places)] = column[places]
        self._count = len(places)

    def _join(self) -> None:
        """Write the new rows behind the others."""
        if not self._new:
            return
        counts = [len(rows.starts) for _, rows in self._new]
        first, last = self._count, self._count + sum(counts)
        if last > len(self._columns.starts):
            self._columns = Rows(*(np.resize(column, 2 * last) for column in self._columns))
        for place, column in enumerate(self._columns):
            values = [rows[place] for _, rows in self._new]
            if isinstance(values[0], int):
                column[first:last] = np.repeat(np.array(values, column.dtype), counts)
            else:
                np.concatenate(values, out=column[first:last], casting="same_kind")
        shifts = np.repeat(np.array([base for base, _ in self._new], np.int64), counts)
        self._columns.starts[first:last] += shifts
        self._columns.stops[first:last] += shifts
        self._count = last
        self._new = []
