"""Megatron's indexed data sets: every range delivers each document once; indices are checked."""

import struct
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_sets import open_catalog
from zephon_beam.catalog.scan import check_columns, scan_file
from zephon_beam.errors import BadRecordError, DriftError, RecipeError, SourceError
from zephon_beam.sources.documents import Content, Documents
from zephon_beam.sources.read_part import read_part

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
CONTENT = Content(field="", kind="tokens")
Sequences = list[list[int]]
Files = list[list[Sequences]]


def write_pair(
    path: Path, documents: Sequence[Sequences], dtype: str = "int32", modes: bool = False
) -> None:
    """Write `.bin` and `.idx` as Megatron's builder does, with the standard library alone."""
    sequences = [sequence for document in documents for sequence in document]
    width = np.dtype(dtype).itemsize
    sizes = [len(sequence) for sequence in sequences]
    pointers = [width * sum(sizes[:place]) for place in range(len(sizes))]
    bounds = [sum(map(len, documents[:place])) for place in range(len(documents) + 1)]
    path.with_suffix(".bin").write_bytes(
        b"".join(np.array(sequence, dtype).tobytes() for sequence in sequences)
    )
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, CODES[dtype], len(sizes), len(bounds))
        + struct.pack(f"<{len(sizes)}i", *sizes)
        + struct.pack(f"<{len(pointers)}q", *pointers)
        + struct.pack(f"<{len(bounds)}q", *bounds)
        + (b"\0" * len(sizes) if modes else b"")
    )


def open_pairs(folder: Path, chunk_bytes: int) -> Any:
    """Open the catalog of all pairs of a folder."""
    return open_catalog(folder, "megatron", chunk_bytes=chunk_bytes, pattern="*.bin")


def read_all(catalog: Any, root: str, content: Content = CONTENT) -> Iterator[Documents]:
    """Read all chunks in order."""
    for chunk in range(catalog.chunk_count):
        yield read_part(catalog, root, chunk, 0, content=content)


def documents_of(parts: Iterator[Documents], catalog: Any) -> list[tuple[str, int, list[int]]]:
    """Return (file, locator, tokens) of every document."""
    found = []
    for part in parts:
        assert part.tokens is not None
        assert part.tokens.tokens.dtype == np.uint32
        spans = pairwise(part.tokens.offsets.tolist())
        for file, locator, (start, stop) in zip(
            part.files.tolist(), part.locators.tolist(), spans, strict=True
        ):
            tokens = part.tokens.tokens[start:stop].tolist()
            found.append((catalog.file_name(file), locator, tokens))
    return found


sequences = st.lists(st.integers(0, 100), max_size=9)
documents = st.lists(st.lists(sequences, max_size=3), max_size=12)


@given(
    st.lists(documents, min_size=1, max_size=3).filter(
        lambda files: any(s for file in files for document in file for s in document)
    ),
    st.integers(3, 80),
    st.sampled_from(sorted(CODES)),
    st.booleans(),
)
def test_every_cut_delivers_each_document_once(
    files: Files, chunk_bytes: int, dtype: str, modes: bool
) -> None:
    """Those without sequences or tokens too, in order, their sequences joined."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place, entries in enumerate(files):
            write_pair(folder / f"{place}.bin", entries, dtype, modes)
        catalog, root = open_pairs(folder, chunk_bytes)
        expected = [
            (f"{place}.bin", number, [token for sequence in document for token in sequence])
            for place, entries in enumerate(files)
            if (folder / f"{place}.bin").stat().st_size
            for number, document in enumerate(entries)
        ]
        assert documents_of(read_all(catalog, root), catalog) == expected


def test_ids_of_32_bits_are_not_copied(tmp_path: Path) -> None:
    """They are looked at in the bytes that were read."""
    write_pair(tmp_path / "a.bin", [[[1, 2, 3]], [[4]]])
    catalog, root = open_pairs(tmp_path, 1 << 20)
    (part,) = read_all(catalog, root)
    assert part.tokens is not None
    assert not part.tokens.tokens.flags.owndata
    assert not part.tokens.tokens.flags.writeable


def test_an_id_beyond_the_vocabulary_is_a_fault_of_its_document(tmp_path: Path) -> None:
    """Negative ones too; the others stay."""
    entries = [[[1, 2]], [[3], [-1, 99]], [], [[50]], [[49, 4]]]
    write_pair(tmp_path / "a.bin", entries)
    catalog, root = open_pairs(tmp_path, 1 << 20)
    content = Content(field="", kind="tokens", id_limit=50)
    with pytest.raises(BadRecordError, match=r"^a\.bin, document 1: ids .* from 0 to 49.* got -1;"):
        list(read_all(catalog, root, content))
    found = read_part(catalog, root, 0, 0, content=content, quarantine=True)
    assert [tokens for _, _, tokens in documents_of(iter([found]), catalog)] == [
        [1, 2],
        [],
        [],
        [],
        [49, 4],
    ]
    assert [(entry.place, entry.reason) for entry in found.quarantined] == [
        (1, "token_range"),
        (3, "token_range"),
    ]


def test_the_index_is_part_of_the_identity(tmp_path: Path) -> None:
    """Another one beside the same tokens is another data set."""
    write_pair(tmp_path / "a.bin", [[[1, 2]], [[3, 4]]])
    catalog, root = open_pairs(tmp_path, 1 << 20)
    first = scan_file(str(tmp_path / "a.bin"), "megatron").identity
    write_pair(tmp_path / "a.bin", [[[1, 2], [3, 4]], []])
    assert scan_file(str(tmp_path / "a.bin"), "megatron").identity != first
    with pytest.raises(DriftError, match=r"^a\.idx: expected identity .*start a new stream"):
        list(read_all(catalog, root))
    (tmp_path / "a.idx").unlink()
    with pytest.raises(SourceError, match=r"^a\.idx: expected a file, found none"):
        list(read_all(catalog, root))


def test_a_missing_index_is_found_before_any_work(tmp_path: Path) -> None:
    """And files that are no `.bin` are not taken for one."""
    (tmp_path / "a.bin").write_bytes(b"abcd")
    with pytest.raises(SourceError, match=r"expected the index 'a\.idx' beside it, found none"):
        check_columns("megatron", str(tmp_path / "a.bin"), CONTENT)
    with pytest.raises(SourceError, match=r"a\.idx: expected a readable file, found none"):
        scan_file(str(tmp_path / "a.bin"), "megatron")
    write_pair(tmp_path / "a.bin", [[[1]]])
    check_columns("megatron", str(tmp_path / "a.bin"), CONTENT)
    with pytest.raises(SourceError, match=r"expected files that end in '\.bin', found '\.idx'"):
        scan_file(str(tmp_path / "a.idx"), "megatron")
    with pytest.raises(RecipeError, match="text must name a field of files that have some"):
        check_columns("megatron", str(tmp_path / "a.bin"), Content())


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"NMIDIDX", "it starts with b'NMIDIDX"),
        (9, struct.pack("<Q", 2), "version 2 instead of 1"),
        (17, b"\x07", "tokens of type float32, which are no ids"),
        (17, b"\x63", "tokens of type 99, which are no ids"),
        (18, struct.pack("<Q", 4), "instead of"),
        (26, struct.pack("<Q", 0), "instead of"),
        (34, struct.pack("<i", 1), "sequences that do not follow each other from number 0 on"),
        (34, struct.pack("<i", -2), "sequences that do not follow each other"),
        (34 + 8, struct.pack("<i", 9), "sequences that do not follow each other"),
        (34 + 12, struct.pack("<q", 4), "documents that are not all sequences"),
        (34 + 12 + 8, struct.pack("<q", 4), "sequences that do not follow each other"),
        (34 + 36, struct.pack("<q", 1), "documents that are not all sequences"),
        (34 + 36 + 8, struct.pack("<q", 9), "documents out of order from number"),
        (34 + 36 + 16, struct.pack("<q", 2), "documents that are not all sequences"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
def test_a_wrong_index_is_refused(
    tmp_path: Path, place: int, value: bytes, message: str, chunk_bytes: int
) -> None:
    """Whatever range is read: none loses a document without a word."""
    write_pair(tmp_path / "a.bin", [[[1, 2], [3]], [[4, 5, 6]]])
    data = bytearray((tmp_path / "a.idx").read_bytes())
    data[place : place + len(value)] = value
    (tmp_path / "a.idx").write_bytes(data)
    catalog, root = open_pairs(tmp_path, chunk_bytes)
    with pytest.raises(SourceError, match=r"expected the index of the '\.bin' beside it, fou"):
        list(read_all(catalog, root))
    if chunk_bytes > 7:
        with pytest.raises(SourceError, match=message):
            list(read_all(catalog, root))


@pytest.mark.parametrize("missing", [".bin", ".idx"])
def test_truncated_files_are_refused(tmp_path: Path, missing: str) -> None:
    """Tokens that are gone, and an index that ends early."""
    path = tmp_path / "a.bin"
    write_pair(path, [[[1, 2], [3]], [[4, 5, 6]]])
    data = path.with_suffix(missing).read_bytes()
    for length in range(1, len(data)):
        path.with_suffix(missing).write_bytes(data[:length])
        catalog, root = open_pairs(tmp_path, 1 << 20)
        with pytest.raises(SourceError, match=r"a\.idx: expected the index of the '\.bin' besi"):
            list(read_all(catalog, root))


def test_files_without_tokens_are_no_trouble_beside_others(tmp_path: Path) -> None:
    """They have no chunks."""
    write_pair(tmp_path / "a.bin", [])
    write_pair(tmp_path / "b.bin", [[[7]]])
    catalog, root = open_pairs(tmp_path, 4)
    assert documents_of(read_all(catalog, root), catalog) == [("b.bin", 0, [7])]
