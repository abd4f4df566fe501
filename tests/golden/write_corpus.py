r"""Writes the golden corpus and trains its tokenizer; both are committed.

    python tests/golden/write_corpus.py

The corpus is small, and awkward on purpose: documents longer than a row, empty ones, blank lines,
`\r\n`, a byte order mark, a last line without its end, several scripts, text that looks like a
special token. Whoever changes it changes every golden value, which is a change of the stream format
and needs a new format version: keep the old corpus beside the new one then.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

FOLDER = Path(__file__).parent
VOCABULARY_SIZE = 300

_SUBJECTS = ("A lane", "The mixer", "Each shard", "One reader", "Every document", "The packer")
_VERBS = ("waits for", "numbers", "counts", "keeps", "follows", "divides")
_OBJECTS = ("its chunk", "the tokens", "all samples", "a cursor", "the open bins", "every pass")
_ENDINGS = (".", " at once.", ", never twice.", " — in order.", "; nothing is lost.")
_OTHERS = (
    "Die Reihenfolge hängt nur vom Rezept ab.",
    "Порядок не зависит от времени.",
    "顺序只取决于配方。",
    "Ελέγχουμε κάθε byte. 🙂🙃",
    "<|endoftext|> is plain text here, and so is <|pad|>.",
    "x" * 150,
    "",
    "\ttabs\nand\n\nlines\n",
)


def sentence(number: int) -> str:
    """Return one of 1080 sentences."""
    words = [
        _SUBJECTS[number % 6],
        _VERBS[number // 6 % 6],
        _OBJECTS[number // 36 % 6],
    ]
    return " ".join(words) + _ENDINGS[number // 216 % 5]


def text(number: int) -> str:
    """Return a document of 0 to 12 sentences; some are of another kind."""
    if number % 5 == 4:
        return _OTHERS[number // 5 % len(_OTHERS)]
    count = (number * 7 + 3) % 5 if number % 11 else 12
    return " ".join(sentence(number * 131 + 17 * place) for place in range(count))


def corpus() -> dict[str, bytes]:
    """Return the content of every file by its name."""
    lines = [
        json.dumps({"id": number, "body": text(number)}, ensure_ascii=number % 3 == 0)
        for number in range(40)
    ]
    files = {
        "notes/a.jsonl": "".join(line + "\n" for line in lines[:25]).encode(),
        "notes/b.jsonl": b"\xef\xbb\xbf" + "\r\n\n  \n".join(lines[25:]).encode(),
    }
    for number in range(12):
        body = "\n".join([text(100 + number), text(200 + number)])
        files[f"tales/{'new' if number % 2 else 'old'}/{number:02d}.txt"] = body.encode()
    files["tales/old/empty.txt"] = b""
    return files


def train(texts: list[str]) -> str:
    """Train a byte-level tokenizer of 300 ids: `<|endoftext|>`, `<|pad|>`, bytes, 42 merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=["<|endoftext|>", "<|pad|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str(pretty=False)) + "\n"


def main() -> None:
    """Write everything below `corpus/`, and the tokenizer beside it."""
    for name, content in corpus().items():
        path = FOLDER / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    tokenizer = train([text(number) for number in range(300)])
    (FOLDER / "tokenizer.json").write_text(tokenizer, encoding="utf-8")


if __name__ == "__main__":
    main()
