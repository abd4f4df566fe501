"""The gate: fastokens is admitted where it is exact, and refused wherever it is not known to be."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer_files import (
    GPT2_PATTERN,
    O200K_PATTERN,
    added_token,
    encoded,
    known_layouts,
    layout,
    split_layout,
    with_model,
    with_token,
)
from transforms.tokenizers import gate, verdicts
from transforms.tokenizers.allow_list import CL100K_PATTERN, refusal
from transforms.tokenizers.fast_tokens import FastTokenizer
from transforms.tokenizers.gate import compare, fastokens_refusal
from transforms.tokenizers.hugging_face import HuggingFaceTokenizer
from transforms.tokenizers.probes import plain_probes, special_probes
from zephon_beam.errors import RecipeError

LAYOUTS = {name: encoded(description) for name, description in known_layouts().items()}
FRAGMENTS = [
    *("<|endoftext|>", "<|im_start|>", "<|endof", "text|>", "|>", "'s", "'S", "'\u017f", "S", " "),
    *(
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u00a0",
        "12",
        "3",
        "abc",
        "\u00e9",
        "e\u0301",
        "\u6f22\u5b57",
        "!?",
    ),
]
TEXTS = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=8)), max_size=40).map(
    "".join
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a cache folder and a process of its own, as far as the gate can tell."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gate, "_known", {})
    return tmp_path / "cache" / "zephon-beam" / "tokenizers"


def pair(name: str, allow_special: bool) -> tuple[HuggingFaceTokenizer, FastTokenizer]:
    """Build both backends of a layout."""
    return (
        HuggingFaceTokenizer(LAYOUTS[name], allow_special=allow_special, name=name),
        FastTokenizer(LAYOUTS[name], allow_special=allow_special, name=name),
    )


PAIRS = {(name, allow): pair(name, allow) for name in LAYOUTS for allow in (False, True)}


@pytest.fixture
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a verdict cheap where only its keeping matters."""
    monkeypatch.setattr(gate, "plain_probes", lambda _vocabulary: iter(["a"]))


@pytest.mark.parametrize("name", LAYOUTS)
def test_known_layouts_are_admitted(name: str) -> None:
    """GPT-2, Llama 3, Qwen 2 with NFC, and the demo: every probe has equal ids."""
    assert fastokens_refusal(LAYOUTS[name], name=name) is None


@pytest.mark.parametrize("allow_special", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
@given(texts=st.lists(TEXTS, max_size=6))
def test_admitted_files_encode_equally(name: str, allow_special: bool, texts: list[str]) -> None:
    """Whatever the texts, in a batch of any size, ids, offsets and their types are equal."""
    reference, fast = PAIRS[name, allow_special]
    expected, found = reference.encode(texts), fast.encode(texts)
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", known_layouts())
def test_the_vocabulary_is_that_of_the_reference(name: str) -> None:
    """Sizes, ids and padding do not depend on the backend."""
    reference, fast = PAIRS[name, False]
    assert fast.vocab_size == reference.vocab_size
    assert fast.pad_id == reference.pad_id == (1 if name == "demo" else None)
    description = known_layouts()[name]
    added = [token["content"] for token in description["added_tokens"]]
    tokens = [*description["model"]["vocab"], *added, "no such token"]
    assert [fast.token_id(token) for token in tokens] == [
        reference.token_id(token) for token in tokens
    ]
    assert fast.token_id("<|endoftext|>") == (0 if name == "demo" else fast.vocab_size - 3)
    assert fast.token_id("no such token") is None


def test_stored_truncation_and_padding_do_not_reach_fastokens() -> None:
    """What a file says for inference must not cut or fill training documents."""
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    padding = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 7, "pad_type_id": 0, "pad_token": "<|pad|>"}
    description = {**known_layouts()["demo"], "truncation": truncation, "padding": padding}
    fast = FastTokenizer(encoded(description), allow_special=False, name="t")
    reference, _ = PAIRS["demo", False]
    texts = ["a long enough text", "b"]
    assert fast.encode(texts)[0].tolist() == reference.encode(texts)[0].tolist()
    assert fast.pad_id == 7


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "word pattern": (split_layout(r"\w+|\s+|[^\w\s]+"), "split pattern is not a known one"),
    "o200k": (split_layout(O200K_PATTERN), "split pattern is not a known one"),
    "digits in twos": (
        split_layout(CL100K_PATTERN.replace("{1,3}", "{1,2}")),
        "split pattern is not a known one",
    ),
    "removed matches": (
        layout(
            pre_tokenizer={
                **split_layout(CL100K_PATTERN)["pre_tokenizer"],
                "pretokenizers": [
                    {
                        **split_layout(CL100K_PATTERN)["pre_tokenizer"]["pretokenizers"][0],
                        "behavior": "Removed",
                    },
                    split_layout(CL100K_PATTERN)["pre_tokenizer"]["pretokenizers"][1],
                ],
            }
        ),
        "begins with 'Split' of an unknown kind",
    ),
    "no split": (layout(pre_tokenizer=None), "pre-tokenizer is None"),
    "dropout": (with_model(layout(), dropout=0.1), "dropout = 0.1"),
    "unknown token": (with_model(layout(), unk_token="a"), "unk_token = 'a'"),
    "byte fallback": (with_model(layout(), byte_fallback=True), "byte_fallback = True"),
    "word piece": (with_model(layout(), type="WordPiece"), "model is 'WordPiece'"),
    "model field": (with_model(layout(), surprise=1), "unknown field 'surprise'"),
    "file field": (layout(surprise=1), "unknown field 'surprise'"),
    "lower case": (layout(normalizer={"type": "Lowercase"}), "normalizer is 'Lowercase'"),
    "single word": (with_token(layout(), "Beam", single_word=True), "is a single word"),
    "normalized token": (
        with_token(layout(normalizer={"type": "NFC"}), "\u00e9t\u00e9", normalized=True),
        "looked for in normalized text",
    ),
    "token field": (with_token(layout(), "Beam", surprise=1), "unknown field 'surprise'"),
    "missing byte": (
        with_model(
            layout(),
            vocab={k: v for k, v in layout()["model"]["vocab"].items() if k != "\u0120"},
            merges=[],
        ),
        "lacks the byte",
    ),
    "shared id": (
        with_model(layout(), vocab={**layout()["model"]["vocab"], "shared": 7}),
        "share an id",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_fastokens_is_not_known_to_do_is_refused(case: str) -> None:
    """Without a probe: a difference might need a text that no probe has."""
    description, reason = REFUSED[case]
    assert reason in (refusal(description) or "admitted")


@pytest.mark.parametrize(
    "description",
    [
        split_layout(r"\w+|\s+|[^\w\s]+"),
        split_layout(O200K_PATTERN),
        split_layout(GPT2_PATTERN),
    ],
    ids=["words", "o200k", "gpt2 as a split"],
)
def test_probes_find_real_differences(description: dict[str, Any]) -> None:
    """The libraries differ for these files, and the probes alone show it."""
    reason = compare(encoded(description), name="t")
    assert reason is not None
    assert "gives other tokens for" in reason


@pytest.mark.parametrize(
    "description",
    [
        with_token(layout(), "the", special=False),
        layout(added_tokens=[added_token(5000, "<|endoftext|>")]),
    ],
    ids=["token of the vocabulary", "number out of place"],
)
def test_added_tokens_with_ids_of_their_own_are_refused(description: dict[str, Any]) -> None:
    """The reference goes by the vocabulary, or numbers them itself."""
    assert "its vocabulary contradicts" in (compare(encoded(description), name="t") or "equal")


def test_probes_hold_what_told_libraries_apart() -> None:
    """Long runs, a long document, the long s, compositions of Unicode 16, broken special tokens."""
    plain = list(plain_probes(layout()["model"]["vocab"]))
    special = list(special_probes(["<|endoftext|>"]))
    assert "'\u017f'S" in plain
    assert any(" " * 90_000 in text for text in plain)
    assert any(len(text.encode()) > 100_000 and "'s" in text for text in plain)
    assert any(len(text.encode()) > 100_000 and "<|endoftext|>" in text for text in special)
    assert any("\U000113c2\U000113c9" in text for text in plain)
    assert any("\U0001611e\U0001611f" in text for text in plain)
    assert any("\U00016d63\U00016d67" in text for text in plain)
    assert "a<|endoftext|>b" in special
    assert "<|endoftext|" in special
    assert plain == list(plain_probes(layout()["model"]["vocab"]))


@pytest.mark.usefixtures("few_probes")
def test_a_verdict_is_kept_and_found_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process encodes no probe; another version of a library starts anew."""
    assert fastokens_refusal(LAYOUTS["gpt2"], name="t") is None
    (kept,) = own_cache.iterdir()
    assert json.loads(kept.read_bytes()) == {"key": kept.stem, "reason": None}
    kept.write_text(json.dumps({"key": kept.stem, "reason": "as the file says"}))
    monkeypatch.setattr(gate, "_known", {})
    assert fastokens_refusal(LAYOUTS["gpt2"], name="t") == "as the file says"
    monkeypatch.setattr(gate, "_known", {})
    monkeypatch.setattr(gate, "version", lambda package: f"{package} of tomorrow")
    assert fastokens_refusal(LAYOUTS["gpt2"], name="t") is None
    assert len(list(own_cache.iterdir())) == 2


def test_a_verdict_does_not_outrank_the_list() -> None:
    """What is refused without a probe is refused before any kept verdict is looked at."""
    content = encoded(split_layout(r"\w+"))
    key = gate._verdict_key(content)
    verdicts.write_verdict(key, None)
    assert verdicts.read_verdict(key) == (None,)
    assert "not a known one" in (fastokens_refusal(content, name="t") or "admitted")


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"null", b'{"key": "other", "reason": null}', b'{"reason": null}', b"\xff"],
)
def test_a_damaged_verdict_is_made_again(damage: bytes, own_cache: Path) -> None:
    """A file that was cut, emptied or copied from elsewhere is no verdict."""
    key = "0" * 32
    verdicts.write_verdict(key, "a reason")
    assert verdicts.read_verdict(key) == ("a reason",)
    (own_cache / f"{key}.json").write_bytes(damage)
    assert verdicts.read_verdict(key) is None
    verdicts.write_verdict(key, None)
    assert verdicts.read_verdict(key) == (None,)
    assert [path.name for path in own_cache.iterdir()] == [f"{key}.json"]


@pytest.mark.usefixtures("few_probes")
def test_a_folder_that_cannot_be_written_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder that is a file, or none at all: the verdict is the same."""
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert fastokens_refusal(LAYOUTS["gpt2"], name="t") is None
    assert blocked.read_text() == "no folder"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert verdicts.cache_folder() == tmp_path / "home" / ".cache" / "zephon-beam" / "tokenizers"


def test_without_the_package_the_reason_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who lacks fastokens reads how to get it."""
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert fastokens_refusal(LAYOUTS["gpt2"], name="t") == (
        "fastokens is not installed; pip install fastokens"
    )


@pytest.mark.parametrize("content", [b"{}", b"[]", b"no json", b'{"model": 3}'])
def test_what_is_no_tokenizer_is_never_admitted(content: bytes) -> None:
    """Either the reference refuses the file, or the gate does."""
    try:
        reason = fastokens_refusal(content, name="t")
    except RecipeError:
        return
    assert reason is not None
