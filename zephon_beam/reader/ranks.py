"""Which samples of a step a rank gets: pure integer functions, the same on every rank.

A step of 10 samples on 4 ranks with micro_batch_size 2. Everyone yields ceil(ceil(10 / 4) / 2) = 2
microbatches; `.` is a fully masked filler row:

    placed samples   0 1 | 2 3 4 | 5 6 | 7 8 9
    rank 0           [0 1] [. .]
    rank 1           [2 3] [4 .]
    rank 2           [5 6] [. .]
    rank 3           [7 8] [9 .]

What is promised for a step is the *set* of its samples; the placement decides who gets which. For
samples 0…7 of a stream with 2 lanes (even numbers lie in lane 0) on 2 ranks:

    contiguous   rank 0: 0 1 2 3   rank 1: 4 5 6 7     each rank touches every lane
    by_lane      rank 0: 0 2 4 6   rank 1: 1 3 5 7     each rank reads long runs of few lanes
    balanced     the costliest sample first, each to the rank with the least cost so far
"""

import heapq

import numpy as np
import numpy.typing as npt

PLACEMENTS = ("by_lane", "contiguous", "balanced")

IntArray = npt.NDArray[np.int64]


def rank_share(sample_count: int, dp_rank: int, dp_world_size: int) -> tuple[int, int]:
    """Return the half-open range of placed samples that a rank gets.

    Ranges of consecutive ranks are adjacent, cover all samples, and differ by one at most:

        10 samples on 4 ranks   [0, 2)  [2, 5)  [5, 7)  [7, 10)
         2 samples on 4 ranks   [0, 0)  [0, 1)  [1, 1)  [1, 2)
    """
    return (
        dp_rank * sample_count // dp_world_size,
        (dp_rank + 1) * sample_count // dp_world_size,
    )


def microbatch_count(global_batch_size: int, dp_world_size: int, micro_batch_size: int) -> int:
    """Return how many microbatches every rank yields in every step.

    The largest share decides, ceil(ceil(batch / world) / micro), so that no rank runs ahead of a
    collective or hangs in one.
    """
    largest_share = -(-global_batch_size // dp_world_size)
    return -(-largest_share // micro_batch_size)


def place_samples(lanes: IntArray, placement: str) -> IntArray:
    """Return the order in which a step's samples are dealt out, int64[samples].

    Args:
        lanes: the lane of each sample of the step in global order, int64[samples].
        placement: `contiguous` keeps the global order; `by_lane` sorts by (lane, index), where
            the index needs no sorting because global order has each lane's in order.
    """
    if placement == "contiguous":
        return np.arange(len(lanes))
    return np.argsort(lanes, kind="stable")


def balance_samples(order: IntArray, costs: IntArray, dp_world_size: int) -> IntArray:
    """Return samples in the order in which they are dealt out so that ranks have alike costs.

    The costliest sample goes first, each to the rank that has the least cost so far and room, the
    lowest rank where several have. Ranks keep the sizes that `rank_share` gives them, and within a
    rank samples keep the order they came in.

    Args:
        order: the samples, a permutation of 0…n-1, int64[n]; decides between equal costs.
        costs: of sample 0, 1, …, int64[n].
        dp_world_size: number of ranks.

    Source: R. L. Graham, "Bounds on multiprocessing timing anomalies" (1969), the rule of the
        longest processing time.
    """
    count = len(order)
    shares = [rank_share(count, rank, dp_world_size) for rank in range(dp_world_size)]
    room = [last - first for first, last in shares]
    heap = [(0, rank) for rank in range(dp_world_size) if room[rank]]
    owners = np.empty(count, np.int64)
    placed = costs[order]
    for place in np.argsort(-placed, kind="stable").tolist():
        cost, rank = heapq.heappop(heap)
        owners[place] = rank
        room[rank] -= 1
        if room[rank]:
            heapq.heappush(heap, (cost + int(placed[place]), rank))
    return order[np.argsort(owners, kind="stable")]
