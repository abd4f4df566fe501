"""Small tokenizer files in the layouts of well-known models, trained on the spot."""

import base64
import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipelines.demo_corpus import TOKENIZER_FILE, docstrings
from tests.pipelines.small_streams import ROOT
from transforms.tokenizers.allow_list import CL100K_PATTERN, QWEN2_PATTERN
from transforms.tokenizers.byte_level import byte_of_character

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
O200K_PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_VOCABULARY = 1200
_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_EXTRA = (
    "na\u00efve caf\u00e9 \u00fcber e\u0301 \u6f22\u5b57\u304b\u306a \ud55c\uad6d\uc5b4 \U0001f600 "
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0639\u0631\u0628\u064a \u0939\u093f\u0928 "
)


def added_token(number: int, content: str, **changes: Any) -> dict[str, Any]:
    """Describe an added token as a `tokenizer.json` does."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **plain, "special": True, **changes}


_ACROSS = (
    *("1 2", "12 3", "1 23", "123 4", "1 a", "a 1", ". a", "a .", "' S", "' T", "' a", "a '"),
    *("\u00c5 \u00bf", "' \u00c5\u00bf", "\u00c5\u00bf '", "'\u00c5\u00bf 'S", "'\u00c5\u00bf '"),
    *("\u010a \u010a", "\u010d \u010a", "\u0120 \u0120", "\u0120\u0120 \u0120", "\u0120 \u010a"),
    *("\u010a \u0120", "\u0120 1", "\u0120 '", ". \u010a", ". .", "a A", "A a", "! a"),
)
"""Merges over the edges of pieces, which show in the ids where a text was not split."""


@cache
def _model() -> str:
    """Train a byte-level model of about a thousand merges on docstrings."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sources = sorted((ROOT / "zephon_beam").glob("*.py"))[:20]
    texts = [text for path in sources for _, text in docstrings(path.read_text())]
    tokenizer.train_from_iterator([*texts, _EXTRA * 20], trainer)
    found = json.loads(tokenizer.to_str())
    vocabulary, merges = found["model"]["vocab"], found["model"]["merges"]
    for merge in (text.split(" ") for text in _ACROSS):
        if "".join(merge) not in vocabulary:
            vocabulary["".join(merge)] = len(vocabulary)
            merges.append(merge)
    return json.dumps(found)


def split_layout(pattern: str, **changes: Any) -> dict[str, Any]:
    """Return a tokenizer whose text is first split by a pattern."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    stages = [{**split, "invert": False}, {**byte_level, "use_regex": False}]
    return layout(pre_tokenizer={"type": "Sequence", "pretokenizers": stages}, **changes)


def layout(**changes: Any) -> dict[str, Any]:
    """Return a tokenizer in GPT-2's layout, some of its top-level fields replaced."""
    found = json.loads(_model())
    first = len(found["model"]["vocab"])
    tokens = [added_token(first + place, token) for place, token in enumerate(_TOKENS)]
    return {**found, "added_tokens": tokens, **changes}


def with_token(description: dict[str, Any], content: str, **changes: Any) -> dict[str, Any]:
    """Add a token to a tokenizer."""
    number = len(description["model"]["vocab"]) + len(description["added_tokens"])
    added = [*description["added_tokens"], added_token(number, content, **changes)]
    return {**description, "added_tokens": added}


def with_model(description: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Replace fields of a tokenizer's model."""
    return {**description, "model": {**description["model"], **changes}}


def encoded(description: dict[str, Any]) -> bytes:
    """Return the content of the file."""
    return json.dumps(description, ensure_ascii=False).encode()


def known_layouts() -> dict[str, dict[str, Any]]:
    """Return the layouts that fastokens is to be admitted for."""
    return {
        "gpt2": layout(),
        "llama3": with_model(split_layout(CL100K_PATTERN), ignore_merges=True),
        "qwen2": split_layout(QWEN2_PATTERN, normalizer={"type": "NFC"}),
        "demo": json.loads(TOKENIZER_FILE.read_bytes()),
    }


def rank_lines() -> bytes:
    """Return the demo's tokens as a rank file; its merges are in the order of their ids."""
    alphabet = byte_of_character()
    vocabulary = json.loads(TOKENIZER_FILE.read_bytes())["model"]["vocab"]
    ranks = {
        bytes(alphabet[character] for character in token): number
        for token, number in vocabulary.items()
        if number > 1
    }
    lines = [b"%s %d" % (base64.b64encode(token), rank) for token, rank in ranks.items()]
    return b"\n".join(lines) + b"\n"
