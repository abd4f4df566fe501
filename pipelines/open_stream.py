"""Open a stream, creating it if there is none, and make sure that it is still the same."""

from collections.abc import Sequence
from dataclasses import dataclass

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.create_stream import (
    Sources,
    code_versions,
    create_stream,
    find_sources,
    open_catalogs,
    refuse_foreign_folder,
)
from transforms.tokenizers.backends import tokenizer_digest, tokenizer_file
from zephon_beam.catalog.scan import file_sizes, relative_name
from zephon_beam.catalog.table import Catalog
from zephon_beam.errors import CorruptObjectError, DriftError
from zephon_beam.kept_datasets import changed_fields, decides_order
from zephon_beam.layout import MANIFEST, catalog_name
from zephon_beam.manifest import Manifest, read_manifest
from zephon_beam.recipe import Recipe
from zephon_beam.store.base import Store, open_store
from zephon_beam.transforming.steps import refuse_other_code, step_folders


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenStream:
    """A stream that is known to belong to a recipe."""

    store: Store
    manifest: Manifest
    recipe: Recipe
    roots: tuple[str, ...]
    """Folder of each data set's files, in recipe order."""
    catalogs: tuple[Catalog, ...]
    code_folders: tuple[str, ...]
    """Where the functions that the recipe calls were found, for workers to look there, too."""


def open_or_create(
    recipe: Recipe, stream: str, options: PipelineOptions, *, folder: str | None = None
) -> OpenStream:
    """Open the stream of a recipe, creating it first if there is none.

    Args:
        recipe: the recipe; functions that it calls are imported.
        stream: where the stream is or is to be created.
        options: how the sources are scanned.
        folder: of the recipe's file, in which functions may lie, too.

    Raises:
        RecipeError: the recipe is wrong in a way that only its files show.
        SourceError: sources are missing, empty or unreadable.
        DriftError: the stream belongs to another recipe, tokenizer or source content.
        CorruptObjectError: `stream.json` or a catalog is damaged.
    """
    store = open_store(stream)
    sources = find_sources(recipe, folder)
    if not store.exists(MANIFEST):
        refuse_foreign_folder(store)
        create_stream(sources, store, options)
    manifest = read_manifest(store)
    try:
        catalogs = open_same(sources, manifest, store)
    except DriftError as error:
        if any(store.list("shards/")):
            raise
        # As after a first run that ended at a mistake in the recipe or in a function of it.
        raise DriftError(
            f"{error} (no sample is in this stream yet: it may be deleted, and run again)"
        ) from error
    found = step_folders(sources.steps)
    return OpenStream(
        store=store,
        manifest=manifest,
        recipe=recipe,
        roots=sources.roots,
        catalogs=catalogs,
        code_folders=tuple(dict.fromkeys(found if folder is None else (folder, *found))),
    )


def open_same(sources: Sources, manifest: Manifest, store: Store) -> tuple[Catalog, ...]:
    """Open the catalogs of a stream whose recipe, code and source files are still the same.

    Args:
        sources: what the recipe names, as it is now.
        manifest: of the stream.
        store: of the stream.

    Raises:
        DriftError: the stream belongs to another recipe, tokenizer, code or source content.
        CorruptObjectError: a catalog is damaged.
    """
    recipe = sources.recipe
    _refuse_recipe_drift(recipe, manifest, store)
    refuse_other_code(sources.steps, manifest.code_versions)
    catalogs = open_catalogs(recipe, store)
    _refuse_other_catalogs(manifest, catalogs)
    for name, root, listed, catalog in zip(
        recipe.datasets, sources.roots, sources.paths, catalogs, strict=True
    ):
        _refuse_source_drift(name, root, listed, catalog)
    return catalogs


def _refuse_recipe_drift(recipe: Recipe, manifest: Manifest, store: Store) -> None:
    """Compare the recipe and the tokenizer with what the stream was created from."""
    changed = changed_fields(manifest, recipe)
    repair = "undo the change, or run the recipe into a new place"
    if not any(map(decides_order, changed)):
        repair = (
            "undo the change, run the recipe into a new place, or go on with it there from sample "
            f"N of this stream: `zephon-beam fork {store.uri} RECIPE --stream NEW --at-sample N`"
        )
    if changed:
        words = "; ".join(f"{field}: {change}" for field, change in changed.items())
        raise DriftError(
            f"recipe differs from that of the stream {store.uri!r}: {words}; the stream would no "
            f"longer be a function of one recipe; {repair}"
        )
    path = tokenizer_file(recipe.tokenizer)
    found = tokenizer_digest(path.read_bytes())
    if found != manifest.tokenizer_digest:
        raise DriftError(
            f"tokenizer: expected {manifest.tokenizer_digest}, found {found} ({path}); with other "
            f"tokens the stream would no longer be a function of one recipe; {repair}"
        )
    for name, version in code_versions(recipe).items():
        stored_version = manifest.code_versions.get(name)
        if version != stored_version:
            raise DriftError(
                f"{name.replace('_', ' ')}: expected {stored_version}, found {version}; with "
                f"another one the stream would no longer be a function of one recipe; {repair}"
            )


def source_change(root: str, listed: Sequence[str], catalog: Catalog) -> str:
    """Say in what files differ from a catalog by name or size; empty if they do not.

    Contents are checked when they are read.

    Args:
        root: folder of the files.
        listed: the files.
        catalog: of a data set.
    """
    found = {relative_name(path, root): path for path in listed}
    known = {catalog.file_name(file): file for file in range(catalog.file_count)}
    for word, missing in (
        ("is gone", sorted(known.keys() - found.keys())),
        ("is new", sorted(found.keys() - known.keys())),
    ):
        if missing:
            return f"{missing[0]!r} {word} ({len(missing)} such files in {root})"
    sizes = file_sizes(root, listed)
    for file_name, file in known.items():
        size = sizes[found[file_name]]
        if size != catalog.file_size(file):
            return f"{file_name!r}: expected {catalog.file_size(file)} bytes, found {size}"
    return ""


def _refuse_other_catalogs(manifest: Manifest, catalogs: Sequence[Catalog]) -> None:
    """Compare the catalogs with `stream.json`, and all their values with their digests.

    They decide the order, and a wrong number in one is as plausible as the right one. Whoever opens
    a large catalog leaves the values to this, which is done once a run.
    """
    for frozen, catalog in zip(manifest.datasets, catalogs, strict=True):
        name = catalog_name(frozen.name)
        catalog.verify(name)
        if catalog.digest != frozen.catalog_digest:
            raise CorruptObjectError(
                f"{name}: digest must be {frozen.catalog_digest} ({MANIFEST}), got "
                f"{catalog.digest}; it is the catalog of other sources, and the order would be "
                "another; restore it from a copy, or run the recipe into a new place"
            )


def _refuse_source_drift(name: str, root: str, listed: Sequence[str], catalog: Catalog) -> None:
    change = source_change(root, listed, catalog)
    if change:
        raise DriftError(
            f"datasets.{name}: {change}; the order of the stream was fixed by the other content "
            "that it was created from; restore the files, or begin a new stream with them, "
            "by `run` or where this one is, by `fork`"
        )
