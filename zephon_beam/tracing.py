"""Tracing samples back to the documents that they were made of."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zephon_beam.catalog.stored import read_catalog
from zephon_beam.catalog.table import Catalog
from zephon_beam.errors import CorruptObjectError, RecipeError
from zephon_beam.lane_listing import global_order, list_lanes, read_lengths
from zephon_beam.layout import shard_name
from zephon_beam.manifest import Manifest
from zephon_beam.retained import first_retained_sample
from zephon_beam.sample_order import SampleOrder
from zephon_beam.samples import SEGMENT_COLUMNS, Samples
from zephon_beam.shard import decode_shard
from zephon_beam.sources.locators import decode_locator
from zephon_beam.store.base import Store, is_remote


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSample:
    """A sample in its shard."""

    samples: Samples
    row: int
    shard: str
    lane: int
    index: int

    def column(self, name: str) -> list[int]:
        """Return the values of the sample's segments."""
        bounds = self.samples.segment_offsets
        first, last = int(bounds[self.row]), int(bounds[self.row + 1])
        values: list[int] = self.samples.segments[name][first:last].tolist()
        return values


class SampleTracer:
    """Says which documents samples hold. Only the shards that are asked for are read."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        """Look at a stream as far as it goes now."""
        self._store = store
        self._manifest = manifest
        lengths = read_lengths(store, manifest)
        lanes = list_lanes(store, manifest, lengths)
        self._order: SampleOrder = global_order(lanes)
        self.complete_samples = self._order.complete_prefix([lane.committed for lane in lanes])
        """Length of the gapless global prefix."""
        self.total = self._order.total
        """Samples of the whole stream, None while a lane has not ended."""
        self.first_sample = first_retained_sample(
            self._order, [lane.first for lane in lanes], manifest.samples_per_shard
        )
        """Sample from which on no shard was deleted."""
        self._catalogs: dict[int, Catalog] = {}
        self._opened: dict[int, tuple[str, Samples]] = {}

    def trace(self, first: int, last: int) -> list[dict[str, Any]]:
        """Return what samples [first, last) hold, in order.

        Returns:
            JSON-able facts of each sample. sample, lane, index: its numbers; shard, row: where it
            is stored; tokens, padding; documents: a list of {dataset, file, path, locator, output,
            pass, start, tokens, ends}, where `locator` is what `decode_locator` says, `start` is
            the first place in the row, `tokens` the stretch [first, last) of the document's
            tokens, and `ends` whether the document ends with it.

        Raises:
            RecipeError: the stream does not have these samples, or not any more.
            CorruptObjectError: a shard or a catalog is missing or damaged.
        """
        if first < self.first_sample or last > self.complete_samples or first >= last:
            raise RecipeError(
                f"samples must be in [{self.first_sample}, {self.complete_samples}), the complete "
                f"ones of {self._store.uri!r}, got [{first}, {last}); name others, or run the "
                "recipe to have more"
            )
        found = self.stored(first, last)
        return [self._describe(sample, stored) for sample, stored in enumerate(found, first)]

    def stored(self, first: int, last: int) -> Iterator[StoredSample]:
        """Yield samples [first, last), which must exist, as they are stored.

        Raises:
            CorruptObjectError: a shard is missing or damaged.
        """
        lanes, indices = self._order.locate(first, last)
        for lane, index in zip(lanes.tolist(), indices.tolist(), strict=True):
            yield self._row(lane, index)

    def _row(self, lane: int, index: int) -> StoredSample:
        size = self._manifest.samples_per_shard
        name = shard_name(lane, index // size)
        if lane not in self._opened or self._opened[lane][0] != name:
            try:
                _, samples = decode_shard(self._store.open_mmap(name), name)
            except FileNotFoundError as error:
                raise CorruptObjectError(
                    f"{name} must exist, found none in {self._store.uri!r}; its samples cannot be "
                    "traced; run the recipe again, which makes it again"
                ) from error
            self._opened[lane] = name, samples
        shard, samples = self._opened[lane]
        return StoredSample(samples=samples, row=index % size, shard=shard, lane=lane, index=index)

    def _describe(self, sample: int, found: StoredSample) -> dict[str, Any]:
        values = {name: found.column(name) for name in SEGMENT_COLUMNS}
        tokens = sum(values["segment_lengths"])
        return {
            "sample": sample,
            "lane": found.lane,
            "index": found.index,
            "shard": found.shard,
            "row": found.row,
            "tokens": tokens,
            "padding": self._manifest.seq_len - tokens,
            "documents": [
                self._document(values, place) for place in range(len(values["segment_starts"]))
            ],
        }

    def _document(self, columns: dict[str, list[int]], place: int) -> dict[str, Any]:
        number = columns["source_dataset"][place]
        catalog = self._catalog(number)
        dataset = self._manifest.datasets[number]
        name = catalog.file_name(columns["source_file"][place])
        first = columns["source_offset"][place]
        return {
            "dataset": dataset.name,
            "file": name,
            "path": _join(dataset.root, name),
            "locator": decode_locator(catalog.format, name, columns["source_document"][place]),
            "output": columns["source_output"][place],
            "pass": columns["source_pass"][place],
            "start": columns["segment_starts"][place],
            "tokens": [first, first + columns["segment_lengths"][place]],
            "ends": columns["segment_next"][place] < 0,
        }

    def _catalog(self, number: int) -> Catalog:
        if number >= len(self._manifest.datasets):
            raise CorruptObjectError(
                f"source_dataset must be below {len(self._manifest.datasets)}, found {number}; a "
                "shard is not of this stream; see `zephon-beam verify`"
            )
        if number not in self._catalogs:
            name = self._manifest.datasets[number].name
            self._catalogs[number] = read_catalog(self._store, name)
        return self._catalogs[number]


def _join(root: str, name: str) -> str:
    return f"{root.rstrip('/')}/{name}" if is_remote(root) else os.path.join(root, name)
