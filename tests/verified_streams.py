"""Whole small streams without a pipeline: manifest, catalogs, shards, lane states and ends."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.streams import FakeStream, Row, put, random_lanes, shard_count, write_stream
from zephon_beam.catalog.scan import FileScan
from zephon_beam.catalog.table import Catalog, build_catalog
from zephon_beam.channel import DatasetCounters
from zephon_beam.fingerprint import fingerprint
from zephon_beam.lane_state import DatasetState, LaneState, encode_state
from zephon_beam.layout import catalog_name, state_name
from zephon_beam.manifest import DatasetManifest
from zephon_beam.pieces import GatheredPieces, PieceColumns
from zephon_beam.recipe_mapping import recipe_from_mapping, recipe_to_mapping

NAMES = ("web", "code")
TRUNCATED, DROPPED, WAITING = 5, 11, 3
"""Tokens that each lane state says were truncated, dropped and put into open bins, of `web`."""


def make_catalog(name: str) -> bytes:
    """Build the catalog of a data set of two files."""
    scans = [FileScan(path=f"/data/{name}/{file}", size=2048, identity=file) for file in "ab"]
    return build_catalog(name, "jsonl", f"/data/{name}", scans, chunk_bytes=1024)


def make_datasets(names: Sequence[str] = NAMES) -> list[DatasetManifest]:
    """Describe data sets of made-up sources."""
    return [
        DatasetManifest(
            name=name,
            format="jsonl",
            root="/data",
            weight="0.25" if name == "web" else "3",
            chunk_bytes=1024,
            part_rows=0,
            chunk_count=4,
            source_bytes=4096,
            catalog_digest=Catalog.from_buffer(make_catalog(name), name).digest,
        )
        for name in names
    ]


def write_whole_stream(
    folder: Path, lengths: Sequence[int], *, seed: int = 0, **options: Any
) -> FakeStream:
    """Write a stream of random rows from two data sets that is without fault."""
    lanes = [
        [[replace(segment, dataset=n % 2) for n, segment in enumerate(row)] for row in rows]
        for rows in random_lanes(lengths, seed=seed)
    ]
    datasets = make_datasets()
    files = {entry.name: {"files": "x", "weight": entry.weight} for entry in datasets}
    recipe = recipe_from_mapping(
        {"name": "fake", "lanes": len(lengths), "tokenizer": {"path": "t"}, "datasets": files}
    )
    mark = fingerprint(
        recipe,
        tokenizer_digest="",
        catalog_digests={entry.name: entry.catalog_digest for entry in datasets},
        format_version=1,
    )
    stream = write_stream(
        folder,
        lanes,
        datasets=datasets,
        recipe=recipe_to_mapping(recipe),
        fingerprint=mark,
        **options,
    )
    for entry in datasets:
        put(folder, catalog_name(entry.name), make_catalog(entry.name))
    for lane in range(len(lanes)):
        for shard in range(shard_count(stream, lane)):
            write_state(stream, lane, shard)
    return stream


def write_state(
    stream: FakeStream, lane: int, shard: int, changes: dict[str, Any] | None = None
) -> None:
    """Write the lane state after a shard; it accounts for every token unless changed."""
    state = replace(make_state(stream, lane, shard), **(changes or {}))
    put(Path(stream.uri), state_name(lane, shard), encode_state(state))


def make_state(stream: FakeStream, lane: int, shard: int) -> LaneState:
    """Build the lane state after a shard."""
    samples = min((shard + 1) * stream.manifest.samples_per_shard, len(stream.lanes[lane]))
    rows = stream.lanes[lane][:samples]
    return LaneState(
        fingerprint=stream.manifest.fingerprint,
        lane=lane,
        samples=samples,
        phase=0,
        flushed=False,
        next_bin=0,
        datasets=[_dataset_state(rows, place) for place in range(len(NAMES))],
        bins=[],
        packs=[],
        pieces=_waiting(),
    )


def tokens_in_rows(rows: Sequence[Row], dataset: int) -> int:
    """Count the tokens of a data set."""
    return sum(len(s.tokens) for row in rows for s in row if s.dataset == dataset)


def _dataset_state(rows: Sequence[Row], dataset: int) -> DatasetState:
    extra = TRUNCATED + DROPPED + WAITING if dataset == 0 else 0
    counters = DatasetCounters(
        documents=len(rows) + dataset,
        read_tokens=tokens_in_rows(rows, dataset) + extra,
        truncated_tokens=TRUNCATED if dataset == 0 else 0,
        dropped_tokens=DROPPED if dataset == 0 else 0,
        quarantined_documents=dataset,
    )
    return DatasetState(next_number=0, turn=0, slots=[], taken=0, counters=counters)


def _waiting() -> GatheredPieces:
    """One piece of `web` in an open bin."""
    return GatheredPieces(
        lengths=np.array([WAITING], np.int32),
        tokens=np.zeros(WAITING, np.uint16),
        loss_mask=None,
        columns=PieceColumns(
            datasets=np.zeros(1, np.uint16),
            files=np.zeros(1, np.uint32),
            documents=np.zeros(1, np.int64),
            outputs=np.zeros(1, np.uint32),
            offsets=np.zeros(1, np.int32),
            passes=np.zeros(1, np.uint32),
            nexts=np.full(1, -1, np.int32),
        ),
    )
