"""Making lost shards again: from the nearest older lane state, and no more than is lost."""

import logging
from collections.abc import Callable

from pipelines.open_stream import OpenStream
from zephon_beam.errors import CorruptObjectError
from zephon_beam.layout import recompute_name
from zephon_beam.lost_shards import drop_cut_off, find_lost, heads_before
from zephon_beam.numbered import numbered
from zephon_beam.plan import Plan, encode_plan
from zephon_beam.position import Position, read_plan
from zephon_beam.supply import SupplyPlanner

_LOGGER = logging.getLogger(__name__)
_FOLDER = "recompute/"
_NAMED = 5
"""Objects that a warning names."""
_MOST_TRIES = 12
"""Each supplies twice as much as the one before that made nothing."""


def drop_cut_off_objects(opened: OpenStream, newest: int | None = None) -> None:
    """Delete shards and lane states that end too early; `recompute_lost` makes them again."""
    names = drop_cut_off(opened.store, opened.manifest, newest)
    if names:
        _LOGGER.warning(
            "%d objects end too early and are deleted, to be made again with the same bytes: %s%s",
            len(names),
            ", ".join(names[:_NAMED]),
            " …" if len(names) > _NAMED else "",
        )


def recompute_lost(
    opened: OpenStream,
    planner: SupplyPlanner,
    position: Position,
    run_plan: Callable[[Plan], None],
    *,
    advance_bytes: int,
) -> int:
    """Make the shards again that lanes count and that are gone.

    What is made again is compared with what is still there, as in any other run.

    Args:
        opened: the stream.
        planner: of the stream.
        position: where the stream stands.
        run_plan: runs the job of a plan to its end.
        advance_bytes: source bytes that one job supplies, roughly.

    Returns:
        Number of jobs that were run.

    Raises:
        CorruptObjectError: nothing comes back, however much is read.
        DeterminismError: a shard that is still there has other content.
    """
    store, manifest = opened.store, opened.manifest
    jobs, tries = 0, 0
    lost = find_lost(store, manifest, position.heads)
    while lost:
        count = sum(map(len, lost.values()))
        _LOGGER.warning(
            "%d shards of lanes %s are gone and are made again", count, ", ".join(map(str, lost))
        )
        lanes = planner.plan_again(
            heads_before(store, manifest, lost),
            lost,
            advance_bytes=advance_bytes << tries,
        )
        numbers = numbered(store, _FOLDER, recompute_name)
        plan = Plan(
            advance=numbers[-1] + 1 if numbers else 0,
            fingerprint=manifest.fingerprint,
            lanes=lanes,
            recompute=True,
        )
        # Of two drivers the loser runs the winner's plan.
        store.put_if_absent(plan.name, encode_plan(plan), lambda _stored, _computed: True)
        try:
            run_plan(read_plan(store, manifest, plan.name))
        except Exception:
            # A twin may have done the same and dropped the plan, which this job could not read.
            if store.exists(plan.name):
                raise
        for number in numbers:
            store.delete(recompute_name(number))
        jobs += 1
        lost = find_lost(store, manifest, position.heads)
        tries = tries + 1 if sum(map(len, lost.values())) == count else 0
        if tries > _MOST_TRIES:
            lane, shards = next(iter(lost.items()))
            raise CorruptObjectError(
                f"shard {shards[0]} of lane {lane} must come back when it is made again, found "
                f"none in {store.uri!r} after {jobs} jobs; readers would stop there; run "
                "`zephon-beam verify`, and report this if it finds no other fault"
            )
    return jobs
