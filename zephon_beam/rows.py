"""Rows: how finished packs become the samples of a shard.

Segments stand one behind the other from the row's start; with `segment_multiple` m each begins at
a multiple of m, and what is left between and behind them is padding:

    m = 1   a a a b b c c c c · · ·
    m = 4   a a a · b b · · c c c c
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from zephon_beam.lane_config import LaneConfig
from zephon_beam.pieces import Array, Piece
from zephon_beam.samples import SEGMENT_COLUMNS, Samples
from zephon_beam.views import Views


def build_samples(packs: Sequence[Sequence[Piece]], config: LaneConfig, views: Views) -> Samples:
    """Lay packs out as rows.

    Returns:
        Samples with tokens [packs, seq_len]; what no segment covers is `pad_id`.
    """
    found = views.find(list(chain.from_iterable(packs)))
    counts = np.array([len(pack) for pack in packs], np.int64)
    lengths, columns = found.lengths, found.columns
    offsets = np.concatenate(([0], np.cumsum(counts)))
    starts, gaps = _places(lengths, offsets, config)
    filler = np.full(config.seq_len, config.pad_id, config.token_dtype).data
    tokens = np.frombuffer(_join(found.tokens, gaps, filler), config.token_dtype)
    mask = None
    if found.loss_masks is not None:
        joined = _join(found.loss_masks, gaps, memoryview(bytes(config.seq_len)))
        mask = np.frombuffer(joined, np.uint8).reshape(len(packs), config.seq_len).copy()
        # The mask is that of the label at its place, and what a document ends with has none.
        ended = columns.nexts < 0
        rows = np.repeat(np.arange(len(packs)), counts)
        mask[rows[ended], (starts + lengths - 1)[ended]] = 0
    segments = {
        "segment_starts": starts.astype(np.int32),
        "segment_lengths": lengths.astype(np.int32),
        "source_dataset": columns.datasets,
        "source_file": columns.files,
        "source_document": columns.documents,
        "source_output": columns.outputs,
        "source_offset": columns.offsets,
        "source_pass": columns.passes,
        "segment_next": columns.nexts,
    }
    return Samples(
        tokens=tokens.reshape(len(packs), config.seq_len),
        segment_offsets=offsets,
        segments={name: segments[name] for name in SEGMENT_COLUMNS},
        loss_mask=mask,
    )


def _places(lengths: Array, offsets: Array, config: LaneConfig) -> tuple[Array, Array]:
    """Return the start of each segment in its row, and the padding behind each, int64[segments].

    Args:
        lengths: int64[segments], tokens of each.
        offsets: int64[rows + 1], bounds of each row's segments; no row is without one.
        config: of the lane.
    """
    sizes = lengths + -lengths % config.segment_multiple
    ends = np.concatenate(([0], np.cumsum(sizes)))
    starts = ends[:-1] - np.repeat(ends[offsets[:-1]], np.diff(offsets))
    following = np.full(len(lengths), config.seq_len, np.int64)
    following[:-1] = starts[1:]
    following[offsets[1:] - 1] = config.seq_len
    return starts, following - starts - lengths


def _join(spans: list[memoryview], gaps: Array, filler: memoryview) -> bytes:
    """Copy spans one behind the other, each followed by so many values of the filler."""
    joined: list[memoryview] = []
    done = 0
    places = np.flatnonzero(gaps)
    for place, gap in zip(places.tolist(), gaps[places].tolist(), strict=True):
        joined += spans[done : place + 1]
        joined.append(filler[:gap])
        done = place + 1
    joined += spans[done:]
    return b"".join(joined)
