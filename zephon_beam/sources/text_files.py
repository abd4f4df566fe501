"""Text files: each file is one document, whole and unchanged but for a byte order mark."""

import numpy as np

from zephon_beam.sources.documents import Content, FileDocuments, Part
from zephon_beam.sources.faults import RecordFaults, bad_record
from zephon_beam.sources.open_source import SourceFile

_BOM = b"\xef\xbb\xbf"


def read(source: SourceFile, _part: Part, faults: RecordFaults) -> FileDocuments:
    """Read one file; an empty one is an empty document, and line ends stay as they are.

    Raises:
        BadRecordError: the file is not valid UTF-8.
        DriftError: the file is not that of the catalog.
    """
    content = source.read_whole()
    body = content.removeprefix(_BOM)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        place = error.start + len(content) - len(body)
        fault = bad_record(
            source.name,
            0,
            f"byte {place}",
            rule="document must be valid UTF-8",
            found=f"byte 0x{content[place]:02x}",
            reason="utf8",
            repair="write the file as UTF-8 or leave it out of `files`, then run the recipe into a "
            "new place",
        )
        faults.report(fault, 0)
        text = ""
    return FileDocuments(texts=[text], locators=np.zeros(1, dtype=np.int64))


def check_field(_path: str, _content: Content) -> None:
    """Check nothing: a text file has no fields."""
