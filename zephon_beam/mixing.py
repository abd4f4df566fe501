"""Mixing: weighted fair queueing over data sets, in exact integers.

The next piece comes from the data set with the smallest `taken / weight`, ties by declared order.
With S the least common multiple of the integer weights, `taken / weight` is compared as the
integer `taken · (S / weight)`: no rounding, however long the run. At every prefix each share is
within a few pieces of its weight, because the lane pulls what the mixture asks for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from heapq import heapify, heappop, heapreplace
from math import gcd, lcm


def integer_weights(weights: Sequence[Decimal]) -> tuple[int, ...]:
    """Scale decimal weights to the smallest integers in the same proportion.

    Raises:
        ValueError: a weight is negative or all are 0.
    """
    if any(weight < 0 for weight in weights) or not any(weights):
        raise ValueError(f"weights must be at least 0 and not all 0, got {list(weights)!r}")
    fractions = [Fraction(weight) for weight in weights]
    common = lcm(*(fraction.denominator for fraction in fractions))
    integers = [int(fraction * common) for fraction in fractions]
    divisor = gcd(*integers)
    return tuple(integer // divisor for integer in integers)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixingPhase:
    """Weights from one place of the lane on."""

    start: int
    """Packs closed in this lane when the phase begins."""
    weights: tuple[int, ...]
    """Integer weight of each data set, at least one above 0."""


class Mixer:
    """Chooses the data set of the next piece.

    The data sets form a heap of single integers: `taken · (S / weight)` above the data set's place,
    so that equals follow in declared order.

    Determinism: the choice depends on the phase's weights and on what was taken, never on what
    has arrived.
    """

    def __init__(
        self, phases: Sequence[MixingPhase], *, phase: int = 0, taken: Sequence[int] | None = None
    ) -> None:
        """Continue at a phase with what was taken in it, in the recipe's unit."""
        self._phases = phases
        self._exhausted: set[int] = set()
        self._bits = len(phases[0].weights).bit_length()
        self._mask = (1 << self._bits) - 1
        self.phase = phase
        self._rebuild(taken if taken is not None else [0] * len(phases[0].weights))

    def choose(self) -> int | None:
        """Return the data set that must give the next piece; None when none is left."""
        return self._heap[0] & self._mask if self._heap else None

    def take(self, units: int) -> int:
        """Count what the chosen data set gave; return the one that must give the next piece."""
        heap = self._heap
        first = heap[0]
        heapreplace(heap, first + units * self._steps[first & self._mask])
        return heap[0] & self._mask

    def exhaust(self) -> None:
        """Take the chosen data set out: it has no more documents."""
        self._exhausted.add(self._read(heappop(self._heap)))

    def advance(self, closed_packs: int) -> None:
        """Enter the phase that holds at this place; counters restart in a new phase."""
        phase = self.phase
        while phase + 1 < len(self._phases) and self._phases[phase + 1].start <= closed_packs:
            phase += 1
        if phase != self.phase:
            self.phase = phase
            self._rebuild([0] * len(self._taken))

    @property
    def taken(self) -> list[int]:
        """What each data set gave in this phase, in the recipe's unit."""
        for entry in self._heap:
            self._read(entry)
        return list(self._taken)

    @property
    def next_start(self) -> int | None:
        """Packs closed at which the next phase begins, None in the last phase."""
        following = self.phase + 1
        return self._phases[following].start if following < len(self._phases) else None

    def _rebuild(self, taken: Sequence[int]) -> None:
        self._taken = list(taken)
        weights = self._phases[self.phase].weights
        common = lcm(*(weight for weight in weights if weight))
        self._steps = [common // weight << self._bits if weight else 0 for weight in weights]
        """What the heap's integer of each data set grows by for each unit."""
        self._heap = [
            taken[dataset] * self._steps[dataset] | dataset
            for dataset, weight in enumerate(weights)
            if weight and dataset not in self._exhausted
        ]
        heapify(self._heap)

    def _read(self, entry: int) -> int:
        """Keep what the data set of a heap's integer gave; return the data set."""
        dataset = entry & self._mask
        self._taken[dataset] = entry // self._steps[dataset]
        return dataset
