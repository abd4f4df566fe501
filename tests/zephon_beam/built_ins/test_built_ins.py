"""Built-ins do what their options say, and every option has its refusal."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.built_ins.deduplicate import Deduplicate
from zephon_beam.built_ins.filter_length import FilterLength
from zephon_beam.built_ins.normalize import Normalize
from zephon_beam.built_ins.table import BUILT_INS, make_built_in
from zephon_beam.errors import RecipeError
from zephon_beam.recipe_datasets import BUILT_IN_TRANSFORMS


def test_the_table_holds_what_recipes_may_call() -> None:
    """No name is promised without its transform."""
    assert tuple(BUILT_INS) == BUILT_IN_TRANSFORMS


@given(st.text(alphabet="a\r\n e\u0301\u00e9\ufb01\u2002"), st.booleans(), st.booleans())
def test_normalize_is_what_unicode_says(text: str, newlines: bool, strip: bool) -> None:
    """In every form; doing it again changes nothing."""
    for form in (None, "NFC", "NFKC", "NFD", "NFKD"):
        step = make_built_in("normalize", {"form": form, "newlines": newlines, "strip": strip})
        expected = text.replace("\r\n", "\n").replace("\r", "\n") if newlines else text
        expected = unicodedata.normalize(form, expected) if form else expected
        expected = expected.strip() if strip else expected
        assert step(text) == expected
        assert step(step(text)) == expected


def test_normalize_depends_on_unicode_where_it_is_used() -> None:
    """So a stream is refused on a Python with other tables, and only then."""
    version = f"1, Unicode {unicodedata.unidata_version}"
    assert Normalize().code_version == version
    assert Normalize(form=None, strip=True).code_version == version
    assert Normalize(form=None).code_version == "1"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"min_characters": 2}, ["\U0001f600b", "abc"]),
        ({"max_characters": 2}, ["", "a", "\U0001f600b"]),
        ({"min_characters": 1, "max_characters": 2}, ["a", "\U0001f600b"]),
    ],
)
def test_lengths_are_code_points_and_bounds_are_kept(
    options: dict[str, Any], kept: list[str]
) -> None:
    """Both bounds belong to what is kept."""
    step = FilterLength(**options)
    assert [text for text in ["", "a", "\U0001f600b", "abc"] if step(text)] == kept


@given(st.lists(st.sampled_from(["", "a", "A", "b", None]), max_size=10))
def test_the_first_of_equal_documents_is_kept(documents: list[str | None]) -> None:
    """And every document that was set aside."""
    kept = Deduplicate()(documents)
    texts = [text for text, keep in zip(documents, kept, strict=True) if keep]
    assert [text for text in texts if text is not None] == list(
        dict.fromkeys(text for text in documents if text is not None)
    )
    assert texts.count(None) == documents.count(None)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("normalize", {"form": "NFX"}, "form must be one of NFC, NFKC, NFD, NFKD"),
        ("normalize", {"newline": True}, "newline must be an option.*did you mean 'newlines'"),
        ("normalize", {"newlines": "yes"}, "newlines must be true or false"),
        ("normalize", {"strip": 1}, "strip must be true or false"),
        ("filter_length", {}, "min_characters must be above 0 if max_characters is not given"),
        ("filter_length", {"min_characters": -1}, "min_characters must be an integer"),
        (
            "filter_length",
            {"min_characters": 5, "max_characters": 4},
            "max_characters must be an integer of at least 5",
        ),
        ("deduplicate", {"by": "text"}, "by must be an option.*there are no options"),
        ("fill_in_the_middle", {"kind": "x"}, "kind must be an option.*middle"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    """With the option's name first, as recipes spell it."""
    with pytest.raises(RecipeError, match=message):
        make_built_in(name, options)
