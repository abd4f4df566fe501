"""The source formats that this version reads; a new one is a module and an entry here."""

from collections.abc import Callable
from dataclasses import dataclass

from zephon_beam.catalog.chunks import Cut
from zephon_beam.sources import avro, jsonl, parquet, text_files
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
    endings: tuple[str, ...] = ()
    """Endings of file names, in lower case, by which `format: auto` knows the format."""


FORMATS = {
    "jsonl": SourceFormat(
        cut=Cut.RANGES,
        read=jsonl.read,
        check_field=jsonl.check_field,
        endings=(".jsonl", ".ndjson", ".json"),
    ),
    "avro": SourceFormat(
        cut=Cut.RANGES, read=avro.read, check_field=avro.check_field, endings=(".avro",)
    ),
    "parquet": SourceFormat(
        cut=Cut.ROW_GROUPS,
        read=parquet.read,
        check_field=parquet.check_field,
        read_row_groups=parquet.read_row_groups,
        endings=(".parquet", ".pq"),
    ),
    # Any file could be text, so it must be declared.
    "text": SourceFormat(cut=Cut.RUNS, read=text_files.read, check_field=text_files.check_field),
}

UNSUPPORTED_ENDINGS = {
    ".gz": "gzip -d",
    ".zst": "zstd -d",
    ".bz2": "bzip2 -d",
    ".xz": "xz -d",
    ".arrow": "",
    ".tar": "",
}
"""Endings of formats that are not read, and what expands such a file; nothing for other formats."""
