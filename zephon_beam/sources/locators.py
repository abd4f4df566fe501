"""Locators in words: which document of a file a stored number means.

JSONL                 byte of the line's first character; of a compressed file, once expanded
WebDataset            the same, of the first header of the sample
Parquet, Arrow        row
Avro                  byte of the block, and the record in it
Megatron              document
text                  the whole file
"""

from zephon_beam.catalog.chunks import Cut
from zephon_beam.sources.avro import block_of
from zephon_beam.sources.compressed import split_ending
from zephon_beam.sources.formats import source_format


def decode_locator(format: str, file: str, locator: int) -> dict[str, int]:
    """Return what a locator counts, from 0 on, by name; nothing for a whole file.

    Args:
        format: of the data set's catalog.
        file: name of the file.
        locator: of a document in it.
    """
    if format == "avro":
        block, record = block_of(locator)
        return {"block": block, "record": record}
    if format == "megatron":
        return {"document": locator}
    cut = source_format(format, file).cut
    if cut is Cut.RUNS:
        return {}
    if cut is Cut.ROW_GROUPS:
        return {"row": locator}
    return {"byte" if split_ending(file)[1] is None else "expanded_byte": locator}


def spell_locator(decoded: dict[str, int]) -> str:
    """Return a decoded locator for people."""
    parts = [f"{name.replace('_', ' ')} {value}" for name, value in decoded.items()]
    return ", ".join(parts) or "whole file"
