"""DecodeMedia: from packed rows with placeholders to rows with pixels.

    PackLanes ── shards without pixels ── (shuffle) ── DecodeMedia ── WriteShards

Only lengths decide the order of a stream, so pixels are decoded last and cross no shuffle. What a
row stands for is read again from where its segments say that they come from.
"""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import PCollection

from transforms.media.records import MEDIA_KINDS, archive_name, document_key
from transforms.media.shards import ShardMedia, place_items
from transforms.media.versions import refuse_other_libraries
from transforms.stream_job import StreamJob
from transforms.write_shards import LaneCommit, is_shard, shard_commit
from zephon_beam.encode_documents import special_id
from zephon_beam.errors import BadRecordError, DriftError
from zephon_beam.layout import decode_quarantine_name
from zephon_beam.media.content import MediaFault
from zephon_beam.quarantine import encode_quarantine, same_quarantine
from zephon_beam.samples import Samples
from zephon_beam.shard import decode_shard, encode_shard
from zephon_beam.sources.documents import Quarantined, wanted_content
from zephon_beam.sources.read_record import RecordReader


class DecodeMedia(beam.PTransform[Any, Any]):
    """Put the pixels of its images and videos into each shard.

    A document with an item that passed probing and cannot be decoded keeps its place with nothing
    learned, if bad records are set aside; it is written to the quarantine.

    Element types: in LaneCommit, out LaneCommit; stateless, so shards are decoded in parallel.

    Raises:
        DriftError: a file or a library is not what it was when the documents were probed.
        BadRecordError: an item cannot be decoded, and the recipe sets none aside.

    Determinism: depends on the shard, the files and the libraries' versions alone.
    """

    def __init__(self, job: StreamJob) -> None:
        """Decode for the recipe of `job`."""
        super().__init__()
        self._job = job

    def expand(self, commits: PCollection[Any]) -> PCollection[Any]:
        """Decode a shard at a time."""
        return commits | "DecodeShards" >> beam.ParDo(_DecodeShards(self._job))


class _DecodeShards(beam.DoFn):
    def __init__(self, job: StreamJob) -> None:
        self._job = job
        self._decoded = Metrics.counter("zephon_beam", "decoded_items")
        self._failed = Metrics.counter("zephon_beam", "failed_items")

    def setup(self) -> None:
        from transforms.media.documents import decode_document
        from transforms.tokenizers.backends import load_tokenizer

        job = self._job
        manifest = job.manifest()
        refuse_other_libraries(manifest)
        self._is_fork = manifest.origin is not None
        self._decode = decode_document
        self._store = job.store()
        self._catalogs = job.catalogs()
        tokenizer = load_tokenizer(
            job.recipe.tokenizer,
            backend=job.backend,
            expected_digest=manifest.tokenizer_digest,
        )
        media = job.recipe.media
        if media is None:
            raise ValueError("recipe has no media")
        self._media = media
        self._image_id = special_id(tokenizer, media.token("image"))
        self._video_id = special_id(tokenizer, media.token("video"))
        self._kinds = [dataset.content_kind for dataset in job.recipe.datasets.values()]
        self._readers = [
            RecordReader(catalog, root, wanted_content(dataset))
            if dataset.content_kind in MEDIA_KINDS
            else None
            for catalog, root, dataset in zip(
                self._catalogs, job.roots, job.recipe.datasets.values(), strict=True
            )
        ]

    def process(self, element: LaneCommit) -> Iterator[LaneCommit]:
        if not is_shard(element):
            yield element
            return
        _, lane, number, count, state, data = element
        header, samples = decode_shard(data, f"shard {number} of lane {lane}")
        work = ShardMedia(samples)
        for segment in self._segments(samples):
            self._decode_segment(work, segment)
        if work.faults:
            name = decode_quarantine_name(lane, number)
            self._store.put_if_absent(name, encode_quarantine(work.faults), same_quarantine)
        encoded = encode_shard(
            work.finish(),
            fingerprint=header.fingerprint,
            lane=header.lane,
            first_sample=header.first_sample,
            compression=self._job.codec,
        )
        yield shard_commit(lane, number, count, state, encoded)

    def _segments(self, samples: Samples) -> list[int]:
        """Return the segments of data sets with media, those of one file together and in order."""
        columns = [samples.segments[f"source_{name}"] for name in ("document", "file", "dataset")]
        return [
            segment
            for segment in np.lexsort(columns).tolist()
            if self._readers[int(columns[2][segment])] is not None
        ]

    def _decode_segment(self, work: ShardMedia, segment: int) -> None:
        row, start, tokens = work.segment(segment)
        places = np.flatnonzero(np.isin(tokens, (self._image_id, self._video_id)))
        dataset, file, locator, pass_number = work.source(segment)
        reader = self._readers[dataset]
        if not len(places) or reader is None:
            return
        root, catalog, recipe = self._job.roots[dataset], self._catalogs[dataset], self._job.recipe
        name, dataset_name = catalog.file_name(file), recipe.dataset_names[dataset]
        where = f"datasets.{dataset_name}: {name!r}, document at {locator}"
        try:
            key = document_key(recipe.seed, dataset_name, name, locator, pass_number)
            archive, kind = archive_name(catalog.format, name), self._kinds[dataset]
            text = reader.read(file, locator)
            decoded = self._decode(text, root, self._media, archive, key, kind)
        except MediaFault as fault:
            raise DriftError(
                f"{where}: expected media as they were probed, found: {fault}; the stream was "
                "built from other content; restore the file"
            ) from fault
        placed = place_items(
            [item.item for item in decoded],
            tokens[places] == self._video_id,
            are_told=self._image_id != self._video_id,
            lost_tokens=self._lost_tokens(dataset, len(tokens)),
        )
        if placed is None:
            expected = sum(item.item.tokens for item in decoded)
            raise DriftError(
                f"{where}: expected {len(places)} placeholders, found {expected}; media were "
                "replaced after they were probed; restore the files"
            )
        for item, first in placed:
            work.add(row, start + int(places[first]), decoded[item])
        self._decoded.inc(len(placed))
        failures = [decoded[item].failure for item, _ in placed]
        failure = next((found for found in failures if found is not None), None)
        if failure is not None:
            self._failed.inc(sum(found is not None for found in failures))
            self._fail(work, segment, name, locator, failure)

    def _lost_tokens(self, dataset: int, length: int) -> int | None:
        """Return by how much a segment that may be cut is shorter than a row; see `place_items`."""
        recipe = self._job.recipe
        if self._kinds[dataset] != "messages":
            return None
        if self._is_fork:
            # What it took over may have been cut by shorter rows than its own.
            return 0
        return recipe.seq_len - length if recipe.chat.overlong == "truncate" else None

    def _fail(
        self, work: ShardMedia, segment: int, file: str, locator: int, fault: MediaFault
    ) -> None:
        message = (
            f"{file!r}, document at {locator}: {fault}; its frames passed probing and cannot be "
            "decoded; mend the file, or set bad_records.action: quarantine, then run the recipe "
            "into a new place"
        )
        if self._job.recipe.bad_records.action != "quarantine":
            raise BadRecordError(message, file=file, locator=locator, reason=fault.reason)
        work.mask(segment)
        entry = Quarantined(
            place=segment, file=file, locator=locator, reason=fault.reason, message=message
        )
        work.faults.append(entry)
