"""Trains the demo's tokenizer on the demo corpus and writes `demo_data/tokenizer.json`.

    python -m pipelines.train_demo_tokenizer [OUTPUT]

The result is committed, so that nobody needs to run this; it is here to show where the file comes
from. It is a byte-level BPE with GPT-2's split pattern, without normalizer and post-processor, of
8192 ids: 0 is `<|endoftext|>`, 1 is `<|pad|>`, 2 to 257 are the bytes, the rest are merges.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pipelines.demo_corpus import TOKENIZER_FILE, write_demo_corpus

EOS_TOKEN = "<|endoftext|>"
PAD_TOKEN = "<|pad|>"
VOCABULARY_SIZE = 8192


def corpus_texts(folder: Path) -> Iterator[str]:
    """Yield every document of a written demo corpus, in the order of the file names.

    Args:
        folder: what `pipelines.demo_corpus.write_demo_corpus` was given.

    Determinism: depends on the corpus only.
    """
    for path in sorted((folder / "code").rglob("*.py"), key=Path.as_posix):
        yield path.read_bytes().decode("utf-8")
    for path in sorted((folder / "prose").glob("*.jsonl"), key=Path.as_posix):
        for line in path.read_bytes().splitlines():
            yield json.loads(line)["text"]


def train(texts: Iterator[str]) -> str:
    """Train the tokenizer and return the content of its `tokenizer.json`.

    Args:
        texts: the documents to learn the merges from.

    Determinism: depends on the texts and on the version of the tokenizers library; not on the
    number of threads, because ties between merges are broken by token id.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[EOS_TOKEN, PAD_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=False) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Write the corpus to a temporary folder, train on it and write the tokenizer.

    Args:
        argv: the command line without the program's name; None: that of the process.

    Returns:
        The exit status.

    Raises:
        ZephonBeamError: the demo corpus cannot be made (see `pipelines.demo_corpus`).
    """
    parser = argparse.ArgumentParser(
        prog="train_demo_tokenizer", description="Train the demo's tokenizer.", allow_abbrev=False
    )
    parser.add_argument("output", type=Path, nargs="?", default=TOKENIZER_FILE)
    output: Path = parser.parse_args(argv).output
    with TemporaryDirectory() as folder:
        write_demo_corpus(Path(folder))
        content = train(corpus_texts(Path(folder))).encode("utf-8")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(content)
    print(f"{output}: {len(content)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
