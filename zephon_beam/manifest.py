"""`stream.json`: what a stream is, written once when it is created.

Holds the recipe, its fingerprint and everything that was derived from the sources, so that a
reader needs neither the recipe file nor the tokenizer. It is data: nothing in it is imported.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from zephon_beam.errors import CorruptObjectError, StreamNotFoundError
from zephon_beam.layout import MANIFEST
from zephon_beam.sealed import seal, unseal
from zephon_beam.store.base import Store

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetManifest:
    """One data set as it was when the stream was created."""

    name: str
    format: str
    root: str
    """Folder that the catalog's file names are relative to; not part of the fingerprint."""
    weight: str
    """Decimal weight, with `size` resolved to bytes."""
    chunk_bytes: int
    part_rows: int
    """Rows of one part of a row group; 0 for formats whose chunks have one part."""
    chunk_count: int
    source_bytes: int
    catalog_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a fork begins."""

    stream: str
    """Where the older stream was; for people, not part of the fingerprint."""
    fingerprint: str
    """Of the older stream."""
    at_sample: int
    """Samples of the older stream that come before the fork."""
    states_digest: str
    """Of the lane states that the fork begins with."""

    def identity(self) -> dict[str, Any]:
        """Return what enters the fingerprint."""
        return {
            "fingerprint": self.fingerprint,
            "at_sample": self.at_sample,
            "states": self.states_digest,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The content of `stream.json`."""

    name: str
    fingerprint: str
    lanes: int
    seq_len: int
    samples_per_shard: int
    token_dtype: str
    """`uint16` or `uint32`."""
    vocab_size: int
    pad_id: int
    eos_id: int | None
    bos_id: int | None
    has_loss_mask: bool
    tokenizer_digest: str
    recipe: dict[str, Any]
    datasets: list[DatasetManifest] = field(default_factory=list)
    code_versions: dict[str, str] = field(default_factory=dict)
    """What stands for each piece of code besides our own that decides bytes, by name."""
    media_ids: list[int] = field(default_factory=list)
    """Ids of the tokens that stand for images and videos, or around them; none without media."""
    origin: Origin | None = None
    """Where a fork begins; None: the stream begins with its data sets."""
    format_version: int = FORMAT_VERSION

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names by `source_dataset`."""
        return tuple(dataset.name for dataset in self.datasets)


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode as indented JSON with a fixed field order."""
    content = asdict(manifest)
    if manifest.origin is None:
        del content["origin"]
    if not manifest.media_ids:
        del content["media_ids"]
    return (json.dumps(seal(content), indent=1, ensure_ascii=False) + "\n").encode()


def read_manifest(store: Store) -> Manifest:
    """Read the manifest of an existing stream.

    Raises:
        StreamNotFoundError: the store holds no stream.
        CorruptObjectError: the file is damaged or of another format version.
    """
    try:
        data = store.get(MANIFEST)
    except FileNotFoundError as error:
        raise StreamNotFoundError(
            f"stream must hold {MANIFEST}, found none in {store.uri!r}; check the path, or create "
            "the stream with `zephon-beam run RECIPE --stream URI`"
        ) from error
    try:
        raw = json.loads(data)
        version = raw["format_version"]
        if version != FORMAT_VERSION:
            raise CorruptObjectError(
                f"{store.uri}/{MANIFEST}: format version must be {FORMAT_VERSION}, got "
                f"{version!r}; use the version of zephon-beam that created the stream"
            )
        raw = unseal(raw)
        datasets = [DatasetManifest(**entry) for entry in raw.pop("datasets")]
        origin = raw.pop("origin", None)
        return Manifest(
            **raw, datasets=datasets, origin=None if origin is None else Origin(**origin)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptObjectError(
            f"{store.uri}/{MANIFEST} is corrupt: {error}; nothing can be read without it; restore "
            "it from a copy, or run the recipe into a new place"
        ) from error
