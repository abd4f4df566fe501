"""Create a stream, or open one and make sure that it is still the same."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.runners import running_pipeline
from transforms.build_catalog import FEW_FILES, BuildCatalogs, CatalogJob, build_here
from transforms.media.versions import media_code_versions
from transforms.tokenize_chat import chat_code_versions
from transforms.tokenizers.backends import load_reference, tokenizer_digest, tokenizer_file
from zephon_beam.catalog.scan import (
    check_columns,
    data_root,
    file_sizes,
    list_files,
    relative_name,
    resolve_format,
)
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
from zephon_beam.fingerprint import differences, fingerprint, recipe_identity
from zephon_beam.layout import MANIFEST, catalog_name
from zephon_beam.manifest import (
    FORMAT_VERSION,
    DatasetManifest,
    Manifest,
    encode_manifest,
    read_manifest,
)
from zephon_beam.recipe import Recipe, TokenizerRecipe
from zephon_beam.recipe_mapping import recipe_from_mapping, recipe_to_mapping
from zephon_beam.sources.documents import wanted_content
from zephon_beam.sources.read_record import refuse_unseekable
from zephon_beam.store.base import Store, open_store
from zephon_beam.tokenizer import Tokenizer
from zephon_beam.transforming.importing import make_importable
from zephon_beam.transforming.steps import (
    Steps,
    load_steps,
    refuse_other_code,
    step_folders,
    step_versions,
)

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
    """
    store = open_store(stream)
    make_importable(() if folder is None else (folder,))
    steps = load_steps(recipe)
    paths = _list_sources(recipe)
    roots = tuple(data_root(dataset.patterns) for dataset in recipe.datasets.values())
    if not store.exists(MANIFEST):
        _refuse_foreign_folder(store)
        _create(recipe, store, paths, roots, options, steps)
    manifest = read_manifest(store)
    _refuse_recipe_drift(recipe, manifest, store)
    refuse_other_code(steps, manifest.code_versions)
    catalogs = _open_catalogs(recipe, store)
    for name, root, listed, catalog in zip(recipe.datasets, roots, paths, catalogs, strict=True):
        _refuse_source_drift(name, root, listed, catalog)
    found = step_folders(steps)
    return OpenStream(
        store=store,
        manifest=manifest,
        recipe=recipe,
        roots=roots,
        catalogs=catalogs,
        code_folders=tuple(dict.fromkeys(found if folder is None else (folder, *found))),
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


def _refuse_foreign_folder(store: Store) -> None:
    """Refuse to create a stream among other files; catalogs alone are left by a crash."""
    foreign = next((name for name in store.list("") if not name.startswith("catalog/")), None)
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


def _create(
    recipe: Recipe,
    store: Store,
    paths: Sequence[list[str]],
    roots: tuple[str, ...],
    options: PipelineOptions,
    steps: Steps,
) -> None:
    """Scan the sources, store the catalogs and write `stream.json`."""
    tokenizer = load_reference(recipe.tokenizer)
    _special_ids(recipe.tokenizer, tokenizer)
    _refuse_unknown_tokens(steps, tokenizer)
    _refuse_unknown_placeholders(recipe, tokenizer)
    _code_versions(recipe)
    formats = []
    for (name, dataset), listed in zip(recipe.datasets.items(), paths, strict=True):
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
    job = CatalogJob(stream=store.uri, recipe=recipe, formats=tuple(formats), roots=roots)
    _write_catalogs(job, paths, options)
    catalogs = _open_catalogs(recipe, store)
    for catalog in catalogs:
        _warn_of_few_chunks(recipe, catalog)
    manifest = _describe(recipe, tokenizer, roots, catalogs, steps)
    # A twin that created the stream first wins; whether it is the same is checked by the caller.
    store.put_if_absent(MANIFEST, encode_manifest(manifest), lambda _stored, _computed: True)


def _write_catalogs(
    job: CatalogJob, paths: Sequence[Sequence[str]], options: PipelineOptions
) -> None:
    try:
        if sum(map(len, paths)) <= FEW_FILES:
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
        datasets = pipeline | "Datasets" >> beam.Create(range(len(job.formats)), reshuffle=False)
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


def _open_catalogs(recipe: Recipe, store: Store) -> tuple[Catalog, ...]:
    catalogs = []
    for name in map(catalog_name, recipe.dataset_names):
        try:
            catalogs.append(Catalog.from_buffer(store.open_mmap(name), name))
        except FileNotFoundError as error:
            raise CorruptObjectError(
                f"{name} must exist beside {MANIFEST}, found none in {store.uri!r}; the order of "
                "its sources can no longer be known; restore it from a copy, or run the recipe "
                "into a new place, which writes the same bytes"
            ) from error
    return tuple(catalogs)


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
    code_versions = {**_code_versions(recipe), **step_versions(steps)}
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
    bos, eos, pad = _special_ids(recipe.tokenizer, tokenizer)
    return Manifest(
        name=recipe.name,
        fingerprint=fingerprint(
            recipe,
            tokenizer_digest=digest,
            catalog_digests={dataset.name: dataset.catalog_digest for dataset in datasets},
            format_version=FORMAT_VERSION,
            code_versions=code_versions,
        ),
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
        code_versions=code_versions,
    )


def _code_versions(recipe: Recipe) -> dict[str, str]:
    """Return what stands for each piece of code besides our own that decides bytes, by name."""
    return {**chat_code_versions(recipe), **media_code_versions(recipe)}


def _refuse_unknown_tokens(steps: Steps, tokenizer: Tokenizer) -> None:
    """Refuse transforms that would put tokens between texts which the vocabulary does not have."""
    for step in (step for own in steps for step in own):
        for token in step.special_tokens:
            try:
                special_id(tokenizer, token)
            except RecipeError as error:
                raise RecipeError(f"{step.place} ({step.name}): {error}") from error


def _refuse_unknown_placeholders(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Refuse tokens that would stand for images and are not in the vocabulary."""
    for name in ("image", "video", "start", "end") if recipe.media is not None else ():
        token = recipe.media.token(name) if recipe.media is not None else ""
        if token and tokenizer.token_id(token) is None:
            raise RecipeError(
                f"media.{name}_token must be a token of {recipe.tokenizer.path!r}, got {token!r}; "
                "add it to the tokenizer, or name the token that it has"
            )


def _special_ids(
    recipe: TokenizerRecipe, tokenizer: Tokenizer
) -> tuple[int | None, int | None, int]:
    """Return the ids of `bos`, `eos` and padding."""
    bos = _resolve("bos", recipe.bos, tokenizer, recipe)
    eos = _resolve("eos", recipe.eos, tokenizer, recipe)
    return bos, eos, _pad(recipe, tokenizer, eos)


def _resolve(
    field: str, value: str | int | None, tokenizer: Tokenizer, recipe: TokenizerRecipe
) -> int | None:
    """Turn a token's text or id into an id of the vocabulary."""
    if value is None:
        return None
    found = tokenizer.token_id(value) if isinstance(value, str) else value
    if found is None or not 0 <= found < tokenizer.vocab_size:
        raise RecipeError(
            f"tokenizer.{field} must be a token of {recipe.path!r} or an id below "
            f"{tokenizer.vocab_size}, got {value!r}; name one that the vocabulary has, or null for "
            "none"
        )
    return found


def _pad(recipe: TokenizerRecipe, tokenizer: Tokenizer, eos: int | None) -> int:
    if recipe.pad != "auto":
        pad = _resolve("pad", recipe.pad, tokenizer, recipe)
    else:
        pad = tokenizer.pad_id if tokenizer.pad_id is not None else eos
    if pad is None:
        raise RecipeError(
            f"tokenizer.pad must be an id or a token when the tokenizer names no padding and eos "
            f"is null, got {recipe.pad!r}; write e.g. pad: 0"
        )
    return pad


def _refuse_recipe_drift(recipe: Recipe, manifest: Manifest, store: Store) -> None:
    """Compare the recipe and the tokenizer with what the stream was created from."""
    stored = recipe_from_mapping(manifest.recipe, origin=f"{store.uri}/{MANIFEST}")
    changed = differences(recipe_identity(stored), recipe_identity(recipe))
    repair = "undo the change, or run the recipe into a new place"
    if changed:
        raise DriftError(
            f"recipe differs from that of the stream {store.uri!r}: {'; '.join(changed)}; the "
            f"stream would no longer be a function of one recipe; {repair}"
        )
    path = tokenizer_file(recipe.tokenizer)
    found = tokenizer_digest(path.read_bytes())
    if found != manifest.tokenizer_digest:
        raise DriftError(
            f"tokenizer: expected {manifest.tokenizer_digest}, found {found} ({path}); with other "
            f"tokens the stream would no longer be a function of one recipe; {repair}"
        )
    for name, version in _code_versions(recipe).items():
        stored_version = manifest.code_versions.get(name)
        if version != stored_version:
            raise DriftError(
                f"{name.replace('_', ' ')}: expected {stored_version}, found {version}; with "
                f"another one the stream would no longer be a function of one recipe; {repair}"
            )


def _refuse_source_drift(name: str, root: str, listed: Sequence[str], catalog: Catalog) -> None:
    """Compare names and sizes of the files with the catalog; contents are checked when read."""
    repair = "restore the files, or run the recipe into a new place"
    found = {relative_name(path, root): path for path in listed}
    known = {catalog.file_name(file): file for file in range(catalog.file_count)}
    for word, missing in (
        ("is gone", sorted(known.keys() - found.keys())),
        ("is new", sorted(found.keys() - known.keys())),
    ):
        if missing:
            raise DriftError(
                f"datasets.{name}: {missing[0]!r} {word} ({len(missing)} such files in {root}); "
                f"the order of the stream was fixed by the files it was created from; {repair}"
            )
    sizes = file_sizes(root, listed)
    for file_name, file in known.items():
        size = sizes[found[file_name]]
        if size != catalog.file_size(file):
            raise DriftError(
                f"datasets.{name}: {file_name!r}: expected {catalog.file_size(file)} bytes, found "
                f"{size}; the stream was created from other content; {repair}"
            )
