"""Comparing two streams: the first sample that differs, and in what they were made differently.

Samples are compared in global order by the logical digests of their rows, so streams that are
stored in shards of other sizes or codecs compare. Besides a shard of each lane nothing is kept.
"""

from collections.abc import Callable, Iterator
from typing import Any

from zephon_beam.catalog.stored import read_catalog
from zephon_beam.catalog.table import Catalog
from zephon_beam.fingerprint import differing_fields, recipe_identity
from zephon_beam.layout import MANIFEST
from zephon_beam.manifest import Manifest, read_manifest
from zephon_beam.recipe_mapping import recipe_from_mapping
from zephon_beam.samples import SEGMENT_COLUMNS, row_digests
from zephon_beam.store.base import open_store
from zephon_beam.tracing import SampleTracer, StoredSample

_BLOCK = 1024
"""Samples that are compared between two reports of progress."""
_NO_FILE = "no such file"


class _Stream:
    """One of the two, as far as it goes now."""

    def __init__(self, uri: str) -> None:
        self.store = open_store(uri)
        self.manifest = read_manifest(self.store)
        self.tracer = SampleTracer(self.store, self.manifest)
        self._digests: dict[int, tuple[str, list[bytes]]] = {}

    @property
    def total(self) -> int | None:
        """Samples of the whole stream, None while it may go on."""
        return self.tracer.total

    def digests(self, first: int, last: int) -> Iterator[bytes]:
        """Yield the digests of the rows of samples, in global order."""
        for stored in self.tracer.stored(first, last):
            known = self._digests.get(stored.lane)
            if known is None or known[0] != stored.shard:
                known = stored.shard, row_digests(stored.samples)
                self._digests[stored.lane] = known
            yield known[1][stored.row]

    def facts(self) -> dict[str, Any]:
        """Return what identifies it."""
        return {
            "stream": self.store.uri,
            "name": self.manifest.name,
            "fingerprint": self.manifest.fingerprint,
            "complete_samples": self.tracer.complete_samples,
            "finished": self.total == self.tracer.complete_samples,
        }


def compare_streams(
    a: str, b: str, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Compare two streams as far as both reach.

    Args:
        a: one stream.
        b: the other.
        progress: called with the samples compared so far and those to be compared.

    Returns:
        JSON-able facts. different: whether a sample differs, or one has ended and the other goes
        on, or no sample could be compared and their fingerprints differ; a, b: {stream, name,
        fingerprint, complete_samples, finished}; reasons: a list of {field, a, b}, in what they
        were made differently; compared: [first, last) samples; first_difference: None or {sample,
        columns, a, b}: the columns that differ, and what `SampleTracer.trace` says of the sample.

    Raises:
        StreamNotFoundError: there is no stream at one of the places.
        CorruptObjectError: a shard that is compared, or a catalog, is missing or damaged.

    Determinism: depends on what is stored alone.
    """
    streams = _Stream(a), _Stream(b)
    first = max(stream.tracer.first_sample for stream in streams)
    last = max(first, min(stream.tracer.complete_samples for stream in streams))
    differing = _first_difference(streams, first, last, progress)
    found = None
    if differing is not None:
        traces = [stream.tracer.trace(differing, differing + 1)[0] for stream in streams]
        found = {
            "sample": differing,
            "columns": _differing_columns(
                *(next(stream.tracer.stored(differing, differing + 1)) for stream in streams)
            ),
            "a": traces[0],
            "b": traces[1],
        }
    facts = [stream.facts() for stream in streams]
    is_other = facts[0]["fingerprint"] != facts[1]["fingerprint"]
    return {
        "different": differing is not None or _ends_apart(streams) or (first == last and is_other),
        "a": facts[0],
        "b": facts[1],
        "reasons": [
            {"field": field, "a": one, "b": other} for field, one, other in _reasons(*streams)
        ],
        "compared": [first, last],
        "first_difference": found,
    }


def _first_difference(
    streams: tuple[_Stream, _Stream],
    first: int,
    last: int,
    progress: Callable[[int, int], None] | None,
) -> int | None:
    for begin in range(first, last, _BLOCK):
        end = min(last, begin + _BLOCK)
        pairs = zip(*(stream.digests(begin, end) for stream in streams), strict=True)
        for sample, (one, other) in enumerate(pairs, begin):
            if one != other:
                return sample
        if progress is not None:
            progress(end - first, last - first)
    return None


def _ends_apart(streams: tuple[_Stream, _Stream]) -> bool:
    """Say whether one stream has ended where the other goes on."""
    a, b = streams
    return any(
        one.total is not None and other.tracer.complete_samples > one.total
        for one, other in ((a, b), (b, a))
    )


def _differing_columns(a: StoredSample, b: StoredSample) -> list[str]:
    """Name the columns in which two samples differ."""
    rows = [
        {
            "tokens": stored.samples.tokens[stored.row].tolist(),
            **{name: stored.column(name) for name in SEGMENT_COLUMNS},
            "loss_mask": None
            if stored.samples.loss_mask is None
            else stored.samples.loss_mask[stored.row].tolist(),
        }
        for stored in (a, b)
    ]
    names = [name for name in rows[0] if rows[0][name] != rows[1][name]]
    return names or ["media"]


def _reasons(a: _Stream, b: _Stream) -> Iterator[tuple[str, str, str]]:
    """Yield (field, of a, of b) wherever two streams were made differently."""
    one, other = a.manifest, b.manifest
    identities = [
        recipe_identity(recipe_from_mapping(stream.recipe, origin=f"{MANIFEST}: recipe"))
        for stream in (one, other)
    ]
    yield from differing_fields(*identities)
    for field in ("tokenizer_digest", "bos_id", "eos_id", "pad_id", "format_version"):
        values = [getattr(stream, field) for stream in (one, other)]
        if values[0] != values[1]:
            yield field.replace("_", " "), str(values[0]), str(values[1])
    for name in sorted({*one.code_versions, *other.code_versions}):
        versions = [stream.code_versions.get(name, "nothing") for stream in (one, other)]
        if versions[0] != versions[1]:
            yield f"code of {name.replace('_', ' ')}", versions[0], versions[1]
    origins = [_spell_origin(stream) for stream in (one, other)]
    if origins[0] != origins[1]:
        yield "origin", origins[0], origins[1]
    digests = [{d.name: d.catalog_digest for d in stream.datasets} for stream in (one, other)]
    for name in (name for name in digests[0] if name in digests[1]):
        if digests[0][name] != digests[1][name]:
            found = _catalog_difference(*(read_catalog(stream.store, name) for stream in (a, b)))
            yield (f"files of {name}", *found)


def _spell_origin(manifest: Manifest) -> str:
    origin = manifest.origin
    if origin is None:
        return "none"
    return f"sample {origin.at_sample} of {origin.fingerprint}, states {origin.states_digest}"


def _catalog_difference(a: Catalog, b: Catalog) -> tuple[str, str]:
    """Say of the first file that two catalogs differ in what each knows of it."""
    known = [
        {
            catalog.file_name(file): f"{catalog.file_size(file)} bytes, "
            f"identity {catalog.file_identity(file)}"
            for file in range(catalog.file_count)
        }
        for catalog in (a, b)
    ]
    for name in sorted({*known[0], *known[1]}):
        one, other = (files.get(name) for files in known)
        if one != other:
            return f"{name!r}: {one or _NO_FILE}", f"{name!r}: {other or _NO_FILE}"
    one, other = (
        f"{catalog.format}, {catalog.chunk_count} chunks of {catalog.chunk_bytes} bytes"
        for catalog in (a, b)
    )
    return one, other
