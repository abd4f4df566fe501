"""Shards opened on demand, checked against the stream, and kept while they are in use.

A local uncompressed shard is mapped: its arrays are views of the page cache, shared by all ranks
of a host, and rows are copied out of it once, straight into the batch. A compressed one lives
expanded in memory. Three limits keep a process small however many lanes and shards there are: the
least recently used shards are closed when there are too many maps (each holds a file descriptor)
or too many expanded bytes, and of more than a few mapped bytes the pages are given back.
"""

from collections import OrderedDict
from functools import cached_property
from mmap import MADV_DONTNEED, mmap
from typing import Any

import numpy as np

from zephon_beam.errors import CorruptObjectError, CorruptShardError, DriftError
from zephon_beam.layout import shard_name
from zephon_beam.manifest import Manifest
from zephon_beam.media.columns import MediaColumns, media_of_batch
from zephon_beam.reader.runs import MISPLACED, RowRuns, find_runs
from zephon_beam.samples import SEGMENT_COLUMNS, Array
from zephon_beam.shard import ShardHeader, expand_shard, open_batch, verify_shard
from zephon_beam.store.base import Store

IGNORED_LABEL = -100
NO_DATASET = 0xFFFF
_ROW_DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32}
SPARE_MAPS = 16
MOST_MAPS = 400
"""Below the usual limit of 1024 descriptors a process."""
EXPANDED_BYTES = 96 << 20
WARM_BYTES = 128 << 20
"""Mapped bytes whose pages this process may keep; the page cache of the host keeps the others."""


class OpenShard:
    """The columns of a shard, decoded without copying when they are first asked for."""

    def __init__(self, data: memoryview, batch: Any, name: str) -> None:
        self._batch = batch
        self._name = name
        self._segments: dict[str, Array] = {}
        tokens = self._rows("tokens")
        self.token_dtype = tokens.dtype
        # 32-bit ids are viewed as signed, which copies faster into batches; they are below 2^31.
        self.tokens = tokens.view(np.int32) if tokens.dtype == np.uint32 else tokens
        """uint16 or int32 [samples, seq_len]."""
        is_mapped = isinstance(data.obj, mmap) and np.may_share_memory(tokens, np.asarray(data))
        self._map = data.obj if is_mapped else None
        self.mapped_bytes = len(data) if is_mapped else 0
        self.expanded_bytes: int = 0 if is_mapped else batch.nbytes
        """Memory that it holds of its own."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.tokens)

    def give_pages_back(self) -> None:
        """Unload mapped pages; they load again, from the page cache, where they are read."""
        if isinstance(self._map, mmap) and hasattr(self._map, "madvise"):
            self._map.madvise(MADV_DONTNEED)

    @cached_property
    def segment_offsets(self) -> Array:
        """Bounds of each sample's segments in the segment columns, int32[samples + 1]."""
        return self._lists("segment_lengths")[0]

    @cached_property
    def valid_tokens(self) -> Array:
        """Labels that count in each sample, int32[samples]."""
        return _values(self._column("valid_tokens").buffers()[-1], np.int32, len(self))

    @cached_property
    def loss_mask(self) -> Array | None:
        """Stored mask, uint8 [samples, seq_len], or None."""
        if "loss_mask" not in self._batch.schema.names:
            return None
        mask = self._rows("loss_mask")
        if mask.shape != self.tokens.shape:
            raise self._corrupt(f"loss_mask must be {self.tokens.shape}, got {mask.shape}")
        return mask

    @cached_property
    def media(self) -> MediaColumns:
        """The images and videos of all rows."""
        try:
            found = media_of_batch(self._batch)
        except (KeyError, ValueError) as error:
            raise CorruptShardError(
                f"{self._name} must have whole media columns ({error}); its rows cannot be read; "
                "delete it and run the recipe again, which recomputes it"
            ) from error
        if found is None:
            raise CorruptShardError(
                f"{self._name} must have media columns, found none; its rows cannot be read; "
                "delete it and run the recipe again, which recomputes it"
            )
        return found

    @cached_property
    def runs(self) -> RowRuns:
        """The runs of all rows."""
        starts, lengths = self.segments("segment_starts"), self.segments("segment_lengths")
        try:
            return find_runs(self.segment_offsets, starts, lengths, self.tokens.shape[1])
        except ValueError as error:
            raise self._corrupt(str(error)) from error

    def misplaced(self) -> CorruptShardError:
        """Word the error for segments that cannot be where they say."""
        return self._corrupt(MISPLACED)

    @cached_property
    def run_datasets(self) -> Array:
        """`source_dataset` of each run, uint16[runs]; `NO_DATASET` for padding."""
        datasets = np.full(len(self.runs.numbers), NO_DATASET, np.uint16)
        datasets[self.runs.numbers > 0] = self.segments("source_dataset")
        return datasets

    @cached_property
    def last_labels(self) -> Array:
        """Label of each segment's last token, int32[segments]; -100 at a document's end."""
        following = self.segments("segment_next")
        return np.where(following < 0, IGNORED_LABEL, following)

    @cached_property
    def segment_table(self) -> Array:
        """Place in the row, length and following token of each segment, int32[3, segments]."""
        names = ("segment_starts", "segment_lengths", "segment_next")
        return np.stack([self.segments(name) for name in names])

    def segments(self, name: str) -> Array:
        """One of `zephon_beam.samples.SEGMENT_COLUMNS`, over all samples."""
        found = self._segments.get(name)
        if found is None:
            offsets, values = self._lists(name)
            count = int(self.segment_offsets[-1])
            if offsets[-1] != count:
                raise self._corrupt(f"{name} must have {count} values, got {offsets[-1]}")
            found = self._segments[name] = _values(values, SEGMENT_COLUMNS[name], count)
        return found

    def _corrupt(self, reason: str) -> CorruptShardError:
        return CorruptShardError(
            f"{self._name} is corrupt: {reason}; its rows cannot be read; delete it and run the "
            "recipe again, which recomputes it"
        )

    def _rows(self, name: str) -> Array:
        column = self._column(name)
        rows, seq_len = len(column), column.type.list_size
        dtype = _ROW_DTYPES[column.type.value_type.bit_width]
        return _values(column.buffers()[-1], dtype, rows * seq_len).reshape(rows, seq_len)

    def _lists(self, name: str) -> tuple[Array, Any]:
        """Offsets of a column of lists, int32[samples + 1], and the memory of their values."""
        column = self._column(name)
        _, offsets, _, values = column.buffers()
        return _values(offsets, np.int32, len(column) + 1), values

    def _column(self, name: str) -> Any:
        try:
            return self._batch.column(name)
        except KeyError as error:
            raise CorruptShardError(
                f"{self._name} must have the column {name!r}, got {self._batch.schema.names}; its "
                "rows cannot be read; delete it and run the recipe again, which recomputes it"
            ) from error


class Shards:
    """Opens the shards of one stream."""

    def __init__(self, store: Store, manifest: Manifest, *, verify_digests: bool) -> None:
        self._store = store
        self._manifest = manifest
        self._verify_digests = verify_digests
        self._token_dtype = np.dtype(manifest.token_dtype)
        self._most_maps = min(manifest.lanes + SPARE_MAPS, MOST_MAPS)
        self._open: OrderedDict[tuple[int, int], OpenShard] = OrderedDict()
        self._expanded_bytes = 0
        self._warm: OrderedDict[tuple[int, int], OpenShard] = OrderedDict()
        self._warm_bytes = 0

    def __len__(self) -> int:
        """Return the number of shards held open."""
        return len(self._open)

    def open(self, lane: int, shard: int) -> OpenShard:
        """Open a shard that exists, or return it from the ones held open.

        Raises:
            CorruptObjectError: it is gone, though it was seen or later ones exist.
            CorruptShardError: damaged, or not the shard that belongs there.
            DriftError: it belongs to another stream.
        """
        key = (lane, shard)
        found = self._open.get(key)
        if found is not None:
            self._open.move_to_end(key)
        else:
            found = self._open[key] = self._load(lane, shard)
            self._expanded_bytes += found.expanded_bytes
            self._evict()
        self._warm_up(key, found)
        return found

    def close(self) -> None:
        """Let go of every shard."""
        self._open.clear()
        self._warm.clear()
        self._expanded_bytes = self._warm_bytes = 0

    def _evict(self) -> None:
        while len(self._open) > 1 and (
            len(self._open) > self._most_maps or self._expanded_bytes > EXPANDED_BYTES
        ):
            key, oldest = self._open.popitem(last=False)
            self._expanded_bytes -= oldest.expanded_bytes
            if self._warm.pop(key, None) is not None:
                self._warm_bytes -= oldest.mapped_bytes

    def _warm_up(self, key: tuple[int, int], shard: OpenShard) -> None:
        """Note that a shard's pages are about to be loaded, and give back the oldest ones."""
        if key in self._warm:
            self._warm.move_to_end(key)
            return
        self._warm[key] = shard
        self._warm_bytes += shard.mapped_bytes
        while self._warm_bytes > WARM_BYTES and len(self._warm) > 1:
            _, oldest = self._warm.popitem(last=False)
            self._warm_bytes -= oldest.mapped_bytes
            oldest.give_pages_back()

    def _load(self, lane: int, shard: int) -> OpenShard:
        name = shard_name(lane, shard)
        try:
            data = self._store.open_mmap(name, expand_shard)
        except FileNotFoundError as error:
            raise CorruptObjectError(broken_stream(name, "the stream goes on after it")) from error
        self._store.expect(shard_name(lane, shard + 1), expand_shard)
        header, batch = open_batch(data, name)
        found = OpenShard(data, batch, name)
        self._check(header, found, name, lane, shard)
        if self._verify_digests:
            verify_shard(data, name)
        return found

    def _check(
        self, header: ShardHeader, opened: OpenShard, name: str, lane: int, shard: int
    ) -> None:
        """Check that a shard is the one that belongs at its name."""
        manifest = self._manifest
        if header.fingerprint != manifest.fingerprint:
            raise DriftError(
                f"fingerprint of {name}: expected {manifest.fingerprint!r} (stream.json), found "
                f"{header.fingerprint!r}; the shard was made by another recipe; restore the "
                "stream's own shard, or delete this one and run the recipe again"
            )
        first_sample = shard * manifest.samples_per_shard * manifest.lanes + lane
        expected = (lane, first_sample, manifest.seq_len, self._token_dtype, True)
        found = (
            header.lane,
            header.first_sample,
            opened.tokens.shape[1],
            opened.token_dtype,
            0 < header.count <= manifest.samples_per_shard,
        )
        if expected != found:
            raise CorruptShardError(
                f"{name} must be (lane, first sample, seq_len, dtype, count in range) "
                f"{expected}, got {found}; it belongs elsewhere; delete it and run the recipe "
                "again, which recomputes it"
            )


def broken_stream(name: str, evidence: str) -> str:
    """Word the message for a shard that ought to exist."""
    return (
        f"{name} must exist because {evidence}, found none; the stream has a hole and no step that "
        "needs it can be read; run the recipe again, which recomputes it, or, if old shards were "
        "deleted on purpose, resume from a later state"
    )


def _values(memory: Any, dtype: Any, count: int) -> Array:
    """View the first values of a buffer, which Arrow has found to be long enough."""
    return np.frombuffer(memory, dtype, count) if count else np.empty(0, dtype)
