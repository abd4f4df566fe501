"""Ending an endless job that is drained where its engine keeps it although nothing is left."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from zephon_beam.draining import is_drained
from zephon_beam.manifest import Manifest
from zephon_beam.plan import Plan
from zephon_beam.store.base import Store

_ENDS_BY_ITSELF_SECS = 15.0
"""After all is committed: engines notice within seconds that their sources have ended."""


@dataclass(kw_only=True, slots=True)
class Leftover:
    """Says of an endless job whether it goes on although it was drained.

    Flink keeps the sources of a job that takes checkpoints, and so the job.
    """

    store: Store
    manifest: Manifest
    plan: Plan
    clock: Callable[[], float] = time.monotonic
    _since: float | None = field(init=False, default=None)

    def look(self) -> bool:
        """Look once; say whether to cancel the job, which loses nothing then."""
        if self._since is None and is_drained(self.store, self.manifest, self.plan):
            self._since = self.clock()
        return self._since is not None and self.clock() - self._since >= _ENDS_BY_ITSELF_SECS
