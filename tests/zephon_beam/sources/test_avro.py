"""Avro: every cut delivers each record once, whatever the records hold, and damage is named."""

import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.data_sets import Found, open_catalog, parts, read_all
from zephon_beam.catalog.scan import check_columns
from zephon_beam.errors import BadRecordError, RecipeError, SourceError
from zephon_beam.sources.documents import Content
from zephon_beam.sources.read_part import read_part

SYNC = bytes(range(100, 116))
ZEROS = bytes(16)
TEXTS = {"type": "record", "name": "row", "fields": [{"name": "text", "type": "string"}]}


def write(
    path: Path,
    values: Sequence[Any],
    *,
    schema: Any = TEXTS,
    field: str = "text",
    per_block: int = 3,
    sync: bytes = SYNC,
    codec: str = "null",
) -> None:
    """Write records of one field, a number of them to a block."""
    path.write_bytes(encode([{field: value} for value in values], schema, per_block, sync, codec))


def encode(
    records: Sequence[Any],
    schema: Any = TEXTS,
    per_block: int = 3,
    sync: bytes = SYNC,
    codec: str = "null",
) -> bytes:
    """Encode a file with the blocks that are asked for."""
    file = BytesIO()
    writer = fastavro.write.Writer(file, schema, codec=codec, sync_marker=sync)
    for number, record in enumerate(records, start=1):
        writer.write(record)
        if number % per_block == 0:
            writer.dump()
    if len(records) % per_block:
        writer.dump()
    return file.getvalue()


def reference(folder: Path) -> list[Found]:
    """Read all files with fastavro, from their first byte to their last."""
    return [
        (path.name, (block.offset << 24) + index, record["text"])
        for path in sorted(folder.iterdir())
        for block in fastavro.block_reader(BytesIO(path.read_bytes()))
        for index, record in enumerate(block)
    ]


def check_every_cut(folder: Path, sizes: Sequence[int]) -> None:
    """Compare what ranges of some sizes deliver with a plain reading."""
    expected = reference(folder)
    for chunk_bytes in sizes:
        catalog, root = open_catalog(folder, "avro", chunk_bytes=chunk_bytes)
        assert read_all(catalog, root) == expected, chunk_bytes


@given(
    st.lists(st.lists(st.text(max_size=30), max_size=20), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(20, 400),
    st.sampled_from(["null", "deflate", "bzip2", "xz"]),
)
def test_every_cut_delivers_each_record_once(
    contents: list[list[str]], per_block: int, chunk_bytes: int, codec: str
) -> None:
    """With the locators that a plain reading gives, in order."""
    with tempfile.TemporaryDirectory() as folder:
        for place, texts in enumerate(contents):
            path = Path(folder) / f"{place}.avro"
            write(path, texts, per_block=per_block, codec=codec)
        check_every_cut(Path(folder), [chunk_bytes])


def test_ranges_of_one_byte_deliver_each_record_once(tmp_path: Path) -> None:
    """The smallest that there are: most hold nothing."""
    write(tmp_path / "a.avro", [f"text {n}" for n in range(20)])
    check_every_cut(tmp_path, [1, 2, 15, 16, 17, 18, 1 << 20])


hostile = st.lists(
    st.sampled_from(
        [SYNC.decode(), SYNC.decode()[:9], SYNC.decode()[9:], "\0", "\2", "\4", "\x20", "text", ""]
    ),
    max_size=12,
).map("".join)


@given(st.lists(hostile, min_size=1, max_size=8), st.integers(1, 4), st.integers(1, 200))
@example([f"{SYNC.decode()}\4\4\0\4"], 1, 1)
@example([f"{SYNC.decode()}\2\x20text"], 1, 1)
def test_markers_inside_of_records_do_not_move_a_block(
    texts: list[str], per_block: int, chunk_bytes: int
) -> None:
    """Markers and halves of them, with bytes around that could be a block's header."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "a.avro", texts, per_block=per_block)
        expected = reference(folder)
        catalog, root = open_catalog(folder, "avro", chunk_bytes=chunk_bytes)
        try:
            assert read_all(catalog, root) == expected
        except SourceError as error:
            # Only where a marker, a header and another marker stand in their places; the last one
            # may be that of the block itself.
            assert "whole block with the file's own sync marker" in str(error)  # noqa: PT017
            assert SYNC.decode() in "".join(texts)


def test_a_record_full_of_markers_is_read_in_ranges_within_it(tmp_path: Path) -> None:
    """Each range finds a marker that is none, and goes back to the file's first block."""
    texts = [SYNC.decode() * 40, "a", (SYNC.decode() + "x") * 30, "b"]
    write(tmp_path / "a.avro", texts, per_block=1)
    check_every_cut(tmp_path, [1, 16, 17, 50, 333])


def test_blocks_longer_than_several_ranges_are_read_once(tmp_path: Path) -> None:
    """By the range in which they begin."""
    write(tmp_path / "a.avro", ["x" * 5000, "y", "z" * 3000, "w"], per_block=2)
    check_every_cut(tmp_path, [100, 999, 4000])


def test_a_marker_of_zeros_among_zeros_is_found(tmp_path: Path) -> None:
    """It overlaps itself, and an empty block has a header of zeros."""
    texts = ["\0" * 40, "", "\0" * 15, "text", "\0"]
    write(tmp_path / "a.avro", texts, per_block=1, sync=ZEROS)
    expected = reference(tmp_path)
    for chunk_bytes in range(1, 150):
        catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=chunk_bytes)
        try:
            assert read_all(catalog, root) == expected
        except SourceError as error:
            assert "whole block with the file's own sync marker" in str(error)  # noqa: PT017


@pytest.mark.parametrize("chunk_bytes", [1, 40, 64, 100, 400])
def test_a_file_inside_of_a_record_is_refused_where_a_range_would_start_in_it(
    tmp_path: Path, chunk_bytes: int
) -> None:
    """Its blocks have the same marker: no range can tell by itself that they are data."""
    inner = encode([{"text": f"fake {n}"} for n in range(30)], per_block=2)
    write(tmp_path / "a.avro", ["first", inner.decode("latin-1"), "last"], per_block=1)
    catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=chunk_bytes)
    with pytest.raises(SourceError, match=r"found at byte .* a whole block .* write the file with"):
        read_all(catalog, root)
    whole, root = open_catalog(tmp_path, "avro", chunk_bytes=1 << 20)
    assert read_all(whole, root) == reference(tmp_path)


def test_a_block_without_records_holds_none(tmp_path: Path) -> None:
    """Nothing comes of it, and what follows stays in place."""
    data = encode([{"text": "a"}], per_block=1)
    empty = b"\0\0" + SYNC
    (tmp_path / "a.avro").write_bytes(data + empty + data[data.index(SYNC) + 16 :] + empty)
    for chunk_bytes in (1, 10, 1000):
        catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=chunk_bytes)
        assert [text for _, _, text in read_all(catalog, root)] == ["a", "a"]


def test_files_without_blocks_or_bytes_are_no_trouble(tmp_path: Path) -> None:
    """Beside one that has some."""
    (tmp_path / "a.avro").write_bytes(b"")
    (tmp_path / "b.avro").write_bytes(encode([]))
    write(tmp_path / "c.avro", ["x"])
    catalog, root = open_catalog(tmp_path, "avro")
    assert [text for _, _, text in read_all(catalog, root)] == ["x"]


def test_truncation_anywhere_is_an_error_or_a_shorter_file(tmp_path: Path) -> None:
    """Cut behind a block it is a whole file; anywhere else the damage is named."""
    data = encode([{"text": f"text {n}"} for n in range(9)])
    ends = {block.offset + block.size for block in fastavro.block_reader(BytesIO(data))}
    ends.add(data.index(SYNC) + 16)
    for length in range(1, len(data)):
        (tmp_path / "a.avro").write_bytes(data[:length])
        catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=30)
        if length in ends:
            assert read_all(catalog, root) == reference(tmp_path)
            continue
        with pytest.raises(SourceError, match=r"^a\.avro: expected .*found (damage|none)"):
            read_all(catalog, root)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_a_damaged_block_is_named_by_its_place(tmp_path: Path, codec: str) -> None:
    """Whichever of its bytes is wrong, no record of another block comes in its place."""
    texts = [f"{n} {'abc' * 20}" for n in range(9)]
    write(tmp_path / "a.avro", texts, codec=codec)
    data = (tmp_path / "a.avro").read_bytes()
    blocks = list(fastavro.block_reader(BytesIO(data)))
    for place in (blocks[1].offset, blocks[1].offset + 1, blocks[2].offset - 1):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        (tmp_path / "a.avro").write_bytes(damaged)
        for chunk_bytes in (1, 40, 1000):
            catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=chunk_bytes)
            message = f"damage in the block at byte {blocks[1].offset}"
            with pytest.raises(SourceError, match=message):
                read_all(catalog, root)
    if codec != "null":
        damaged = bytearray(data)
        middle = (blocks[1].offset + blocks[2].offset) // 2
        damaged[middle - 9 : middle + 9] = b"\xff" * 18
        (tmp_path / "a.avro").write_bytes(damaged)
        catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=64)
        with pytest.raises(SourceError, match=f"block at byte {blocks[1].offset}"):
            read_all(catalog, root)


def test_a_count_that_is_too_small_is_damage(tmp_path: Path) -> None:
    """Else records would be lost without a word."""
    write(tmp_path / "a.avro", ["a", "b", "c"])
    data = bytearray((tmp_path / "a.avro").read_bytes())
    data[data.index(SYNC) + 16] = 2 << 1
    (tmp_path / "a.avro").write_bytes(data)
    catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=1000)
    with pytest.raises(SourceError, match="2 bytes behind its last record"):
        read_all(catalog, root)


NESTED = {
    "type": "record",
    "name": "page",
    "fields": [
        {"name": "id", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
        {
            "name": "body",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "body_t",
                    "namespace": "a.b",
                    "fields": [
                        {"name": "content", "type": ["null", "string"], "default": None},
                        {"name": "raw", "type": "bytes"},
                        {"name": "parent", "type": ["null", "body_t"]},
                    ],
                },
            ],
        },
        {"name": "other", "type": ["null", "a.b.body_t"]},
        {"name": "labels", "type": {"type": "map", "values": "string"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "kind_t", "symbols": ["string", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "md5", "size": 2}},
    ],
}


def nested(text: str | None, raw: bytes = b"raw") -> dict[str, Any]:
    """Return a record of the nested schema."""
    body = {"content": text, "raw": raw, "parent": {"content": "p", "raw": b"", "parent": None}}
    return {
        "id": 7,
        "price": b"\1",
        "body": body,
        "other": body,
        "labels": {"en": f"label {text}"},
        "tags": ["x"],
        "kind": "string",
        "hash": b"ab",
    }


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("body.content", ["größe", ""]),
        ("body.raw", ["raw", "raw"]),
        ("body.parent.content", ["p", "p"]),
        ("other.content", ["größe", ""]),
        ("labels.en", ["label größe", "label "]),
    ],
)
def test_a_dotted_name_leads_into_records_unions_and_maps(
    tmp_path: Path, field: str, expected: list[str]
) -> None:
    """Whatever lies beside it: logical types, enums, named types used twice, recursion."""
    records = [nested("größe"), nested("")]
    (tmp_path / "a.avro").write_bytes(encode(records, NESTED))
    check_columns("avro", str(tmp_path / "a.avro"), Content(field=field))
    catalog, root = open_catalog(tmp_path, "avro")
    assert [text for _, _, text in read_all(catalog, root, field)] == expected


def test_a_wrong_field_is_found_before_any_work(tmp_path: Path) -> None:
    """By the schema, naming the fields there are."""
    path = tmp_path / "a.avro"
    path.write_bytes(encode([], NESTED))
    message = "text must be a field .*got 'body.contents', .*'id', .*did you mean 'body.content'"
    with pytest.raises(RecipeError, match=message):
        check_columns("avro", str(path), Content(field="body.contents"))
    with pytest.raises(RecipeError, match="got 'tags', which holds an array of string"):
        check_columns("avro", str(path), Content(field="tags"))
    with pytest.raises(RecipeError, match="got 'id', which holds int in"):
        check_columns("avro", str(path), Content(field="id"))
    with pytest.raises(RecipeError, match="tokens must be a field that holds a list of integers"):
        check_columns("avro", str(path), Content(field="tags", kind="tokens"))


def test_a_file_without_the_field_is_a_source_error(tmp_path: Path) -> None:
    """Files of one data set may differ; the first one alone is checked before."""
    write(tmp_path / "a.avro", ["x"])
    schema = {"type": "record", "name": "r", "fields": [{"name": "tex", "type": "string"}]}
    write(tmp_path / "b.avro", ["x"], schema=schema, field="tex")
    catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=1 << 20)
    with pytest.raises(SourceError, match=r"b\.avro: expected a column 'text' .*mean 'tex'"):
        read_all(catalog, root)


@pytest.mark.parametrize(
    "content", [b"Obj", b"Obj\x02" + b"x" * 50, b"not avro at all", b"PAR1" * 100]
)
def test_a_file_that_is_not_avro_is_refused(tmp_path: Path, content: bytes) -> None:
    """When it is looked at first, and when it is read."""
    path = tmp_path / "a.avro"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.avro: expected an Avro object container file, foun"):
        check_columns("avro", str(path), Content())
    catalog, root = open_catalog(tmp_path, "avro")
    with pytest.raises(SourceError, match="expected an Avro object container file"):
        read_all(catalog, root)


@pytest.mark.parametrize("schema", ['"string"', '["null", "int"]', '{"type": "record"}', "[}"])
def test_a_schema_that_is_not_of_records_is_refused(tmp_path: Path, schema: str) -> None:
    """There are files of bare values too."""
    path = tmp_path / "a.avro"
    body = schema.encode()
    head = b"Obj\x01\x02\x16avro.schema" + bytes([len(body) << 1]) + body + b"\0" + SYNC
    path.write_bytes(head)
    with pytest.raises(SourceError, match=r"a\.avro: expected .* Avro"):
        check_columns("avro", str(path), Content())


def test_a_codec_that_is_not_installed_is_named_with_its_package(tmp_path: Path) -> None:
    """Before any work, by the first block."""
    path = tmp_path / "a.avro"
    path.write_bytes(encode([{"text": "a"}]).replace(b"\x08null", b"\x0csnappy"))
    with pytest.raises(SourceError, match=r"found 'snappy' .*cramjam.*; install the package"):
        check_columns("avro", str(path), Content())


BYTES = {"type": "record", "name": "row", "fields": [{"name": "text", "type": ["null", "bytes"]}]}


def test_a_fault_is_set_aside_and_the_rest_of_the_block_is_read(tmp_path: Path) -> None:
    """The bytes behind a text that is not UTF-8 are where its length says."""
    schema = {"type": "record", "name": "row", "fields": [{"name": "text", "type": "string"}]}
    good = encode([{"text": text} for text in ("aa", "bb", "cc", "dd")], schema, per_block=4)
    (tmp_path / "a.avro").write_bytes(good.replace(b"\x04bb", b"\x04\xffb"))
    (tmp_path / "b.avro").write_bytes(encode([{"text": b"x"}, {"text": None}], BYTES))
    catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=1 << 20)
    with pytest.raises(BadRecordError, match=r"record 1 .*valid UTF-8, got byte 0xff at byte 0"):
        read_part(catalog, root, 0, 0)
    with pytest.raises(BadRecordError, match=r"b\.avro, record 1 of .*must be a text, got null"):
        read_part(catalog, root, 1, 0)
    found = read_part(catalog, root, 0, 0, quarantine=True)
    assert found.texts == ["aa", "", "cc", "dd"]
    ((place, locator),) = [(entry.place, entry.locator) for entry in found.quarantined]
    assert (place, locator) == (1, int(found.locators[1]))
    assert found.quarantined[0].reason == "utf8"


TOKENS = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "ids", "type": ["null", {"type": "array", "items": ["null", "long"]}]},
        {"name": "learned", "type": {"type": "array", "items": "boolean"}},
    ],
}


def test_arrays_of_tokens_are_read_with_their_masks(tmp_path: Path) -> None:
    """And refused where one is no id, out of range, or of another length than its mask."""
    rows: list[tuple[Any, list[bool]]] = [
        ([1, 2, 3], [True, False, True]),
        ([], []),
        (None, []),
        ([4, None], [True, True]),
        ([-1], [True]),
        ([50], [True]),
        ([5, 6], [True]),
        ([7], [False]),
    ]
    records = [{"ids": ids, "learned": learned} for ids, learned in rows]
    (tmp_path / "a.avro").write_bytes(encode(records, TOKENS))
    content = Content(field="ids", kind="tokens", loss_mask="learned", id_limit=50)
    check_columns("avro", str(tmp_path / "a.avro"), content)
    catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=1 << 20)
    found = read_part(catalog, root, 0, 0, content=content, quarantine=True)
    assert found.tokens is not None
    assert found.tokens.tokens.tolist() == [1, 2, 3, 7]
    assert found.tokens.offsets.tolist() == [0, 3, 3, 3, 3, 3, 3, 3, 4]
    assert found.tokens.learned is not None
    assert found.tokens.learned.tolist() == [1, 0, 1, 0]
    reasons = {entry.place: entry.reason for entry in found.quarantined}
    assert reasons == {
        2: "not_tokens",
        3: "not_tokens",
        4: "token_range",
        5: "token_range",
        6: "loss_mask",
    }
    with pytest.raises(RecipeError, match="loss_mask must be a field of the documents, got 'mask'"):
        check_columns(
            "avro",
            str(tmp_path / "a.avro"),
            Content(field="ids", kind="tokens", loss_mask="mask"),
        )


def test_conversations_are_given_as_json(tmp_path: Path) -> None:
    """Arrays of records, in the order of their fields."""
    message = {
        "type": "record",
        "name": "message",
        "fields": [{"name": "role", "type": "string"}, {"name": "content", "type": "string"}],
    }
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": "messages", "type": {"type": "array", "items": message}}],
    }
    talk = [{"role": "user", "content": "größe?"}, {"role": "assistant", "content": "1"}]
    (tmp_path / "a.avro").write_bytes(encode([{"messages": talk}], schema))
    content = Content(field="messages", kind="messages")
    check_columns("avro", str(tmp_path / "a.avro"), content)
    catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=1 << 20)
    (text,) = read_part(catalog, root, 0, 0, content=content).texts
    expected = '[{"role":"user","content":"größe?"},{"role":"assistant","content":"1"}]'
    assert text == expected


def test_chunks_may_come_out_empty(tmp_path: Path) -> None:
    """Every part says what it stands for all the same."""
    write(tmp_path / "a.avro", ["x" * 500])
    catalog, root = open_catalog(tmp_path, "avro", chunk_bytes=64)
    counts = [len(part) for part in parts(catalog, root)]
    assert sum(counts) == 1
    assert len(counts) > 5
