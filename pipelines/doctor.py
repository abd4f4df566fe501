"""`doctor`: what this machine, a recipe and a place for a stream have, and what they lack.

Each check is one line: `ok`; `missing` where something optional is not there; `fault` where a run
would stop. A place is tried by creating an object, creating it again and taking it away.
"""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from secrets import token_hex
from typing import TYPE_CHECKING

from pipelines.commands.texts import count, size
from pipelines.engines.software import jar_folder, prism_binary
from zephon_beam.catalog.scan import file_sizes
from zephon_beam.errors import DeterminismError, StreamNotFoundError, ZephonBeamError
from zephon_beam.manifest import read_manifest
from zephon_beam.store.base import Store, open_store

if TYPE_CHECKING:
    from pipelines.create_stream import Sources

_NEEDED = ("numpy", "pyarrow", "fastavro", "apache-beam", "PyYAML", "tokenizers")
_OPTIONAL = {
    "fastokens": "text is encoded more slowly; pip install 'zephon-beam[beam]'",
    "tiktoken": "rank files cannot be read; pip install 'zephon-beam[beam]'",
    "av": "no videos; pip install 'zephon-beam[video]'",
    "pillow": "no images; pip install 'zephon-beam[video]'",
    "google-cloud-storage": "no gs://; pip install 'zephon-beam[gcs]'",
    "obstore": "no s3:// and az://; pip install 'zephon-beam[object-stores]'",
    "numba": "batches take more processor time; pip install 'zephon-beam[fast]'",
    "torch": "no zephon_beam.torch; pip install 'zephon-beam[torch]'",
}
_TRIED = "catalog/doctor-{}.tmp"
"""Below `catalog/`, where what a crash leaves keeps no stream from being created."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What was looked at, and what was found."""

    name: str
    status: str
    """`ok`, `missing` or `fault`."""
    text: str


def examine(recipe: str | None = None, stream: str | None = None) -> Iterator[Check]:
    """Look at this machine, and at a recipe and a place if they are named.

    Args:
        recipe: path of a recipe file; its functions are imported, its files listed.
        stream: where a stream is or is to be; an object is created there and deleted.

    Yields:
        One check after the other.
    """
    lacks_library = False
    for check in _machine():
        lacks_library |= check.status == "fault"
        yield check
    if lacks_library:
        # Nothing more can be imported.
        return
    sources = None
    if recipe is not None:
        from pipelines.create_stream import find_sources
        from pipelines.recipe_file import load_recipe, recipe_folder

        try:
            sources = find_sources(load_recipe(recipe), recipe_folder(recipe))
            yield from _recipe(sources)
        except ZephonBeamError as error:
            yield Check(name="recipe", status="fault", text=str(error))
    if stream is not None:
        try:
            yield from _place(open_store(stream), sources)
        except (ZephonBeamError, OSError) as error:
            yield Check(name="stream", status="fault", text=str(error))


def _machine() -> Iterator[Check]:
    yield Check(
        name="python",
        status="ok",
        text=f"{platform.python_version()}, {sys.executable}, {platform.platform()}",
    )
    for name in _NEEDED:
        found = _version(name)
        lacks = "no pipeline runs; pip install 'zephon-beam[beam]'"
        yield Check(name=name, status="ok" if found else "fault", text=found or lacks)
    for name, lacks in _OPTIONAL.items():
        found = _version(name)
        yield Check(name=name, status="ok" if found else "missing", text=found or lacks)
    yield Check(name="processors", status="ok", text=str(os.cpu_count()))
    places = {"prism": prism_binary(), "flink": jar_folder("flink"), "spark": jar_folder("spark")}
    for name, place in places.items():
        if place.exists():
            yield Check(name=name, status="ok", text=str(place))
        else:
            text = f"not on this machine; python -m pipelines.engines.software {name} fetches it"
            yield Check(name=name, status="missing", text=text)
    java = shutil.which("java")
    lacks = "Flink and Spark do not start here without it"
    yield Check(name="java", status="ok" if java else "missing", text=java or lacks)


def _recipe(sources: "Sources") -> Iterator[Check]:
    from pipelines.advance_size import usable_memory
    from pipelines.create_stream import check_sources
    from transforms.tokenizers.backends import choose_backend

    yield Check(name="memory", status="ok", text=size(usable_memory()))
    recipe = sources.recipe
    _, formats = check_sources(sources)
    for (name, dataset), format_name, root, paths in zip(
        recipe.datasets.items(), formats, sources.roots, sources.paths, strict=True
    ):
        total = sum(file_sizes(root, paths).values())
        text = f"{count(len(paths))} files, {size(total)}, {format_name}"
        if dataset.transforms:
            text += f", {len(dataset.transforms)} transforms"
        yield Check(name=f"datasets.{name}", status="ok", text=text)
    backend = choose_backend(recipe.tokenizer, "auto")
    yield Check(name="tokenizer", status="ok", text=f"{recipe.tokenizer.path}, by {backend}")


def _place(store: Store, sources: "Sources | None") -> Iterator[Check]:
    try:
        manifest = read_manifest(store)
        text = f"{store.uri}: {manifest.name}, {manifest.fingerprint}"
        yield Check(name="stream", status="ok", text=text)
        if sources is not None:
            from pipelines.open_stream import open_same

            open_same(sources, manifest, store)
    except StreamNotFoundError:
        yield Check(name="stream", status="ok", text=f"{store.uri}: none yet")
    yield _try_store(store)


def _try_store(store: Store) -> Check:
    """Create an object, create it again, create another one in its place, and delete it."""
    name = _TRIED.format(token_hex(8))
    try:
        created = [store.put_if_absent(name, b"one") for _ in range(2)]
        held = False
        try:
            store.put_if_absent(name, b"two")
        except DeterminismError:
            held = True
        kept = store.get(name) == b"one"
    finally:
        store.delete(name)
    if created != [True, False] or not held or not kept:
        text = (
            f"{store.uri} must create an object once and keep it, but replaced it or did not "
            "notice that it exists; two runs could mix their shards; name another place"
        )
        return Check(name="store", status="fault", text=text)
    return Check(name="store", status="ok", text="creates objects once, and deletes them")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
