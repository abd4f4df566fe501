"""The source formats that this version reads; a new one is a module and an entry here."""

from collections.abc import Callable
from dataclasses import dataclass

from zephon_beam.catalog.chunks import Cut
from zephon_beam.sources import (
    arrow_ipc,
    avro,
    compressed_jsonl,
    jsonl,
    megatron,
    parquet,
    text_files,
    webdataset,
)
from zephon_beam.sources.compressed import split_ending
from zephon_beam.sources.documents import Content, FileDocuments, Part
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.open_source import SourceFile


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFormat:
    """What the catalog and the readers need to know of a format."""

    cut: Cut
    read: Callable[[SourceFile, Part, RecordFaults], FileDocuments]
    """Read the share that a part has of one file."""
    check_field: Callable[[str, Content], None]
    """Look for the documents' field in the file at a path; `RecipeError` without it."""
    read_row_groups: Callable[[str], tuple[tuple[int, int], ...]] | None = None
    """Return (rows, expanded bytes) of the row groups of the file at a path."""
    companion: Callable[[str], str] | None = None
    """Return the path of the file that belongs to the one at a path; for formats of two files."""
    endings: tuple[str, ...] = ()
    """Endings of file names, in lower case, by which `format: auto` knows the format."""
    kinds: tuple[str, ...] = ("text", "messages", "tokens")
    """What its documents may be, see `Content.kind`."""
    is_sniffed: bool = False
    """Whether a file that begins like one of a compression which its name does not say is wrong."""


FORMATS = {
    "jsonl": SourceFormat(
        cut=Cut.RANGES,
        read=jsonl.read,
        check_field=jsonl.check_field,
        endings=(".jsonl", ".ndjson", ".json"),
        kinds=("text", "messages", "content", "tokens"),
        is_sniffed=True,
    ),
    "avro": SourceFormat(
        cut=Cut.RANGES,
        read=avro.read,
        check_field=avro.check_field,
        endings=(".avro",),
        kinds=("text", "messages", "content", "tokens"),
    ),
    "parquet": SourceFormat(
        cut=Cut.ROW_GROUPS,
        read=parquet.read,
        check_field=parquet.check_field,
        read_row_groups=parquet.read_row_groups,
        endings=(".parquet", ".pq"),
        kinds=("text", "messages", "content", "tokens"),
    ),
    "arrow": SourceFormat(
        cut=Cut.ROW_GROUPS,
        read=arrow_ipc.read,
        check_field=arrow_ipc.check_field,
        read_row_groups=arrow_ipc.read_row_groups,
        endings=(".arrow", ".arrows", ".feather", ".ipc"),
        kinds=("text", "messages", "content", "tokens"),
    ),
    # Any file could be called `.bin`, so it must be declared.
    "megatron": SourceFormat(
        cut=Cut.RANGES,
        read=megatron.read,
        check_field=megatron.check_field,
        companion=megatron.index_path,
        kinds=("tokens",),
    ),
    "webdataset": SourceFormat(
        cut=Cut.SEQUENTIAL,
        read=webdataset.read,
        check_field=webdataset.check_field,
        endings=(".tar",),
        kinds=("text", "messages", "content"),
        is_sniffed=True,
    ),
    # Any file could be text, so it must be declared.
    "text": SourceFormat(
        cut=Cut.RUNS,
        read=text_files.read,
        check_field=text_files.check_field,
        kinds=("text",),
        is_sniffed=True,
    ),
}

COMPRESSED = {
    "jsonl": SourceFormat(
        cut=Cut.SEQUENTIAL,
        read=compressed_jsonl.read,
        check_field=compressed_jsonl.check_field,
        kinds=("text", "messages", "content", "tokens"),
        is_sniffed=True,
    ),
}
"""How the compressed files of a format are read, where that differs from its plain ones."""


def source_format(format: str, name: str) -> SourceFormat:
    """Return how a file is read, by the format of its data set and its name."""
    if format in COMPRESSED and split_ending(name)[1] is not None:
        return COMPRESSED[format]
    return FORMATS[format]


def can_expand(format: str) -> bool:
    """Say whether files of a format may be compressed."""
    return format in COMPRESSED or FORMATS[format].cut is Cut.SEQUENTIAL


UNSUPPORTED_ENDINGS = {
    ".gz": "gzip -d",
    ".zst": "zstd -d",
    ".bz2": "bzip2 -d",
    ".xz": "xz -d",
}
"""Endings of formats that are not read, and what expands such a file; nothing for other formats."""
