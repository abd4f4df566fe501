"""Finding every fault of a stream, and the one digest that names its content.

Works on a live stream. Shards are read in global order, one at a time; besides the open shard only
the row digests of one shard of each lane are kept, 16 bytes a sample.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from zephon_beam.catalog.table import Catalog
from zephon_beam.errors import CorruptObjectError, RecipeError, StreamNotFoundError
from zephon_beam.fingerprint import manifest_fingerprint
from zephon_beam.inspection import deleted_tokens, tokens_of_datasets
from zephon_beam.lane_listing import LaneListing, global_order, list_lanes, read_end
from zephon_beam.lane_state import LaneState, decode_state
from zephon_beam.layout import MANIFEST, catalog_name, end_name, shard_name, state_name
from zephon_beam.manifest import Manifest, read_manifest
from zephon_beam.origin import origin_fault
from zephon_beam.recipe_mapping import recipe_from_mapping
from zephon_beam.retained import first_retained_sample
from zephon_beam.samples import DIGEST_BYTES, row_digests
from zephon_beam.shard import decode_shard_and_counts
from zephon_beam.shard_checks import check_header, check_rows
from zephon_beam.store.base import Store, open_store

_FOLDERS = ("shards/", "end/")


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """What a verification found."""

    faults: tuple[str, ...]
    """One line each, starting with the name of the object at fault."""
    complete_samples: int
    """Length of the gapless global prefix."""
    first_sample: int
    """Sample from which on no shard was deleted; the digest begins with it."""
    samples: int
    """Where the digest ends: the samples asked for, or the whole prefix."""
    shards: int
    """Shards that were read."""
    stream_digest: str | None
    """Digest of the rows of samples [first_sample, samples) in global order; None if some cannot be
    read."""

    @property
    def ok(self) -> bool:
        """Whether the stream is without fault."""
        return not self.faults


def verify_stream(
    uri: str,
    until_samples: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check every object that a reader relies on, and digest the samples in global order.

    Args:
        uri: of the stream.
        until_samples: look only at the first so many samples, at least 1; None: at all. Names of
            objects are always checked.
        progress: called with the shards read so far and the shards there are.

    Returns:
        All faults, and the digest: BLAKE2b over the logical digests of the rows, so that streams
        stored in shards of other sizes or codecs compare.

    Raises:
        StreamNotFoundError: there is nothing at that place.
        RecipeError: `until_samples` is not positive.

    Determinism: the digest depends on the samples alone.
    """
    if until_samples is not None and until_samples < 1:
        raise RecipeError(
            f"until_samples must be at least 1, got {until_samples!r}; it counts samples from the "
            "stream's start"
        )
    store = open_store(uri)
    try:
        verification = _Verification(store, read_manifest(store), until_samples)
    except StreamNotFoundError:
        if next(iter(store.list("shards/")), None) is None:
            raise
        return _hopeless(f"{MANIFEST} is missing; nothing can be read without it")
    except CorruptObjectError as error:
        return _hopeless(str(error))
    return verification.run(progress)


class _Verification:
    """One look at a stream, gathering faults."""

    def __init__(self, store: Store, manifest: Manifest, until: int | None) -> None:
        self._store = store
        self._manifest = manifest
        self._faults: list[str] = []
        lengths = [self._end(lane) for lane in range(manifest.lanes)]
        self._lanes = list_lanes(store, manifest, lengths)
        self._present = [frozenset(lane.shards) for lane in self._lanes]
        self._order = global_order(self._lanes)
        self._complete = self._order.complete_prefix([lane.committed for lane in self._lanes])
        self._first = first_retained_sample(
            self._order, [lane.first for lane in self._lanes], manifest.samples_per_shard
        )
        self._until = until
        self._tokens = np.zeros((manifest.lanes, max(1, len(manifest.datasets))), np.int64)
        self._uncounted: set[int] = set()
        """Lanes of which the tokens before their first shard are unknown."""
        self._file_counts: list[int | None] = []
        self._read = 0

    def run(self, progress: Callable[[int, int], None] | None) -> VerifyReport:
        self._check_manifest()
        self._file_counts = self._check_catalogs()
        self._check_names()
        for lane in self._lanes:
            self._check_listing(lane)
            self._count_deleted(lane)
        wanted = self._complete if self._until is None else self._until
        if wanted > self._complete:
            self._fault(
                f"samples: expected at least {wanted} complete ones, found {self._complete}; run "
                "the recipe again to go on"
            )
        digest = self._read_in_order(min(wanted, self._complete), progress)
        return VerifyReport(
            faults=tuple(self._faults),
            complete_samples=self._complete,
            first_sample=self._first,
            samples=wanted,
            shards=self._read,
            stream_digest=digest if wanted <= self._complete else None,
        )

    def _fault(self, text: str) -> None:
        self._faults.append(text)

    def _end(self, lane: int) -> int | None:
        try:
            return read_end(self._store, lane)
        except CorruptObjectError as error:
            self._fault(str(error))
            return None

    def _check_manifest(self) -> None:
        """Recompute the fingerprint from what the manifest says."""
        manifest = self._manifest
        try:
            recipe = recipe_from_mapping(manifest.recipe, origin=f"{MANIFEST}: recipe")
            found = manifest_fingerprint(manifest, recipe)
            if found != manifest.fingerprint:
                self._fault(
                    f"{MANIFEST}: fingerprint: expected {found}, found {manifest.fingerprint}; it "
                    "was altered after the stream was created"
                )
        except ValueError as error:
            self._fault(f"{MANIFEST}: {error}")
        if manifest.origin is not None:
            fault = origin_fault(self._store, manifest.origin, manifest.lanes, manifest.fingerprint)
            if fault is not None:
                self._fault(fault)

    def _check_catalogs(self) -> list[int | None]:
        """Compare the catalogs with their digests; return the number of files of each."""
        counts: list[int | None] = []
        for dataset in self._manifest.datasets:
            name = catalog_name(dataset.name)
            try:
                catalog = Catalog.from_buffer(self._store.open_mmap(name), name)
                catalog.verify(name)
            except FileNotFoundError:
                self._fault(f"{name} is missing; the stream cannot be continued or traced")
                counts.append(None)
                continue
            except CorruptObjectError as error:
                self._fault(str(error))
                counts.append(None)
                continue
            counts.append(catalog.file_count)
            if catalog.digest != dataset.catalog_digest:
                self._fault(
                    f"{name}: digest: expected {dataset.catalog_digest}, found {catalog.digest}; "
                    "it is the catalog of other sources"
                )
        return counts

    def _check_names(self) -> None:
        """Find objects that belong to no lane or have no number."""
        known = {end_name(lane) for lane in range(self._manifest.lanes)}
        for name in (name for folder in _FOLDERS for name in self._store.list(folder)):
            lane, shard = _place(name)
            listed = 0 <= lane < len(self._lanes) and name == shard_name(lane, max(0, shard))
            if name not in known and not listed:
                self._fault(
                    f"{name} must be named like {shard_name(0, 0)} with a lane below "
                    f"{self._manifest.lanes}; nothing reads it"
                )

    def _check_listing(self, lane: LaneListing) -> None:
        """Find holes in a lane's numbers and a length that does not fit its shards."""
        last = lane.shards[-1] if lane.shards else lane.first - 1
        shard_count = -(-(lane.length or 0) // self._manifest.samples_per_shard)
        for before, after in pairwise((lane.first - 1, *lane.shards)):
            stop = after if lane.length is None else min(after, shard_count)
            self._check_gap(lane, before + 1, stop, f"shard {after} of lane {lane.lane} exists")
        if lane.length is None:
            return
        for shard in lane.shards:
            if shard >= shard_count:
                self._fault(
                    f"{shard_name(lane.lane, shard)} lies beyond the end of lane {lane.lane}, "
                    f"which has {lane.length} samples ({end_name(lane.lane)})"
                )
        evidence = f"lane {lane.lane} ended with {_samples(lane.length)}; a run may still write it"
        self._check_gap(lane, last + 1, shard_count, evidence)

    def _count_deleted(self, lane: LaneListing) -> None:
        """Count the tokens of the shards that were deleted, which later states include."""
        try:
            self._tokens[lane.lane, : len(self._manifest.datasets)] += deleted_tokens(
                self._store, self._manifest, lane
            )
        except CorruptObjectError as error:
            self._uncounted.add(lane.lane)
            self._fault(str(error))

    def _check_gap(self, lane: LaneListing, first: int, stop: int, evidence: str) -> None:
        """Report shards [first, stop) of a lane as missing, with the samples that they hold."""
        if first >= stop:
            return
        size = self._manifest.samples_per_shard
        last_sample = stop * size if lane.length is None else min(stop * size, lane.length)
        held = _samples(last_sample - first * size)
        text = f"{shard_name(lane.lane, first)} is missing ({held})"
        if stop - first > 1:
            text = (
                f"{shard_name(lane.lane, first)} … {shard_name(lane.lane, stop - 1)} are missing "
                f"({stop - first} shards, {held})"
            )
        self._fault(f"{text}, though {evidence}")

    def _read_in_order(
        self, samples: int, progress: Callable[[int, int], None] | None
    ) -> str | None:
        """Check shards row by row of the lanes; return the digest of the first samples."""
        state = blake2b(digest_size=DIGEST_BYTES)
        size = self._manifest.samples_per_shard
        unreadable = False
        for number in sorted({n for lane in self._lanes for n in lane.shards}):
            rows = {lane.lane: self._check(lane, number) for lane in self._lanes}
            if progress is not None:
                progress(self._read, sum(len(lane.shards) for lane in self._lanes))
            first = max(self._first, self._order.number_of(0, number * size))
            stop = min(samples, self._order.number_of(0, (number + 1) * size))
            if first >= stop or unreadable:
                continue
            lanes, indices = self._order.locate(first, stop)
            for lane, index in zip(lanes.tolist(), indices.tolist(), strict=True):
                digests = rows[lane]
                if digests is None:
                    unreadable = True
                    break
                state.update(digests[index - number * size])
        return None if unreadable else state.hexdigest()

    def _check(self, lane: LaneListing, number: int) -> list[bytes] | None:
        """Check a shard and its lane state if they are looked at; return its row digests."""
        first = number * self._manifest.samples_per_shard
        if number not in self._present[lane.lane]:
            return None
        if self._until is not None and self._order.number_of(lane.lane, first) >= self._until:
            return None
        count = self._expected_count(lane, number)
        digests = self._check_shard(lane.lane, number, count) if count else None
        if count:
            self._check_state(lane, number, first + count)
        return digests

    def _expected_count(self, lane: LaneListing, number: int) -> int:
        """Samples that a shard must hold; 0 beyond the lane's end.

        The last shard of a lane whose end is not written yet may be short.
        """
        size = self._manifest.samples_per_shard
        if lane.length is not None:
            return max(0, min(size, lane.length - number * size))
        return size if number != lane.gapless - 1 else max(1, lane.committed - number * size)

    def _check_shard(self, lane: int, number: int, count: int) -> list[bytes] | None:
        name = shard_name(lane, number)
        self._read += 1
        try:
            data = self._store.open_mmap(name)
            header, samples, valid_tokens = decode_shard_and_counts(data, name)
        except (CorruptObjectError, FileNotFoundError) as error:
            # Its tokens are unknown, and so is what the states behind it ought to say.
            self._uncounted.add(lane)
            self._fault(str(error))
            return None
        index = number * self._manifest.samples_per_shard
        for fault in check_header(header, self._manifest, lane, index, count):
            self._fault(f"{name}: {fault}")
        if samples.tokens.shape[1:] != (self._manifest.seq_len,):
            self._fault(
                f"{name}: row length: expected {self._manifest.seq_len} tokens, found "
                f"{samples.tokens.shape[1]}"
            )
            return None
        digests = row_digests(samples)
        found = blake2b(b"".join(digests), digest_size=DIGEST_BYTES).hexdigest()
        if found != header.digest:
            self._fault(
                f"{name}: digest: expected {header.digest}, found {found}; its content was "
                "altered; delete it and run the recipe again, which makes the same bytes"
            )
        for fault in check_rows(samples, valid_tokens, self._manifest, self._file_counts):
            self._fault(f"{name}: {fault}")
        datasets = samples.segments["source_dataset"]
        inside = datasets < self._tokens.shape[1]
        lengths = samples.segments["segment_lengths"]
        self._tokens[lane] += tokens_of_datasets(
            datasets[inside], lengths[inside], self._tokens.shape[1]
        )
        return digests if len(digests) == count else None

    def _check_state(self, lane: LaneListing, number: int, samples: int) -> None:
        """Check that a lane state belongs to its shard and accounts for every token."""
        name = state_name(lane.lane, number)
        try:
            state = decode_state(self._store.get(name), name)
        except FileNotFoundError:
            self._fault(f"{name} is missing, though its shard exists; nothing can go on from it")
            return
        except CorruptObjectError as error:
            self._fault(str(error))
            return
        expected = {
            "fingerprint": self._manifest.fingerprint,
            "lane": lane.lane,
            "samples": samples,
            "number of data sets": len(self._manifest.datasets),
        }
        found = {
            "fingerprint": state.fingerprint,
            "lane": state.lane,
            "samples": state.samples,
            "number of data sets": len(state.datasets),
        }
        for field, value in expected.items():
            if found[field] != value:
                self._fault(f"{name}: {field}: expected {value}, found {found[field]}")
        if number < lane.gapless and found == expected and lane.lane not in self._uncounted:
            self._check_account(state, name)

    def _check_account(self, state: LaneState, name: str) -> None:
        """Check that read = in packs + waiting + truncated + dropped, for each data set."""
        waiting = tokens_of_datasets(
            state.pieces.columns.datasets, state.pieces.lengths, len(state.datasets)
        )
        for place, dataset in enumerate(self._manifest.datasets):
            counters = state.datasets[place].counters
            parts = (
                int(self._tokens[state.lane, place]),
                int(waiting[place]),
                counters.truncated_tokens,
                counters.dropped_tokens,
            )
            if counters.read_tokens != sum(parts):
                self._fault(
                    f"{name}: tokens read of {dataset.name}: expected {sum(parts)} ({parts[0]} in "
                    f"packs, {parts[1]} waiting, {parts[2]} truncated, {parts[3]} dropped), found "
                    f"{counters.read_tokens}"
                )


def _hopeless(fault: str) -> VerifyReport:
    return VerifyReport(
        faults=(fault,), complete_samples=0, first_sample=0, samples=0, shards=0, stream_digest=None
    )


def _samples(number: int) -> str:
    return "1 sample" if number == 1 else f"{number} samples"


def _place(name: str) -> tuple[int, int]:
    """Return the lane and the number in a shard's name, -1 for what is not there."""
    _, _, rest = name.partition("/lane-")
    lane, _, file = rest.partition("/")
    number = file.partition(".")[0]
    return _digits(lane), _digits(number)


def _digits(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else -1
