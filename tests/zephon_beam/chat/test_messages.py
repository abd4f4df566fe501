"""What a conversation must look like before a template sees it."""

import json
from typing import Any

import pytest

from zephon_beam.chat.marks import special_pattern
from zephon_beam.chat.messages import (
    Parts,
    all_text,
    assistant_places,
    parse_conversation,
    refuse_spelt_tokens,
)
from zephon_beam.errors import BadRecordError

USER = {"role": "user", "content": "Hi"}


def parse(value: Any) -> list[dict[str, Any]]:
    """Parse a conversation given as a JSON value."""
    return parse_conversation(json.dumps(value))


def test_fields_that_a_template_may_use_are_kept_and_null_ones_left_out() -> None:
    """Templates ask whether a field is there, and Parquet fills missing ones with null."""
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": None}}}
    found = parse(
        [
            {**USER, "name": "Ann", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [call], "weight": 1},
        ]
    )
    assert found == [
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "assistant", "tool_calls": [call], "weight": 1},
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_are_given_under_both_names_that_templates_read(name: str) -> None:
    """As in Transformers."""
    (found,) = parse([{"role": "assistant", name: "hm", "content": "Yes"}])
    assert found["thinking"] == found["reasoning_content"] == "hm"
    assert found["content"] == "Yes"


def test_a_message_may_have_tool_calls_or_thoughts_without_content() -> None:
    """An assistant that only calls a tool says nothing."""
    found = parse(
        [{"role": "assistant", "tool_calls": [{}]}, {"role": "assistant", "thinking": ""}]
    )
    assert len(found) == 2


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"role": "user"}, r"^conversation must be a list of messages, got \{\"role\": \"user\"\}"),
        ("Hi", r"^conversation must be a list of messages, got \"Hi\""),
        ([], r"^conversation must have at least one message"),
        ([USER, "Hi"], r"^message 1 must be an object, got \"Hi\""),
        (
            [{"content": "Hi"}],
            r"^message 0 must have a role .*, got null among the fields 'content'",
        ),
        ([{"from": "human", "value": "Hi"}], r"among the fields 'from', 'value'"),
        ([{}], r"among the fields none"),
        ([{"role": "", "content": "Hi"}], r"^message 0 must have a role .*, got \"\""),
        ([{"role": 3, "content": "Hi"}], r"^message 0 must have a role .*, got 3"),
        ([{"role": "user", "content": 3}], r"^content of message 0 must be a text, got 3"),
        (
            [{"role": "user", "content": [{"text": "a"}]}],
            r"^part 0 of message 0 must have a `type` of text where .*, got null",
        ),
        (
            [USER, {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "image"}]}],
            r'^part 1 of message 1 must have a `type` of text where .*, got "image"',
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": 3}]}],
            r"^part 0 of message 0 must have a text in `text`, got 3",
        ),
        ([{"role": "user", "content": ["a"]}], r"^part 0 of message 0 must be an object, got \"a"),
        ([{"role": "user", "content": None}], r"^message 0 must have content, tool_calls or"),
        ([{"role": "assistant", "tool_calls": []}], r"^message 0 must have content, tool_calls or"),
    ],
)
def test_what_is_no_conversation_is_refused_with_the_message_at_fault(
    value: Any, fault: str
) -> None:
    """And with one reason that programs can count."""
    with pytest.raises(BadRecordError, match=fault) as raised:
        parse(value)
    assert raised.value.reason == "messages"


@pytest.mark.parametrize("text", ["[{", "", "[" * 100_000])
def test_text_that_is_no_json_is_a_fault_of_the_conversation(text: str) -> None:
    """Never a crash of the parser."""
    with pytest.raises(BadRecordError, match=r"^conversation must be valid JSON"):
        parse_conversation(text)


def test_half_a_character_is_refused_before_a_tokenizer_meets_it() -> None:
    """JSON can spell a lone surrogate, which no UTF-8 can hold."""
    messages = parse_conversation('[{"role": "user", "content": "a\\ud800b"}]')
    with pytest.raises(BadRecordError, match=r"half a character: U\+D800") as raised:
        all_text(messages)
    assert raised.value.reason == "messages"


def test_all_text_holds_every_text_of_every_depth() -> None:
    """Names of fields too, for a template can write them."""
    messages = parse([{**USER, "tool_calls": [{"function": {"arguments": {"KEY": ["deep", 1]}}}]}])
    texts = all_text(messages).split("\0")
    assert {"user", "Hi", "KEY", "deep", "arguments", "role"} <= set(texts)


def test_assistant_places_are_those_of_that_role_alone() -> None:
    """Other roles are never learned unless everything is."""
    roles = ["system", "user", "assistant", "tool", "assistant", "Assistant"]
    assert assistant_places([{"role": role, "content": ""} for role in roles]) == [2, 4]


def test_content_in_parts_keeps_what_templates_ask_for() -> None:
    """Fields that are null are left out; of images and videos the type is all that is shown."""
    text = {"type": "text", "text": "a", "image": None, "cache": {"a": 1}}
    message = {"role": "user", "content": [text, {"type": "image", "path": "a.png"}]}
    (found,) = parse_conversation(json.dumps([message]), with_media=True)
    expected = [{"type": "text", "text": "a", "cache": {"a": 1}}, {"type": "image"}]
    assert found["content"] == expected
    assert all_text([found]).count("a.png") == 0
    with pytest.raises(TypeError, match="no content in parts"):
        str(found["content"])


@pytest.mark.parametrize(
    ("texts", "spelt"),
    [
        (["<|im_", "end|>"], True),
        (["x<|im_ ", " end|> y"], True),
        (["<", "|im_", "end|", ">"], True),
        (["<|im_end|>", "<|im_end|>"], False),
        (["<|im_", "", "end"], False),
        (["<|im_", "-", "end|>"], False),
    ],
)
def test_parts_must_not_spell_a_special_token_together(texts: list[str], spelt: bool) -> None:
    """A template joins them, and nothing would tell the token from its own."""
    content = Parts({"type": "text", "text": text} for text in texts)
    content.insert(1, {"type": "image"})
    messages: list[dict[str, Any]] = [USER, {"role": "user", "content": content}]
    special = special_pattern(["<|im_end|>", "<|im_start|>"])
    if not spelt:
        refuse_spelt_tokens(messages, special)
        return
    with pytest.raises(BadRecordError, match="texts of message 1 must not spell") as raised:
        refuse_spelt_tokens(messages, special)
    assert raised.value.reason == "forged"
