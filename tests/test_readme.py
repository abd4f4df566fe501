"""README stays true: the demo prints the digest it states, and its code and recipe work."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.recipe_file import load_recipe
from pipelines.run import run_stream
from tests.stored_documents import stored_texts
from zephon_beam.consumers import read_consumer
from zephon_beam.store.base import open_store

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def code_blocks(language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the demo once and keep its stream."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.main", "demo", "--keep", str(folder), "--json"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    return {**json.loads(done.stdout), "stream": folder / "stream"}


def test_demo_prints_the_digest_that_readme_states(demo: dict[str, Any]) -> None:
    """Corpus, tokenizer, order and formats are those that README was written for."""
    assert re.findall(r"stream digest: (\w+)", README) == [demo["stream_digest"]]


def test_trainer_code_reads_the_demo_stream(demo: dict[str, Any]) -> None:
    """It saves between two steps, goes on from there, and says that the checkpoint is durable."""
    (code,) = code_blocks("python")
    code = code.replace("/data/streams/web-code", str(demo["stream"])).replace("% 1000", "% 2")
    seen: list[int] = []

    class EnoughError(Exception):
        """Ends the endless loop."""

    def train(input_ids: Any, labels: Any, position_ids: Any, cu_seqlens: Any) -> None:
        assert input_ids.shape == labels.shape == position_ids.shape == (8, 1024)
        assert cu_seqlens[-1] == 8 * 1024
        seen.append(1)
        if len(seen) % 50 == 0:  # in the third step
            raise EnoughError

    checkpoint: dict[str, Any] = {}
    saved: list[tuple[int, int]] = []

    def save(durable: dict[str, Any]) -> None:
        saved.append((durable["data"]["next_sample"], durable["data"]["microbatch"]))

    names = {"rank": 0, "world": 3, "checkpoint": checkpoint, "train": train, "save": save}
    for _ in range(2):
        with pytest.raises(EnoughError):
            exec(compile(code, "README.md", "exec"), names)
    assert saved == [(1024, 0), (2048, 0)]
    consumer = read_consumer(open_store(str(demo["stream"])), "run-17")
    assert consumer is not None
    assert consumer.pins == {"acknowledged": 2048}


def test_the_recipe_and_the_function_make_a_stream(tmp_path: Path) -> None:
    """Both run as they stand, over data of ours."""
    (text, media), (code, served) = code_blocks("yaml"), code_blocks("py")
    (tmp_path / "recipe.yaml").write_text(text)
    (tmp_path / "clean.py").write_text(code)
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER_FILE.read_bytes())
    for folder in ("data/web", "data/code"):
        (tmp_path / folder).mkdir(parents=True)
    lines = [json.dumps({"text": f"<p>number {number}</p>"}) + "\n" for number in range(400)]
    (tmp_path / "data/web/a.jsonl").write_text("".join(lines))
    pq.write_table(pa.table({"content": ["x = 1"] * 400}), tmp_path / "data/code/a.parquet")
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    assert recipe.dataset_names == ("web", "code")
    (tmp_path / "media.yaml").write_text("name: m\ntokenizer: {path: tokenizer.json}\n" + media)
    assert load_recipe(str(tmp_path / "media.yaml")).dataset_names == ("clips", "talks")
    once = text.replace("weight: 0.7", "weight: 0.7\n    passes: 1")
    once = once.replace("weight: 0.3", "weight: 0.3, passes: 1")
    (tmp_path / "once.yaml").write_text(once)
    run_stream(tmp_path / "once.yaml", tmp_path / "stream")
    found = stored_texts(tmp_path / "stream", TOKENIZER_FILE)
    assert found == sorted(f" number {number} " for number in range(400))
    # The program that serves and trains goes on with that stream, which is complete.
    served = served.replace("recipe.yaml", str(tmp_path / "once.yaml"))
    seen: list[Any] = []
    names = {"train": seen.append}
    exec(
        compile(served.replace("/data/streams/web-code", str(tmp_path / "stream")), "", "exec"),
        names,
    )
    assert seen


def test_paths_named_in_the_map_exist() -> None:
    """Every module and folder that the map of the code names is there."""
    block = README[README.index("pipelines/            what runs") : README.index("tests/        ")]
    for line in block.splitlines():
        names, _, _ = line.strip().partition("   ")
        for name in names.split(","):
            stem = name.strip()
            folders = [ROOT, ROOT / "zephon_beam", ROOT / "pipelines"]
            options = [base / stem for base in folders] + [base / f"{stem}.py" for base in folders]
            assert not stem or any(path.exists() for path in options), stem
