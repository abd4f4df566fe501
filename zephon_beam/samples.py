"""Samples as arrays, and their digests.

Digests are *logical*: they cover values, not a file's bytes, so samples that are stored in shards
of other sizes or with another codec have the same ones.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.media.columns import MediaColumns, media_rows

DIGEST_BYTES = 16

SEGMENT_COLUMNS: dict[str, Any] = {
    "segment_starts": np.int32,
    "segment_lengths": np.int32,
    "source_dataset": np.uint16,
    "source_file": np.uint32,
    "source_document": np.int64,
    "source_output": np.uint32,
    "source_offset": np.int32,
    "source_pass": np.uint32,
    "segment_next": np.int32,
}
"""Columns with one value per segment, each list<dtype>, in file order.

`segment_starts` and `segment_lengths` place a segment in its row; the rest of the row is padding.
`source_dataset` is the place in the recipe's order, `source_file` the place in the catalog,
`source_document` the locator inside the file, `source_output` the number among the documents that
a transform made of that record, `source_offset` the piece's first token within its document,
`source_pass` the pass over the data set, `segment_next` the token that follows the piece in its
document (-1 at the document's end).
"""

Array = npt.NDArray[Any]

_SEGMENT_RECORD = np.dtype(
    [(name, np.dtype(dtype).newbyteorder("<")) for name, dtype in SEGMENT_COLUMNS.items()]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Consecutive samples of one lane as flat arrays; immutable by convention.

    tokens: uint16 or uint32 [samples, seq_len].
    segment_offsets: int64[samples + 1], bounds of each sample's segments in the segment arrays.
    segments: one array of length segment_offsets[-1] for each of `SEGMENT_COLUMNS`.
    loss_mask: uint8 [samples, seq_len] or None; belongs to the label at its place.
    media: the images and videos of the rows, or None if the recipe has none.
    """

    tokens: Array
    segment_offsets: Array
    segments: dict[str, Array]
    loss_mask: Array | None = None
    media: MediaColumns | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.tokens)

    @property
    def valid_tokens(self) -> Array:
        """Labels that count in each sample, int32[samples].

        Every token of a segment has a label except the last one of a document; a loss mask leaves
        out those that are not to be learned.
        """
        labelled = self.segments["segment_lengths"].astype(np.int64)
        labelled -= self.segments["segment_next"] < 0
        if self.loss_mask is not None:
            labelled = self._masked_labels(labelled)
        sums = np.concatenate(([0], np.cumsum(labelled)))
        return (sums[self.segment_offsets[1:]] - sums[self.segment_offsets[:-1]]).astype(np.int32)

    def _masked_labels(self, labelled: Array) -> Array:
        """Count the learned labels of each segment, int64[segments]."""
        rows = np.repeat(np.arange(len(self)), np.diff(self.segment_offsets))
        flat = np.asarray(self.loss_mask).reshape(-1)
        sums = np.concatenate(([0], np.cumsum(flat, dtype=np.int64)))
        first = rows * self.tokens.shape[1] + self.segments["segment_starts"]
        return np.asarray(sums[first + labelled] - sums[first])


def row_digests(samples: Samples) -> list[bytes]:
    """Hash the logical content of every row, 16 bytes each.

    A row's content is its tokens, the number of its segments, each segment's values in the order
    of `SEGMENT_COLUMNS`, its loss mask if it has one, and its media if the recipe has any; all
    little-endian.
    """
    tokens = np.ascontiguousarray(samples.tokens).astype(_little(samples.tokens.dtype), copy=False)
    records = np.empty(samples.segment_offsets[-1], _SEGMENT_RECORD)
    for name in SEGMENT_COLUMNS:
        records[name] = samples.segments[name]
    segments = memoryview(records.view(np.uint8).data)
    width = _SEGMENT_RECORD.itemsize
    bounds = samples.segment_offsets.tolist()
    media = iter(() if samples.media is None else media_rows(samples.media))
    digests = []
    for row in range(len(samples)):
        first, last = bounds[row], bounds[row + 1]
        state = blake2b(tokens[row].data, digest_size=DIGEST_BYTES)
        state.update((last - first).to_bytes(4, "little"))
        state.update(segments[first * width : last * width])
        if samples.loss_mask is not None:
            state.update(np.ascontiguousarray(samples.loss_mask[row]).data)
        for item_values in next(media, ()):
            state.update(item_values)
        digests.append(state.digest())
    return digests


def digest_of_rows(digests: list[bytes]) -> str:
    """Fold row digests into one, in order; also the stream digest over global order."""
    return blake2b(b"".join(digests), digest_size=DIGEST_BYTES).hexdigest()


def _little(dtype: Any) -> Any:
    return np.dtype(dtype).newbyteorder("<")
