"""A small data set with a module of functions beside its recipe."""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

from pipelines.demo_corpus import TOKENIZER_FILE

CODE = '''
    """What the recipe calls."""


    def sentences(document, least):
        """Cut a text into sentences."""
        return [part.strip() for part in document.split(".") if len(part) >= least]


    def mark(document, key, words):
        """Put a word of the document's key before it."""
        words.append(str(key))
        return f"{words[key % (len(words) - 1)]} {key}: {document}"


    def is_wanted(document):
        """Drop one kind of documents."""
        return "drop" not in document


    def fail_on_bad(document):
        """Fail on another kind."""
        if "bad" in document:
            raise ValueError(f"cannot use {object()} and\\n{document[:9]!r}")
        return document
'''

TRANSFORMS = """
      - {call: normalize, with: {form: NFKC, strip: true}}
      - {call: "cleaning:is_wanted", kind: filter}
      - {call: "cleaning:sentences", kind: flat_map, with: {least: 3}}
      - {call: filter_length, with: {min_characters: 5}}
      - {call: "cleaning:mark", with: {words: [one, two, three]}}
      - {call: deduplicate}
"""

RECIPE = """
name: transformed
seed: 7
lanes: 2
seq_len: 64
samples_per_shard: 8
chunk_bytes: 16KiB
tokenizer: {tokenizer}
datasets:
  web:
    files: web/*.jsonl
    passes: 1
    transforms: {transforms}
shuffle: {{interleave: 2}}
packing: {{open_bins: 4}}
{more}
"""

DOCUMENTS = 450
FILES = 3


def texts() -> list[str]:
    """Return the documents of the data set."""
    kinds = ("keep", "drop", "bad", "\ufb01ne")
    return [
        f" {kinds[number * 7 % 4]} {number}. It has {number % 13} sentences. And an end. x" * 2
        for number in range(DOCUMENTS)
    ]


def write_data(folder: Path, documents: Sequence[str] | None = None) -> None:
    """Write `web/` and `cleaning.py` below a folder."""
    documents = texts() if documents is None else documents
    (folder / "web").mkdir(parents=True)
    for file in range(FILES):
        lines = [json.dumps({"text": text}) + "\n" for text in documents[file::FILES]]
        (folder / "web" / f"part-{file}.jsonl").write_text("".join(lines))
    (folder / "cleaning.py").write_text(dedent(CODE))


def write_recipe(
    path: Path,
    transforms: str = TRANSFORMS,
    *,
    tokenizer: str = f"{{path: {TOKENIZER_FILE}}}",
    more: str = "",
    changes: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write a recipe over that data set."""
    text = RECIPE.format(tokenizer=tokenizer, transforms=transforms, more=more)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)
    return path
