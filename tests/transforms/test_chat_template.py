"""Jinja as chat templates know it, without a clock and without chance."""

from typing import Any

import pytest

from transforms.chat_template import ChatTemplate
from zephon_beam.chat.marks import choose_marks
from zephon_beam.chat.template_files import TemplateFiles
from zephon_beam.errors import BadRecordError, RecipeError

MARKS = choose_marks("")
USER = {"role": "user", "content": "Hi"}
GUARDED = (
    "{%- if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}26 Jul 2024{% endif %}"
)


def compile_template(source: str, **tokens: str) -> ChatTemplate:
    """Compile a template that knows some special tokens."""
    return ChatTemplate(TemplateFiles(source=source, special_tokens=tokens, path="folder/x.jinja"))


def render(source: str, messages: Any = (USER,), **tokens: str) -> str:
    """Render messages with a template."""
    return compile_template(source, **tokens).render(list(messages), MARKS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ pad_token }}", "<s>Hi"),
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("  {%- for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.role }}\n{% endif %}\n"
         "{%- endfor %}", "user\n"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'ä': '<b>', 'n': none} | tojson }}", '{"ä": "<b>", "n": null}'),
        ("{{ {'b': 1, 'a': 'ä'} | tojson(indent=1, sort_keys=true, ensure_ascii=true) }}",
         '{\n "a": "\\u00e4",\n "b": 1\n}'),
        ("{{ [1] | tojson(separators=(',', ':')) }}{{ add_generation_prompt }}", "[1]False"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}{{ dict(a=1).a }}", "21"),
        (GUARDED, "26 Jul 2024"),
        ("{{ strftime_now('%d') if strftime_now is defined else 'no' }}", "no"),
        ("{% if not strftime_now is defined %}no{% endif %}", "no"),
        ("{% if strftime_now is defined and strftime_now('%d') == '1' %}a{% endif %}b", "b"),
    ],
)  # fmt: skip
def test_templates_find_what_transformers_offers(source: str, expected: str) -> None:
    """White space is trimmed around blocks, JSON is not escaped for HTML, no clock is there."""
    assert render(source, bos_token="<s>") == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ strftime_now('%d') }}",
        "{% set now = strftime_now %}{{ now('%d') }}",
        "{% if strftime_now is defined %}a{% else %}{{ strftime_now('%d') }}{% endif %}",
        "{% if strftime_now is defined or true %}{{ strftime_now('%d') }}{% endif %}",
        "{% if x %}{{ strftime_now('%d') }}{% endif %}",
        "{{ 'a' if strftime_now is defined else strftime_now('%d') }}",
    ],
)
def test_a_template_that_uses_the_clock_is_refused_by_name(source: str) -> None:
    """The same conversation would have other tokens tomorrow."""
    with pytest.raises(RecipeError, match=r"must not use the clock.*strftime_now.*x\.jinja"):
        compile_template(source)


@pytest.mark.parametrize("source", ["{{ [1, 2] | random }}", "{% if x %}", "{{ 1 + }}"])
def test_what_is_no_template_of_ours_is_refused_before_any_work(source: str) -> None:
    """With the file that it came from."""
    with pytest.raises(RecipeError, match=r"must be valid Jinja.*folder/x\.jinja"):
        compile_template(source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 'a' + messages[0].nothing }}", "'dict object' has no attribute 'nothing'"),
        ("{{ lipsum(1) }}", "'lipsum' is undefined"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{{ messages[0] + 1 }}", "unsupported operand"),
        ("{{ range(10000000) }}", "Range too big"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{{ messages.__class__.__base__ }}", "is unsafe"),
        ("{{ x | tojson }}", "Undefined is not JSON serializable"),
    ],
)
def test_whatever_a_template_raises_is_a_fault_of_the_conversation(source: str, words: str) -> None:
    """With the template's own words."""
    with pytest.raises(BadRecordError, match=f"^the chat template refuses it: .*{words}") as raised:
        render(source)
    assert raised.value.reason == "template"


def test_generation_blocks_are_marked_wherever_they_are_written() -> None:
    """Also inside a macro and a `set` block, where counting characters goes wrong."""
    opening, closing = MARKS.learned
    source = (
        "{% macro say(m) %}[{% generation %}{% set x = m.content %}{{ x }}{% endgeneration %}]"
        "{% endmacro %}{% set all %}a{{ say(messages[0]) }}{% endset %}b{{ all }}{{ x }}"
    )
    assert render(source) == f"ba[{opening}Hi{closing}]"
    assert compile_template(source).has_generation
    assert not compile_template("{% set generation = 1 %}{{ generation }}").has_generation


def test_a_generation_block_trims_like_other_blocks() -> None:
    """And what it sets stays in it."""
    opening, closing = MARKS.learned
    source = "a\n  {% generation %}\nb\n  {%- endgeneration %}\nc"
    assert render(source) == f"a\n{opening}b{closing}c"


def test_messages_stay_as_they_are() -> None:
    """A template that tries to change one is refused; rendering twice gives the same."""
    message = {"role": "user", "content": "Hi", "tool_calls": [{"a": 1}]}
    with pytest.raises(BadRecordError, match="is unsafe"):
        render("{{ messages[0].update(role='x') }}", [message])
    assert message == {"role": "user", "content": "Hi", "tool_calls": [{"a": 1}]}


def test_the_prompt_for_an_answer_is_asked_for_by_a_flag() -> None:
    """As templates know it."""
    template = compile_template("{% if add_generation_prompt %}ask{% endif %}")
    assert template.render([USER], MARKS, add_generation_prompt=True) == "ask"
    assert template.render([USER], MARKS) == ""
