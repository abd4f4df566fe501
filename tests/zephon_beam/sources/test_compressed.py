"""Compressed files: every byte before the damage, none behind it, and never much in memory."""

import bz2
import lzma
import os
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_sets import COMPRESS
from zephon_beam.sources.compressed import (
    STEP_BYTES,
    ByteStream,
    DamageError,
    open_bytes,
    sniff_compression,
    split_ending,
)
from zephon_beam.sources.open_source import open_source

ENDINGS = pytest.mark.parametrize("ending", list(COMPRESS))
TEXT = b"".join(b"%d and %d are lines\n" % (i, i * i % 9973) for i in range(20_000))


def open_file(path: Path) -> ByteStream:
    """Open a file as readers do; it stays open behind the source that it came from."""
    with open_source(str(path), name=path.name, size=path.stat().st_size, identity="") as source:
        return open_bytes(source)


def expand(path: Path, limit: int = STEP_BYTES) -> tuple[bytes, str | None]:
    """Return (all bytes of a file, what is damaged behind them)."""
    stream = open_file(path)
    pieces, damage = [], None
    try:
        while piece := stream.read(limit):
            assert len(piece) <= limit
            pieces.append(piece)
    except DamageError as error:
        damage = error.found
    assert stream.offset == sum(map(len, pieces))
    return b"".join(pieces), damage


def readable(ending: str, data: bytes) -> bytes:
    """Return what a decoder gives of one stream that is fed, and gives, byte by byte."""
    if ending == ".gz":
        inflate = zlib.decompressobj(31)
        expanded = bytearray()
        try:
            for byte in data:
                expanded += inflate.decompress(bytes([byte]))
        except zlib.error:
            pass
        return bytes(expanded)
    decoder: Any = bz2.BZ2Decompressor() if ending == ".bz2" else lzma.LZMADecompressor()
    found = bytearray()
    try:
        for byte in data:
            found += decoder.decompress(bytes([byte]), 1)
            while not decoder.needs_input:
                found += decoder.decompress(b"", 1)
    except (lzma.LZMAError, OSError):
        pass
    return bytes(found)


@ENDINGS
@pytest.mark.parametrize("members", [1, 2, 5])
def test_all_members_are_one_text(tmp_path: Path, ending: str, members: int) -> None:
    """Concatenated files are, also with empty members between."""
    path = tmp_path / f"a{ending}"
    compress = COMPRESS[ending]
    step = -(-len(TEXT) // members)
    pieces = [compress(TEXT[i : i + step]) + compress(b"") for i in range(0, len(TEXT), step)]
    path.write_bytes(b"".join(pieces))
    assert expand(path) == (TEXT, None)
    assert expand(path, 777) == (TEXT, None)


@ENDINGS
def test_a_file_that_was_cut_off_anywhere_is_damaged(tmp_path: Path, ending: str) -> None:
    """It never looks like a shorter whole one; what is left of it is given."""
    text = TEXT[:600]
    whole = COMPRESS[ending](text[:300]) + COMPRESS[ending](text[300:])
    first = len(COMPRESS[ending](text[:300]))
    path = tmp_path / f"a{ending}"
    for length in [*range(0, len(whole), 7), first, len(whole) - 1]:
        path.write_bytes(whole[:length])
        expanded, damage = expand(path)
        assert text.startswith(expanded)
        if length == first:
            assert damage is None
            continue
        assert damage is not None
        assert ("empty file" in damage) == (length == 0)
        if length > first:
            assert len(expanded) >= 300
            assert "an end of the file inside its" in damage


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("place", [0.2, 0.5, 0.9])
def test_all_bytes_before_the_damage_are_given(tmp_path: Path, ending: str, place: float) -> None:
    """As many as a decoder gives byte by byte, although the fast way loses a step."""
    data = bytearray(COMPRESS[ending](TEXT))
    data[int(len(data) * place)] ^= 0x55
    path = tmp_path / f"a{ending}"
    path.write_bytes(data)
    expected = readable(ending, bytes(data))
    for limit in (STEP_BYTES, 1000):
        expanded, damage = expand(path, limit)
        assert expanded == expected
        assert damage is not None


@pytest.mark.parametrize("length", range(20, 60))
def test_nothing_is_left_inside_a_decoder_at_an_early_end(tmp_path: Path, length: int) -> None:
    """A few bytes of a file may stand for a thousand, of which a read takes some."""
    data = COMPRESS[".gz"](b"x" * 100_000)[:length]
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    expected = readable(".gz", data)
    for limit in (STEP_BYTES, len(expected) or 1, 1):
        assert expand(path, limit)[0] == expected


def test_damage_of_zstd_is_found_by_its_structure(tmp_path: Path) -> None:
    """What stands in the frames before it is given."""
    path = tmp_path / "a.zst"
    path.write_bytes(COMPRESS[".zst"](TEXT[:100_000]) + b"(\xb5/\xfd" + b"\xff" * 40)
    assert expand(path) == (TEXT[:100_000], "damaged zstd data")


@ENDINGS
def test_garbage_behind_the_data_is_damage_and_zeros_are_padding(
    tmp_path: Path, ending: str
) -> None:
    """As gzip and xz allow; the other two know no padding."""
    path = tmp_path / f"a{ending}"
    whole = COMPRESS[ending](TEXT)
    path.write_bytes(whole + b"garbage!")
    expanded, damage = expand(path)
    assert expanded == TEXT
    assert damage is not None
    path.write_bytes(whole + bytes(1024) + whole)
    expanded, damage = expand(path)
    padded = ending in (".gz", ".xz")
    assert (expanded, damage is None) == ((TEXT * 2, True) if padded else (TEXT, False))


@ENDINGS
def test_a_file_that_expands_a_thousandfold_needs_little_memory(
    tmp_path: Path, ending: str
) -> None:
    """64 MB in members of 1 MB; what xz keeps is its dictionary."""
    path = tmp_path / f"a{ending}"
    member = bytes(range(256)) * 2**12
    path.write_bytes(COMPRESS[ending](member) * 64)
    assert path.stat().st_size < 2**21
    stream = open_file(path)
    tracemalloc.start()
    while stream.read():
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert stream.offset == 2**26
    assert peak < (2**24 if ending == ".xz" else 2**21)


@given(st.binary(max_size=300), st.lists(st.integers(0, 200)), st.sampled_from([*COMPRESS, ""]))
def test_skipping_is_reading_and_forgetting(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, steps: list[int], ending: str
) -> None:
    """Also to the end, and no further."""
    path = tmp_path_factory.getbasetemp() / f"skipped{ending}"
    path.write_bytes(COMPRESS.get(ending, bytes)(data))
    stream = open_file(path)
    for number, step in enumerate(steps):
        place = stream.offset
        if place + step > len(data):
            with pytest.raises(DamageError, match="an end of the file"):
                stream.skip(step)
            return
        if number % 2:
            stream.skip(step)
        elif step:
            got = stream.read(step)
            assert got == data[place : place + len(got)]
            assert got or place == len(data)
            stream.skip(step - len(got))
        assert stream.offset == place + step


def test_readers_close_their_files(tmp_path: Path) -> None:
    """With the last reference."""
    path = tmp_path / "a.gz"
    path.write_bytes(COMPRESS[".gz"](TEXT))
    before = len(os.listdir("/proc/self/fd"))
    streams = [open_file(path) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 20
    del streams
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_and_contents_tell_the_compression() -> None:
    """In any case; a text that begins like one is none."""
    assert split_ending("x/a.JSONL.Gz") == (".jsonl", "gzip")
    assert split_ending("a.tgz") == (".tar", "gzip")
    assert split_ending("a.gz") == ("", "gzip")
    assert split_ending("a.b.jsonl") == (".jsonl", None)
    for ending, compress in COMPRESS.items():
        for text in (b"", TEXT):
            assert sniff_compression(compress(text)[:10]) == split_ending("a" + ending)[1]
    for text in (b"", b"BZh9 is how bzip2 begins", b'{"text": 1}', b"PK"):
        assert sniff_compression(text) is None
