"""`run`: advance a stream until it is as long as wanted."""

import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

from pipelines.advance_size import default_advance_bytes
from pipelines.driver import Driver, Progress
from pipelines.endless import can_be_endless, refuse_endless_in_process
from pipelines.follow import Follower, default_lookahead
from pipelines.open_stream import open_or_create
from pipelines.options import leaves_job, parse_beam_options
from pipelines.recipe_file import load_recipe, recipe_folder
from pipelines.setup_package import package_built_once
from transforms.pack_lanes import DEFAULT_DRAIN_BYTES
from transforms.tokenizers.backends import choose_backend
from zephon_beam.health import refuse_holes
from zephon_beam.inspection import inspect_stream
from zephon_beam.limits import check_following, resolve_until_samples
from zephon_beam.recipe import Recipe

_DATASET_FACTS = ("tokens", "share", "truncated_tokens", "dropped_tokens", "quarantined")


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
    choose_backend(loaded.tokenizer, backend)
    folder = None if isinstance(recipe, Recipe) else recipe_folder(str(recipe))
    left = leaves_job(beam_options)
    # What is left to an engine is one advance; catalogs are built here before it.
    scan_options = parse_beam_options([]) if left else beam_options
    with package_built_once():
        opened = open_or_create(loaded, str(stream), scan_options, folder=folder)
        follower = None
        if follow:
            follower = Follower(
                store=opened.store,
                manifest=opened.manifest,
                lookahead=default_lookahead(opened.manifest) if lookahead is None else lookahead,
                deletes=retain == "pins",
            )
        driver = Driver(
            opened=opened,
            options=beam_options,
            backend=backend,
            until=until,
            advance_bytes=(
                default_advance_bytes(beam_options) if advance_bytes is None else advance_bytes
            ),
            drain_bytes=drain_bytes,
            follower=follower,
            endless=endless and can_be_endless(opened, beam_options),
            leaves_job=left,
            progress=progress,
        )
        first_samples = driver.position.samples
        driver.run()
    found = inspect_stream(opened.store.uri, by_states=True)
    refuse_holes(opened.store, driver.position, found["complete_samples"])
    return _facts(found, first_samples, driver.jobs, time.monotonic() - started)


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
