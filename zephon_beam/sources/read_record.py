"""Read single documents again by where they came from, for what is decoded after packing."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from zephon_beam.catalog.chunks import Chunk, Cut
from zephon_beam.catalog.table import Catalog
from zephon_beam.errors import DriftError, RecipeError
from zephon_beam.sources import webdataset
from zephon_beam.sources.compressed import split_ending
from zephon_beam.sources.documents import Content, Part
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.formats import source_format
from zephon_beam.sources.open_source import SourceFile, open_source

_Found = tuple[int, list[str]]


def refuse_unseekable(paths: Sequence[str]) -> None:
    """Refuse files whose documents could only be read again from their start.

    Raises:
        RecipeError: a file is compressed.
    """
    for path in paths:
        if split_ending(path)[1] is not None:
            raise RecipeError(
                "files must not be compressed where documents hold images and videos, got "
                f"{path!r}; it would be expanded once for every document that is decoded; expand "
                "it"
            )


class RecordReader:
    """Reads documents of one data set by file and locator.

    Rows of Parquet are read a part at a time, as `read_part` does; asking for them in order reads
    each part once.
    """

    def __init__(self, catalog: Catalog, root: str, content: Content) -> None:
        """Read the files of a catalog below `root`."""
        self._catalog = catalog
        self._root = root
        self._content = content
        self._rows: tuple[tuple[int, int], _Found] | None = None

    def read(self, file: int, locator: int) -> str:
        """Return one document, as it was read before packing.

        Raises:
            DriftError: the file is not that of the catalog, or has no document there.
            BadRecordError: the document cannot be read.
            SourceError: the file is missing or damaged.
            OSError: it cannot be read now; trying again may help.
        """
        catalog = self._catalog
        name = catalog.file_name(file)
        with open_source(
            os.path.join(self._root, name),
            name=name,
            size=catalog.file_size(file),
            identity=catalog.file_identity(file),
        ) as source:
            source.check_edges()
            if source_format(catalog.format, name).cut is Cut.ROW_GROUPS:
                first, texts = self._read_rows(source, file, locator)
                return texts[locator - first]
            if catalog.format == "webdataset":
                return webdataset.read_at(source, self._content, locator) or _missing(name, locator)
            line = replace(_LINE, first_file=file, start=locator, stop=locator + 1)
            texts = self._read_part(source, Part(chunk=line, part=0, part_rows=0))
        return texts[0] if texts else _missing(name, locator)

    def _read_rows(self, source: SourceFile, file: int, row: int) -> _Found:
        """Return (first row, texts) of the part of a row group that holds a row."""
        chunk, part_rows = self._catalog.chunk_of_row(file, row), self._catalog.part_rows
        part = (row - chunk.start) // part_rows
        key = (chunk.chunk, part)
        if self._rows is None or self._rows[0] != key:
            texts = self._read_part(source, Part(chunk=chunk, part=part, part_rows=part_rows))
            self._rows = key, (chunk.start + part * part_rows, texts)
        return self._rows[1]

    def _read_part(self, source: SourceFile, part: Part) -> list[str]:
        """Read whole parts; records beside the wanted one may be bad, and are then empty."""
        file_format = source_format(self._catalog.format, source.name)
        found = file_format.read(
            source, replace(part, content=self._content), RecordFaults(quarantine=True)
        )
        return found.texts


def _missing(name: str, locator: int) -> NoReturn:
    raise DriftError(
        f"{name}: expected a document at {locator}, found none; the stream was built from other "
        "content; restore the file"
    )


_LINE = Chunk(chunk=0, first_file=0, file_count=1, row_group=-1, start=0, stop=0)
