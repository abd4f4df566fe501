"""Liveness: an endless job that is dead, told from one that waits or takes its time.

Engines fail or say so; but one may also stop giving bundles to its workers and say nothing, and a
function of a recipe may never return. So while any lane lacks samples that are wanted, a job is

- *silent* if its source leaves no trace of polls (`zephon_beam.poll_trace`): it is called twice a
  second, whatever the rest of the job does, unless the engine does nothing any more;
- *still* if it is polled, and no lane gets anywhere. One bundle may hold what all wait for, so it
  is given far more time.

Lanes that have all that is wanted may stand still. Before a job counts as dead, the states tell
where its lanes really are: what they say in `progress/` may be lost.

Determinism: it decides when a job ends, never what is in the stream.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from zephon_beam.demand import read_lane_targets
from zephon_beam.errors import CorruptObjectError, ZephonBeamError
from zephon_beam.lane_progress import LaneProgress
from zephon_beam.manifest import Manifest
from zephon_beam.poll_trace import read_trace
from zephon_beam.position import Position, read_position
from zephon_beam.recipe import Recipe
from zephon_beam.store.base import Store

_LOGGER = logging.getLogger(__name__)
SILENT_SECS = 120.0
"""Twelve times that between two traces, and an engine has to start in it."""
STILL_SECS = 1200.0
"""In which 32 MiB, all that is under way, pass functions of 30 kB/s."""
_MOST_RESTARTS = 3
"""Jobs that may die in a row without a new sample, before that is an error."""
_DOUBT_SECS = 30.0
"""Of silence, after which it is asked whether anything is wanted."""
_LONGEST_STEP_SECS = 5.0
"""Counted of the time between two looks: a process that was stopped itself has heard nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """Why a job counts as dead."""

    reason: str
    lanes: str
    """What the first lane that lacks samples has, and how many more there are."""


@dataclass(kw_only=True, slots=True)
class Liveness:
    """Listens to one job."""

    store: Store
    manifest: Manifest
    recipe: Recipe
    job: int
    """Number of its plan."""
    lookahead: int
    """Samples to keep ahead of the slowest consumer."""
    until_samples: int | None
    patience: int = 1
    """Factor of all times."""
    clock: Callable[[], float] = time.monotonic
    _looked: float = field(init=False)
    _silent: float = field(init=False, default=0.0)
    _still: float = field(init=False, default=0.0)
    _polled: int | None = field(init=False, default=None)
    _said: dict[int, LaneProgress] = field(init=False, default_factory=dict)
    _known: int = field(init=False, default=0)
    """Samples that the states told of when they were looked at last."""

    def __post_init__(self) -> None:
        """Begin to listen."""
        self._looked = self.clock()

    def look(self, standing: Position, said: Mapping[int, LaneProgress]) -> Death | None:
        """Look once, every second or so; say whether the job is dead.

        Args:
            standing: where the lanes say that they are, or were where they say nothing.
            said: what those lanes say that say anything.
        """
        now = self.clock()
        step = min(now - self._looked, _LONGEST_STEP_SECS)
        self._looked = now
        moved = any(entry != self._said.get(lane) for lane, entry in said.items())
        self._said |= said
        polled = read_trace(self.store, self.job)
        was_polled = polled not in (None, self._polled)
        self._polled = polled if was_polled else self._polled
        self._silent = 0.0 if was_polled or moved else self._silent + step
        self._still = 0.0 if moved else self._still + step
        is_still = self._still >= STILL_SECS * self.patience
        if self._silent < _DOUBT_SECS and not is_still:
            return None
        if not self._lacking(standing):
            self._silent = self._still = 0.0
            return None
        if self._silent >= SILENT_SECS * self.patience:
            reason = f"its source was not polled for {self._silent:.0f} s"
        elif is_still:
            reason = f"no lane has moved for {self._still:.0f} s"
        else:
            return None
        self._silent = self._still = 0.0
        return self._confirm(standing, reason)

    def _confirm(self, standing: Position, reason: str) -> Death | None:
        """Look at the states, which cannot be lost, before a job counts as dead."""
        position = read_position(self.store, self.manifest)
        known = max(self._known, standing.samples)
        self._known = position.samples
        lacking = self._lacking(position)
        if not lacking or position.samples > known:
            return None
        lane, wanted = lacking[0]
        more = f", and {len(lacking) - 1} lanes more" if len(lacking) > 1 else ""
        samples = position.heads[lane].samples
        return Death(
            reason=reason,
            lanes=f"lane {lane} has {samples} of the {wanted} samples that are wanted of it{more}",
        )

    def _lacking(self, position: Position) -> list[tuple[int, int]]:
        """Return (lane, samples wanted of it) of the lanes that have fewer."""
        try:
            targets = read_lane_targets(
                self.store,
                self.manifest,
                lanes_end=not self.recipe.endless,
                lookahead=self.lookahead,
                until=self.until_samples,
            )
        except CorruptObjectError:
            return []
        return [
            (head.lane, target)
            for head, target in zip(position.heads, targets, strict=True)
            if not head.ended and target is not None and head.samples < target
        ]


@dataclass(kw_only=True, slots=True)
class Restarts:
    """Counts the jobs that died one after the other without a new sample."""

    runner: str
    stream: str
    count: int = 0

    @property
    def patience(self) -> int:
        """How much longer to wait than at first: what is slow, and not dead, gets there."""
        return 1 << self.count

    def add(self, death: Death, *, made: int) -> None:
        """Count a job that died, and say what comes now.

        Args:
            death: why it counts as dead.
            made: samples that it has left behind.

        Raises:
            ZephonBeamError: there were too many.
        """
        self.count = 0 if made > 0 else self.count + 1
        if self.count > _MOST_RESTARTS:
            raise ZephonBeamError(
                f"endless job must move while samples are wanted, found {self.count} jobs on "
                f"{self.runner} that did not, one after the other ({self.stream}: {death.reason}, "
                f"{death.lanes}); nothing more is made; the stream is intact: run it again, "
                "without --endless if it repeats; if functions of the recipe take so long, with a "
                "smaller --advance-bytes"
            )
        _LOGGER.warning(
            "endless job on %s counts as dead: %s, and %s; it is cancelled and begun anew from "
            "what it has left (%d new samples); the stream is intact",
            self.runner,
            death.reason,
            death.lanes,
            max(0, made),
        )
