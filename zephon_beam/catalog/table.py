"""The catalog of a data set: built once from what its files say of themselves, then only looked up.

Opening costs nothing whatever its size: the columns stay where they are mapped, and a chunk is
found by bisection.
"""

from collections.abc import Iterable

import numpy as np

from zephon_beam.catalog.chunks import (
    Chunk,
    Cut,
    count_parts,
    count_ranges,
    count_runs,
    derive_part_rows,
)
from zephon_beam.catalog.encoding import (
    CatalogTable,
    decode_table,
    encode_table,
    text_column,
    verify_table,
)
from zephon_beam.catalog.scan import FileScan, relative_name
from zephon_beam.errors import CorruptObjectError, RecipeError, SourceError
from zephon_beam.recipe import Recipe
from zephon_beam.sources.compressed import split_ending
from zephon_beam.sources.formats import COMPRESSED, FORMATS, source_format

DEFAULT_CHUNK_BYTES = 256 * 1024
"""Bytes of source per chunk when nothing asks for fewer."""
MIN_CHUNK_BYTES = 16 * 1024
"""Below this a chunk costs more to handle than to read."""

_MIB = 1024 * 1024
_OPEN_BYTES_LANE = 64 * _MIB
_OPEN_BYTES_STREAM = 256 * _MIB
_CHUNKS_PER_LANE = 8
_ROUNDING = 4096
_VERIFIED_BYTES = 32 * _MIB
"""Catalogs up to this size are read and checked whole when they are opened; it takes 50 ms."""


def build_catalog(
    dataset: str, format: str, root: str, scans: Iterable[FileScan], *, chunk_bytes: int
) -> bytes:
    """Build the catalog of a data set.

    Args:
        dataset: name of the data set.
        format: a format of `zephon_beam.sources.formats`.
        root: folder that names are relative to, from `data_root`.
        scans: what each file says of itself, in any order.
        chunk_bytes: from `derive_chunk_bytes`.

    Returns:
        The bytes of an Arrow IPC file.

    Raises:
        SourceError: the data set is empty, or a file changed while it was scanned.

    Determinism: depends on the names relative to the root, sizes, identities and row groups of the
    files and on the arguments, not on the order of scans nor on where the root is.
    """
    files = _by_name(dataset, root, scans)
    sizes = np.array([scan.size for scan in files.values()], dtype=np.int64)
    groups = [group for scan in files.values() for group in scan.row_groups]
    rows, row_bytes = np.array(groups, dtype=np.int64).reshape(-1, 2).T
    cut = FORMATS[format].cut
    part_rows = 0
    if cut is Cut.ROW_GROUPS:
        chunks = np.array([len(scan.row_groups) for scan in files.values()], dtype=np.int64)
        part_rows = derive_part_rows(int(rows.sum()), int(row_bytes.sum()), chunk_bytes)
    else:
        count = count_runs if cut is Cut.RUNS else count_ranges
        whole = [source_format(format, name).cut is Cut.SEQUENTIAL for name in files]
        # An empty file of such a format is damaged, and has a chunk that says so.
        chunks = np.where(whole, 1, count(sizes, chunk_bytes))
    if not sizes.sum() or (part_rows and not rows.sum()):
        what = "no rows" if part_rows else "no bytes"
        raise SourceError(
            f"datasets.{dataset} must hold documents, got {len(files)} files with {what}; the lanes"
            " would wait for it for ever; correct `files`, or remove the data set"
        )
    table = CatalogTable(
        dataset=dataset,
        format=format,
        chunk_bytes=chunk_bytes,
        part_rows=part_rows,
        names=text_column(list(files)),
        identities=text_column([scan.identity for scan in files.values()]),
        sizes=sizes,
        chunks=chunks,
        first_chunks=np.cumsum(chunks) - chunks,
        row_group_rows=rows,
        row_group_bytes=row_bytes,
    )
    return encode_table(table)


def derive_chunk_bytes(recipe: Recipe, source_bytes: int) -> int:
    """Choose the bytes of source per chunk of a data set.

    256 KiB; less when a lane would get fewer than 8 chunks a pass, when a lane would keep more than
    64 MiB open (data sets · interleave · chunk_bytes) or all lanes together more than 256 MiB;
    never below 16 KiB. A `chunk_bytes` of the recipe is taken as it is.

    Raises:
        RecipeError: the lanes would keep more than 256 MiB open.

    Determinism: depends on the recipe and the size of the data set alone.
    """
    open_chunks = len(recipe.datasets) * recipe.shuffle.interleave
    limit = _OPEN_BYTES_STREAM // (recipe.lanes * open_chunks)
    smallest = MIN_CHUNK_BYTES if recipe.chunk_bytes is None else recipe.chunk_bytes
    if smallest > limit:
        lower = "lanes or shuffle.interleave"
        raise RecipeError(
            f"chunk_bytes must be at most {limit} with {recipe.lanes} lanes, {len(recipe.datasets)}"
            f" data sets and shuffle.interleave {recipe.shuffle.interleave}, got {smallest}"
            f"{' (the minimum)' if recipe.chunk_bytes is None else ''}; the open chunks of all "
            "lanes would take more than 256 MiB; lower "
            f"{lower if recipe.chunk_bytes is None else 'chunk_bytes, ' + lower}"
        )
    if recipe.chunk_bytes is not None:
        return recipe.chunk_bytes
    fair_share = source_bytes // (_CHUNKS_PER_LANE * recipe.lanes)
    chosen = min(DEFAULT_CHUNK_BYTES, fair_share, _OPEN_BYTES_LANE // open_chunks, limit)
    return max(MIN_CHUNK_BYTES, chosen // _ROUNDING * _ROUNDING)


class Catalog:
    """The catalog of one data set, as views of its mapped file.

    Files are numbered in name order, chunks in file order. Of the files, those without chunks of
    their own (empty ones, and all but the first of a run) share `first_chunk` with the next one
    that has some; so the file of a chunk is the last one whose `first_chunk` is not above it.

    Determinism: a chunk depends on the catalog's content alone.
    """

    def __init__(self, table: CatalogTable, digest: str) -> None:
        """Look chunks up in a table; `from_buffer` is the usual way."""
        self._table = table
        self._cut = FORMATS[table.format].cut
        self.dataset = table.dataset
        self.format = table.format
        self.chunk_bytes = table.chunk_bytes
        """Bytes of one range, or expanded bytes of one part of a file read from its start."""
        self.part_rows = table.part_rows
        """Rows of one part of a row group; 0 for formats whose chunks have one part."""
        self.digest = digest
        """BLAKE2b over the logical content, 32 hexadecimal digits."""
        self.file_count = len(table.sizes)
        self.chunk_count = int(table.first_chunks[-1] + table.chunks[-1])
        self.source_bytes = int(table.sizes.sum())

    @classmethod
    def from_buffer(cls, data: bytes | memoryview, name: str) -> "Catalog":
        """Open a stored catalog.

        Args:
            data: the whole file; its columns stay where they are.
            name: what to call it in errors.

        Raises:
            CorruptObjectError: damaged or of an unknown version. Values are compared with their
                digest up to 32 MiB; call `verify` to do so with a larger one.
        """
        table, digest = decode_table(data, name)
        if table.format not in FORMATS:
            raise CorruptObjectError(
                f"{name}: format must be one of {', '.join(FORMATS)}, got {table.format!r}; read "
                "it with the version of zephon-beam that wrote it"
            )
        catalog = cls(table, digest)
        if len(data) <= _VERIFIED_BYTES:
            catalog.verify(name)
        return catalog

    def verify(self, name: str) -> None:
        """Read all values and compare them with their digest.

        Raises:
            CorruptObjectError: a value is not what was written.
        """
        verify_table(self._table, self.digest, name)

    def chunk(self, chunk: int) -> Chunk:
        """Return where a chunk lies, in O(log files).

        Raises:
            IndexError: there is no chunk of that number.
        """
        file = self._file_of(chunk)
        first = int(self._table.first_chunks[file])
        start = stop = 0
        row_group, file_count = -1, 1
        cut = self._cut_of(file)
        if cut is Cut.RANGES:
            start = (chunk - first) * self.chunk_bytes
            stop = min(start + self.chunk_bytes, self.file_size(file))
        elif cut is Cut.ROW_GROUPS:
            row_group = chunk - first
            start = int(self._table.row_group_rows[first:chunk].sum())
            stop = start + int(self._table.row_group_rows[chunk])
        elif cut is Cut.RUNS:
            following = chunk + 1 < self.chunk_count
            file_count = (self._file_of(chunk + 1) if following else self.file_count) - file
        return Chunk(
            chunk=chunk,
            first_file=file,
            file_count=file_count,
            start=start,
            stop=stop,
            row_group=row_group,
        )

    def chunk_of_row(self, file: int, row: int) -> Chunk:
        """Return the row group of a file that holds a row.

        Raises:
            IndexError: the file has no such row.
        """
        first = int(self._table.first_chunks[file])
        rows = self._table.row_group_rows[first : first + int(self._table.chunks[file])]
        group = int(np.searchsorted(np.cumsum(rows), row, side="right"))
        if row < 0 or group == len(rows):
            raise IndexError(f"row must be in [0, {int(rows.sum())}), got {row}")
        return self.chunk(first + group)

    def part_count(self, chunk: int) -> int | None:
        """Return the number of parts of a chunk, at least 1; None where only reading tells."""
        if self._cut is Cut.ROW_GROUPS:
            self._require(chunk)
            return count_parts(int(self._table.row_group_rows[chunk]), self.part_rows)
        return None if self._cut_of(self._file_of(chunk)) is Cut.SEQUENTIAL else 1

    @property
    def counts_parts(self) -> bool:
        """Whether the parts of every chunk are known without reading it."""
        files = range(self.file_count)
        return all(self._cut_of(file) is not Cut.SEQUENTIAL for file in files)

    def expanded_bytes(self, chunk: int, expansion: float) -> int:
        """Guess the expanded bytes of a file that is read from its start.

        Args:
            chunk: its chunk.
            expansion: expanded bytes of a compressed byte.
        """
        file = self._file_of(chunk)
        is_compressed = split_ending(self.file_name(file))[1] is not None
        size = self.file_size(file)
        return int(size * expansion) if is_compressed else size

    def part_source_bytes(self, chunk: int, part: int) -> int:
        """Return about how many bytes of source a part stands for; of a row group, expanded ones.

        The parts of a chunk add up to the chunk. Of files that are read from their start it is the
        most that a part stands for, expanded.
        """
        if self._cut is Cut.ROW_GROUPS:
            self._require(chunk)
            rows = int(self._table.row_group_rows[chunk])
            total = int(self._table.row_group_bytes[chunk])
            first, last = (min(place * self.part_rows, rows) for place in (part, part + 1))
            return total * last // max(1, rows) - total * first // max(1, rows)
        found = self.chunk(chunk)
        if self._cut_of(found.first_file) is Cut.SEQUENTIAL:
            return self.chunk_bytes
        if self._cut is Cut.RANGES:
            return found.stop - found.start
        files = slice(found.first_file, found.first_file + found.file_count)
        return int(self._table.sizes[files].sum())

    def file_name(self, file: int) -> str:
        """Return the name of a file relative to the data set's root, with `/`."""
        return self._table.names[file]

    def file_size(self, file: int) -> int:
        """Return the bytes of a file."""
        return int(self._table.sizes[file])

    def file_identity(self, file: int) -> str:
        """Return the identity of a file's content, see `FileScan`."""
        return self._table.identities[file]

    def _cut_of(self, file: int) -> Cut:
        if self.format not in COMPRESSED:
            return self._cut
        return source_format(self.format, self.file_name(file)).cut

    def _file_of(self, chunk: int) -> int:
        self._require(chunk)
        return int(np.searchsorted(self._table.first_chunks, chunk, side="right")) - 1

    def _require(self, chunk: int) -> None:
        if not 0 <= chunk < self.chunk_count:
            raise IndexError(
                f"chunk must be in [0, {self.chunk_count}) of data set {self.dataset!r}, "
                f"got {chunk}"
            )


def _by_name(dataset: str, root: str, scans: Iterable[FileScan]) -> dict[str, FileScan]:
    """Return scans by name, in name order; the same file may have been scanned twice."""
    found: dict[str, FileScan] = {}
    for scan in scans:
        name = relative_name(scan.path, root)
        known = found.setdefault(name, scan)
        if known != scan:
            raise SourceError(
                f"datasets.{dataset}: {name}: expected one content, found two; the file changed "
                "while it was scanned; run the recipe again when nothing writes to it"
            )
    return {name: found[name] for name in sorted(found)}
