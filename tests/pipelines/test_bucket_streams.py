"""Streams in a bucket are those in a folder, object by object, whatever happens on the way."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.run import run_stream
from tests.data_sets import tar_archive
from tests.object_stores import proxy_before
from tests.pipelines.small_streams import LANES, ROOT, SmallStream, environment
from tests.pipelines.test_golden_stream import RECIPE, STREAM, TREE
from tests.zephon_beam.sources.test_megatron import write_pair
from zephon_beam import shard
from zephon_beam.errors import DriftError, StoreError
from zephon_beam.inspection import inspect_stream
from zephon_beam.reader import StreamReader
from zephon_beam.shard import decode_shard, encode_shard
from zephon_beam.store import bucket, remote
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

# The client of Google leaves the connections of answers that it does not read to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


TRAILER_BYTES = 20
"""What follows the content of a copy in the local cache."""


def bucket_tree(stream: str) -> dict[str, str]:
    """Digest every object that may never differ, shards as they are in a folder."""
    store = open_store(stream)
    return {
        name: blake2b(as_in_a_folder(name, store.get(name)), digest_size=16).hexdigest()
        for kind in ("shards", "state", "end")
        for name in store.list(f"{kind}/")
    }


def as_in_a_folder(name: str, data: bytes) -> bytes:
    """Return a shard as it is stored without compression, and anything else as it is."""
    if not name.startswith("shards/"):
        return data
    header, samples = decode_shard(data, name)
    place = {"lane": header.lane, "first_sample": header.first_sample}
    return encode_shard(samples, fingerprint=header.fingerprint, **place)


def packed_shards(stream: str) -> list[bool]:
    """Say of each shard whether it is compressed."""
    store = open_store(stream)
    shards = {name: store.get(name) for name in store.list("shards/")}
    return [as_in_a_folder(name, data) != data for name, data in shards.items()]


@pytest.mark.parametrize(
    ("kind", "run_options"),
    [("gcs", {}), ("gcs", {"advance_bytes": 1, "drain_bytes": 1}), ("s3", {}), ("azure", {})],
)
def test_the_golden_stream_is_the_same_in_a_bucket(
    request: pytest.FixtureRequest, kind: str, run_options: dict[str, Any]
) -> None:
    """Every stored byte, in one advance and in many, and what looks at it."""
    stream = f"{request.getfixturevalue(kind)}/s"
    facts = run_stream(RECIPE, stream, **run_options)
    assert facts["finished"]
    assert bucket_tree(stream) == TREE
    assert all(packed_shards(stream))
    assert run_stream(RECIPE, stream)["advances"] == 0
    assert inspect_stream(stream)["samples"] == facts["samples"]
    report = verify_stream(stream)
    assert report.faults == ()
    assert report.stream_digest == STREAM


def test_sources_in_a_bucket_give_the_samples_of_local_ones(gcs: str, tmp_path: Path) -> None:
    """The same rows; the stream is another one, for its sources are known by other identities."""
    copy_files(RECIPE.parent / "corpus", f"{gcs}/corpus")
    text = RECIPE.read_text().replace("files: corpus/", f"files: {gcs}/corpus/")
    assert text.count(gcs) == 2
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text.replace("tokenizer.json", str(RECIPE.parent / "tokenizer.json")))
    stream = tmp_path / "stream"
    assert run_stream(recipe, stream)["finished"]
    assert verify_stream(str(stream)).stream_digest == STREAM
    store = open_store(f"{gcs}/corpus")
    store.replace("notes/a.jsonl", store.get("notes/a.jsonl")[:-1] + b" ")
    store.replace("notes/c.jsonl", b"")
    with pytest.raises(DriftError, match=r"datasets.notes: 'c.jsonl' is new"):
        run_stream(recipe, stream)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_recipe_says_how_shards_are_stored(gcs: str, tmp_path: Path, compression: str) -> None:
    """In a bucket as in a folder; it changes no digest, so both are one stream."""
    recipe = with_compression(tmp_path, compression)
    for stream in (f"{gcs}/s", str(tmp_path / "s")):
        assert run_stream(recipe, stream)["finished"]
        assert verify_stream(stream).stream_digest == STREAM
        assert set(packed_shards(stream)) == {compression == "zstd"}
        assert bucket_tree(stream) == TREE


def test_compression_may_change_while_a_stream_grows(gcs: str, tmp_path: Path) -> None:
    """Also for shards that are lost and made again; a reader finds no difference."""
    plain, packed = (with_compression(tmp_path, codec) for codec in ("none", "zstd"))
    run_stream(RECIPE, tmp_path / "s")
    expected = read_all(tmp_path / "s")
    for stream in (f"{gcs}/s", str(tmp_path / "t")):
        run_stream(plain, stream, until_samples=8, advance_bytes=1)
        run_stream(packed, stream)
        assert set(packed_shards(stream)) == {False, True}
        assert packed_shards(stream)[0] is False
        open_store(stream).delete("shards/lane-00000/000000000.arrow")
        run_stream(packed, stream)
        assert packed_shards(stream)[0] is True
        report = verify_stream(stream)
        assert (report.faults, report.stream_digest) == ((), STREAM)
        assert bucket_tree(stream) == TREE
        assert read_all(stream) == expected


def with_compression(folder: Path, compression: str) -> Path:
    """Write the golden recipe with a `shard.compression` of its own."""
    text = RECIPE.read_text().replace("files: corpus/", f"files: {RECIPE.parent}/corpus/")
    text = text.replace("tokenizer.json", str(RECIPE.parent / "tokenizer.json"))
    recipe = folder / f"{compression}.yaml"
    recipe.write_text(f"{text}shard: {{compression: {compression}}}\n")
    return recipe


FORMATS = """\
name: formats
lanes: 2
seq_len: 64
samples_per_shard: 8
chunk_bytes: 16KiB
tokenizer: {{path: {tokenizer}}}
datasets:
  lines: {{files: "{root}/d/*.jsonl", passes: 1}}
  gzip: {{files: "{root}/d/*.jsonl.gz", passes: 1}}
  zstd: {{files: "{root}/d/*.jsonl.zst", passes: 1}}
  avro: {{files: "{root}/d/*.avro", passes: 1}}
  parquet: {{files: "{root}/d/*.parquet", passes: 1}}
  arrow: {{files: "{root}/d/*.arrow", passes: 1}}
  stream: {{files: "{root}/d/stream/*.arrow", passes: 1}}
  texts: {{files: "{root}/d/*.txt", format: text, passes: 1}}
  archive: {{files: "{root}/d/*.tar", text: txt, passes: 1}}
  ids: {{files: "{root}/d/*.pq", format: parquet, tokens: ids, passes: 1}}
  megatron: {{files: "{root}/d/*.bin", format: megatron, passes: 1}}
"""


def write_every_format(folder: Path) -> None:
    """Write documents in every format that there is."""
    texts = [f"document {number} of many {'x' * (number % 57)}" for number in range(60)]
    body = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    table = pa.table({"text": texts})
    (folder / "stream").mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(body)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(body, mtime=0))
    (folder / "a.jsonl.zst").write_bytes(pa.compress(body, codec="zstd", asbytes=True))
    schema = {"type": "record", "name": "d", "fields": [{"name": "text", "type": "string"}]}
    with (folder / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"text": text} for text in texts], sync_interval=500)
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    with pa.ipc.new_stream(folder / "stream" / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    (folder / "a.txt").write_text(texts[0])
    (folder / "b.txt").write_text(texts[1])
    (folder / "a.tar").write_bytes(
        tar_archive({f"{number:03d}.txt": text.encode() for number, text in enumerate(texts)})
    )
    ids = [[1 + (number + place) % 200 for place in range(9)] for number in range(60)]
    pq.write_table(pa.table({"ids": ids}), folder / "a.pq", row_group_size=7)
    write_pair(folder / "m.bin", [[row] for row in ids])


@pytest.mark.parametrize("kind", ["gcs", "s3", "azure"])
def test_sources_of_every_format_and_the_stream_may_be_in_a_bucket(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """The samples are those of local files in a local stream."""
    bucket = request.getfixturevalue(kind)
    write_every_format(tmp_path / "d")
    copy_files(tmp_path / "d", f"{bucket}/d")
    digests = []
    for root in (str(tmp_path), bucket):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(FORMATS.format(tokenizer=TOKENIZER_FILE, root=root))
        facts = run_stream(recipe, f"{root}/s")
        assert facts["finished"]
        assert all(entry["tokens"] for entry in facts["datasets"].values())
        report = verify_stream(f"{root}/s")
        assert report.faults == ()
        digests.append(report.stream_digest)
    assert digests[0] == digests[1]


def read_all(stream: str | Path, **options: Any) -> list[bytes]:
    """Return the tokens of every microbatch."""
    with_tokens = StreamReader(
        stream, global_batch_size=8, micro_batch_size=4, fields=["tokens", "sample_ids"], **options
    )
    return [batch["sample_ids"].tobytes() + batch["tokens"].tobytes() for batch in with_tokens]


def test_a_reader_finds_the_same_batches_in_a_bucket(
    gcs: str, narrow: SmallStream, own_cache: Path
) -> None:
    """Also from copies on the local disk, by other ranks and at another time."""
    copy_files(narrow.folder, gcs)
    expected = read_all(narrow.folder)
    assert len(expected) > 4
    assert read_all(gcs) == expected
    assert read_all(gcs) == expected
    halves = [read_all(gcs, dp_rank=rank, dp_world_size=2) for rank in range(2)]
    steps = [read_all(narrow.folder, dp_rank=rank, dp_world_size=2) for rank in range(2)]
    assert halves == steps
    assert own_cache.is_dir() == any(own_cache.rglob("objects/*"))


def test_copies_are_expanded_once_a_host(
    gcs: str, narrow: SmallStream, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks map what a folder would hold, so only the first of them unpacks a shard."""
    monkeypatch.setattr(remote, "SMALL_BYTES", 0)
    stream = f"{gcs}/s"
    run_stream(narrow.recipe, stream)
    assert all(packed_shards(stream))
    expected = read_all(narrow.folder)
    assert read_all(stream) == expected
    copies = {path.read_bytes()[:-TRAILER_BYTES] for path in own_cache.rglob("objects/*")}
    shards = {path.read_bytes() for path in (narrow.folder / "shards").rglob("*.arrow")}
    assert shards <= copies
    assert copies.isdisjoint(open_store(stream).get(name) for name in narrow.tree)
    monkeypatch.setattr(shard, "_encode_batch", None)
    assert read_all(stream) == expected
    assert read_all(stream, verify_digests=True) == expected


def copy_files(folder: Path, address: str) -> None:
    """Copy the files of a folder into a bucket."""
    store = open_store(address)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put_if_absent(path.relative_to(folder).as_posix(), path.read_bytes())


def test_two_runs_at_once_make_one_stream(gcs: str, narrow: SmallStream) -> None:
    """Each finds what the other has created."""
    program = [sys.executable, "-m", "pipelines.main", "run", str(narrow.recipe)]
    words = [*program, "--stream", f"{gcs}/s", "--advance-bytes=24KiB", "--json"]
    runs = [
        subprocess.Popen(words, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for run in runs:
        out, _ = run.communicate(timeout=120)
        assert run.returncode == 0
        assert json.loads(out)["finished"]
    assert bucket_tree(f"{gcs}/s") == narrow.tree


TALKATIVE = """
import logging, sys, traceback
logging.basicConfig(level=1)
from pipelines.run import run_stream
from zephon_beam.store.base import open_store
recipe, stream = sys.argv[1:]
print(run_stream(recipe, stream))
for name in ("refused", "failed"):
    try:
        open_store(stream).put_if_absent(name, b"1")
    except OSError:
        traceback.print_exc()
"""


def test_no_credential_is_ever_told(s3: str) -> None:
    """With every logger at its most talkative, in errors with their causes, and in what is stored.

    The Google Cloud Storage of these tests takes requests without any.
    """
    stream = f"{s3}/s"
    secrets = {f"AWS_{name}": f"{name.lower()}-9f2c41" for name in SECRETS}
    given = {**environment(), **secrets, "RUST_LOG": "trace", "RUST_BACKTRACE": "1"}
    with proxy_before(os.environ["AWS_ENDPOINT"]) as proxy:
        # The names say which fault an upload meets.
        proxy.fault_of = {"refused": "403", "failed": "400"}
        words = [sys.executable, "-c", TALKATIVE, str(RECIPE), stream]
        done = subprocess.run(
            words,
            env={**given, "AWS_ENDPOINT": proxy.address},
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        assert secrets["AWS_ACCESS_KEY_ID"] in proxy.authorizations[0]
    told = done.stdout + done.stderr
    assert b"'finished': True" in told
    assert b"DEBUG" in told
    assert told.count(b"StoreError: store must be able to create") == 2
    store = open_store(stream)
    stored = b"".join(store.get(name) for name in store.list(""))
    for secret in (*secrets.values(), "Authorization", "Signature"):
        assert secret.encode() not in told
        assert secret.encode() not in stored


SECRETS = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")


def test_a_run_that_is_killed_goes_on(gcs: str, narrow: SmallStream) -> None:
    """At several moments, told by what it has stored."""
    stream = f"{gcs}/s"
    words = [sys.executable, "-m", "pipelines.main", "run", str(narrow.recipe)]
    words += ["--stream", stream, "--advance-bytes=1"]
    store = open_store(stream)
    for moment in ("shards/lane-00001/000000000.arrow", "advances/000002.json"):
        quiet = subprocess.DEVNULL
        with subprocess.Popen(words, env=environment(), cwd=ROOT, stderr=quiet) as run:
            while not store.exists(moment):
                assert run.poll() is None
            run.send_signal(signal.SIGKILL)
            assert run.wait(60) == -signal.SIGKILL
    run_stream(narrow.recipe, stream, advance_bytes=24 * 1024)
    assert bucket_tree(stream) == narrow.tree


def test_a_run_waits_out_a_store_that_fails_now_and_then(
    gcs: str, narrow: SmallStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request in four meets a fault, of every kind that goes away."""
    monkeypatch.setattr(bucket, "FIRST_PAUSE_SECS", 0.01)
    monkeypatch.setattr(bucket, "LONGEST_PAUSE_SECS", 0.05)
    faults = ("", "", "503", "", "", "", "429", "", "", "lose", "", "", "", "reset", "", "500")
    with proxy_before(os.environ["STORAGE_EMULATOR_HOST"]) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        proxy.fail(*faults * 200)
        facts = run_stream(narrow.recipe, f"{gcs}/s", advance_bytes=24 * 1024)
        assert facts["finished"]
        proxy.fail()
        assert bucket_tree(f"{gcs}/s") == narrow.tree


def test_a_run_ends_when_the_store_fails_for_too_long_and_goes_on_later(
    gcs: str, narrow: SmallStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bounded time, with one clear error, and the stream is intact."""
    stream = f"{gcs}/s"
    with proxy_before(os.environ["STORAGE_EMULATOR_HOST"]) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        monkeypatch.setattr(bucket, "FIRST_PAUSE_SECS", 0.01)
        monkeypatch.setattr(bucket, "DEADLINE_SECS", 0.3)
        proxy.fail(*[""] * 60, *["503"] * 100_000)
        with pytest.raises(
            StoreError, match=f"store must be able to .* {stream}/.*; check the net"
        ):
            run_stream(narrow.recipe, stream, advance_bytes=1)
        proxy.fail()
        run_stream(narrow.recipe, stream)
        assert bucket_tree(stream) == narrow.tree


def test_requests_of_a_run_and_of_a_reader_are_few(
    gcs: str, narrow: SmallStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a shard costs to write and to read, so that a needless request is noticed."""
    shards = sum(name.startswith("shards/") for name in narrow.tree)
    stream = f"{gcs}/s"
    with proxy_before(os.environ["STORAGE_EMULATOR_HOST"]) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        run_stream(narrow.recipe, stream)
        asked = Counter(map(_kind, proxy.requests))
        # A shard is its lane state and itself, without a look before; to count it none is read.
        assert asked["create shards"] == asked["create state"] == asked["stat shards"] == shards
        assert asked["read shards"] == 0
        proxy.requests.clear()
        read_all(stream)
        asked = Counter(map(_kind, proxy.requests))
        # A shard is read once, and those far ahead are found together.
        assert asked["read shards"] == shards
        assert asked["stat shards"] <= 3 * LANES
        assert asked["list shards"] <= 2 * LANES
        assert sum(asked.values()) <= shards + 6 * LANES + 1
        proxy.requests.clear()
        StreamReader(stream, global_batch_size=8, micro_batch_size=4)
        assert list(map(_kind, proxy.requests)) == ["read stream.json"]


def _kind(request: str) -> str:
    """Name what a request asks for, and of which folder of the stream `s`."""
    method, _, path = unquote(request).partition(" ")
    if "prefix=" in path:
        doing, name = "list", path.partition("prefix=")[2]
    elif method == "POST":
        doing = "create" if "ifGenerationMatch=0" in path else "replace"
        name = path.partition("#")[2]
    else:
        doing = "read" if "alt=media" in path else "delete" if method == "DELETE" else "stat"
        name = path.partition("/o/")[2]
    return f"{doing} {name.removeprefix('s/').partition('/')[0].partition('?')[0]}"
