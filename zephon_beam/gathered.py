"""Gathered pieces: choosing, shortening and joining them, and reading them back from rows.

Tokens of gathered pieces lie one behind the other, so a choice of pieces is a choice of spans:

    lengths 3 2 4   tokens aaabbcccc      chosen 2 0, at most 2 each      ccaa
"""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from zephon_beam.pieces import Array, GatheredPieces, PieceColumns
from zephon_beam.samples import Samples


def take_pieces(
    pieces: GatheredPieces, places: Array, *, most: Array | None = None
) -> GatheredPieces:
    """Return some pieces in the order given.

    Args:
        pieces: to choose from.
        places: int64[chosen].
        most: int64[chosen], tokens that are kept of each; None: all. One that is shortened ends
            its document.
    """
    lengths = pieces.lengths.astype(np.int64)
    starts = (np.cumsum(lengths) - lengths)[places]
    kept = lengths[places] if most is None else np.minimum(lengths[places], most)
    columns = {
        column.name: getattr(pieces.columns, column.name)[places] for column in fields(PieceColumns)
    }
    columns["nexts"] = np.where(kept < lengths[places], -1, columns["nexts"]).astype(np.int32)
    tokens = _places(starts, kept)
    return GatheredPieces(
        lengths=kept.astype(np.int32),
        tokens=pieces.tokens[tokens],
        loss_mask=None if pieces.loss_mask is None else pieces.loss_mask[tokens],
        columns=PieceColumns(**columns),
    )


def join_pieces(some: Sequence[GatheredPieces]) -> GatheredPieces:
    """Return the pieces of one stream one behind the other; at least one set of them."""
    masks = [pieces.loss_mask for pieces in some if pieces.loss_mask is not None]
    return GatheredPieces(
        lengths=np.concatenate([pieces.lengths for pieces in some]),
        tokens=np.concatenate([pieces.tokens for pieces in some]),
        loss_mask=np.concatenate(masks) if masks else None,
        columns=PieceColumns(
            **{
                column.name: np.concatenate(
                    [getattr(pieces.columns, column.name) for pieces in some]
                )
                for column in fields(PieceColumns)
            }
        ),
    )


def pieces_of_rows(samples: Samples, first: int) -> GatheredPieces:
    """Return the pieces of rows from one on, as they were before they were laid out.

    The mask of a document's last token, which is no label, is 0 then.
    """
    bounds = samples.segment_offsets
    mine = slice(int(bounds[first]), int(bounds[-1]))
    segments = {name: column[mine] for name, column in samples.segments.items()}
    rows = np.repeat(np.arange(first, len(samples)), np.diff(bounds[first:]))
    lengths = segments["segment_lengths"].astype(np.int64)
    starts = rows * samples.tokens.shape[1] + segments["segment_starts"]
    tokens = _places(starts, lengths)
    mask = samples.loss_mask
    return GatheredPieces(
        lengths=segments["segment_lengths"],
        tokens=samples.tokens.reshape(-1)[tokens],
        loss_mask=None if mask is None else mask.reshape(-1)[tokens],
        columns=PieceColumns(
            datasets=segments["source_dataset"],
            files=segments["source_file"],
            documents=segments["source_document"],
            outputs=segments["source_output"],
            offsets=segments["source_offset"],
            passes=segments["source_pass"],
            nexts=segments["segment_next"],
        ),
    )


def _places(starts: Array, lengths: Array) -> Array:
    """Return the places of spans one behind the other, int64[sum of lengths].

    Args:
        starts: int64[spans].
        lengths: int64[spans].
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Array = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return places
