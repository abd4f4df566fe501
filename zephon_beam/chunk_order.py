"""The order of chunks in a lane's channel, and of documents in a part: pure functions of keys.

A data set of M chunks is visited pass after pass, each in the order of a permutation of its own.
Position p of that endless sequence is place p % M of pass p // M, and belongs to lane p % lanes:

    3 chunks, 2 lanes      position   0  1  2 | 3  4  5 | 6 …
                           pass       0  0  0 | 1  1  1 | 2
                           lane       0  1  0 | 1  0  1 | 0
                           number     0  0  1 | 1  2  2 | 3

So each pass visits every chunk once over all lanes, and nothing depends on how far a run is.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from zephon_beam.keyed import Permutation


class ChunkOrder:
    """Which chunk is number n of a lane's channel for one data set.

    Determinism: depends on the arguments alone; literals are pinned in tests.
    """

    def __init__(
        self,
        *,
        seed: int,
        dataset: str,
        chunk_count: int,
        lanes: int,
        shuffle: bool,
        passes: int | None,
    ) -> None:
        """Describe the order.

        Args:
            seed: the recipe's seed.
            dataset: name of the data set.
            chunk_count: chunks of the data set, at least 1.
            lanes: lanes of the stream, at least 1.
            shuffle: whether the chunks of a pass are permuted.
            passes: how often each chunk is visited; None: without end.
        """
        if chunk_count < 1 or lanes < 1:
            raise ValueError(
                f"chunk_count and lanes must be at least 1, got {chunk_count} and {lanes}"
            )
        self._seed = seed
        self._dataset = dataset
        self._chunk_count = chunk_count
        self._lanes = lanes
        self._shuffle = shuffle
        self._positions = None if passes is None else passes * chunk_count

    def position(self, lane: int, number: int) -> tuple[int, int] | None:
        """Return (pass, chunk) of a lane's channel chunk `number`, or None past the last pass."""
        position = number * self._lanes + lane
        if self._positions is not None and position >= self._positions:
            return None
        pass_number, place = divmod(position, self._chunk_count)
        if not self._shuffle:
            return pass_number, place
        permutation = _chunk_permutation(self._chunk_count, self._seed, self._dataset, pass_number)
        return pass_number, permutation(place)

    def count(self, lane: int) -> int | None:
        """Return the number of chunks in a lane's channel, or None if it is endless."""
        if self._positions is None:
            return None
        return max(0, -(-(self._positions - lane) // self._lanes))


def document_order(
    *, seed: int, dataset: str, pass_: int, chunk: int, part: int, count: int, shuffle: bool
) -> npt.NDArray[np.int64]:
    """Return the places of a part's documents in their order of use.

    Returns:
        int64[count], a permutation of [0, count); the identity without `shuffle`.

    Determinism: depends on the arguments alone; literals are pinned in tests.
    """
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    return Permutation(count, seed, "documents", dataset, pass_, chunk, part).all()


@lru_cache(maxsize=64)
def _chunk_permutation(size: int, seed: int, dataset: str, pass_number: int) -> Permutation:
    """Keep the permutations of the passes in use."""
    return Permutation(size, seed, "chunks", dataset, pass_number)
