"""One poll of an endless job's supplier: what a lane is supplied with now.

What a lane says of itself gives credit: up to a window of source beyond where it stands is
supplied. All that can be wrong with what it says must cost time only:

- it is too old, or lost: there is less credit, and sooner or later none. Then the lane is *nudged*:
  a message without content makes it drain and say anew where it stands.
- it is too new, of a time before the job was set back: then it names parts that were not supplied,
  and counts as lost. Where it names none, what is missing was supplied, and the lane gets there.
- either way nothing is supplied beyond a window behind the last part that was supplied.

Determinism: supply decides when samples are made, never what is in them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from zephon_beam.lane_progress import LaneProgress
from zephon_beam.plan import SupplyEntry
from zephon_beam.supplied import Supplied, supplied_with_head
from zephon_beam.supply import LaneHead, SupplyPlanner

_MOST_POLLS_PER_NUDGE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Poll:
    """What one poll decided."""

    supplied: Supplied
    """To be claimed before anything is sent."""
    entries: tuple[SupplyEntry, ...] = ()
    nudges: bool = False
    """Whether to ask the lane where it stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Supplier:
    """Decides what one lane is supplied with."""

    planner: SupplyPlanner
    start: LaneHead
    """What the job's plan has the lane start from."""
    job: int
    """Number of the job's plan."""
    fingerprint: str
    dataset_count: int
    window_bytes: int
    """Source bytes that may be under way to the lane, roughly."""

    def first(self) -> Supplied:
        """Return what the lane has as soon as its head was sent."""
        return supplied_with_head(self.start, self.dataset_count, self._parts)

    def poll(
        self,
        supplied: Supplied,
        progress: LaneProgress | None,
        target: Callable[[], int | None],
    ) -> Poll:
        """Decide what to supply now.

        Args:
            supplied: until now; the head was sent.
            progress: what the lane says, if anything.
            target: called for the samples that the lane is to have now, None without a limit.
        """
        head = self._place(supplied, progress)
        if progress is not None and progress.ended and head is not self.start:
            return Poll(supplied=replace(supplied, stopped=True))
        wanted = target()
        if wanted is not None and head.samples >= wanted:
            return Poll(supplied=replace(supplied, empty_polls=0))
        entries = self.planner.supply_lane(
            head,
            supplied.holds,
            window_bytes=self.window_bytes,
            missing=None if wanted is None else wanted - head.packed_samples,
        )
        if entries:
            more = replace(supplied.add(entries, self._parts), empty_polls=0)
            return Poll(supplied=more, entries=entries)
        polls = supplied.empty_polls + 1
        return Poll(supplied=replace(supplied, empty_polls=polls), nudges=_nudges(polls))

    def _parts(self, dataset: int, number: int) -> int:
        return self.planner.part_count(self.start.lane, dataset, number)

    def _place(self, supplied: Supplied, progress: LaneProgress | None) -> LaneHead:
        """Return where the lane stands, as far as what it says can be used."""
        if progress is None or (progress.job, progress.lane) != (self.job, self.start.lane):
            return self.start
        if len(progress.datasets) != self.dataset_count:
            return self.start
        if supplied.is_behind(progress.datasets):
            return self.start
        return progress.head(self.fingerprint)


def _nudges(polls: int) -> bool:
    """Say whether the last of so many empty polls asks: after 2, 4, 8, … and then regularly."""
    if polls >= _MOST_POLLS_PER_NUDGE:
        return polls % _MOST_POLLS_PER_NUDGE == 0
    return polls > 1 and polls.bit_count() == 1
