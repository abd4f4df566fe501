"""Shards opened on demand, checked against the stream, and kept while they are in use.

A local uncompressed shard is mapped: its arrays are views of the page cache, shared by all ranks
of a host, and rows are copied out of it once, straight into the batch. A compressed one lives
expanded in memory. The least recently used go first when there are too many maps (each holds a
file descriptor) or too many expanded bytes.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np

from zephon_beam.errors import CorruptObjectError, CorruptShardError, DriftError
from zephon_beam.layout import shard_name
from zephon_beam.manifest import Manifest
from zephon_beam.shard import (
    Array,
    Samples,
    ShardHeader,
    decode_shard_and_counts,
    verify_digest,
)
from zephon_beam.store.base import Store

SPARE_MAPS = 16
MOST_MAPS = 400
"""Below the usual limit of 1024 descriptors a process."""
EXPANDED_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A decoded shard and the stored counts of labels that count, int32[samples]."""

    samples: Samples
    valid_tokens: Array
    expanded_bytes: int
    """Memory that it holds of its own; 0 when it is mapped."""


class Shards:
    """Opens the shards of one stream."""

    def __init__(self, store: Store, manifest: Manifest, *, verify_digests: bool) -> None:
        self._store = store
        self._manifest = manifest
        self._verify_digests = verify_digests
        self._most_maps = min(manifest.lanes + SPARE_MAPS, MOST_MAPS)
        self._open: OrderedDict[tuple[int, int], OpenShard] = OrderedDict()
        self._expanded_bytes = 0

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
            return found
        found = self._load(lane, shard)
        self._open[key] = found
        self._expanded_bytes += found.expanded_bytes
        self._evict()
        return found

    def close(self) -> None:
        """Let go of every shard."""
        self._open.clear()
        self._expanded_bytes = 0

    def _evict(self) -> None:
        while len(self._open) > 1 and (
            len(self._open) > self._most_maps or self._expanded_bytes > EXPANDED_BYTES
        ):
            _, oldest = self._open.popitem(last=False)
            self._expanded_bytes -= oldest.expanded_bytes

    def _load(self, lane: int, shard: int) -> OpenShard:
        name = shard_name(lane, shard)
        try:
            data = self._store.open_mmap(name)
        except FileNotFoundError as error:
            raise CorruptObjectError(broken_stream(name, "the stream goes on after it")) from error
        header, samples, valid_tokens = decode_shard_and_counts(data, name)
        self._check(header, samples, name, lane, shard)
        if self._verify_digests:
            verify_digest(header, samples, name)
        return OpenShard(
            samples=replace(samples, tokens=_signed(samples.tokens)),
            valid_tokens=valid_tokens,
            expanded_bytes=0 if _lies_in(samples.tokens, data) else samples.tokens.nbytes * 2,
        )

    def _check(
        self, header: ShardHeader, samples: Samples, name: str, lane: int, shard: int
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
        expected = (lane, first_sample, manifest.seq_len, manifest.token_dtype, True)
        found = (
            header.lane,
            header.first_sample,
            samples.tokens.shape[1],
            samples.tokens.dtype.name,
            0 < header.count <= manifest.samples_per_shard,
        )
        if expected != found:
            raise CorruptShardError(
                f"{name} must be (lane, first sample, seq_len, dtype, count in range) "
                f"{expected!r}, got {found!r}; it belongs elsewhere; delete it and run the recipe "
                "again, which recomputes it"
            )


def broken_stream(name: str, evidence: str) -> str:
    """Word the message for a shard that ought to exist."""
    return (
        f"{name} must exist because {evidence}, found none; the stream has a hole and no step that "
        "needs it can be read; run the recipe again, which recomputes it, or, if old shards were "
        "deleted on purpose, resume from a later state"
    )


def _signed(tokens: Array) -> Array:
    """View 32-bit token ids as signed, which copies faster into batches; ids are below 2^31."""
    return tokens.view(np.int32) if tokens.dtype == np.uint32 else tokens


def _lies_in(array: Array, data: memoryview) -> bool:
    start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    address = array.__array_interface__["data"][0]
    return bool(start <= address < start + len(data))
