"""Global order of samples: from a global number to (lane, index within the lane) and back.

While every lane runs, sample `g` is index `g // lanes` of lane `g % lanes`. Lanes of a finite
stream end at lengths of their own; then the round goes on over the lanes that are left:

    lengths 3, 1, 2      lane 0:  0  3  5
                         lane 1:  1
                         lane 2:  2  4

So the order is by (index, lane), skipping lanes with length ≤ index: a function of the stream.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zephon_beam.errors import StreamExhaustedError

_ENDLESS = 1 << 62

IntArray = npt.NDArray[np.int64]


class SampleOrder:
    """The order for one set of known lane lengths.

    A lane without a known length counts as endless. That is safe for every sample before which
    no unknown end lies, which is what `complete_prefix` counts.
    """

    def __init__(self, lane_count: int, lengths: Sequence[int | None] | None = None) -> None:
        """Prepare the spans between lane ends.

        Args:
            lane_count: lanes of the stream.
            lengths: samples of each lane, None where the lane has not ended.
        """
        known = lengths if lengths is not None else [None] * lane_count
        if len(known) != lane_count:
            raise ValueError(f"lengths must have {lane_count} entries, got {len(known)}")
        self.lane_count = lane_count
        self.lengths = np.array([_ENDLESS if n is None else n for n in known], dtype=np.int64)
        self.total: int | None = None if None in known else int(self.lengths.sum())
        """Samples of the whole stream, or None while a lane has no known end."""
        # Span k covers indices [start_k, start_k+1), in which the same lanes are alive.
        ends = sorted({int(n) for n in self.lengths})
        starts = [0, *[end for end in ends if 0 < end < _ENDLESS]]
        self._starts = np.array(starts, dtype=np.int64)
        self._alive = [np.flatnonzero(self.lengths > start) for start in starts]
        firsts = [0]
        for k in range(1, len(starts)):
            firsts.append(firsts[-1] + (starts[k] - starts[k - 1]) * len(self._alive[k - 1]))
        self._firsts = np.array(firsts, dtype=np.int64)

    def locate(self, first: int, last: int) -> tuple[IntArray, IntArray]:
        """Return the places of samples [first, last).

        Returns:
            (lanes int64[last - first], indices int64[last - first]).

        Raises:
            StreamExhaustedError: the stream has fewer than `last` samples.
        """
        total = self.total
        if total is not None and last > total:
            raise StreamExhaustedError(
                f"sample must be below {total}, the length of this finite stream, got {last - 1}"
            )
        lanes = np.empty(max(0, last - first), dtype=np.int64)
        indices = np.empty_like(lanes)
        span = int(np.searchsorted(self._firsts, first, side="right")) - 1
        begin = first
        while begin < last:
            final = span + 1 == len(self._firsts)
            end = last if final else min(last, int(self._firsts[span + 1]))
            alive, since = self._alive[span], int(self._firsts[span])
            turns, places = np.divmod(np.arange(begin - since, end - since), len(alive))
            lanes[begin - first : end - first] = alive[places]
            indices[begin - first : end - first] = turns + self._starts[span]
            begin, span = end, span + 1
        return lanes, indices

    def number_of(self, lane: int, index: int) -> int:
        """Return how many samples come before index `index` of a lane."""
        caps = np.where(np.arange(self.lane_count) < lane, index + 1, index)
        return int(np.minimum(self.lengths, caps).sum())

    def counts_before(self, sample: int) -> list[int]:
        """Return how many of the first `sample` samples are each lane's.

        Raises:
            StreamExhaustedError: the stream has fewer.
        """
        if sample == 0:
            return [0] * self.lane_count
        lanes, indices = self.locate(sample - 1, sample)
        lane, index = int(lanes[0]), int(indices[0])
        caps = np.where(np.arange(self.lane_count) <= lane, index + 1, index)
        counts: list[int] = np.minimum(self.lengths, caps).tolist()
        return counts

    def complete_prefix(self, committed: Sequence[int]) -> int:
        """Return the length of the gapless global prefix.

        Args:
            committed: samples of each lane that exist without a hole from its start.
        """
        missing = [
            (done, lane) for lane, done in enumerate(committed) if done < int(self.lengths[lane])
        ]
        if not missing:
            return int(self.lengths.sum())
        index, lane = min(missing)
        return self.number_of(lane, index)
