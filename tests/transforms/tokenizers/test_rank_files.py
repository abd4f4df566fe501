"""Rank files: the ids are those of tiktoken, and every fault of a file is named."""

import base64
import copy
import json
import multiprocessing
from typing import Any

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from pipelines.demo_corpus import TOKENIZER_FILE
from tests.tokenizer_files import GPT2_PATTERN, rank_lines
from transforms.tokenizers.hugging_face import HuggingFaceTokenizer
from transforms.tokenizers.rank_files import parse_ranks
from transforms.tokenizers.tiktoken_ranks import TiktokenTokenizer
from zephon_beam.errors import RecipeError
from zephon_beam.tokenizer import UnencodableError

CONTENT = rank_lines()
SPECIAL = {"<|endoftext|>": 0, "<|pad|>": 1}
RANKS = parse_ranks(CONTENT, name="demo.tiktoken")
LIBRARY = tiktoken.Encoding(
    "demo", pat_str=GPT2_PATTERN, mergeable_ranks=RANKS, special_tokens=SPECIAL
)


def make(content: bytes = CONTENT, **changes: Any) -> TiktokenTokenizer:
    """Build the backend."""
    options: dict[str, Any] = {"pattern": GPT2_PATTERN, "special": SPECIAL, "allow_special": False}
    return TiktokenTokenizer(content, name="demo.tiktoken", **{**options, **changes})


JSON = HuggingFaceTokenizer(TOKENIZER_FILE.read_bytes(), allow_special=False, name="demo")
PLAIN, ALLOWING = make(), make(allow_special=True)
TEXTS = st.lists(
    st.lists(
        st.one_of(
            st.sampled_from(["<|endoftext|>", "<|pad|>", "'s", "  ", "\n"]), st.text(max_size=9)
        )
    ).map("".join),
    max_size=5,
)


@given(texts=TEXTS)
def test_ids_are_those_of_tiktoken(texts: list[str]) -> None:
    """Ordinary encoding by default; special tokens only where the recipe allows them."""
    for tokenizer, encode in (
        (PLAIN, LIBRARY.encode_ordinary),
        (ALLOWING, lambda text: LIBRARY.encode(text, allowed_special="all")),
    ):
        ids, offsets = tokenizer.encode(texts)
        assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
        found = [ids[offsets[i] : offsets[i + 1]].tolist() for i in range(len(texts))]
        assert found == [encode(text) for text in texts]


@given(texts=TEXTS)
def test_a_rank_file_and_the_same_tokenizer_as_json_agree(texts: list[str]) -> None:
    """The demo's merges in both formats: two libraries, one vocabulary, equal ids."""
    for one, other in zip(PLAIN.encode(texts), JSON.encode(texts), strict=True):
        np.testing.assert_array_equal(one, other)


def test_special_token_text_is_plain_text_unless_allowed() -> None:
    """A document cannot inject a control token unless the recipe allows it."""
    assert 0 not in PLAIN.encode(["a<|endoftext|>b"])[0].tolist()
    assert 0 in ALLOWING.encode(["a<|endoftext|>b"])[0].tolist()


def test_vocabulary_ids_and_padding() -> None:
    """Special tokens come first, then tokens by their text."""
    assert PLAIN.vocab_size == 8192
    assert PLAIN.pad_id == 1
    assert PLAIN.token_id("<|endoftext|>") == 0
    assert PLAIN.token_id(" the") == RANKS[b" the"]
    assert PLAIN.token_id("no such token") is None
    bare = make(special={})
    assert bare.pad_id is None
    assert bare.token_id("<|pad|>") is None
    assert make(special={"<|end|>": 9000}).vocab_size == 9001


def test_a_text_that_tiktoken_gives_up_is_named_and_the_others_live() -> None:
    """A million spaces overrun its pattern engine: an error with the place, never other ids."""
    with pytest.raises(UnencodableError, match=r"text must be one that tiktoken can encode") as met:
        PLAIN.encode(["a", " " * 1_100_000 + "x", "b"])
    assert met.value.place == 1
    assert copy.copy(met.value).place == 1
    assert len(PLAIN.encode(["a", " " * 300_000 + "x"])[0]) > 1


def test_long_runs_that_tiktoken_can_encode_are_whole() -> None:
    """What it does not give up decodes to the very text."""
    for text in (" " * 300_000, "a" * 100_000, "\n" * 100_000, "0" * 100_000):
        assert LIBRARY.decode(PLAIN.encode([text])[0].tolist()) == text


def line(token: bytes, rank: object) -> bytes:
    """Write a line of a rank file."""
    return base64.b64encode(token) + f" {rank}\n".encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT + b"no rank\n", r"rank file, got b'no rank' in line 8191 of 'demo.tiktoken'"),
        (CONTENT + b"YQ==\n", r"got b'YQ==' in line 8191"),
        (CONTENT + line(b"zzzz", -5), r"in line 8191 .*it is no token and rank"),
        (CONTENT + line(b"zzzz", "1.5"), r"it is no token and rank"),
        (CONTENT + b"!!!! 9000\n", r"it is no token and rank"),
        (CONTENT + line(b"", 9000), r"tokens hold a byte"),
        (CONTENT + line(b"zzzz", 2**31), r"ranks are below 2\^31"),
        (CONTENT + line(b"a", 9000), r"got the token b'a' again in line 8191"),
        (CONTENT + line(b"zzzz", 2), r"distinct ranks"),
        (b"".join(CONTENT.splitlines(True)[1:]), r"all 256 single bytes, got .* without b'!'"),
        (b"", r"all 256 single bytes, got .* without b'\\x00'"),
        (TOKENIZER_FILE.read_bytes(), r"in line 1 of 'demo.tiktoken'"),
    ],
)
def test_faults_of_a_rank_file_are_named(content: bytes, message: str) -> None:
    """By line, and with what is wrong about it."""
    with pytest.raises(RecipeError, match=message):
        make(content)


def test_blank_lines_and_line_ends_of_windows_do_not_matter() -> None:
    """Such files are edited and copied by hand."""
    assert parse_ranks(CONTENT.replace(b"\n", b"\r\n\r\n"), name="t") == RANKS


def test_faults_of_the_recipe_are_named() -> None:
    """A pattern that is none, and ids that two tokens would share."""
    with pytest.raises(RecipeError, match=r"tokenizer.pattern must be a regular expression"):
        make(pattern="(")
    with pytest.raises(
        RecipeError, match=r"tokenizer.special.<x> must be .* first free id is 8192"
    ):
        make(special={"<x>": 5})
    with pytest.raises(RecipeError, match=r"tokenizer.special.<y> must be .*'<x>' has"):
        make(special={"<x>": 9000, "<y>": 9000})


def test_ids_do_not_depend_on_the_process() -> None:
    """A worker process with another hash seed gives the same ids."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply_async(_encode, (["def f(x):\n    return x  # na\u00efve"],)).get(
            timeout=120
        )
    assert found == PLAIN.encode(["def f(x):\n    return x  # na\u00efve"])[0].tolist()


def _encode(texts: list[str]) -> list[int]:
    found: list[int] = make().encode(texts)[0].tolist()
    return found


def test_the_rank_file_of_these_tests_is_the_demo_tokenizer() -> None:
    """Every token but the two special ones, with its id as its rank."""
    vocabulary = json.loads(TOKENIZER_FILE.read_bytes())["model"]["vocab"]
    assert sorted(RANKS.values()) == sorted(set(vocabulary.values()) - {0, 1})
