"""Read one part of a chunk: the only way from a catalog to documents."""

import os
from dataclasses import replace

import numpy as np

from zephon_beam.catalog.chunks import Cut
from zephon_beam.catalog.table import Catalog
from zephon_beam.sources.documents import Content, Documents, FileDocuments, Part, TokenLists
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.formats import source_format
from zephon_beam.sources.open_source import open_source

_TEXT = Content()


def read_part(
    catalog: Catalog,
    root: str,
    chunk: int,
    part: int,
    *,
    content: Content = _TEXT,
    quarantine: bool = False,
) -> Documents:
    """Read a part of a chunk, in source order.

    Args:
        catalog: catalog of the data set.
        root: folder that its names are relative to.
        chunk: number of the chunk, in [0, catalog.chunk_count).
        part: number of the part, in [0, catalog.part_count(chunk)), or any where that is None;
            behind the last one parts are empty, and last.
        content: which field of a record is the document.
        quarantine: whether records that can never be read are set aside instead of raising.

    Returns:
        The documents; there may be none.

    Raises:
        SourceError: a file is missing, damaged, or has no such column.
        BadRecordError: a document can never be read, and is not to be set aside.
        DriftError: a file is not what the catalog says.
        OSError: a file cannot be read now; trying again may help.
        IndexError: there is no such part.

    Determinism: depends on the catalog and the content of its files alone.
    """
    part_count = catalog.part_count(chunk)
    if part < 0 or (part_count is not None and part >= part_count):
        limit = "…" if part_count is None else part_count
        raise IndexError(f"part must be in [0, {limit}) of chunk {chunk}, got {part}")
    share = Part(
        chunk=catalog.chunk(chunk),
        part=part,
        part_rows=catalog.part_rows,
        content=content,
        part_bytes=catalog.chunk_bytes if part_count is None else 0,
    )
    found: list[FileDocuments] = []
    quarantined = []
    first_file = share.chunk.first_file
    files = np.arange(first_file, first_file + share.chunk.file_count, dtype=np.uint32)
    count = 0
    for file in files.tolist():
        name = catalog.file_name(file)
        size, identity = catalog.file_size(file), catalog.file_identity(file)
        faults = RecordFaults(quarantine=quarantine)
        file_format = source_format(catalog.format, name)
        with open_source(
            os.path.join(root, name), name=name, size=size, identity=identity
        ) as source:
            if file_format.cut is not Cut.RUNS:
                source.check_edges()
            found.append(file_format.read(source, share, faults))
        quarantined += [replace(entry, place=entry.place + count) for entry in faults.found]
        count += len(found[-1].locators)
    return Documents(
        texts=[text for documents in found for text in documents.texts],
        files=np.repeat(files, [len(documents.locators) for documents in found]),
        locators=np.concatenate([documents.locators for documents in found]),
        outputs=np.zeros(count, dtype=np.uint32),
        source_bytes=_source_bytes(found, catalog, chunk, part),
        last=found[-1].last if part_count is None else part == part_count - 1,
        tokens=_joined(found),
        quarantined=tuple(quarantined),
    )


def _source_bytes(found: list[FileDocuments], catalog: Catalog, chunk: int, part: int) -> int:
    """Return what the reader counted, or else what the catalog says."""
    counted = found[0].source_bytes
    return catalog.part_source_bytes(chunk, part) if counted is None else counted


def _joined(found: list[FileDocuments]) -> TokenLists | None:
    """Return the tokens of a part, which come from one file."""
    lists = [documents.tokens for documents in found if documents.tokens is not None]
    return lists[0] if lists else None
