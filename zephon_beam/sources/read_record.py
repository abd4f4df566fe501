"""Read single documents again by where they came from, for what is decoded after packing."""

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from zephon_beam.catalog.chunks import Chunk, Cut
from zephon_beam.catalog.table import Catalog
from zephon_beam.errors import DriftError, RecipeError
from zephon_beam.sources import avro, compressed_jsonl, webdataset
from zephon_beam.sources.compressed import split_ending
from zephon_beam.sources.documents import Content, FileDocuments, Part
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.formats import source_format
from zephon_beam.sources.open_readers import OpenReaders
from zephon_beam.sources.open_source import SourceFile, open_source

_KEPT_CHARACTERS = 64 * 1024 * 1024

_Texts = dict[int, str]
"""Documents by their locators."""


def refuse_unseekable(paths: Sequence[str]) -> None:
    """Refuse files whose images and videos could only be read again from their start.

    Raises:
        RecipeError: a file is a compressed archive.
    """
    for path in paths:
        ending, compression = split_ending(path)
        if compression is not None and ending == ".tar":
            raise RecipeError(
                "archives must not be compressed where their members are images and videos, got "
                f"{path!r}; it would be expanded once for every item that is decoded; expand it"
            )


class RecordReader:
    """Reads documents of one data set by file and locator.

    What can only be read together is: a part of a row group, a block of Avro, a part of a
    compressed file. The last ones read are kept, up to 64 Mi characters, so asking for documents in
    order reads each once. A compressed file is expanded from its start again when what is asked for
    lies before what was read last.
    """

    def __init__(self, catalog: Catalog, root: str, content: Content) -> None:
        """Read the files of a catalog below `root`."""
        self._catalog = catalog
        self._root = root
        self._content = content
        self._kept: OrderedDict[tuple[int, int, int], _Texts] = OrderedDict()
        self._kept_characters = 0
        self._line_readers = OpenReaders[compressed_jsonl.LineReader]()

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
            if catalog.format == "webdataset":
                return webdataset.read_at(source, self._content, locator) or _missing(name, locator)
            unit, part = self._unit(source, file, locator)
            texts = self._kept.get(unit)
            if texts is None:
                texts = self._keep(unit, self._read_part(source, part))
            self._kept.move_to_end(unit)
        return texts[locator] if locator in texts else _missing(name, locator)

    def _unit(
        self, source: SourceFile, file: int, locator: int
    ) -> tuple[tuple[int, int, int], Part]:
        """Return what must be read together for a document: its name, and the part."""
        catalog = self._catalog
        if source_format(catalog.format, source.name).cut is Cut.ROW_GROUPS:
            chunk = catalog.chunk_of_row(file, locator)
            number = (locator - chunk.start) // catalog.part_rows
            part = Part(chunk=chunk, part=number, part_rows=catalog.part_rows)
            return (file, chunk.chunk, number), part
        if source_format(catalog.format, source.name).cut is Cut.SEQUENTIAL:
            number = locator // catalog.chunk_bytes
            whole = replace(_RANGE, first_file=file)
            part = Part(chunk=whole, part=number, part_rows=0, part_bytes=catalog.chunk_bytes)
            return (file, 0, number), part
        start = avro.block_of(locator)[0] if catalog.format == "avro" else locator
        only = replace(_RANGE, first_file=file, start=start, stop=start + 1)
        return (file, start, 0), Part(chunk=only, part=0, part_rows=0)

    def _read_part(self, source: SourceFile, part: Part) -> FileDocuments:
        """Read whole parts; records beside the wanted one may be bad, and are then empty."""
        file_format = source_format(self._catalog.format, source.name)
        wanted, faults = replace(part, content=self._content), RecordFaults(quarantine=True)
        if file_format.cut is Cut.SEQUENTIAL:
            # Whoever reads the file in order must not lose its place to this reader.
            return compressed_jsonl.read(source, wanted, faults, self._line_readers)
        return file_format.read(source, wanted, faults)

    def _keep(self, unit: tuple[int, int, int], found: FileDocuments) -> _Texts:
        texts = dict(zip(found.locators.tolist(), found.texts, strict=True))
        self._kept[unit] = texts
        self._kept_characters += sum(map(len, found.texts))
        while self._kept_characters > _KEPT_CHARACTERS and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_characters -= sum(map(len, dropped.values()))
        return texts


def _missing(name: str, locator: int) -> NoReturn:
    raise DriftError(
        f"{name}: expected a document at {locator}, found none; the stream was built from other "
        "content; restore the file"
    )


_RANGE = Chunk(chunk=0, first_file=0, file_count=1, row_group=-1, start=0, stop=0)
