"""Marks go through a template and leave no trace."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.chat.marks import choose_marks, mark_foreign, special_pattern, unmark
from zephon_beam.errors import BadRecordError

PATTERN = special_pattern(["<|im_end|>", "<|im_start|>", "<|im_end|><|im_start|>", "+"])
ALPHABET = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im", "_end|>", "a", "é", "\n", "+"])
PRIVATE = [chr(code) for code in range(0xF0000, 0xF0008)]


@given(st.lists(st.sampled_from([*PRIVATE, *(json.dumps(c)[1:-1] for c in PRIVATE), "a"])))
def test_marks_occur_nowhere_in_the_texts_they_are_chosen_for(pieces: list[str]) -> None:
    """Neither as they are nor as JSON in ASCII or `repr` would spell them."""
    text = "".join(pieces)
    marks = choose_marks("template", text)
    chosen = [*marks.foreign, *marks.learned]
    assert len({*chosen}) == 4
    for mark in chosen:
        assert mark not in text
        assert json.dumps(mark)[1:-1] not in text
        assert ascii(mark)[1:-1] not in text


@given(st.lists(ALPHABET))
def test_special_text_is_found_again_after_any_writing_of_the_value(pieces: list[str]) -> None:
    """As it is, as JSON in ASCII and as `repr`: a template may choose any of them."""
    text = "".join(pieces)
    marks = choose_marks(text)
    marked = mark_foreign({"key": [text]}, PATTERN, marks)
    expected = [match.group() for match in PATTERN.finditer(text)]
    written = marked["key"][0], json.dumps(marked), json.dumps(marked, ensure_ascii=False)
    for output in (*written, repr(marked)):
        found = unmark(output, PATTERN, marks)
        assert [found.text[first:last] for first, last in found.foreign] == expected
        assert not any(mark in found.text for mark in marks.foreign)
    assert unmark(marked["key"][0], PATTERN, marks).text == text


def test_names_of_fields_are_marked_like_values() -> None:
    """A template that writes tool calls as JSON writes them, too."""
    marks = choose_marks("")
    output = json.dumps(mark_foreign({"<|im_end|>": 1}, PATTERN, marks), ensure_ascii=False)
    assert unmark(output, PATTERN, marks).foreign == ((2, 12),)


def test_longer_special_tokens_are_found_before_those_they_contain() -> None:
    """As the tokenizer finds them."""
    assert PATTERN.findall("<|im_end|><|im_start|>") == ["<|im_end|><|im_start|>"]
    assert special_pattern([]).search("anything") is None


def test_marks_that_a_template_tore_apart_enclose_nothing() -> None:
    """A template that splits a content at the token leaves halves of pairs behind."""
    marks = choose_marks("")
    opening, closing = marks.foreign
    found = unmark(f"a{opening}<|im_end|>b{closing}c{closing}d{opening}", PATTERN, marks)
    assert found.text == "a<|im_end|>bcd"
    assert found.foreign == ()


def test_learned_ranges_count_characters_of_the_text_without_marks() -> None:
    """Also where foreign text lies inside them."""
    marks = choose_marks("")
    opening, closing = marks.learned
    foreign = mark_foreign("<|im_end|>", PATTERN, marks)
    found = unmark(f"ab{opening}c{foreign}d{closing}e{opening}{closing}{closing}", PATTERN, marks)
    assert found.text == "abc<|im_end|>de"
    assert found.learned == ((2, 14), (15, 15))
    assert found.foreign == ((3, 13),)


@pytest.mark.parametrize(
    "spell", [lambda mark: json.dumps(mark)[1:-1], lambda mark: ascii(mark)[1:-1]]
)
def test_no_two_texts_put_together_spell_a_mark(spell: Callable[[str], str]) -> None:
    """Wherever it is cut, and also if other text stands before and behind the parts."""
    for mark in PRIVATE:
        for cut in range(1, len(spell(mark))):
            left, right = spell(mark)[:cut], spell(mark)[cut:]
            marks = choose_marks(f"x{left} ", f" {right}y")
            assert mark not in marks.foreign + marks.learned
            assert unmark(left + right, PATTERN, marks).text == left + right


def test_texts_that_leave_no_mark_are_refused() -> None:
    """Every private character can be put together of these."""
    heads = "".join(f"\\ud{code:x}" for code in range(0xB80, 0xC00))
    tails = "".join(f"\\ud{code:x}" for code in range(0xC00, 0x1000))
    with pytest.raises(BadRecordError, match="must leave 4 private characters unused") as raised:
        choose_marks(heads + tails)
    assert raised.value.reason == "messages"


def test_nothing_is_an_escaped_mark_where_no_text_was_marked() -> None:
    """It is text of the document; and a mark itself is refused, for it would be lost."""
    marks = choose_marks("")
    escaped = json.dumps(marks.foreign)
    assert unmark(escaped, PATTERN, marks, has_foreign=False).text == escaped
    for mark in marks.foreign:
        with pytest.raises(BadRecordError, match=f"got U\\+{ord(mark):04X}") as raised:
            unmark(f"a{mark}b", PATTERN, marks, has_foreign=False)
        assert raised.value.reason == "template"
