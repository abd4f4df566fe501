"""Small data sets on disk, their catalogs, and everything that is read from them."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from zephon_beam.catalog.scan import data_root, list_files, scan_file
from zephon_beam.catalog.table import Catalog, build_catalog
from zephon_beam.sources.documents import Content, Documents
from zephon_beam.sources.read_part import read_part

Found = tuple[str, int, str]
"""(file name, locator, text) of one document."""


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": _zstd,
}
"""What compresses a file of each ending."""


def tar_archive(members: Mapping[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar archive of files, in this order."""
    return tar_entries(list(members.items()), format)


def tar_entries(members: list[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar archive of files, of which names may repeat."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, body in members:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


def write_files(folder: Path, contents: dict[str, bytes]) -> None:
    """Write files below a folder."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_parquet(path: Path, columns: dict[str, object], row_group_size: int = 100) -> None:
    """Write columns as one file with row groups of a size."""
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)


def open_catalog(
    folder: Path, format_name: str, *, chunk_bytes: int = 64, pattern: str = "**"
) -> tuple[Catalog, str]:
    """Return (the catalog of the files below a folder, their root)."""
    patterns = [str(folder / pattern)]
    root = data_root(patterns)
    scans = [scan_file(path, format_name) for path in list_files(patterns)]
    data = build_catalog("data", format_name, root, scans, chunk_bytes=chunk_bytes)
    return Catalog.from_buffer(data, "catalog"), root


def parts(catalog: Catalog, root: str, text_field: str = "text") -> Iterator[Documents]:
    """Read every part of every chunk in order and check what each says of itself."""
    for chunk in range(catalog.chunk_count):
        part_count = catalog.part_count(chunk)
        for part in count():
            documents = read_part(catalog, root, chunk, part, content=Content(field=text_field))
            if part_count is not None:
                assert documents.last == (part == part_count - 1)
                assert documents.source_bytes == catalog.part_source_bytes(chunk, part)
            assert len(documents.texts) == len(documents.files) == len(documents.locators)
            yield documents
            if documents.last:
                break


def read_all(catalog: Catalog, root: str, text_field: str = "text") -> list[Found]:
    """Read every document of a data set."""
    return [
        (catalog.file_name(file), locator, text)
        for documents in parts(catalog, root, text_field)
        for file, locator, text in zip(
            documents.files.tolist(), documents.locators.tolist(), documents.texts, strict=True
        )
    ]
