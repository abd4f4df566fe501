r"""JSON Lines in a compressed file: read from its start, a part at a time.

    expanded bytes   0          10         20         30
                     {"a":1}\n{"a":"long one"}\n{"a":3}\n
    parts of 10      [0, 10)    [10, 20)   [20, 30): the last one
    lines            0 and 8    none       25

A line belongs to the part that holds its first expanded byte, as it belongs to the range of a plain
file. Where the data ends too early or is damaged, the line that was begun is one bad record.
"""

import numpy as np

from zephon_beam.sources.compressed import DamageError, damaged_record, open_bytes
from zephon_beam.sources.documents import Content, FileDocuments, Part
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.jsonl import CHECKED_BYTES, check_lines, parse_lines
from zephon_beam.sources.open_readers import OpenReaders
from zephon_beam.sources.open_source import SourceFile, unchecked_source
from zephon_beam.sources.token_lists import with_empty_list


def read(
    source: SourceFile,
    part: Part,
    faults: RecordFaults,
    readers: "OpenReaders[LineReader] | None" = None,
) -> FileDocuments:
    """Read the documents whose lines start in the expanded bytes of a part.

    Args:
        source: the file.
        part: which of its parts.
        faults: what becomes of bad lines.
        readers: kept open between calls; None: those that all share who read files in order.

    Raises:
        BadRecordError: a line is no JSON object with a text in the field, or the file is damaged,
            and faults raise.
        DriftError: the file is not that of the catalog.
    """
    start = part.part * part.part_bytes
    stop = start + part.part_bytes
    place = (source.path, source.version)
    pool = _readers if readers is None else readers
    reader = pool.take(place, start) or LineReader(source)
    data, offset = reader.take(start, stop)
    where = f"part {part.part} of chunk {part.chunk.chunk}"
    found = parse_lines(data, offset, part.content, faults, file=source.name, where=where)
    texts, locators, tokens = found.texts, found.locators, found.tokens
    if not reader.ended:
        pool.keep(place, reader)
    elif reader.damage is not None and reader.damaged_line >= 0:
        error = damaged_record(source, reader.damaged_line, reader.end, reader.damage.found)
        faults.report(error, len(texts))
        texts.append("")
        locators = np.append(locators, reader.damaged_line)
        tokens = with_empty_list(tokens)
    return FileDocuments(
        texts=texts,
        locators=locators,
        tokens=tokens,
        source_bytes=max(0, reader.end - start) if reader.ended else part.part_bytes,
        last=reader.ended,
    )


def check_field(path: str, content: Content) -> None:
    """Look for the field in the first document of a file; a first line over 64 KiB is not checked.

    Raises:
        RecipeError: the first document has no such field, or it holds something else.
        BadRecordError: the first document has another fault, or the file is damaged there.
    """
    with unchecked_source(path) as source:
        stream = open_bytes(source)
        data = b""
        try:
            while len(data) < CHECKED_BYTES and (piece := stream.read()):
                data += piece
        except DamageError as error:
            if b"\n" not in data:
                raise damaged_record(source, 0, stream.offset, error.found) from error
            data = data[: data.rindex(b"\n") + 1]
        check_lines(data, path, content, whole=len(data) < CHECKED_BYTES)


class LineReader:
    """The lines of a compressed file, from its start on."""

    def __init__(self, source: SourceFile) -> None:
        self.reached = 0
        self.ended = False
        """Whether no line and no damage starts behind what was taken."""
        self.damage: DamageError | None = None
        self.damaged_line = -1
        """Expanded offset of the line that damage cuts off; -1 unless it is among those taken."""
        self._line = 0
        """Expanded offset of the next line."""
        self._bytes = open_bytes(source)
        self._ahead = b""
        """What was expanded from the next line on."""

    @property
    def end(self) -> int:
        """Bytes expanded so far; all there are if `ended`."""
        return self._bytes.offset

    def take(self, start: int, stop: int) -> tuple[bytes, int]:
        """Return the lines whose first byte is in [start, stop), and their offset.

        Raises:
            OSError: the file cannot be read now.
        """
        self.reached = stop
        if self._line < start and not self._skip_to(start):
            return b"", self._line
        first = self._line
        data = self._lines_until(stop) if first < stop else b""
        self._line += len(data)
        # Only more bytes tell whether a line starts behind these. If damage is what comes, it is
        # the record that starts there, which belongs to a later part if it starts later.
        if not self._ahead and not self.ended:
            self._ahead = self._expand()
            self.ended = not self._ahead and (self.damage is None or self._line < stop)
        if self.ended and self.damage is not None:
            self.damaged_line = self._line
        return data, first

    def _skip_to(self, start: int) -> bool:
        """Move on to the first line that starts at `start` or later; False if there is none."""
        while True:
            gap = max(0, start - 1 - self._line)
            if gap < len(self._ahead):
                end = self._ahead.find(b"\n", gap) + 1
                if end:
                    self._line += end
                    self._ahead = self._ahead[end:]
                    return True
            self._line += len(self._ahead)
            self._ahead = self._expand()
            if not self._ahead:
                self.ended = True
                return False

    def _lines_until(self, stop: int) -> bytes:
        """Return whole lines up to the one with the byte before `stop`, or those that are left."""
        pieces, size = [self._ahead], len(self._ahead)
        self._ahead = b""
        while self._line + size < stop and (piece := self._expand()):
            pieces.append(piece)
            size += len(piece)
        data = b"".join(pieces)
        end = data.find(b"\n", stop - 1 - self._line) + 1
        if end:
            self._ahead = data[end:]
            return data[:end]
        pieces = [data]
        while not end and (piece := self._expand()):
            end = piece.find(b"\n") + 1
            pieces.append(piece[:end] if end else piece)
            self._ahead = piece[end:] if end else b""
        data = b"".join(pieces)
        return data if end or self.damage is None else data[: data.rfind(b"\n") + 1]

    def _expand(self) -> bytes:
        """Return more bytes; none at the end, whole or damaged."""
        try:
            return self._bytes.read()
        except DamageError as error:
            self.damage = error
            return b""


_readers = OpenReaders[LineReader]()
