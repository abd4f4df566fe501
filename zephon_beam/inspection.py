"""Counting what a stream holds, without changing it and while it is being written."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.channel import DatasetCounters
from zephon_beam.errors import CorruptObjectError
from zephon_beam.lane_listing import LaneListing, global_order, list_lanes, read_lengths
from zephon_beam.lane_state import decode_state, read_counters
from zephon_beam.layout import QUARANTINE_FOLDER, shard_name, state_name
from zephon_beam.manifest import Manifest, read_manifest
from zephon_beam.retained import first_retained_sample
from zephon_beam.shard import decode_shard
from zephon_beam.store.base import Store, open_store

IntArray = npt.NDArray[np.int64]


def inspect_stream(uri: str, *, by_states: bool = False) -> dict[str, Any]:
    """Sum up a stream: its size, its padding and what each data set gave.

    Counts are of committed shards without a hole from each lane's start, and of the lane states
    right after them, so that they belong together: the tokens read of a data set are those in
    packs, in open bins, truncated and dropped. Only the segment columns of shards are touched.

    Args:
        uri: of the stream.
        by_states: take the tokens from the lane states alone, which account for every token: no
            shard is read, however long the stream, and `bytes` stays 0.

    Returns:
        JSON-able facts. name, fingerprint, origin: of a fork {stream, fingerprint, at_sample},
        else None; lanes, seq_len, samples_per_shard; samples: in
        committed shards; complete_samples: length of the gapless global prefix; tokens: without
        padding; padding_fraction: of all places in rows; finished: whether every lane has ended
        and all its shards exist; first_sample: from which on no shard was deleted; shards, bytes:
        of committed shards that are kept; lane_samples: per lane; quarantine: where the documents
        that were set aside are listed, None if the samples lack none;
        datasets: {name: {weight, tokens, share, documents, truncated_tokens, dropped_tokens,
        quarantined}}, where share is that of all tokens.

    Raises:
        StreamNotFoundError: there is no stream.
        CorruptObjectError: a shard, an end or a lane state cannot be read.
    """
    store = open_store(uri)
    manifest = read_manifest(store)
    lengths = read_lengths(store, manifest)
    lanes = list_lanes(store, manifest, lengths)
    counters = _sum_counters(store, manifest, lanes)
    tokens = np.zeros(len(manifest.datasets), np.int64)
    size = 0
    for lane in lanes:
        if by_states:
            tokens += _tokens_before(store, manifest, lane.lane, lane.gapless)
            continue
        tokens += deleted_tokens(store, manifest, lane)
        for shard in range(lane.first, lane.gapless):
            counted, shard_bytes = _count_shard(store, shard_name(lane.lane, shard), len(tokens))
            tokens += counted
            size += shard_bytes
    samples = sum(lane.committed for lane in lanes)
    total = int(tokens.sum())
    places = samples * manifest.seq_len
    datasets = _describe_datasets(manifest, tokens, counters)
    is_quarantined = any(entry["quarantined"] for entry in datasets.values())
    return {
        "name": manifest.name,
        "fingerprint": manifest.fingerprint,
        "origin": _describe_origin(manifest),
        "lanes": manifest.lanes,
        "seq_len": manifest.seq_len,
        "samples_per_shard": manifest.samples_per_shard,
        "samples": samples,
        "complete_samples": global_order(lanes).complete_prefix([ln.committed for ln in lanes]),
        "tokens": total,
        "padding_fraction": (places - total) / places if places else 0.0,
        "finished": all(lane.length == lane.committed for lane in lanes),
        "first_sample": first_retained_sample(
            global_order(lanes), [lane.first for lane in lanes], manifest.samples_per_shard
        ),
        "shards": sum(lane.gapless - lane.first for lane in lanes),
        "bytes": size,
        "lane_samples": [lane.committed for lane in lanes],
        "quarantine": f"{store.uri}/{QUARANTINE_FOLDER}".rstrip("/") if is_quarantined else None,
        "datasets": datasets,
    }


def tokens_of_datasets(datasets: Any, lengths: Any, dataset_count: int) -> IntArray:
    """Sum segment lengths by data set, int64[dataset_count].

    Exact: `bincount` adds in binary64, and one shard has far fewer than 2^53 tokens.
    """
    sums = np.bincount(datasets, weights=lengths, minlength=dataset_count)
    return sums.astype(np.int64)


def deleted_tokens(store: Store, manifest: Manifest, lane: LaneListing) -> IntArray:
    """Return the tokens of the shards of a lane that were deleted, int64[data sets].

    The state right after the last of them is kept.

    Raises:
        CorruptObjectError: that state is missing or damaged.
    """
    try:
        return _tokens_before(store, manifest, lane.lane, lane.first)
    except FileNotFoundError as error:
        name = state_name(lane.lane, lane.first - 1)
        raise CorruptObjectError(
            f"{name} must exist before the first shard that is kept, found none; the tokens before "
            "it cannot be counted; run the recipe again, which makes it again"
        ) from error


def _tokens_before(store: Store, manifest: Manifest, lane: int, shard: int) -> IntArray:
    """Return the tokens of the shards of a lane before one, int64[data sets].

    What was read and is neither truncated, dropped nor waiting in the state right after them was
    in packs.

    Raises:
        FileNotFoundError: that state is missing.
        CorruptObjectError: it is damaged.
    """
    tokens = np.zeros(len(manifest.datasets), np.int64)
    if shard == 0:
        return tokens
    name = state_name(lane, shard - 1)
    state = decode_state(store.get(name), name)
    waiting = tokens_of_datasets(
        state.pieces.columns.datasets, state.pieces.lengths, len(state.datasets)
    )
    for place, dataset in enumerate(state.datasets):
        counters = dataset.counters
        tokens[place] = counters.read_tokens - counters.truncated_tokens - counters.dropped_tokens
    return tokens - waiting


def _count_shard(store: Store, name: str, dataset_count: int) -> tuple[IntArray, int]:
    data = store.open_mmap(name)
    _, samples = decode_shard(data, name)
    datasets = samples.segments["source_dataset"]
    if len(datasets) and int(datasets.max()) >= dataset_count:
        raise CorruptObjectError(
            f"{name}: source_dataset must be below {dataset_count}, found {int(datasets.max())}; "
            "the shard is not of this stream; see `zephon-beam verify`"
        )
    counted = tokens_of_datasets(datasets, samples.segments["segment_lengths"], dataset_count)
    return counted, len(data)


def _sum_counters(
    store: Store, manifest: Manifest, lanes: list[LaneListing]
) -> list[DatasetCounters]:
    """Add up the counters of the lane states right after the last committed shards."""
    sums = [DatasetCounters() for _ in manifest.datasets]
    for lane in lanes:
        if lane.gapless == 0:
            continue
        name = state_name(lane.lane, lane.gapless - 1)
        try:
            counters = read_counters(store.get(name), name)
        except FileNotFoundError as error:
            raise CorruptObjectError(
                f"{name} must exist, found none beside its shard; the documents of the lane cannot "
                "be counted; see `zephon-beam verify`"
            ) from error
        for total, part in zip(sums, counters, strict=True):
            total.documents += part.documents
            total.truncated_tokens += part.truncated_tokens
            total.dropped_tokens += part.dropped_tokens
            total.quarantined_documents += part.quarantined_documents
    return sums


def _describe_origin(manifest: Manifest) -> dict[str, Any] | None:
    origin = manifest.origin
    if origin is None:
        return None
    return {name: getattr(origin, name) for name in ("stream", "fingerprint", "at_sample")}


def _describe_datasets(
    manifest: Manifest, tokens: IntArray, counters: list[DatasetCounters]
) -> dict[str, Any]:
    total = int(tokens.sum())
    return {
        dataset.name: {
            "weight": _number(dataset.weight),
            "tokens": int(own),
            "share": int(own) / total if total else 0.0,
            "documents": counted.documents,
            "truncated_tokens": counted.truncated_tokens,
            "dropped_tokens": counted.dropped_tokens,
            "quarantined": counted.quarantined_documents,
        }
        for dataset, own, counted in zip(manifest.datasets, tokens, counters, strict=True)
    }


def _number(weight: str) -> int | float:
    """Return a stored weight as a number to look at; at most 12 digits, so it is not rounded."""
    return int(weight) if weight.isdecimal() else float(weight)
