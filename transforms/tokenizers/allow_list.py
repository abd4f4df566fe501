"""Which `tokenizer.json` files fastokens may be tried on: those whose every part it implements.

fastokens never refuses a split pattern that it does not know: it falls back to an engine whose
results differ in rare texts, which no probe is sure to meet. So what is admitted is written down
here, part by part; whatever is not is left to the `tokenizers` library.
"""

import json
from collections.abc import Mapping
from typing import Any

from transforms.tokenizers.byte_level import byte_of_character

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"

CL100K_PATTERN = rf"{_SUFFIXES}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
"""Of cl100k and Llama 3."""
QWEN2_PATTERN = rf"{_SUFFIXES}|{_WORDS}|\p{{N}}|{_REST}"
SPLIT_PATTERNS = (CL100K_PATTERN, QWEN2_PATTERN)
"""Patterns that fastokens has exact code of its own for.

Left out are that of o200k, where `'\u017f'S` differs, and that of GPT-2 as a split of its own,
where rare characters differ; in a ByteLevel stage it is exact.
"""

_FILE_KEYS = (
    *("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer"),
    *("post_processor", "decoder", "model"),
)
_MODEL_KEYS = (
    *("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"),
)
_TOKEN_KEYS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
_ABSENT: tuple[Any, ...] = (None, "", False)


def refusal(description: Mapping[str, Any]) -> str | None:
    """Say why a tokenizer must be left to `tokenizers`, None if fastokens may be tried.

    Args:
        description: the parsed content of a `tokenizer.json` that `tokenizers` accepts.
    """
    return (
        _unknown_keys("file", description, _FILE_KEYS)
        or _model_refusal(description.get("model") or {})
        or _normalizer_refusal(description.get("normalizer"))
        or _split_refusal(description.get("pre_tokenizer"))
        or _tokens_refusal(description)
    )


def encoding_part(description: Mapping[str, Any]) -> str:
    """Return the file without what plays no part in encoding documents, as JSON.

    Stored truncation and padding would cut and fill documents; decoders and post-processors are
    not used.
    """
    unused = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    return json.dumps({**description, **unused}, ensure_ascii=False)


def _unknown_keys(what: str, found: Mapping[str, Any], known: tuple[str, ...]) -> str | None:
    unknown = sorted(key for key in found if key not in known)
    return f"its {what} has the unknown field {unknown[0]!r}" if unknown else None


def _model_refusal(model: Mapping[str, Any]) -> str | None:
    if model.get("type") != "BPE":
        return f"its model is {model.get('type')!r}, not 'BPE'"
    unknown = _unknown_keys("model", model, _MODEL_KEYS)
    if unknown:
        return unknown
    for name in (
        *("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
        *("fuse_unk", "byte_fallback"),
    ):
        if model.get(name) not in _ABSENT:
            return f"its model has {name} = {model[name]!r}"
    vocabulary = model.get("vocab") or {}
    if len(set(vocabulary.values())) != len(vocabulary):
        return "two tokens of its vocabulary share an id"
    missing = [character for character in byte_of_character() if character not in vocabulary]
    return f"its vocabulary lacks the byte {missing[0]!r}" if missing else None


def _normalizer_refusal(normalizer: Any) -> str | None:
    if normalizer in (None, {"type": "NFC"}):
        return None
    kind = normalizer.get("type") if isinstance(normalizer, Mapping) else normalizer
    return f"its normalizer is {kind!r}, not NFC or none"


def _split_refusal(splitter: Any) -> str | None:
    """Admit ByteLevel with its own pattern, or one known Split before a ByteLevel without."""
    if _is_byte_level(splitter, use_regex=True):
        return None
    kind = splitter.get("type") if isinstance(splitter, Mapping) else splitter
    if kind != "Sequence":
        return f"its pre-tokenizer is {kind!r}, not a known byte-level one"
    stages = splitter.get("pretokenizers") or []
    if len(stages) != 2 or not _is_byte_level(stages[1], use_regex=False):
        return "its pre-tokenizer is not one split followed by a byte-level stage without pattern"
    split = dict(stages[0])
    pattern = (split.pop("pattern", None) or {}).get("Regex")
    if split != {"type": "Split", "behavior": "Isolated", "invert": False}:
        return f"its pre-tokenizer begins with {stages[0].get('type')!r} of an unknown kind"
    if pattern not in SPLIT_PATTERNS:
        return f"its split pattern is not a known one: {pattern!r}"
    return None


def _is_byte_level(stage: Any, *, use_regex: bool) -> bool:
    if not isinstance(stage, Mapping) or stage.get("type") != "ByteLevel":
        return False
    prefix = stage.get("add_prefix_space")
    # A prefix space is put before every piece of a split, which no real tokenizer asks for.
    return stage.get("use_regex", True) is use_regex and (use_regex or prefix is False)


def _tokens_refusal(description: Mapping[str, Any]) -> str | None:
    for token in description.get("added_tokens") or []:
        content = token.get("content")
        unknown = _unknown_keys("added token", token, _TOKEN_KEYS)
        if unknown:
            return unknown
        if token.get("single_word"):
            return f"its added token {content!r} is a single word"
        if token.get("normalized") and description.get("normalizer") is not None:
            return f"its added token {content!r} is looked for in normalized text"
    return None
