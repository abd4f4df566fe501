"""Create a stream: scan the sources, store the catalogs and write `stream.json`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.runners import running_pipeline
from pipelines.special_tokens import (
    refuse_unknown_placeholders,
    refuse_unknown_tokens,
    special_ids,
)
from transforms.build_catalog import FEW_FILES, BuildCatalogs, CatalogJob, build_here
from transforms.media.versions import media_code_versions
from transforms.tokenize_chat import chat_code_versions
from transforms.tokenizers.backends import load_vocabulary, tokenizer_digest, tokenizer_file
from zephon_beam.catalog.encoding import same_catalog
from zephon_beam.catalog.scan import check_columns, data_root, list_files, resolve_format
from zephon_beam.catalog.stored import read_catalog
from zephon_beam.catalog.table import Catalog
from zephon_beam.encode_documents import special_id
from zephon_beam.errors import (
    BadRecordError,
    CorruptObjectError,
    DeterminismError,
    DriftError,
    RecipeError,
    SourceError,
)
from zephon_beam.fingerprint import manifest_fingerprint
from zephon_beam.layout import MANIFEST, catalog_name
from zephon_beam.manifest import DatasetManifest, Manifest, encode_manifest
from zephon_beam.recipe import Recipe
from zephon_beam.recipe_mapping import recipe_to_mapping
from zephon_beam.sources.documents import wanted_content
from zephon_beam.sources.read_record import refuse_unseekable
from zephon_beam.store.base import Store
from zephon_beam.tokenizer import Tokenizer
from zephon_beam.transforming.importing import make_importable
from zephon_beam.transforming.steps import Steps, load_steps, step_versions

_LOGGER = logging.getLogger(__name__)
_UINT16_VOCABULARY = 65_536
_OBJECT_FOLDERS = (
    "advances",
    "base",
    "carry",
    "consumers",
    "end",
    "progress",
    "quarantine",
    "recompute",
    "shards",
    "state",
)
_UNFINISHED = "origin/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """A recipe with what it names: functions that were imported, files that were listed."""

    recipe: Recipe
    steps: Steps
    paths: tuple[list[str], ...]
    """Files of each data set, in recipe order."""
    roots: tuple[str, ...]
    """Folder of each data set's files, in recipe order."""


def find_sources(recipe: Recipe, folder: str | None) -> Sources:
    """Import and list what a recipe names.

    Args:
        recipe: the recipe.
        folder: of the recipe's file, in which functions may lie, too.

    Raises:
        RecipeError: a function or a pattern is wrong.
        SourceError: there are no such files.
    """
    make_importable(() if folder is None else (folder,))
    return Sources(
        recipe=recipe,
        steps=load_steps(recipe),
        paths=tuple(_list_sources(recipe)),
        roots=tuple(data_root(dataset.patterns) for dataset in recipe.datasets.values()),
    )


def _list_sources(recipe: Recipe) -> list[list[str]]:
    """List the files of each data set, in recipe order."""
    paths = []
    for name, dataset in recipe.datasets.items():
        try:
            paths.append(list_files(dataset.patterns))
        except (RecipeError, SourceError) as error:
            raise type(error)(f"datasets.{name}: {error}") from error
    return paths


def refuse_foreign_folder(store: Store, *, forks: bool = False) -> None:
    """Refuse to create a stream among other files; what a crash left of a creation is no fault.

    Args:
        store: where there is no stream.
        forks: whether a fork is created, and may have begun.
    """
    own = ("catalog/", _UNFINISHED) if forks else ("catalog/",)
    foreign = next((name for name in store.list("") if not name.startswith(own)), None)
    if foreign is not None and foreign.startswith(_UNFINISHED):
        raise CorruptObjectError(
            f"stream must hold {MANIFEST}, found none beside {foreign!r} in {store.uri!r}; a fork "
            "into this folder ended before it was complete; run `zephon-beam fork` again as it "
            "was, or delete the folder"
        )
    if foreign is not None and foreign.split("/")[0] in _OBJECT_FOLDERS:
        raise CorruptObjectError(
            f"stream must hold {MANIFEST}, found none beside {foreign!r} in {store.uri!r}; what is "
            "there belongs to a recipe that nobody can name; restore the file, or name another "
            "folder"
        )
    if foreign is not None:
        raise RecipeError(
            f"stream must be an empty or new folder, or one that holds {MANIFEST}, found "
            f"{foreign!r} in {store.uri!r}; a stream would be mixed with other files; name another "
            "folder"
        )


def create_stream(sources: Sources, store: Store, options: PipelineOptions) -> None:
    """Create a stream that begins with its data sets."""
    manifest = describe_stream(sources, store, options)
    # A twin that created the stream first wins; whether it is the same is checked by the caller.
    store.put_if_absent(MANIFEST, encode_manifest(manifest), lambda _stored, _computed: True)


def check_sources(sources: Sources) -> tuple[Tokenizer, tuple[str, ...]]:
    """Check what a recipe says of its tokenizer and its files, before anything is stored.

    Returns:
        (what knows the vocabulary, the format of each data set).

    Raises:
        RecipeError: the recipe is wrong in a way that only its files show.
        SourceError: a file is unreadable.
    """
    recipe, steps = sources.recipe, sources.steps
    tokenizer = load_vocabulary(recipe.tokenizer)
    special_ids(recipe.tokenizer, tokenizer)
    refuse_unknown_tokens(steps, tokenizer)
    refuse_unknown_placeholders(recipe, tokenizer)
    code_versions(recipe)
    formats = []
    for (name, dataset), listed in zip(recipe.datasets.items(), sources.paths, strict=True):
        try:
            formats.append(resolve_format(dataset.format, listed))
            if dataset.content_kind == "content":
                refuse_unseekable(listed)
            check_columns(formats[-1], listed[0], wanted_content(dataset))
        except BadRecordError:
            # A run that sets bad records aside meets this one in its place.
            if recipe.bad_records.action != "quarantine":
                raise
        except RecipeError as error:
            raise RecipeError(f"datasets.{name}: {error}") from error
    return tokenizer, tuple(formats)


def describe_stream(
    sources: Sources,
    store: Store,
    options: PipelineOptions,
    given: Mapping[str, bytes] | None = None,
) -> Manifest:
    """Store the catalogs of a new stream and return what is to be its manifest.

    Args:
        sources: of the recipe.
        store: of the new stream.
        options: how the sources are scanned.
        given: catalogs that are taken over, by data set; the others are built.

    Raises:
        RecipeError: the recipe is wrong in a way that only its files show.
        SourceError: sources are empty or unreadable.
        DriftError: other catalogs lie there.
    """
    recipe = sources.recipe
    tokenizer, formats = check_sources(sources)
    taken = given or {}
    job = CatalogJob(
        stream=store.uri,
        recipe=recipe,
        formats=formats,
        roots=sources.roots,
        given=tuple(recipe.dataset_names.index(name) for name in taken),
    )
    _write_catalogs(job, sources.paths, options, taken, store)
    catalogs = open_catalogs(recipe, store)
    for catalog in catalogs:
        _warn_of_few_chunks(recipe, catalog)
    return _describe(recipe, tokenizer, sources.roots, catalogs, sources.steps)


def _write_catalogs(
    job: CatalogJob,
    paths: Sequence[Sequence[str]],
    options: PipelineOptions,
    given: Mapping[str, bytes],
    store: Store,
) -> None:
    try:
        for name, catalog in given.items():
            store.put_if_absent(catalog_name(name), catalog, same_catalog)
        if sum(len(paths[dataset]) for dataset in job.built) <= FEW_FILES:
            build_here(job, paths)
        else:
            _run_catalog_job(job, options)
    except DeterminismError as error:
        raise DriftError(
            f"catalog: the folder {job.stream!r} was left by a run of another recipe or other "
            "sources that ended before it had created its stream; delete its folder `catalog` and "
            "run the recipe again"
        ) from error


def _run_catalog_job(job: CatalogJob, options: PipelineOptions) -> None:
    with running_pipeline(options) as pipeline:
        datasets = pipeline | "Datasets" >> beam.Create(job.built, reshuffle=False)
        _ = datasets | "BuildCatalogs" >> BuildCatalogs(job)


def _warn_of_few_chunks(recipe: Recipe, catalog: Catalog) -> None:
    """Say what lanes that keep more chunks open than a pass has make of a data set."""
    passes = recipe.datasets[catalog.dataset].passes
    open_chunks = recipe.lanes * recipe.shuffle.interleave
    at_once = -(-open_chunks // catalog.chunk_count)
    if passes == 1:
        if catalog.chunk_count < recipe.lanes:
            _LOGGER.warning(
                "datasets.%s has %d chunks for %d lanes: the other lanes never get it, so its "
                "share is lower; use fewer lanes, or more and smaller files or row groups",
                catalog.dataset,
                catalog.chunk_count,
                recipe.lanes,
            )
    elif at_once > 2:
        _LOGGER.warning(
            "datasets.%s has %d chunks, and %d lanes keep %d open: up to %d passes are read at "
            "once, so documents come again long before others have come; use fewer lanes, a "
            "smaller shuffle.interleave, or more and smaller files or row groups",
            catalog.dataset,
            catalog.chunk_count,
            recipe.lanes,
            open_chunks,
            at_once if passes == "repeat" else min(at_once, int(passes)),
        )


def open_catalogs(recipe: Recipe, store: Store) -> tuple[Catalog, ...]:
    """Map the catalogs of a stream, in recipe order.

    Raises:
        CorruptObjectError: one is missing or damaged.
    """
    return tuple(read_catalog(store, name) for name in recipe.dataset_names)


def _describe(
    recipe: Recipe,
    tokenizer: Tokenizer,
    roots: tuple[str, ...],
    catalogs: Sequence[Catalog],
    steps: Steps,
) -> Manifest:
    """Freeze everything that was derived from the recipe, the tokenizer and the sources."""
    content = tokenizer_file(recipe.tokenizer).read_bytes()
    digest = tokenizer_digest(content)
    datasets = [
        DatasetManifest(
            name=name,
            format=catalog.format,
            root=root,
            weight=str(catalog.source_bytes) if dataset.weight == "size" else str(dataset.weight),
            chunk_bytes=catalog.chunk_bytes,
            part_rows=catalog.part_rows,
            chunk_count=catalog.chunk_count,
            source_bytes=catalog.source_bytes,
            catalog_digest=catalog.digest,
        )
        for (name, dataset), root, catalog in zip(
            recipe.datasets.items(), roots, catalogs, strict=True
        )
    ]
    bos, eos, pad = special_ids(recipe.tokenizer, tokenizer)
    manifest = Manifest(
        name=recipe.name,
        fingerprint="",
        lanes=recipe.lanes,
        seq_len=recipe.seq_len,
        samples_per_shard=recipe.shard_samples,
        token_dtype="uint16" if tokenizer.vocab_size <= _UINT16_VOCABULARY else "uint32",
        vocab_size=tokenizer.vocab_size,
        pad_id=pad,
        eos_id=eos,
        bos_id=bos,
        has_loss_mask=recipe.has_loss_mask,
        tokenizer_digest=digest,
        recipe=recipe_to_mapping(recipe),
        datasets=datasets,
        code_versions={**code_versions(recipe), **step_versions(steps)},
        media_ids=[
            special_id(tokenizer, token) for token in (recipe.media.tokens if recipe.media else ())
        ],
    )
    return replace(manifest, fingerprint=manifest_fingerprint(manifest, recipe))


def code_versions(recipe: Recipe) -> dict[str, str]:
    """Return what stands for each piece of code besides our own that decides bytes, by name."""
    return {**chat_code_versions(recipe), **media_code_versions(recipe)}
