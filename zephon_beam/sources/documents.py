"""The documents of one part, as every format's reader gives them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon_beam.catalog.chunks import Chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """One part in source order; immutable by convention.

    texts: the documents, each of which can be encoded as UTF-8.
    files: uint32[documents], place of each document's file in the catalog.
    locators: int64[documents]. JSONL: byte offset of the line's first byte; Parquet: row number
        within the file; text files: 0.
    """

    texts: list[str]
    files: npt.NDArray[np.uint32]
    locators: npt.NDArray[np.int64]
    source_bytes: int
    """Bytes of source that this part stands for."""
    last: bool
    """Whether this is the last part of its chunk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What to read of a file: its share of one part of one chunk."""

    chunk: Chunk
    part: int
    part_rows: int
    """Rows of one part of a row group; 0 for formats whose chunks have one part."""


FileDocuments = tuple[list[str], npt.NDArray[np.int64]]
"""(texts, locators) of the documents that a part takes from one file."""
