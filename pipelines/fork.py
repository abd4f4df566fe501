"""`fork`: begin a new stream with a new recipe where an older one is at some sample."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from pipelines.create_stream import (
    Sources,
    describe_stream,
    find_sources,
    refuse_foreign_folder,
)
from pipelines.open_stream import source_change
from pipelines.options import parse_beam_options
from pipelines.recipe_file import load_recipe, recipe_folder
from zephon_beam.catalog.scan import resolve_format
from zephon_beam.catalog.table import Catalog
from zephon_beam.errors import CorruptObjectError, DeterminismError, DriftError, RecipeError
from zephon_beam.fingerprint import manifest_fingerprint
from zephon_beam.fork_point import read_standings
from zephon_beam.forking import count_losses, fork_lane
from zephon_beam.kept_datasets import (
    changed_fields,
    compare_tokens,
    fork_datasets,
    refuse_other_order,
)
from zephon_beam.lane_config import make_lane_config
from zephon_beam.lane_state import LaneState, encode_state, same_state
from zephon_beam.layout import MANIFEST, catalog_name, origin_name
from zephon_beam.manifest import Manifest, Origin, encode_manifest, read_manifest
from zephon_beam.origin import states_digest
from zephon_beam.recipe import Recipe
from zephon_beam.store.base import Store, open_store
from zephon_beam.transforming.steps import step_versions


def fork_stream(
    older: str | PathLike[str],
    recipe: Recipe | str | PathLike[str],
    stream: str | PathLike[str],
    *,
    at_sample: int,
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Create a stream that goes on with a new recipe from sample `at_sample` of an older one.

    Every data set whose name, files, content and transforms are unchanged goes on where it is:
    within its pass the samples of the older stream before `at_sample` and those of the fork hold
    each document once. What was read of it and is in no sample before `at_sample` comes first.
    The other data sets begin with their first pass. The older stream is only read; the fork needs
    nothing of it afterwards. `run_stream` goes on with the fork. Doing it again changes nothing.

    Args:
        older: the stream to begin from; it may be written meanwhile.
        recipe: of the fork, or the path of its file.
        stream: where the fork is to be created.
        at_sample: samples of the older stream that come before; at most its complete samples.
        options: Beam options as command line flags, for the scan of new data sets.

    Returns:
        fingerprint, origin {stream, fingerprint, at_sample}, datasets {name: {kept, why}},
        left_out {name of the older stream: {tokens, documents}}: as `fork --json` prints them.

    Raises:
        RecipeError: `at_sample` is beyond the complete samples or before what was deleted, or the
            recipe changes what a fork cannot change.
        SourceError: sources are missing, empty or unreadable.
        DriftError: there is another stream at that place.
        CorruptObjectError: what is read of the older stream is missing or damaged.

    Determinism: the fork depends on the recipe, its sources, and the older stream's samples up to
    `at_sample` alone.
    """
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))
    folder = None if isinstance(recipe, Recipe) else recipe_folder(str(recipe))
    old_store, store = open_store(str(older)), open_store(str(stream))
    _refuse_same_place(old_store, store)
    old = read_manifest(old_store)
    refuse_other_order(changed_fields(old, loaded))
    standings = read_standings(old_store, old, at_sample)
    sources = find_sources(loaded, folder)
    exists = store.exists(MANIFEST)
    if exists:
        _refuse_other_fork(read_manifest(store), store, loaded, old, at_sample)
    else:
        refuse_foreign_folder(store, forks=True)
    catalogs = _older_catalogs(old_store, old, sources)
    changes = {
        name: change
        for name, (_, catalog) in catalogs.items()
        if (change := _file_change(sources, name, catalog))
    }
    forks = fork_datasets(old, loaded, step_versions(sources.steps), changes)
    given = {fork.name: catalogs[fork.name][0] for fork in forks if fork.older is not None}
    described = describe_stream(sources, store, parse_beam_options(options), given)
    forks = compare_tokens(forks, old, loaded, described)
    config = replace(make_lane_config(loaded, described), fingerprint="")
    states = [fork_lane(config, lane, at, forks) for lane, at in enumerate(standings)]
    origin = Origin(
        stream=old_store.uri,
        fingerprint=old.fingerprint,
        at_sample=at_sample,
        states_digest=states_digest(states),
    )
    manifest = _write(store, replace(described, origin=origin), loaded, states)
    losses = count_losses(standings, forks, len(old.datasets))
    left_out = {
        dataset.name: {"tokens": tokens, "documents": documents}
        for dataset, tokens, documents in zip(
            old.datasets, losses.tokens, losses.documents, strict=True
        )
        if tokens or documents
    }
    return {
        "fingerprint": manifest.fingerprint,
        "created": not exists,
        "origin": {
            "stream": old_store.uri,
            "fingerprint": old.fingerprint,
            "at_sample": at_sample,
        },
        "datasets": {
            fork.name: {"kept": fork.older is not None, "why": fork.anew or fork.dropped}
            for fork in forks
        },
        "left_out": left_out,
    }


def _refuse_same_place(older: Store, newer: Store) -> None:
    """Refuse to write into the older stream, or around it."""
    places = [f"{store.uri.rstrip('/')}/" for store in (older, newer)]
    if any(place.startswith(other) for place, other in (places, places[::-1])):
        raise RecipeError(
            f"--stream must be another place than the stream that is forked, got {newer.uri!r} for "
            f"a fork of {older.uri!r}; the older stream would be changed; name a new folder beside "
            "it"
        )


def _refuse_other_fork(
    found: Manifest, store: Store, recipe: Recipe, older: Manifest, at_sample: int
) -> None:
    """Refuse a place where there is a stream that is not this fork.

    Raises:
        DriftError: the stream there was forked elsewhere or not at all, or with another recipe.
    """
    origin = found.origin
    wanted = f"a fork of {older.fingerprint} at sample {at_sample}"
    repair = "name a new folder, or run that stream's own recipe to go on with it"
    if origin is None or (origin.fingerprint, origin.at_sample) != (older.fingerprint, at_sample):
        is_now = "a stream that was not forked"
        if origin is not None:
            is_now = f"a fork of {origin.fingerprint} at sample {origin.at_sample}"
        raise DriftError(
            f"{store.uri!r} must hold nothing or {wanted}, found {is_now}; two streams would be "
            f"mixed; {repair}"
        )
    changed = changed_fields(found, recipe)
    if changed:
        words = "; ".join(f"{field}: {change}" for field, change in changed.items())
        raise DriftError(
            f"recipe differs from that of the fork {store.uri!r}: {words}; the fork would no "
            "longer be a function of one recipe; undo the change, name a new folder, or delete "
            "that fork"
        )


def _older_catalogs(
    store: Store, older: Manifest, sources: Sources
) -> dict[str, tuple[bytes, Catalog]]:
    """Read the catalogs of the data sets that both recipes name.

    Raises:
        CorruptObjectError: one is missing or damaged.
    """
    catalogs = {}
    for dataset in older.datasets:
        if dataset.name not in sources.recipe.datasets:
            continue
        name = catalog_name(dataset.name)
        try:
            data = store.get(name)
        except FileNotFoundError as error:
            raise CorruptObjectError(
                f"{name} must exist in the stream that is forked, found none in {store.uri!r}; "
                "where its data set stands cannot be known; restore it from a copy"
            ) from error
        catalogs[dataset.name] = data, Catalog.from_buffer(data, name)
    return catalogs


def _file_change(sources: Sources, name: str, catalog: Catalog) -> str:
    """Say in what the files of a data set differ from an older catalog; empty if they do not."""
    place = sources.recipe.dataset_names.index(name)
    listed = sources.paths[place]
    try:
        found = resolve_format(sources.recipe.datasets[name].format, listed)
    except RecipeError as error:
        raise RecipeError(f"datasets.{name}: {error}") from error
    if found != catalog.format:
        return f"format: the stream has {catalog.format}, the recipe now has {found}"
    return source_change(sources.roots[place], listed, catalog)


def _write(store: Store, described: Manifest, recipe: Recipe, states: list[LaneState]) -> Manifest:
    """Store the states, then the manifest, whose existence is the fork.

    Returns:
        The manifest as it was stored.

    Raises:
        DriftError: another fork was created there, or was begun and has not ended.
    """
    fingerprint = manifest_fingerprint(described, recipe)
    manifest = replace(described, fingerprint=fingerprint)
    try:
        for lane, state in enumerate(states):
            own = encode_state(replace(state, fingerprint=fingerprint))
            store.put_if_absent(origin_name(lane), own, same_state)
    except DeterminismError as error:
        raise DriftError(
            f"origin: the folder {store.uri!r} holds the beginning of another fork; two streams "
            "would be mixed; name a new folder, or delete it and fork again"
        ) from error
    store.put_if_absent(MANIFEST, encode_manifest(manifest), lambda _stored, _computed: True)
    found = read_manifest(store)
    if found.fingerprint != fingerprint:
        raise DriftError(
            f"{MANIFEST}: fingerprint: expected {fingerprint}, found {found.fingerprint}; "
            f"{store.uri!r} holds another stream; name a new folder"
        )
    return found
