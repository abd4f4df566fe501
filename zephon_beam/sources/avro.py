"""Avro object container files: the records of the blocks of a byte range.

Which blocks those are says `zephon_beam.sources.avro_blocks`; fastavro decodes them. Texts are
read as the bytes that they are on the wire, so that one which is not UTF-8 is a fault of its record
and not of all that follow it.

A document's locator is the place of its block's first byte, times 2^24, plus its number in it.
"""

from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt

from zephon_beam.errors import SourceError
from zephon_beam.sources.avro_blocks import (
    Block,
    Container,
    damaged,
    encode_header,
    read_blocks,
    read_container,
)
from zephon_beam.sources.avro_schema import Schema, plain_schema
from zephon_beam.sources.documents import Content, FileDocuments, Part, fields_of
from zephon_beam.sources.faults import RecordFaults, wrong_field, wrong_file, wrong_type
from zephon_beam.sources.open_source import SourceFile
from zephon_beam.sources.places import opened_file
from zephon_beam.sources.record_values import DocumentBuilder

_INDEX_BITS = 24
_OFFSET_BITS = 63 - _INDEX_BITS
_RERUN = "then run the recipe into a new place"


def read(source: SourceFile, part: Part, faults: RecordFaults) -> FileDocuments:
    """Read the records of the blocks that start in the byte range of a chunk.

    Raises:
        BadRecordError: a record has no document in the field, and faults raise.
        SourceError: the file has no such field, or is damaged.
        DriftError: the file is not that of the catalog.
    """
    chunk, content = part.chunk, part.content
    container, schema = _open(source.path, source.size, source.version, source.name)
    for field, key in fields_of(content):
        try:
            schema.check(field, key)
        except (KeyError, TypeError) as error:
            raise wrong_file(source.name, field, key, error, schema.names()) from error
    blocks = read_blocks(source.read, source.size, container, chunk.start, chunk.stop, source.name)
    builder = DocumentBuilder(content, faults, file=source.name, what="record")
    locators: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for block, records in _decode(container, list(blocks), source.name):
        first = _first_locator(block, source.name)
        locators.append(first + np.arange(block.count, dtype=np.int64))
        for index, record in enumerate(records):
            builder.add(
                record, first + index, f"record {index} of the block at byte {block.offset}"
            )
    texts, tokens = builder.finish()
    return FileDocuments(texts=texts, locators=np.concatenate(locators), tokens=tokens)


def block_of(locator: int) -> tuple[int, int]:
    """Return (place of its block's first byte, number in it) of a document."""
    return locator >> _INDEX_BITS, locator & ((1 << _INDEX_BITS) - 1)


def check_field(path: str, content: Content) -> None:
    """Look for the field in the schema of a file, and for the codec of its blocks.

    Raises:
        RecipeError: the records have no such field, or it holds something else.
        SourceError: the file is not Avro, is damaged at its start, or needs a codec that is absent.
    """
    with opened_file(path) as file:
        size = file.size

        def read_bytes(start: int, length: int) -> bytes:
            return file.pread(length, start)

        container = read_container(read_bytes, size, path)
        schema = _schema(container, path)
        for field, key in fields_of(content):
            try:
                schema.check(field, key)
            except KeyError as error:
                raise wrong_field(field, path, schema.names(), key) from error
            except TypeError as error:
                raise wrong_type(field, path, str(error), key) from error
        first = container.first_block
        blocks = list(read_blocks(read_bytes, size, container, first, first + 1, path))
        for _ in _decode(container, blocks, path):
            pass


@lru_cache(maxsize=256)
def _open(path: str, size: int, _version: tuple[int, int], file: str) -> tuple[Container, Schema]:
    with opened_file(path) as opened:
        container = read_container(lambda start, length: opened.pread(length, start), size, file)
    return container, _schema(container, file)


def _schema(container: Container, file: str) -> Schema:
    try:
        return Schema(container.schema)
    except ValueError as error:
        raise SourceError(
            f"{file}: expected a file of Avro records, but {error}; nothing can be read from it; "
            "correct the file, or leave it out of `files`"
        ) from error


def _decode(
    container: Container, blocks: list[tuple[Block, bytes]], file: str
) -> Iterator[tuple[Block, list[Any]]]:
    """Yield the records of each block.

    Raises:
        SourceError: a block is damaged, or its codec is not there.
    """
    if not blocks:
        return
    header = encode_header(plain_schema(container.schema), container)
    decoded: Iterator[Any] = fastavro.block_reader(
        BytesIO(b"".join([header, *(body for _, body in blocks)]))
    )
    for block, _ in blocks:
        try:
            found = next(decoded)
            records = list(found)
            rest = found.bytes_.read()
        except Exception as error:
            # Codecs raise errors of their own, and damage shows in many ways.
            if "need to install" in str(error):
                raise _no_codec(container, file, error) from error
            raise damaged(file, block.offset, f"{type(error).__name__}: {error}") from error
        if rest:
            raise damaged(file, block.offset, f"{len(rest)} bytes behind its last record")
        yield block, records


def _first_locator(block: Block, file: str) -> int:
    if block.offset >= 1 << _OFFSET_BITS or block.count > 1 << _INDEX_BITS:
        raise SourceError(
            f"{file}: expected blocks of at most {1 << _INDEX_BITS} records in the first "
            f"{1 << _OFFSET_BITS} bytes of a file, found {block.count} records at byte "
            f"{block.offset}; their places could not be told apart; write the file with smaller "
            f"blocks or in several files, {_RERUN}"
        )
    return block.offset << _INDEX_BITS


def _no_codec(container: Container, file: str, error: Exception) -> SourceError:
    return SourceError(
        f"{file}: expected a codec that can be read here, found {container.codec!r} ({error}); "
        "install the package that it names wherever the pipeline runs"
    )
