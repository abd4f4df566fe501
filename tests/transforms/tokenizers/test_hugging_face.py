"""The Hugging Face backend: ids as the library gives them, and nothing that makes them vary."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from pipelines.demo_corpus import TOKENIZER_FILE
from transforms.tokenizers.backends import load_tokenizer, tokenizer_digest
from transforms.tokenizers.hugging_face import HuggingFaceTokenizer
from zephon_beam.errors import DriftError, RecipeError
from zephon_beam.recipe import TokenizerRecipe

CONTENT = TOKENIZER_FILE.read_bytes()
TEXTS = [
    "",
    "def f(x):\n    return x",
    "na\u00efve \u6f22\u5b57 \U0001f600",
    "a<|endoftext|>b",
    " ",
    "\x00\r\n",
]


def make(content: bytes = CONTENT, *, allow_special: bool = False) -> HuggingFaceTokenizer:
    """Build the backend from bytes."""
    return HuggingFaceTokenizer(content, allow_special=allow_special, name="tokenizer.json")


def changed(**changes: Any) -> bytes:
    """Return the demo's tokenizer with some of its top-level fields replaced."""
    return json.dumps({**json.loads(CONTENT), **changes}).encode()


def test_ids_equal_those_of_encoding_each_document_alone() -> None:
    """A batch gives each document the ids that it has by itself, flat with offsets."""
    ids, offsets = make(allow_special=True).encode(TEXTS)
    library = Tokenizer.from_file(str(TOKENIZER_FILE))
    assert ids.dtype == np.uint32
    assert offsets.dtype == np.int64
    for place, text in enumerate(TEXTS):
        expected = library.encode(text, add_special_tokens=False).ids
        assert ids[offsets[place] : offsets[place + 1]].tolist() == expected


def test_special_token_text_in_a_document_is_plain_text_by_default() -> None:
    """A document cannot inject a control token unless the recipe allows it."""
    tokenizer = make()
    special = tokenizer.token_id("<|endoftext|>")
    assert special not in tokenizer.encode(["a<|endoftext|>b"])[0].tolist()
    assert special in make(allow_special=True).encode(["a<|endoftext|>b"])[0].tolist()


def test_stored_truncation_and_padding_are_switched_off() -> None:
    """What a file says for inference must not cut or fill training documents."""
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    padding = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 7,
        "pad_type_id": 0,
        "pad_token": "<|pad|>",
    }
    tokenizer = make(changed(truncation=truncation, padding=padding))
    assert tokenizer.encode(TEXTS)[0].tolist() == make().encode(TEXTS)[0].tolist()
    assert tokenizer.pad_id == 7


def test_dropout_is_refused() -> None:
    """A tokenizer that draws lots cannot give the same stream twice."""
    model = {**json.loads(CONTENT)["model"], "dropout": 0.1}
    with pytest.raises(RecipeError, match=r"without dropout.*set model.dropout to null"):
        make(changed(model=model))


def test_a_file_that_is_no_tokenizer_is_refused() -> None:
    """The message names the file and what to do."""
    with pytest.raises(RecipeError, match=r"tokenizer\.path must be a Hugging Face tokenizer.json"):
        make(b"{}")


def test_missing_and_changed_files_are_named(tmp_path: Path) -> None:
    """No file is a wrong recipe; another file than the stream's is drift."""
    with pytest.raises(RecipeError, match="there is no such file"):
        load_tokenizer(TokenizerRecipe(path=str(tmp_path)))
    (tmp_path / "tokenizer.json").write_bytes(CONTENT)
    recipe = TokenizerRecipe(path=str(tmp_path))
    assert load_tokenizer(recipe, expected_digest=tokenizer_digest(CONTENT)).vocab_size == 8192
    with pytest.raises(DriftError, match="tokenizer: expected 00, found"):
        load_tokenizer(recipe, expected_digest="00")
