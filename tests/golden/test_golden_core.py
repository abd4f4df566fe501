"""The bytes of the golden stream, made by the core alone: no Beam, no tokenizer library, no YAML.

These values hold for every supported Python, NumPy, PyArrow and fastavro. A test that fails here
has changed the format of streams: every stream in use could no longer be continued. Then the
format version must change, and the old values stay beside the new ones.
"""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon_beam.catalog.scan import data_root, list_files, scan_file
from zephon_beam.catalog.table import Catalog, build_catalog, derive_chunk_bytes
from zephon_beam.chunk_order import ChunkOrder, document_order
from zephon_beam.fingerprint import fingerprint
from zephon_beam.lane import LaneProcess, ShardDraft
from zephon_beam.lane_config import LaneConfig, make_lane_config
from zephon_beam.lane_state import encode_state
from zephon_beam.manifest import FORMAT_VERSION, DatasetManifest, Manifest
from zephon_beam.recipe import Recipe
from zephon_beam.recipe_mapping import recipe_from_mapping, recipe_to_mapping
from zephon_beam.sample_order import SampleOrder
from zephon_beam.samples import digest_of_rows, row_digests
from zephon_beam.sequences import PartKey, SequencePart
from zephon_beam.shard import decode_header, encode_shard
from zephon_beam.sources.documents import Content
from zephon_beam.sources.read_part import read_part
from zephon_beam.tokenizer import Framing, frame_documents

FOLDER = Path(__file__).parent
EOS = 256
RECIPE: dict[str, Any] = {
    "name": "golden-core",
    "seed": 20240229,
    "lanes": 2,
    "seq_len": 64,
    "samples_per_shard": 64,
    "chunk_bytes": 512,
    "tokenizer": {"path": "bytes", "eos": EOS},
    "datasets": {
        "notes": {
            "files": "corpus/notes/*.jsonl",
            "format": "jsonl",
            "text": "body",
            "weight": "0.6",
            "passes": 2,
        },
        "tales": {
            "files": "corpus/tales/**/*.txt",
            "format": "text",
            "weight": "0.4",
            "passes": 2,
        },
    },
    "mixing": {
        "schedule": [{"at_sample": 40, "weights": {"notes": "1", "tales": "2"}}],
    },
    "shuffle": {"interleave": 2},
    "packing": {"open_bins": 4},
}

CATALOGS = {
    "notes": "a6503779948a46e596fe9670d31b18d7",
    "tales": "89b837f50720ea33a7831f1ebc033839",
}
CHUNKS_OF_LANE_1 = {
    "notes": [
        (0, 8),
        (0, 7),
        (0, 5),
        (0, 0),
        (0, 9),
        (0, 2),
        (1, 11),
        (1, 3),
        (1, 4),
        (1, 9),
        (1, 2),
        (1, 10),
    ],
    "tales": [(0, 3), (0, 0), (1, 3), (1, 0), (1, 2)],
}
DOCUMENTS = [11, 9, 2, 5, 8, 10, 0, 3, 1, 6, 4, 7]
FINGERPRINT = "734fd931998b9b6d34b863b1da7df643"
STREAM = "153603833ad46b583c65112df0a97534"
SHARDS = {
    "0/0": ("965a1c305eb54aaa4296a903027318a0", "3f1f17d19ab6a24f", "1a1ac10ee2902b95"),
    "0/1": ("cde4fafb062aee59c18342ce68b8f6d1", "936bf43a16725fdb", "1c4fc56fda6ad803"),
    "1/0": ("b244e94d3ae374e4e5ae0f7d45399c7d", "3161d608194a19eb", "2f7ecb8ada13b191"),
    "1/1": ("8775989bfaa5f3c33b678096318ec487", "2a0e12fa617a654c", "fc023b25a0ee7213"),
    "1/2": ("c075eb967081cafeb0466bbe2fca8339", "9e1c49f604a8f53c", "3bfe9e2891a060be"),
}
"""(logical digest, digest of the shard's file, digest of the lane state after it)."""


class Core:
    """The golden stream in memory."""

    def __init__(self) -> None:
        """Read the corpus and run both lanes."""
        self.recipe: Recipe = recipe_from_mapping(RECIPE, base=str(FOLDER))
        self.roots = [data_root(dataset.patterns) for dataset in self.recipe.datasets.values()]
        self.catalogs = [self._catalog(name) for name in self.recipe.datasets]
        self.orders = [self._order(place) for place in range(len(self.catalogs))]
        self.manifest = self._manifest()
        self.config: LaneConfig = make_lane_config(self.recipe, self.manifest)
        self.drafts: list[ShardDraft] = []
        self.lengths = []
        for lane in range(self.recipe.lanes):
            process = LaneProcess(self.config, lane)
            for part in self.parts(lane):
                process.offer(part)
            self.drafts.extend(process.take_shards())
            assert process.ended
            self.lengths.append(process.samples)

    def shard(self, draft: ShardDraft) -> bytes:
        """Encode a shard as the pipeline does."""
        return encode_shard(
            draft.samples,
            fingerprint=self.config.fingerprint,
            lane=draft.lane,
            first_sample=draft.first_index * self.config.lanes + draft.lane,
        )

    def parts(self, lane: int) -> Iterator[SequencePart]:
        """Yield every part of a lane, the last one first: order is the lane's own affair."""
        names = self.recipe.dataset_names
        for dataset, (catalog, order) in enumerate(zip(self.catalogs, self.orders, strict=True)):
            for number in reversed(range(order.count(lane) or 0)):
                pass_number, chunk = order.position(lane, number) or (0, 0)
                for part in reversed(range(catalog.part_count(chunk))):
                    key = PartKey(dataset=dataset, number=number, part=part)
                    yield self._part(names[dataset], key, pass_number, chunk)

    def _part(self, name: str, key: PartKey, pass_number: int, chunk: int) -> SequencePart:
        catalog, root = self.catalogs[key.dataset], self.roots[key.dataset]
        field = self.recipe.datasets[name].text
        documents = read_part(catalog, root, chunk, key.part, content=Content(field=field))
        order = document_order(
            seed=self.recipe.seed,
            dataset=name,
            pass_=pass_number,
            chunk=chunk,
            part=key.part,
            count=len(documents.texts),
            shuffle=True,
        )
        texts = [documents.texts[place].encode() for place in order.tolist()]
        ids = np.frombuffer(b"".join(texts), np.uint8).astype(np.uint32)
        bounds = np.cumsum([0, *map(len, texts)]).astype(np.int64)
        tokens, offsets = frame_documents((ids, bounds), Framing(bos=None, eos=EOS), np.uint16)
        return SequencePart(
            key=key,
            last=documents.last,
            pass_number=pass_number,
            source_bytes=documents.source_bytes,
            tokens=tokens,
            offsets=offsets,
            files=documents.files[order],
            locators=documents.locators[order],
            outputs=np.zeros(len(texts), np.uint32),
        )

    def _catalog(self, name: str) -> Catalog:
        dataset = self.recipe.datasets[name]
        scans = [scan_file(path, dataset.format) for path in list_files(dataset.patterns)]
        data = build_catalog(
            name,
            dataset.format,
            data_root(dataset.patterns),
            scans,
            chunk_bytes=derive_chunk_bytes(self.recipe, sum(scan.size for scan in scans)),
        )
        return Catalog.from_buffer(data, name)

    def _order(self, place: int) -> ChunkOrder:
        name = self.recipe.dataset_names[place]
        return ChunkOrder(
            seed=self.recipe.seed,
            dataset=name,
            chunk_count=self.catalogs[place].chunk_count,
            lanes=self.recipe.lanes,
            shuffle=True,
            passes=int(self.recipe.datasets[name].passes),
        )

    def _manifest(self) -> Manifest:
        recipe = self.recipe
        datasets = [
            DatasetManifest(
                name=catalog.dataset,
                format=catalog.format,
                root="",
                weight=str(recipe.datasets[catalog.dataset].weight),
                chunk_bytes=catalog.chunk_bytes,
                part_rows=catalog.part_rows,
                chunk_count=catalog.chunk_count,
                source_bytes=catalog.source_bytes,
                catalog_digest=catalog.digest,
            )
            for catalog in self.catalogs
        ]
        return Manifest(
            name=recipe.name,
            fingerprint=fingerprint(
                recipe,
                tokenizer_digest="bytes",
                catalog_digests={entry.name: entry.catalog_digest for entry in datasets},
                format_version=FORMAT_VERSION,
            ),
            lanes=recipe.lanes,
            seq_len=recipe.seq_len,
            samples_per_shard=recipe.shard_samples,
            token_dtype="uint16",
            vocab_size=EOS + 1,
            pad_id=0,
            eos_id=EOS,
            bos_id=None,
            has_loss_mask=False,
            tokenizer_digest="bytes",
            recipe=recipe_to_mapping(recipe),
            datasets=datasets,
        )


@pytest.fixture(scope="module")
def core() -> Core:
    """Return the golden stream."""
    return Core()


def digest(data: bytes) -> str:
    """Hash stored bytes."""
    return blake2b(data, digest_size=8).hexdigest()


def test_catalogs_are_pinned(core: Core) -> None:
    """Names, sizes, identities and cuts of the corpus."""
    assert {catalog.dataset: catalog.digest for catalog in core.catalogs} == CATALOGS


def test_orders_are_pinned(core: Core) -> None:
    """The chunks of a lane's channels and the documents of a part."""
    found = {
        name: [order.position(1, number) for number in range(order.count(1) or 0)]
        for name, order in zip(core.recipe.datasets, core.orders, strict=True)
    }
    assert found == CHUNKS_OF_LANE_1
    order = document_order(
        seed=20240229, dataset="notes", pass_=1, chunk=3, part=0, count=12, shuffle=True
    )
    assert order.tolist() == DOCUMENTS


def test_the_fingerprint_is_pinned(core: Core) -> None:
    """Recipe, tokenizer, catalogs and format version under one name."""
    assert core.manifest.fingerprint == FINGERPRINT


def test_shards_and_lane_states_are_pinned(core: Core) -> None:
    """Logical content and stored bytes, of every shard and of the state after it."""
    found = {}
    for draft in core.drafts:
        shard = core.shard(draft)
        header = decode_header(shard, "shard")
        found[f"{draft.lane}/{draft.shard}"] = (
            header.digest,
            digest(shard),
            digest(encode_state(draft.state)),
        )
    assert found == SHARDS


def test_the_stream_digest_is_pinned(core: Core) -> None:
    """All samples in global order."""
    rows = [
        [row for draft in core.drafts if draft.lane == lane for row in row_digests(draft.samples)]
        for lane in range(core.recipe.lanes)
    ]
    order = SampleOrder(core.recipe.lanes, core.lengths)
    lanes, indices = order.locate(0, order.total or 0)
    ordered = [rows[lane][index] for lane, index in zip(lanes, indices, strict=True)]
    assert digest_of_rows(ordered) == STREAM
