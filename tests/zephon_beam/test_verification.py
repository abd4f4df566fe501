"""Verification finds every fault, and its digest names the samples in global order."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams import FakeStream, Segment, put, samples_of, shard_count
from tests.verified_streams import make_catalog, make_state, write_state, write_whole_stream
from zephon_beam.errors import RecipeError, StreamNotFoundError
from zephon_beam.layout import MANIFEST, catalog_name, end_name, shard_name, state_name
from zephon_beam.manifest import encode_manifest
from zephon_beam.samples import Samples, digest_of_rows, row_digests
from zephon_beam.shard import encode_shard
from zephon_beam.verification import VerifyReport, verify_stream


@pytest.fixture
def stream(tmp_path: Path) -> FakeStream:
    """Two lanes of three shards, the last ones short."""
    return write_whole_stream(tmp_path, [11, 10], seed=3)


def only_fault(stream: FakeStream, text: str) -> VerifyReport:
    """Require that exactly one fault is found and that it says a text."""
    report = verify_stream(stream.uri)
    assert len(report.faults) == 1, report.faults
    assert text in report.faults[0]
    assert not report.ok
    return report


def samples_in_shard(stream: FakeStream, lane: int, shard: int) -> Samples:
    """Lay out the rows of a shard."""
    size = stream.manifest.samples_per_shard
    return samples_of(stream.lanes[lane][shard * size : (shard + 1) * size], stream.manifest)


def forge(
    stream: FakeStream,
    lane: int,
    shard: int,
    samples: Samples,
    header: dict[str, Any] | None = None,
) -> None:
    """Write a shard that is well-formed and has the digest of its content."""
    size = stream.manifest.samples_per_shard * stream.manifest.lanes
    values = {
        "fingerprint": stream.manifest.fingerprint,
        "lane": lane,
        "first_sample": shard * size + lane,
        **(header or {}),
    }
    put(Path(stream.uri), shard_name(lane, shard), encode_shard(samples, **values))


@given(
    lengths=st.lists(st.integers(0, 13), min_size=1, max_size=4),
    size=st.sampled_from([1, 3, 4, 100]),
    data=st.data(),
)
def test_digest_is_that_of_the_rows_in_global_order(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int, data: st.DataObject
) -> None:
    """Whatever the shard size and wherever lanes end, also of any prefix."""
    folder = tmp_path_factory.mktemp("stream")
    made = write_whole_stream(folder, lengths, samples_per_shard=size)
    total = sum(lengths)
    report = verify_stream(str(folder))
    assert report.faults == ()
    assert (report.samples, report.complete_samples) == (total, total)
    assert report.shards == sum(shard_count(made, lane) for lane in range(len(lengths)))
    rows = [row_digests(samples_of([made.row(g)], made.manifest))[0] for g in range(total)]
    assert report.stream_digest == digest_of_rows(rows)
    if total:
        until = data.draw(st.integers(1, total))
        part = verify_stream(str(folder), until)
        assert (part.faults, part.samples) == ((), until)
        assert part.stream_digest == digest_of_rows(rows[:until])


def test_streams_of_other_shard_sizes_and_codecs_have_one_digest(tmp_path: Path) -> None:
    """The digest is of samples, not of files."""
    found = set()
    for size, compression in ((4, "none"), (3, "none"), (5, "zstd")):
        folder = tmp_path / f"{size}"
        write_whole_stream(folder, [7, 9], samples_per_shard=size, compression=compression)
        found.add(verify_stream(str(folder)).stream_digest)
    assert len(found) == 1


def test_live_stream_without_ends_is_without_fault(tmp_path: Path) -> None:
    """Lanes of different progress are how a stream looks while it is written."""
    write_whole_stream(tmp_path, [12, 4, 8], finite=False)
    report = verify_stream(str(tmp_path))
    assert report.faults == ()
    assert report.complete_samples == 4 * 3 + 1


def test_more_samples_than_are_complete_is_a_fault(stream: FakeStream) -> None:
    """A digest of fewer samples than asked for would be taken for another's."""
    report = verify_stream(stream.uri, 22)
    assert report.faults == (
        "samples: expected at least 22 complete ones, found 21; run the recipe again to go on",
    )
    assert report.stream_digest is None


def test_until_looks_only_at_the_shards_of_those_samples(stream: FakeStream) -> None:
    """The first samples of a huge stream can be compared without reading the rest."""
    (Path(stream.uri) / shard_name(1, 2)).write_bytes(b"")
    report = verify_stream(stream.uri, 16)
    assert (report.faults, report.shards) == ((), 4)
    assert verify_stream(stream.uri, 17).faults == ()
    assert not verify_stream(stream.uri, 18).ok


@pytest.mark.parametrize("until", [0, -3])
def test_until_must_be_positive(stream: FakeStream, until: int) -> None:
    """Nothing to look at is a mistake."""
    with pytest.raises(RecipeError, match=f"until_samples must be at least 1, got {until}"):
        verify_stream(stream.uri, until)


def test_nothing_at_all_is_no_stream(tmp_path: Path) -> None:
    """A mistyped path is not a broken stream."""
    with pytest.raises(StreamNotFoundError, match=r"stream must hold stream.json, found none"):
        verify_stream(str(tmp_path / "typo"))


def test_missing_or_damaged_manifest_is_found(stream: FakeStream) -> None:
    """Without it nothing else can be judged."""
    path = Path(stream.uri) / MANIFEST
    path.write_text("{")
    assert only_fault(stream, "stream.json is corrupt: ").stream_digest is None
    path.unlink()
    assert only_fault(stream, "stream.json is missing").stream_digest is None


def test_altered_recipe_in_the_manifest_is_found(stream: FakeStream) -> None:
    """The fingerprint is recomputed from what it stands for."""
    recipe = {**stream.manifest.recipe, "seed": 1}
    changed = replace(stream.manifest, recipe=recipe)
    put(Path(stream.uri), MANIFEST, encode_manifest(changed))
    only_fault(stream, f"found {stream.manifest.fingerprint}; it was altered")
    changed = replace(stream.manifest, recipe={**recipe, "sede": 1})
    put(Path(stream.uri), MANIFEST, encode_manifest(changed))
    only_fault(stream, "stream.json: recipe: unknown key 'sede'; did you mean 'seed'?")


def test_missing_catalog_is_found(stream: FakeStream) -> None:
    """A stream without its catalogs can be read but not continued."""
    (Path(stream.uri) / catalog_name("code")).unlink()
    only_fault(stream, "catalog/code.arrow is missing; the stream cannot be continued or traced")


def test_damaged_or_foreign_catalog_is_found(stream: FakeStream) -> None:
    """A catalog decides which documents the numbers in shards stand for."""
    path = Path(stream.uri) / catalog_name("code")
    data = path.read_bytes()
    path.write_bytes(data[:-30])
    only_fault(stream, "catalog/code.arrow")
    path.write_bytes(make_catalog("web"))
    only_fault(stream, "catalog/code.arrow: digest: expected ")


def test_holes_are_found(tmp_path: Path) -> None:
    """Each run of missing numbers is one fault, with its first and last name."""
    made = write_whole_stream(tmp_path, [20, 20])
    for shard in (1, 2, 3):
        (tmp_path / shard_name(0, shard)).unlink()
    report = only_fault(
        made,
        f"{shard_name(0, 1)} … {shard_name(0, 3)} are missing (3 shards, 12 samples), though "
        "shard 4 of lane 0 exists",
    )
    assert report.complete_samples == 8
    (tmp_path / shard_name(1, 0)).unlink()
    report = verify_stream(str(tmp_path))
    assert report.faults[1] == (
        f"{shard_name(1, 0)} is missing (4 samples), though shard 1 of lane 1 exists"
    )
    assert report.complete_samples == 1


@pytest.mark.parametrize("finite", [False, True])
def test_a_stray_huge_number_is_found_at_once(tmp_path: Path, finite: bool) -> None:
    """The cost depends on what exists, not on its numbers; past an end nothing is missing."""
    write_whole_stream(tmp_path, [12], finite=finite)
    put(tmp_path, shard_name(0, 999_999_999), b"")
    first, *_ = verify_stream(str(tmp_path)).faults
    if finite:
        assert first.startswith(f"{shard_name(0, 999_999_999)} lies beyond the end of lane 0, whi")
    else:
        assert first == (
            f"{shard_name(0, 3)} … {shard_name(0, 999_999_998)} are missing (999999996 shards, "
            "3999999984 samples), though shard 999999999 of lane 0 exists"
        )


@pytest.mark.parametrize(
    "name",
    [
        "shards/lane-00002/000000000.arrow",
        "shards/lane-00000/7.arrow",
        "shards/lane-00000/000000001.txt",
        "shards/notes",
        "end/lane-00009.json",
    ],
)
def test_objects_that_nothing_reads_are_found(stream: FakeStream, name: str) -> None:
    """A shard under a wrong name would be lost without a word."""
    put(Path(stream.uri), name, b"")
    only_fault(stream, f"{name} must be named like shards/lane-00000/000000000.arrow with a lane")


def test_shard_beyond_the_end_is_found(stream: FakeStream) -> None:
    """An end is final."""
    put(Path(stream.uri), end_name(0), b'{"samples": 8}')
    text = "\n".join(verify_stream(stream.uri).faults)
    assert f"{shard_name(0, 2)} lies beyond the end of lane 0, which has 8 samples" in text


def test_missing_last_shard_is_found_by_the_end(stream: FakeStream) -> None:
    """Cutting off the tail of a finished lane leaves no hole in the numbers."""
    (Path(stream.uri) / shard_name(1, 2)).unlink()
    only_fault(
        stream,
        "shards/lane-00001/000000002.arrow is missing (2 samples), though lane 1 ended with 10 "
        "samples; a run may still write it",
    )
    (Path(stream.uri) / shard_name(1, 1)).unlink()
    only_fault(
        stream,
        "shards/lane-00001/000000001.arrow … shards/lane-00001/000000002.arrow are missing "
        "(2 shards, 6 samples), though lane 1 ended with 10 samples",
    )


def test_a_lane_without_its_only_shard_is_found(tmp_path: Path) -> None:
    """One fault with the samples that are gone, few or one."""
    made = write_whole_stream(tmp_path, [4, 3, 1])
    (tmp_path / shard_name(1, 0)).unlink()
    only_fault(made, "shards/lane-00001/000000000.arrow is missing (3 samples), though lane 1")
    (tmp_path / shard_name(2, 0)).unlink()
    assert verify_stream(str(tmp_path)).faults[1] == (
        "shards/lane-00002/000000000.arrow is missing (1 sample), though lane 2 ended with 1 "
        "sample; a run may still write it"
    )


@pytest.mark.parametrize("content", ["", "[]", '{"samples": "8"}', '{"samples": true}'])
def test_damaged_end_is_found(stream: FakeStream, content: str) -> None:
    """A lane of unknown length is a fault even if its shards are whole."""
    (Path(stream.uri) / end_name(1)).write_text(content)
    only_fault(stream, "end/lane-00001.json is corrupt: ")


def test_end_that_disagrees_with_the_last_shard_is_found(stream: FakeStream) -> None:
    """One of the two is wrong."""
    put(Path(stream.uri), end_name(1), b'{"samples": 9}')
    faults = verify_stream(stream.uri).faults
    assert faults[0] == f"{shard_name(1, 2)}: count: expected 1, found 2"
    assert faults[1] == f"{state_name(1, 2)}: samples: expected 9, found 10"


def test_unreadable_shard_is_found_and_leaves_no_digest(stream: FakeStream) -> None:
    """What cannot be read has no digest, and the rest is still checked."""
    path = Path(stream.uri) / shard_name(0, 1)
    path.write_bytes(path.read_bytes()[:-20])
    (Path(stream.uri) / state_name(1, 2)).unlink()
    report = verify_stream(stream.uri)
    assert report.faults[0].startswith(f"{shard_name(0, 1)} is corrupt: ")
    assert any(fault.startswith(f"{state_name(1, 2)} is missing") for fault in report.faults)
    assert report.stream_digest is None


def test_any_flipped_token_is_found(stream: FakeStream) -> None:
    """The digest in the header is compared with the content."""
    path = Path(stream.uri) / shard_name(0, 0)
    whole = verify_stream(stream.uri).stream_digest
    tokens = samples_in_shard(stream, 0, 0).tokens
    data = bytearray(path.read_bytes())
    place = data.index(tokens.tobytes())
    row = next(i for i, row in enumerate(stream.lanes[0]) if row)
    data[place + 2 * (16 * row + stream.lanes[0][row][0].start)] ^= 1
    path.write_bytes(bytes(data))
    report = only_fault(stream, f"{shard_name(0, 0)}: digest: expected ")
    assert report.stream_digest not in (whole, None)


def test_altered_valid_tokens_are_found(stream: FakeStream) -> None:
    """They decide the loss of a step and are not part of the digest."""
    path = Path(stream.uri) / shard_name(0, 0)
    reader = pa.ipc.open_file(path)
    batch = reader.get_batch(0)
    place = batch.schema.get_field_index("valid_tokens")
    values = pa.array([v + 1 for v in batch.column(place).to_pylist()], pa.int32())
    columns = [values if i == place else column for i, column in enumerate(batch.columns)]
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=batch.schema))
    only_fault(stream, f"{shard_name(0, 0)}: row 0: valid_tokens: expected ")


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"fingerprint": "0" * 32}, "fingerprint: expected "),
        ({"lane": 1}, "lane: expected 0, found 1"),
        ({"first_sample": 4}, "first_sample: expected 8, found 4"),
    ],
)
def test_wrong_header_is_found(stream: FakeStream, header: dict[str, Any], text: str) -> None:
    """A shard that was moved or belongs to another stream is told by its header."""
    forge(stream, 0, 1, samples_in_shard(stream, 0, 1), header)
    only_fault(stream, f"{shard_name(0, 1)}: {text}")


def test_wrong_count_is_found(stream: FakeStream) -> None:
    """Only the last shard of a lane may be short."""
    samples = samples_of(stream.lanes[0][4:7], stream.manifest)
    forge(stream, 0, 1, samples)
    faults = verify_stream(stream.uri).faults
    assert faults[0] == f"{shard_name(0, 1)}: count: expected 4, found 3"
    assert verify_stream(stream.uri).stream_digest is None


def change_tokens(samples: Samples, _stream: FakeStream) -> Samples:
    """Store tokens in another type."""
    return replace(samples, tokens=samples.tokens.astype(np.uint32))


def change_padding(samples: Samples, _stream: FakeStream) -> Samples:
    """Put a token behind the last segment of row 1."""
    tokens = samples.tokens.copy()
    tokens[1, 15] = 9
    return replace(samples, tokens=tokens)


def exceed_vocabulary(samples: Samples, stream: FakeStream) -> Samples:
    """Put an id that no vocabulary entry has."""
    tokens = samples.tokens.copy()
    tokens[0, 0] = stream.manifest.vocab_size
    return replace(samples, tokens=tokens)


def set_segment(field: str, value: int) -> Callable[[Samples, FakeStream], Samples]:
    """Change one value of the second segment, which lies in row 0."""

    def change(samples: Samples, _stream: FakeStream) -> Samples:
        column = samples.segments[field].copy()
        column[1] = value
        return replace(samples, segments={**samples.segments, field: column})

    return change


def add_mask(samples: Samples, _stream: FakeStream) -> Samples:
    """Add a loss mask to a stream that has none."""
    return replace(samples, loss_mask=np.ones_like(samples.tokens, np.uint8))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (change_tokens, "tokens: expected uint16, found uint32"),
        (change_padding, "row 1: padding at token 15: expected 7, found 9"),
        (exceed_vocabulary, "row 0: token 0: expected an id below 50000, found 50000"),
        (add_mask, "loss_mask: expected none, found one"),
        (set_segment("segment_starts", 3), "row 0: segment overlaps the one before: start 3, len"),
        (set_segment("segment_starts", 14), "row 0: segment lies outside the row: start 14, leng"),
        (set_segment("segment_starts", -1), "row 0: segment lies outside the row: start -1, leng"),
        (
            set_segment("segment_lengths", 0),
            "row 0: segment lies outside the row: start 4, length 0",
        ),
        (
            set_segment("source_dataset", 2),
            "row 0: source_dataset: expected at least 0 and below 2",
        ),
        (set_segment("source_file", 2), "row 0: source_file: expected below 2, the files of data"),
        (
            set_segment("source_document", -1),
            "row 0: source_document: expected at least 0, found -1",
        ),
        (set_segment("source_offset", -5), "row 0: source_offset: expected at least 0, found -5"),
        (
            set_segment("segment_next", 50_000),
            "row 0: segment_next: expected at least -1 and below",
        ),
    ],
)
def test_rows_that_cannot_be_are_found(
    tmp_path: Path, change: Callable[[Samples, FakeStream], Samples], text: str
) -> None:
    """Also in a shard that is consistent in itself: a wrong pipeline signs what it writes."""
    row = [Segment(0, (1, 2, 3, 4)), Segment(4, (5, 6, 7, 8))]
    stream = write_whole_stream(tmp_path, [0, 0])
    stream.lanes[0][:] = [row, row]
    stream.lanes[1][:] = [row, row]
    for lane in (0, 1):
        put(tmp_path, end_name(lane), b'{"samples": 2}')
        forge(stream, lane, 0, samples_in_shard(stream, lane, 0))
        write_state(stream, lane, 0)
    assert verify_stream(stream.uri).faults == ()
    forge(stream, 0, 0, change(samples_in_shard(stream, 0, 0), stream))
    faults = [fault for fault in verify_stream(stream.uri).faults if "shards/" in fault]
    assert any(f"{shard_name(0, 0)}: {text}" in fault for fault in faults), faults


def test_rows_of_another_length_are_found(stream: FakeStream) -> None:
    """A shard of another `seq_len` cannot be compared row by row."""
    samples = samples_in_shard(stream, 0, 1)
    wide = np.concatenate((samples.tokens, samples.tokens), axis=1)
    forge(stream, 0, 1, replace(samples, tokens=wide))
    faults = verify_stream(stream.uri).faults
    assert faults[0] == f"{shard_name(0, 1)}: row length: expected 16 tokens, found 32"


def test_missing_lane_state_is_found(stream: FakeStream) -> None:
    """A state is written before its shard, so it must be there."""
    (Path(stream.uri) / state_name(0, 1)).unlink()
    report = only_fault(stream, f"{state_name(0, 1)} is missing, though its shard exists")
    assert report.stream_digest is not None


def test_damaged_lane_state_is_found(stream: FakeStream) -> None:
    """It is decoded, not only looked for."""
    path = Path(stream.uri) / state_name(0, 1)
    path.write_bytes(path.read_bytes()[:-9])
    only_fault(stream, state_name(0, 1))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lane": 1}, "lane: expected 0, found 1"),
        ({"samples": 4}, "samples: expected 8, found 4"),
        ({"fingerprint": "x"}, "fingerprint: expected "),
        ({"datasets": []}, "number of data sets: expected 2, found 0"),
    ],
)
def test_lane_state_of_another_place_is_found(
    stream: FakeStream, changes: dict[str, Any], text: str
) -> None:
    """A state that was copied from elsewhere would continue another lane."""
    write_state(stream, 0, 1, changes)
    only_fault(stream, f"{state_name(0, 1)}: {text}")


def test_a_lost_token_is_found(stream: FakeStream) -> None:
    """Read = in packs + waiting + truncated + dropped, exactly."""
    state = make_state(stream, 0, 1)
    counters = replace(
        state.datasets[0].counters, read_tokens=state.datasets[0].counters.read_tokens + 1
    )
    datasets = [replace(state.datasets[0], counters=counters), state.datasets[1]]
    write_state(stream, 0, 1, {"datasets": datasets})
    only_fault(stream, f"{state_name(0, 1)}: tokens read of web: expected ")


def test_progress_counts_shards(stream: FakeStream) -> None:
    """A long verification can be watched."""
    told: list[tuple[int, int]] = []
    verify_stream(stream.uri, None, lambda done, total: told.append((done, total)))
    assert told == [(2, 6), (4, 6), (6, 6)]


def test_looking_changes_nothing(stream: FakeStream) -> None:
    """A live stream is only read."""
    before = {path: path.stat().st_mtime_ns for path in Path(stream.uri).rglob("*")}
    verify_stream(stream.uri)
    after = {path: path.stat().st_mtime_ns for path in Path(stream.uri).rglob("*")}
    assert json.dumps(sorted(map(str, before))) == json.dumps(sorted(map(str, after)))
    assert before == after


def test_a_shard_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    """What later states count is not held against it once more."""
    stream = write_whole_stream(tmp_path, [18, 8], samples_per_shard=2)
    path = tmp_path / shard_name(0, 1)
    path.write_bytes(path.read_bytes()[:-20])
    (fault,) = verify_stream(str(stream.uri)).faults
    assert fault.startswith("shards/lane-00000/000000001.arrow")
