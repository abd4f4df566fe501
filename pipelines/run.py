"""`run`: advance a stream until it is as long as wanted."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from pipelines.advance import run_advance
from pipelines.advance_size import default_advance_bytes
from pipelines.endless import (
    WINDOW_BYTES,
    can_be_endless,
    refuse_endless_in_process,
    run_endless,
)
from pipelines.follow import Follower, default_lookahead
from pipelines.open_stream import OpenStream, open_or_create
from pipelines.options import leaves_job, parse_beam_options
from pipelines.recipe_file import load_recipe, recipe_folder
from pipelines.recompute import drop_cut_off_objects, recompute_lost
from pipelines.watching import watched_lanes
from transforms.pack_lanes import DEFAULT_DRAIN_BYTES
from transforms.stream_job import StreamJob, make_chunk_orders
from transforms.tokenizers.backends import choose_backend
from zephon_beam.errors import ZephonBeamError
from zephon_beam.heads import Heads
from zephon_beam.health import refuse_empty_datasets, refuse_holes, refuse_starving_lanes
from zephon_beam.inspection import inspect_stream
from zephon_beam.lane_config import make_lane_config
from zephon_beam.layout import plan_name
from zephon_beam.limits import check_following, resolve_until_samples
from zephon_beam.lost_shards import NEWEST
from zephon_beam.plan import Plan, encode_plan
from zephon_beam.position import (
    Position,
    is_complete,
    is_superseded,
    read_plan,
    read_position,
)
from zephon_beam.recipe import Recipe
from zephon_beam.sample_order import SampleOrder
from zephon_beam.supply import SupplyPlanner

_DATASET_FACTS = ("tokens", "share", "truncated_tokens", "dropped_tokens", "quarantined")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run is, told before the first and after every advance."""

    advance: int
    samples: int
    complete_samples: int
    until_samples: int | None
    seconds: float
    supplied: float | None = None
    """Fraction of the running advance's supply that has reached the lanes; None between two."""


def run_stream(
    recipe: Recipe | str | PathLike[str],
    stream: str | PathLike[str],
    *,
    until_samples: int | None = None,
    until_tokens: int | None = None,
    advance_bytes: int | None = None,
    drain_bytes: int = DEFAULT_DRAIN_BYTES,
    backend: str = "auto",
    follow: bool = False,
    endless: bool = False,
    lookahead: int | None = None,
    retain: str = "all",
    options: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Build a stream until its gapless prefix has `until_samples` samples, or to its end.

    Running it again continues; running it when nothing is left to do starts no job.

    Args:
        recipe: a recipe, or the path of a recipe file.
        stream: where the stream is or is to be created.
        until_samples: complete samples wanted, at least 1; None: until the stream ends.
        until_tokens: the same in tokens of whole rows.
        advance_bytes: source bytes that one advance supplies, roughly; a run option that can
            never change a byte; None: by the memory of the workers (`pipelines.advance_size`).
        drain_bytes: bytes that gather for a lane before it packs; likewise.
        backend: which library encodes text: auto, hf, fastokens or tiktoken; likewise.
        follow: keep the stream ahead of its consumers instead of filling the disk, until it ends,
            has `until_samples`, or the process is stopped.
        endless: with `follow`: by one streaming job instead of advances, where the engine is known
            to carry one for long and sources are cut without reading them; else a warning says
            why not.
        lookahead: with `follow`: samples to keep ahead of the slowest consumer; None: four shards
            of every lane.
        retain: `all`, or `pins`: with `follow`, delete what is behind the pins of all consumers.
        options: Beam options as command line flags. With `--template_location` the job of one
            advance is stored there, for Dataflow to run, and not waited for.
        progress: called before the first and after every advance.

    Returns:
        samples, complete_samples, tokens, tokens_per_second, advances, finished, datasets
        {name: {tokens, share, truncated_tokens, dropped_tokens, quarantined}}: as `run --json`
        prints them.

    Raises:
        RecipeError: the recipe or an option is wrong, or the stream would never end.
        SourceError: sources are missing, empty or unreadable.
        DriftError: the stream belongs to another recipe, tokenizer or source content.
        DeterminismError: a recomputed object differs from the stored one.

    Determinism: the stream depends on the recipe and its sources alone.
    """
    started = time.monotonic()
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))
    until = resolve_until_samples(
        loaded, until_samples=until_samples, until_tokens=until_tokens, follow=follow
    )
    check_following(follow=follow, lookahead=lookahead, retain=retain, endless=endless)
    beam_options = parse_beam_options(options)
    if endless:
        refuse_endless_in_process(beam_options)
    if advance_bytes is None:
        advance_bytes = default_advance_bytes(beam_options)
    choose_backend(loaded.tokenizer, backend)
    folder = None if isinstance(recipe, Recipe) else recipe_folder(str(recipe))
    left = leaves_job(beam_options)
    # What is left to an engine is one advance; catalogs are built here before it.
    scan_options = parse_beam_options([]) if left else beam_options
    opened = open_or_create(loaded, str(stream), scan_options, folder=folder)
    endless = endless and can_be_endless(opened, beam_options)
    planner = _make_planner(opened)
    drop_cut_off_objects(opened, NEWEST)
    position = read_position(opened.store, opened.manifest)
    first_samples, advances = position.samples, 0
    follower = None
    if follow:
        follower = Follower(
            store=opened.store,
            manifest=opened.manifest,
            lookahead=default_lookahead(opened.manifest) if lookahead is None else lookahead,
            deletes=retain == "pins",
        )
    wanted = until

    def report(lane_samples: Sequence[int] | None = None, supplied: float | None = None) -> None:
        counts = lane_samples or [head.samples for head in position.heads]
        order = SampleOrder(len(counts), position.lengths)
        if progress is not None:
            progress(
                Progress(
                    advance=position.next_advance,
                    samples=sum(counts),
                    complete_samples=order.complete_prefix(counts),
                    until_samples=wanted,
                    seconds=time.monotonic() - started,
                    supplied=supplied,
                )
            )

    def make_job(plan: Plan) -> StreamJob:
        return StreamJob(
            stream=opened.store.uri,
            advance=plan.advance,
            recomputes=plan.recompute,
            endless=plan.endless,
            recipe=loaded,
            roots=opened.roots,
            code_folders=opened.code_folders,
            backend=backend,
        )

    def run_job(plan: Plan) -> None:
        run_advance(make_job(plan), plan, beam_options, drain_bytes=drain_bytes)

    report()
    refuse_empty_datasets(opened.store, opened.manifest, position)
    is_whole = False
    while True:
        is_done = position.finished or (until is not None and position.complete_samples >= until)
        # To look at everything takes longer the longer the stream is: not before there is anything
        # new, unless somebody may wait for what is lost.
        may_look = position.pending is None and (advances or follower is not None)
        if not is_whole and not left and (is_done or may_look):
            # Lanes only count what is lost once no advance has to be run again.
            drop_cut_off_objects(opened)
            advances += recompute_lost(
                opened, planner, position, run_job, advance_bytes=advance_bytes
            )
            is_whole = True
        if is_done:
            break
        if follower is not None and endless and position.pending is None:
            is_drained = run_endless(
                make_job,
                opened,
                position,
                beam_options,
                window_bytes=min(advance_bytes, WINDOW_BYTES),
                drain_bytes=drain_bytes,
                follower=follower,
                until_samples=until,
                report=report,
            )
            position = read_position(opened.store, opened.manifest)
            advances += 1
            report()
            if is_drained and not position.finished:
                break
            continue
        if follower is not None:
            wanted, has_waited = follower.wait_for_need(position.complete_samples, until)
            if has_waited:
                # Another driver may have gone on meanwhile.
                position = read_position(opened.store, opened.manifest)
                continue
        plan = _next_plan(opened, planner, position, advance_bytes, wanted)
        if left:
            _drop_heads(opened, _plan_or_none(opened, plan.advance - 2))
            run_job(plan)
            advances += 1
            break
        with watched_lanes(opened.store, position, plan, report):
            heads = Heads(opened.store, opened.manifest, position.heads)
            complete = _run_plan(opened, plan, heads, run_job)
        position = read_position(opened.store, opened.manifest, complete=complete, found=heads)
        refuse_empty_datasets(opened.store, opened.manifest, position)
        refuse_starving_lanes(opened.store, opened.manifest, position)
        advances += 1
        report()
    if follower is not None:
        follower.clean_up()
    found = inspect_stream(opened.store.uri, by_states=True)
    refuse_holes(opened.store, position, found["complete_samples"])
    return _facts(found, first_samples, advances, time.monotonic() - started)


def _make_planner(opened: OpenStream) -> SupplyPlanner:
    config = make_lane_config(opened.recipe, opened.manifest)
    return SupplyPlanner(config, opened.catalogs, make_chunk_orders(opened.recipe, opened.catalogs))


def _next_plan(
    opened: OpenStream,
    planner: SupplyPlanner,
    position: Position,
    advance_bytes: int,
    until: int | None,
) -> Plan:
    """Return the plan to run: the pending one, or a new one, written before anything runs."""
    if position.pending is not None:
        return position.pending
    lanes = planner.plan(position.heads, advance_bytes=advance_bytes, until_samples=until)
    if not lanes:
        raise ZephonBeamError(
            f"plan must supply at least one lane, got none at {position.complete_samples} complete "
            "samples; the run cannot go on; check the stream with `zephon-beam verify`, and report "
            "this if it finds no fault"
        )
    plan = Plan(advance=position.next_advance, fingerprint=opened.manifest.fingerprint, lanes=lanes)
    # Of two drivers the loser runs the winner's plan.
    opened.store.put_if_absent(plan.name, encode_plan(plan), lambda _stored, _computed: True)
    return read_plan(opened.store, opened.manifest, plan.name)


def _run_plan(
    opened: OpenStream, plan: Plan, heads: Heads, run_job: Callable[[Plan], None]
) -> int | None:
    """Run a plan and make sure that it did all it asks for; then drop what it replaced.

    Returns:
        The advance that was found complete; None if another driver has gone on.
    """
    before = _plan_or_none(opened, plan.advance - 1)
    try:
        run_job(plan)
    except Exception:
        # A twin may have gone on and deleted what this job was to start from.
        if not is_superseded(opened.store, plan):
            raise
    if is_superseded(opened.store, plan):
        return None
    if not is_complete(opened.store, heads, plan):
        raise ZephonBeamError(
            f"advance {plan.advance} must leave a carry or an end for each of its lanes and every "
            "shard that they count, found some missing; the stream is intact; run it again, and "
            "report this if it repeats"
        )
    _drop_heads(opened, before)
    return plan.advance


def _drop_heads(opened: OpenStream, plan: Plan | None) -> None:
    """Delete the carries that a plan starts from, once the plan after it is complete."""
    for entry in plan.lanes if plan is not None else ():
        if entry.head_kind == "carry" and entry.head_name is not None:
            opened.store.delete(entry.head_name)


def _plan_or_none(opened: OpenStream, advance: int) -> Plan | None:
    if not opened.store.exists(plan_name(advance)):
        return None
    return read_plan(opened.store, opened.manifest, plan_name(advance))


def _facts(
    found: Mapping[str, Any], first_samples: int, advances: int, seconds: float
) -> dict[str, Any]:
    """Sum up a run from what is stored."""
    new = max(0, found["samples"] - first_samples)
    tokens = found["tokens"]
    new_tokens = tokens * new // found["samples"] if found["samples"] else 0
    return {
        "samples": found["samples"],
        "complete_samples": found["complete_samples"],
        "tokens": tokens,
        "tokens_per_second": round(new_tokens / seconds, 1),
        "advances": advances,
        "finished": found["finished"],
        "datasets": {
            name: {key: entry[key] for key in _DATASET_FACTS}
            for name, entry in found["datasets"].items()
        },
    }
