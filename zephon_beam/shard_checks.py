"""What must hold in every shard, whatever its recipe: checked with arrays, one shard at a time."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.manifest import Manifest
from zephon_beam.media.columns import check_media
from zephon_beam.samples import Samples
from zephon_beam.shard import ShardHeader

Array = npt.NDArray[Any]


def check_header(
    header: ShardHeader, manifest: Manifest, lane: int, first_index: int, count: int
) -> Iterator[str]:
    """Yield what a header says otherwise than the shard's name and the manifest.

    Args:
        header: of the shard.
        manifest: of the stream.
        lane: from the name.
        first_index: index of the first sample in its lane, from the name.
        count: samples that the shard must hold.
    """
    expected = {
        "fingerprint": manifest.fingerprint,
        "lane": lane,
        "first_sample": first_index * manifest.lanes + lane,
        "count": count,
    }
    for field, value in expected.items():
        found = getattr(header, field)
        if found != value:
            yield f"{field}: expected {value}, found {found}"


def check_rows(
    samples: Samples, valid_tokens: Array, manifest: Manifest, file_counts: Sequence[int | None]
) -> Iterator[str]:
    """Yield what is wrong in the columns of a shard, naming the first row of each kind.

    Args:
        samples: decoded, with rows of the manifest's length.
        valid_tokens: as stored, int32[samples].
        manifest: of the stream.
        file_counts: files in the catalog of each data set, None where it cannot be read.
    """
    dtype = np.dtype(manifest.token_dtype)
    if samples.tokens.dtype != dtype:
        yield f"tokens: expected {dtype}, found {samples.tokens.dtype}"
    too_large = samples.tokens >= manifest.vocab_size
    if bool(too_large.any()):
        row, place = np.argwhere(too_large)[0].tolist()
        yield (
            f"row {row}: token {place}: expected an id below {manifest.vocab_size}, found "
            f"{int(samples.tokens[row, place])}"
        )
    yield from _check_mask(samples, manifest)
    yield from _check_media(samples, manifest)
    yield from _check_sources(samples, manifest)
    yield from _check_files(samples, file_counts)
    faults = [*_check_segments(samples), *_check_starts(samples, manifest)]
    yield from faults
    if not faults:
        yield from _check_padding(samples, manifest.pad_id)
        yield from _check_unlabelled(samples)
        differs = np.flatnonzero(samples.valid_tokens != valid_tokens)
        if len(differs):
            row = int(differs[0])
            yield (
                f"row {row}: valid_tokens: expected {int(samples.valid_tokens[row])}, found "
                f"{int(valid_tokens[row])}"
            )


def _check_mask(samples: Samples, manifest: Manifest) -> Iterator[str]:
    mask = samples.loss_mask
    if (mask is not None) != manifest.has_loss_mask:
        expected, found = ("one", "none") if manifest.has_loss_mask else ("none", "one")
        yield f"loss_mask: expected {expected}, found {found}"
    elif mask is not None and bool((mask > 1).any()):
        row = int(np.argwhere(mask > 1)[0, 0])
        yield f"row {row}: loss_mask: expected 0 or 1, found {int(mask[row].max())}"


def _check_media(samples: Samples, manifest: Manifest) -> Iterator[str]:
    expected = manifest.recipe.get("media") is not None
    if (samples.media is not None) != expected:
        wanted, found = ("some", "none") if expected else ("none", "some")
        yield f"media columns: expected {wanted}, found {found}"
    elif samples.media is not None:
        yield from check_media(samples.media, samples.tokens.shape[1])


def _check_sources(samples: Samples, manifest: Manifest) -> Iterator[str]:
    """Check that each segment names a source that can exist."""
    rules = {
        "source_dataset": (0, len(manifest.datasets)),
        "source_document": (0, None),
        "source_offset": (0, None),
        "segment_next": (-1, manifest.vocab_size),
    }
    for field, (minimum, stop) in rules.items():
        values = samples.segments[field]
        wrong = values < minimum
        if stop is not None:
            wrong |= values >= stop
        if bool(wrong.any()):
            segment = int(np.flatnonzero(wrong)[0])
            rule = f"at least {minimum}" + (f" and below {stop}" if stop is not None else "")
            yield (
                f"row {_row_of(samples, segment)}: {field}: expected {rule}, found "
                f"{int(values[segment])}"
            )


def _check_files(samples: Samples, file_counts: Sequence[int | None]) -> Iterator[str]:
    """Check that each segment's file is in the catalog of its data set."""
    for dataset, file_count in enumerate(file_counts):
        files = samples.segments["source_file"]
        wrong = (samples.segments["source_dataset"] == dataset) & (files >= (file_count or 0))
        if file_count is not None and bool(wrong.any()):
            segment = int(np.flatnonzero(wrong)[0])
            yield (
                f"row {_row_of(samples, segment)}: source_file: expected below {file_count}, the "
                f"files of data set {dataset}, found {int(files[segment])}"
            )


def _check_segments(samples: Samples) -> Iterator[str]:
    """Check that segments lie in their row, one behind the other."""
    starts = samples.segments["segment_starts"].astype(np.int64)
    lengths = samples.segments["segment_lengths"].astype(np.int64)
    if len(starts) == 0:
        return
    ends = starts + lengths
    outside = (starts < 0) | (lengths < 1) | (ends > samples.tokens.shape[1])
    rows = np.repeat(np.arange(len(samples)), np.diff(samples.segment_offsets))
    overlaps = np.zeros(len(starts), np.bool_)
    overlaps[1:] = (rows[1:] == rows[:-1]) & (starts[1:] < ends[:-1])
    for wrong, what in ((outside, "lies outside the row"), (overlaps, "overlaps the one before")):
        if bool(wrong.any()):
            segment = int(np.flatnonzero(wrong)[0])
            yield (
                f"row {_row_of(samples, segment)}: segment {what}: start {int(starts[segment])}, "
                f"length {int(lengths[segment])}, row of {samples.tokens.shape[1]} tokens"
            )


def _check_starts(samples: Samples, manifest: Manifest) -> Iterator[str]:
    """Check that segments start where the recipe's `packing.segment_multiple` lets them."""
    multiple = manifest.recipe.get("packing", {}).get("segment_multiple", 1)
    starts = samples.segments["segment_starts"]
    wrong = starts % multiple != 0
    if bool(wrong.any()):
        segment = int(np.flatnonzero(wrong)[0])
        yield (
            f"row {_row_of(samples, segment)}: segment_starts: expected multiples of {multiple}, "
            f"found {int(starts[segment])}"
        )


def _check_padding(samples: Samples, pad_id: int) -> Iterator[str]:
    """Check that every place outside segments holds the padding id."""
    padding = ~_covered(samples, samples.segments["segment_lengths"])
    wrong = padding & (samples.tokens != pad_id)
    if bool(wrong.any()):
        row, place = np.argwhere(wrong)[0].tolist()
        yield (
            f"row {row}: padding at token {place}: expected {pad_id}, found "
            f"{int(samples.tokens[row, place])}"
        )


def _check_unlabelled(samples: Samples) -> Iterator[str]:
    """Check that the mask leaves out every place that has no label."""
    if samples.loss_mask is None:
        return
    is_ended = samples.segments["segment_next"] < 0
    labelled = _covered(samples, samples.segments["segment_lengths"] - is_ended)
    wrong = ~labelled & (samples.loss_mask != 0)
    if bool(wrong.any()):
        row, place = np.argwhere(wrong)[0].tolist()
        yield f"row {row}: loss_mask at token {place}: expected 0, for it has no label, found 1"


def _covered(samples: Samples, lengths: Array) -> Array:
    """Say which places the first `lengths` tokens of the segments cover, bool[samples, seq_len]."""
    count, seq_len = samples.tokens.shape
    rows = np.repeat(np.arange(count), np.diff(samples.segment_offsets))
    starts = rows * seq_len + samples.segments["segment_starts"]
    edges = np.bincount(starts, minlength=count * seq_len + 1)
    edges -= np.bincount(starts + lengths, minlength=count * seq_len + 1)
    return np.asarray((np.cumsum(edges[:-1]) > 0).reshape(count, seq_len))


def _row_of(samples: Samples, segment: int) -> int:
    return int(np.searchsorted(samples.segment_offsets, segment, side="right")) - 1
