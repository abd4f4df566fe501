"""Compressed files and archives in whole runs: one stream, however often a file is begun anew."""

import json
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.run import run_stream
from tests.data_sets import COMPRESS, tar_entries
from tests.pipelines.small_streams import environment, tree
from tests.pipelines.test_determinism import REPEATED, THREADS
from zephon_beam.inspection import inspect_stream
from zephon_beam.verification import verify_stream

RECIPE = """
name: sequential
seed: 7
lanes: 3
seq_len: 64
samples_per_shard: 8
chunk_bytes: 16KiB
tokenizer: {{path: {tokenizer}, eos: null}}
datasets:
  web: {{files: "web*", weight: 0.6, passes: 2}}
  images: {{files: "images*", text: txt, weight: 0.4, passes: 1}}
shuffle: {{interleave: 3}}
packing: {{open_bins: 4}}
bad_records: {{action: {action}, max_fraction: 1}}
"""


def texts(file: int) -> list[str]:
    """Return the documents of a file, of very different lengths, 40 KB in all."""
    return [f"File {file} says {n}: " + "word " * (n * n * 7 % 150) for n in range(100)] + [""]


def lines(file: int) -> bytes:
    """Return a file of lines."""
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts(file))


def archive(file: int) -> bytes:
    """Return an archive of images and texts."""
    members = [
        (f"{n:03d}.{field}", body)
        for n, text in enumerate(texts(file))
        for field, body in (("jpg", b"x" * 500), ("txt", text.encode()))
    ]
    return tar_entries(members)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write plain and compressed lines and archives, and a recipe over them."""
    folder = tmp_path_factory.mktemp("sequential")
    for file, (ending, compress) in enumerate(COMPRESS.items()):
        (folder / f"web{file}.jsonl{ending}").write_bytes(compress(lines(file)))
    (folder / "web9.jsonl").write_bytes(lines(9))
    (folder / "images0.tar").write_bytes(archive(10))
    (folder / "images1.tar.gz").write_bytes(COMPRESS[".gz"](archive(11)))
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(tokenizer=TOKENIZER_FILE, action="fail"))
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path) -> dict[str, str]:
    """Run the recipe in as few advances as possible; return all that may never differ."""
    stream = recipe.parent / "whole"
    facts = run_stream(recipe, stream)
    assert facts["finished"]
    report = verify_stream(str(stream))
    assert report.faults == ()
    datasets = inspect_stream(str(stream))["datasets"]
    assert datasets["web"]["documents"] == 2 * 5 * 101
    assert datasets["images"]["documents"] == 2 * 101
    return tree(stream)


@pytest.mark.parametrize(
    "options",
    [
        {"advance_bytes": 1},
        {"advance_bytes": 60_000, "drain_bytes": 1},
        {"advance_bytes": 200_000, "options": REPEATED},
        {"options": THREADS},
    ],
    ids=["tiny", "drains", "repeated", "threads"],
)
def test_no_option_changes_a_byte(
    recipe: Path, whole: dict[str, str], tmp_path: Path, options: dict[str, Any]
) -> None:
    """Parts are read one by one, in one go, twice, and side by side."""
    facts = run_stream(recipe, tmp_path / "s", **options)
    assert facts["advances"] < 80
    assert tree(tmp_path / "s") == whole


def test_a_run_that_was_killed_goes_on_in_the_middle_of_files(
    recipe: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    """Again and again, until it gets through."""
    code = (
        "import sys; from pipelines.run import run_stream\n"
        "run_stream(sys.argv[1], sys.argv[2], advance_bytes=60_000,"
        " progress=lambda p: print(p.advance, flush=True))"
    )
    command = [sys.executable, "-c", code, str(recipe), str(tmp_path / "s")]
    for kill_after in (2, 4, 6):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment()
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= kill_after:
                    process.send_signal(signal.SIGKILL)
                    break
    assert run_stream(recipe, tmp_path / "s")["finished"]
    assert tree(tmp_path / "s") == whole


@pytest.mark.parametrize("advance_bytes", [1, 1 << 30])
def test_what_is_readable_of_damaged_files_is_delivered_once_a_pass(
    tmp_path: Path, advance_bytes: int
) -> None:
    """And each damage counts as one bad record, whatever the advances."""
    (tmp_path / "recipe.yaml").write_text(
        RECIPE.format(tokenizer=TOKENIZER_FILE, action="quarantine")
    )
    whole = COMPRESS[".gz"](lines(0))
    (tmp_path / "web0.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "web1.jsonl.gz").write_bytes(b"")
    (tmp_path / "web2.jsonl.gz").write_bytes(whole + b"garbage")
    data = archive(1)
    (tmp_path / "images0.tar").write_bytes(data[: 512 * 30])
    (tmp_path / "images1.tar").write_bytes(data)
    stream = tmp_path / "s"
    assert run_stream(tmp_path / "recipe.yaml", stream, advance_bytes=advance_bytes)["finished"]
    assert verify_stream(str(stream)).faults == ()
    found = inspect_stream(str(stream))["datasets"]
    expanded = _readable_lines(whole[: len(whole) // 2])
    assert found["web"]["documents"] == 2 * (expanded + 1 + 1 + 101 + 1)
    assert found["web"]["quarantined"] == 2 * 3
    assert found["images"]["quarantined"] == 1
    assert 101 < found["images"]["documents"] < 120


def _readable_lines(data: bytes) -> int:
    """Return the whole lines at the start of a damaged file."""
    return zlib.decompressobj(31).decompress(data).count(b"\n")
