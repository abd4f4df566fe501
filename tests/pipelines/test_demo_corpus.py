"""The demo corpus is the same for everybody, and its tokenizer fits it."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pipelines import demo_corpus, train_demo_tokenizer
from zephon_beam.errors import DriftError, ZephonBeamError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the demo corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    demo_corpus.write_demo_corpus(folder)
    return folder


def prose_documents(folder: Path) -> list[dict[str, str]]:
    """Return the documents of the data set `prose`, in file order."""
    lines = [
        line
        for path in sorted((folder / "prose").iterdir())
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]
    ]
    return [json.loads(line) for line in lines]


def test_corpus_has_the_pinned_bytes(corpus: Path) -> None:
    """Names and contents of all files are those that every other installation writes."""
    assert demo_corpus.corpus_digest(corpus) == "26da601bd98593e37d604277c5eca4a4"


def test_corpus_has_the_expected_counts(corpus: Path) -> None:
    """Both data sets have the documented files, documents and bytes."""
    code = [path for path in (corpus / "code").rglob("*") if path.is_file()]
    prose = sorted((corpus / "prose").iterdir())
    assert {path.suffix for path in code} == {".py"}
    assert len(code) == 1376
    assert sum(path.stat().st_size for path in code) == 15_520_471
    assert [path.name for path in prose] == [f"part-{part:05d}.jsonl" for part in range(8)]
    assert sum(path.stat().st_size for path in prose) == 2_024_741
    assert len(prose_documents(corpus)) == 4954


def test_prose_documents_say_where_they_are_from(corpus: Path) -> None:
    """Each document has text worth reading, its module and its qualified name."""
    documents = prose_documents(corpus)
    assert all(list(document) == ["text", "module", "name"] for document in documents)
    assert all(len(document["text"]) >= 20 for document in documents)
    assert not any(document["module"].endswith("_test") for document in documents)
    places = {(document["module"], document["name"]) for document in documents}
    assert ("apache_beam.transforms.core", "ParDo") in places
    assert ("apache_beam.transforms.core", "DoFn.process") in places
    assert ("apache_beam", "") in places


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_corpus_does_not_depend_on_the_hash_seed(tmp_path: Path, hash_seed: str) -> None:
    """Interpreters with different hash seeds write the same bytes."""
    program = (
        "import pathlib, sys\n"
        "from pipelines.demo_corpus import corpus_digest, write_demo_corpus\n"
        "write_demo_corpus(pathlib.Path(sys.argv[1]))\n"
        "sys.stdout.write(corpus_digest(pathlib.Path(sys.argv[1])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == demo_corpus.CORPUS_DIGEST


def test_writing_again_repairs_a_damaged_file(corpus: Path) -> None:
    """A write that was cut short is made good by the next one."""
    (corpus / "prose" / "part-00003.jsonl").write_bytes(b'{"text": "cut sho')
    demo_corpus.write_demo_corpus(corpus)
    assert demo_corpus.corpus_digest(corpus) == demo_corpus.CORPUS_DIGEST


def test_another_file_in_the_folder_is_refused(corpus: Path) -> None:
    """A stray file would become a document of the demo, so it is an error."""
    stray = corpus / "code" / "stray.py"
    stray.write_text("x = 1\n", encoding="utf-8")
    try:
        with pytest.raises(DriftError, match=r"expected digest 26da.*write it to an empty folder"):
            demo_corpus.write_demo_corpus(corpus)
    finally:
        stray.unlink()


def test_missing_beam_is_named_with_the_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without apache-beam the error says what to install."""

    def not_found(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", not_found)
    with pytest.raises(ZephonBeamError, match=r"got none; .*pip install 'zephon-beam\[beam\]'"):
        demo_corpus.write_demo_corpus(tmp_path)


def test_another_beam_version_is_named_with_the_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of apache-beam would make another corpus, so it is refused."""
    monkeypatch.setattr(demo_corpus, "BEAM_VERSION", "2.76.0")
    with pytest.raises(ZephonBeamError, match=r"must be version 2\.76\.0, got '2\.77\.0'; .*pip"):
        demo_corpus.write_demo_corpus(tmp_path)
    assert not any(tmp_path.iterdir())


def test_docstrings_are_found_in_source_order_with_qualified_names() -> None:
    """Modules, classes, functions and what is nested in statements; nothing else."""
    source = '''"""Module.

    Indented.

      More.
    """
"not a docstring"
class Outer:
    "Outer."
    if True:
        async def method(self):
            """Method.\\n\\n    Detail."""
            def inner():
                "Inner."
    else:
        def other(self): f"not {1} constant"
try:
    pass
except ValueError:
    def handler(): "Handler."
'''
    assert list(demo_corpus.docstrings(source)) == [
        ("", "Module.\n\nIndented.\n\n  More."),
        ("Outer", "Outer."),
        ("Outer.method", "Method.\n\nDetail."),
        ("Outer.method.<locals>.inner", "Inner."),
        ("handler", "Handler."),
    ]


def test_tokenizer_has_the_special_tokens_and_the_size() -> None:
    """End of document is 0, padding is 1, and every id fits in 13 bits."""
    tokenizer = Tokenizer.from_file(str(demo_corpus.TOKENIZER_FILE))
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    assert tokenizer.token_to_id("<|pad|>") == 1
    assert tokenizer.get_vocab_size() == 8192
    assert demo_corpus.TOKENIZER_FILE.stat().st_size < 600_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "def f(x):\n\treturn x ** 2\r\n",
        "Grüße, 世界 \U0001f600",
        "\0\x7f\u2028",
        "  a  b\n\n",
    ],
)
def test_tokenizer_round_trips_any_text(text: str) -> None:
    """Decoding the ids gives back the text, character for character."""
    tokenizer = Tokenizer.from_file(str(demo_corpus.TOKENIZER_FILE))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_tokenizer_compresses_the_corpus(corpus: Path) -> None:
    """It was trained on this corpus: about four bytes a token, and lossless."""
    tokenizer = Tokenizer.from_file(str(demo_corpus.TOKENIZER_FILE))
    text = (corpus / "code" / "apache_beam" / "transforms" / "util.py").read_text(encoding="utf-8")
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(text) / len(ids) > 3.5


@pytest.mark.long
def test_training_again_gives_the_committed_file(tmp_path: Path) -> None:
    """The committed tokenizer is what its script writes, byte for byte."""
    output = tmp_path / "tokenizer.json"
    assert train_demo_tokenizer.main([str(output)]) == 0
    assert output.read_bytes() == demo_corpus.TOKENIZER_FILE.read_bytes()
