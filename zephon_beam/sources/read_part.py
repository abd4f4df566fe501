"""Read one part of a chunk: the only way from a catalog to documents."""

import os

import numpy as np

from zephon_beam.catalog.chunks import Cut
from zephon_beam.catalog.table import Catalog
from zephon_beam.sources.documents import Documents, Part
from zephon_beam.sources.formats import FORMATS
from zephon_beam.sources.open_source import open_source


def read_part(catalog: Catalog, root: str, chunk: int, part: int, *, text_field: str) -> Documents:
    """Read a part of a chunk, in source order.

    Args:
        catalog: catalog of the data set.
        root: folder that its names are relative to.
        chunk: number of the chunk, in [0, catalog.chunk_count).
        part: number of the part, in [0, catalog.part_count(chunk)).
        text_field: name of the field that holds the text; a dotted one leads into nested fields,
            unless there is a field of just that name. Text files have none.

    Returns:
        The documents; there may be none.

    Raises:
        SourceError: a file is missing, damaged, or has no such column.
        BadRecordError: a document can never be read.
        DriftError: a file is not what the catalog says.
        OSError: a file cannot be read now; trying again may help.
        IndexError: there is no such part.

    Determinism: depends on the catalog and the content of its files alone.
    """
    source_format = FORMATS[catalog.format]
    part_count = catalog.part_count(chunk)
    if not 0 <= part < part_count:
        raise IndexError(f"part must be in [0, {part_count}) of chunk {chunk}, got {part}")
    share = Part(chunk=catalog.chunk(chunk), part=part, part_rows=catalog.part_rows)
    texts: list[str] = []
    locators, counts = [], []
    first_file = share.chunk.first_file
    files = np.arange(first_file, first_file + share.chunk.file_count, dtype=np.uint32)
    for file in files.tolist():
        name = catalog.file_name(file)
        size, identity = catalog.file_size(file), catalog.file_identity(file)
        with open_source(
            os.path.join(root, name), name=name, size=size, identity=identity
        ) as source:
            if source_format.cut is not Cut.RUNS:
                source.check_edges()
            file_texts, file_locators = source_format.read(source, share, text_field)
        texts += file_texts
        counts.append(len(file_texts))
        locators.append(file_locators)
    return Documents(
        texts=texts,
        files=np.repeat(files, counts),
        locators=np.concatenate(locators),
        source_bytes=catalog.part_source_bytes(chunk, part),
        last=part == part_count - 1,
    )
