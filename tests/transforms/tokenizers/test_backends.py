"""The choice of a backend: who encodes which file, and what is refused with the reason."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from tests.tokenizer_files import GPT2_PATTERN, encoded, layout, rank_lines, split_layout
from transforms.tokenizers import gate
from transforms.tokenizers.backends import (
    choose_backend,
    load_reference,
    load_tokenizer,
    load_vocabulary,
)
from transforms.tokenizers.fast_tokens import FastTokenizer
from transforms.tokenizers.hugging_face import HuggingFaceTokenizer
from transforms.tokenizers.tiktoken_ranks import TiktokenTokenizer
from zephon_beam.errors import RecipeError
from zephon_beam.recipe import TokenizerRecipe

DEMO = TokenizerRecipe(path=str(TOKENIZER_FILE))
SPECIAL = {"<|endoftext|>": 0, "<|pad|>": 1}


@pytest.fixture
def unknown(tmp_path: Path) -> TokenizerRecipe:
    """Return a recipe whose tokenizer splits text in a way of its own."""
    (tmp_path / "tokenizer.json").write_bytes(encoded(split_layout(r"\w+|\s+|[^\w\s]+")))
    return TokenizerRecipe(path=str(tmp_path))


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Return the path of a rank file."""
    path = tmp_path / "demo.tiktoken"
    path.write_bytes(rank_lines())
    return path


def test_auto_takes_fastokens_where_it_is_admitted(caplog: pytest.LogCaptureFixture) -> None:
    """Silently, since nothing but the speed tells."""
    assert choose_backend(DEMO, "auto") == choose_backend(DEMO, "fastokens") == "fastokens"
    assert isinstance(load_tokenizer(DEMO), FastTokenizer)
    assert caplog.records == []


def test_auto_says_once_why_it_is_slow(
    unknown: TokenizerRecipe, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver tells; the workers, which load it many times, do not."""
    assert choose_backend(unknown, "auto") == "hf"
    assert isinstance(load_tokenizer(unknown), HuggingFaceTokenizer)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the slow one: its split pattern is not a known one" in record.getMessage()


def test_hf_is_taken_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """Without a word about the faster one."""
    assert choose_backend(DEMO, "hf") == "hf"
    assert isinstance(load_tokenizer(DEMO, backend="hf"), HuggingFaceTokenizer)
    assert isinstance(load_reference(DEMO), HuggingFaceTokenizer)
    assert caplog.records == []


def test_the_reference_is_not_loaded_for_the_vocabulary_alone(
    unknown: TokenizerRecipe, ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the gate opened for it, which takes longer."""
    monkeypatch.setattr(gate, "_known", {})
    assert isinstance(load_vocabulary(DEMO), HuggingFaceTokenizer)
    choose_backend(DEMO, "auto")
    choose_backend(unknown, "auto")
    assert isinstance(load_vocabulary(DEMO), FastTokenizer)
    assert isinstance(load_vocabulary(unknown), HuggingFaceTokenizer)
    with_pattern = TokenizerRecipe(path=str(ranks), pattern=GPT2_PATTERN, special=SPECIAL)
    assert isinstance(load_vocabulary(with_pattern), TiktokenTokenizer)


def _load(recipe: TokenizerRecipe, backend: str) -> object:
    return load_tokenizer(recipe, backend=backend)


@pytest.mark.parametrize("call", [choose_backend, _load])
def test_a_named_backend_that_would_differ_is_refused(
    call: Callable[[TokenizerRecipe, str], object], unknown: TokenizerRecipe
) -> None:
    """By the driver and by every worker, with the reason and the repair."""
    with pytest.raises(RecipeError, match=r"got 'fastokens': its split pattern.*leave it out"):
        call(unknown, "fastokens")
    with pytest.raises(RecipeError, match=r"--backend must be auto, hf or fastokens.*'tiktoken'"):
        call(DEMO, "tiktoken")
    with pytest.raises(RecipeError, match=r"--backend must be one of auto, hf, fastokens, tiktok"):
        call(DEMO, "fasttokens")


def test_a_missing_package_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Asked for by name it is an error, otherwise a warning."""
    monkeypatch.setitem(sys.modules, "fastokens", None)
    with pytest.raises(RecipeError, match=r"fastokens is not installed.*pip install fastokens"):
        choose_backend(DEMO, "fastokens")
    assert choose_backend(DEMO, "auto") == "hf"
    assert "pip install fastokens" in caplog.text


def test_a_rank_file_is_encoded_by_tiktoken(ranks: Path) -> None:
    """Whatever it is called, when the recipe has a pattern."""
    other = ranks.with_suffix(".model")
    other.write_bytes(ranks.read_bytes())
    for path in (ranks, other):
        recipe = TokenizerRecipe(path=str(path), pattern=GPT2_PATTERN, special=SPECIAL)
        assert choose_backend(recipe, "auto") == choose_backend(recipe, "tiktoken") == "tiktoken"
        assert isinstance(load_tokenizer(recipe), TiktokenTokenizer)
        assert isinstance(load_reference(recipe), TiktokenTokenizer)
        for backend in ("hf", "fastokens"):
            with pytest.raises(RecipeError, match="must be auto or tiktoken for the rank file"):
                choose_backend(recipe, backend)


def test_half_a_description_of_a_rank_file_is_refused(ranks: Path, tmp_path: Path) -> None:
    """A rank file needs a pattern; a tokenizer.json has its own."""
    with pytest.raises(RecipeError, match=r"tokenizer.pattern must be given for the rank file"):
        load_tokenizer(TokenizerRecipe(path=str(ranks)))
    (tmp_path / "tokenizer.json").write_bytes(encoded(layout()))
    for recipe in (
        TokenizerRecipe(path=str(tmp_path), pattern=GPT2_PATTERN),
        TokenizerRecipe(path=str(tmp_path), special=SPECIAL),
    ):
        with pytest.raises(RecipeError, match=r"must be left out for a tokenizer.json, got"):
            load_tokenizer(recipe)


def test_tiktoken_missing_is_named_with_its_command(
    ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank file cannot be read without it."""
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    recipe = TokenizerRecipe(path=str(ranks), pattern=GPT2_PATTERN, special={"<|a|>": 9100})
    with pytest.raises(RecipeError, match=r"when tiktoken is not installed.*pip install tiktoken"):
        load_tokenizer(recipe)
