"""What is learned of a conversation, with templates written in Python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from zephon_beam.chat.marks import Marks, choose_marks, special_pattern, unmark
from zephon_beam.chat.messages import Message
from zephon_beam.chat.spans import render_learned
from zephon_beam.errors import BadRecordError

MARKS = choose_marks("")
NOTHING = special_pattern([])


@dataclass(frozen=True)
class PlainTemplate:
    """`[role]content/` for each message, and `[assistant]` to ask for one."""

    has_generation: bool = False
    ending: str = "/"
    prompt: str = "[assistant]"
    refuses: Callable[[Sequence[Message]], bool] = lambda _messages: False

    def render(
        self, messages: Sequence[Message], marks: Marks, *, add_generation_prompt: bool = False
    ) -> str:
        """Render as `Template` says."""
        if self.refuses(messages):
            raise BadRecordError("refused", reason="template")
        text = "".join(self.message(message, marks) for message in messages)
        return text + (self.prompt if add_generation_prompt else self.ending)

    def message(self, message: Message, marks: Marks) -> str:
        """Render one message."""
        content = message["content"]
        if self.has_generation and message["role"] == "assistant":
            content = f"{marks.learned_open}{content}/{marks.learned_close}"
            return f"[assistant]{content}"
        return f"[{message['role']}]{content}/"


def talk(*turns: str) -> list[Message]:
    """Make messages of `u:text`, `a:text` and `t:text`."""
    roles = {"u": "user", "a": "assistant", "t": "tool", "s": "system"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


def learned(template: PlainTemplate, messages: list[Message], loss_on: str) -> list[str]:
    """Return the stretches of the rendering that are learned."""
    found = unmark(render_learned(template, messages, loss_on, MARKS), NOTHING, MARKS)
    plain = PlainTemplate(ending=template.ending).render(messages, MARKS)
    assert found.text == plain
    return [found.text[first:last] for first, last in found.learned]


both = pytest.mark.parametrize("has_generation", [False, True])


@both
def test_turns_are_learned_without_their_header_and_with_their_end(has_generation: bool) -> None:
    """Whether the template says so or it is found from prefixes."""
    template = PlainTemplate(has_generation=has_generation, ending="")
    messages = talk("s:be", "u:Hi", "a:Hello", "u:And", "a:", "t:7", "a:Bye")
    assert learned(template, messages, "assistant") == ["Hello/", "/", "Bye/"]
    assert learned(template, messages, "last_assistant") == ["Bye/"]
    assert learned(template, messages[:-1], "last_assistant") == ["/"]
    assert learned(template, messages, "all") == []


@both
@pytest.mark.parametrize("loss_on", ["assistant", "last_assistant"])
def test_nothing_is_learned_where_no_assistant_speaks(has_generation: bool, loss_on: str) -> None:
    """Such a conversation is rendered all the same."""
    template = PlainTemplate(has_generation=has_generation, ending="")
    assert learned(template, talk("s:be", "u:Hi"), loss_on) == []


@both
def test_a_conversation_may_begin_with_the_assistant(has_generation: bool) -> None:
    """Nothing comes before it, so nothing is asked of the template about that."""
    template = PlainTemplate(has_generation=has_generation, ending="")
    assert learned(template, talk("a:Hello", "u:Hi"), "last_assistant") == ["Hello/"]
    assert learned(template, talk("a:Hello", "u:Hi"), "assistant") == ["Hello/"]


def test_a_header_that_no_prompt_asks_for_is_learned_too() -> None:
    """Then the turn is all that its message added."""
    template = PlainTemplate(ending="", prompt="")
    assert learned(template, talk("u:Hi", "a:Yes"), "assistant") == ["[assistant]Yes/"]
    template = PlainTemplate(ending="", prompt="[other]")
    assert learned(template, talk("u:Hi", "a:Yes"), "assistant") == ["[assistant]Yes/"]


def test_an_unstable_template_is_refused_with_the_repair() -> None:
    """Text behind the last message means that fewer messages are no prefix of more."""
    template = PlainTemplate(ending="<end>")
    with pytest.raises(
        BadRecordError, match=r"message 1 cannot be found .*endgeneration"
    ) as raised:
        learned(template, talk("u:Hi", "a:Yes", "u:Why"), "assistant")
    assert raised.value.reason == "template"
    said = PlainTemplate(ending="<end>", has_generation=True)
    assert learned(said, talk("u:Hi", "a:Yes", "u:Why"), "assistant") == ["Yes/"]


def test_a_template_that_refuses_fewer_messages_is_refused_with_its_words() -> None:
    """What it says helps to find out why."""
    template = PlainTemplate(ending="", refuses=lambda messages: len(messages) < 2)
    with pytest.raises(BadRecordError, match=r"refuses the messages up to there alone \(refused\)"):
        learned(template, talk("u:Hi", "a:Yes", "u:Why"), "assistant")


def test_only_the_turn_that_is_learned_must_be_found() -> None:
    """With `last_assistant` what the template forgets of earlier turns does not matter."""

    class Forgetful(PlainTemplate):
        def render(
            self, messages: Sequence[Message], marks: Marks, *, add_generation_prompt: bool = False
        ) -> str:
            last = {**messages[-1], "content": messages[-1]["content"] + "!"}
            shown = [*messages[:-1], last if last["role"] == "assistant" else messages[-1]]
            text = super().render(shown, marks, add_generation_prompt=add_generation_prompt)
            return text.removesuffix("/") if not add_generation_prompt else text

    messages = talk("u:Hi", "a:Yes", "u:Why", "a:So")
    template = Forgetful(ending="")
    marked = render_learned(template, messages, "last_assistant", MARKS)
    found = unmark(marked, NOTHING, MARKS)
    assert [found.text[first:last] for first, last in found.learned] == ["So!"]
    with pytest.raises(BadRecordError, match=r"message 1 cannot be found"):
        render_learned(template, messages, "assistant", MARKS)


@dataclass(frozen=True)
class SaysLast(PlainTemplate):
    """Says of the last message alone that it is learned, and may write the others otherwise."""

    has_generation: bool = True
    forgets: bool = False

    def render(
        self, messages: Sequence[Message], marks: Marks, *, add_generation_prompt: bool = False
    ) -> str:
        """Render as `Template` says."""
        assert not add_generation_prompt
        quiet = PlainTemplate(ending="")
        shown = [{**one, "content": ""} if self.forgets else one for one in messages[:-1]]
        return quiet.render(shown, marks) + "".join(
            self.message(message, marks) for message in messages[-1:]
        )


def test_the_last_turn_is_learned_if_the_template_says_so_of_it_alone() -> None:
    """Also if it said so of an earlier one while that was the last."""
    messages = talk("u:Hi", "a:Yes", "a:So")
    for loss_on in ("assistant", "last_assistant"):
        found = unmark(render_learned(SaysLast(), messages, loss_on, MARKS), NOTHING, MARKS)
        assert found.text == "[user]Hi/[assistant]Yes/[assistant]So/"
        assert [found.text[first:last] for first, last in found.learned] == ["So/"]


def test_an_earlier_turn_that_is_written_otherwise_is_refused_with_the_repair() -> None:
    """Nobody can say which marks are of the last turn then."""
    messages = talk("u:Hi", "a:Yes", "a:So")
    with pytest.raises(BadRecordError, match=r"message 2 cannot be found .*loss_on: assistant"):
        render_learned(SaysLast(forgets=True), messages, "last_assistant", MARKS)


def test_a_turn_that_is_marked_only_once_another_follows_is_not_taken_for_the_last() -> None:
    """Its marks are the first, though fewer messages have none."""

    class SaysEarlier(PlainTemplate):
        def render(
            self, messages: Sequence[Message], marks: Marks, *, add_generation_prompt: bool = False
        ) -> str:
            assert not add_generation_prompt
            earlier = "".join(self.message(message, marks) for message in messages[:-1])
            return f"{earlier}({messages[-1]['content']})"

    template = SaysEarlier(has_generation=True)
    with pytest.raises(BadRecordError, match=r"message 2 cannot be found"):
        render_learned(template, talk("u:Hi", "a:Yes", "a:So"), "last_assistant", MARKS)


def test_a_turn_right_before_the_last_leaves_no_empty_stretch() -> None:
    """Its closing mark stands where the last turn begins."""
    template = PlainTemplate(ending="", has_generation=True)
    assert learned(template, talk("u:Hi", "a:Yes", "a:So"), "last_assistant") == ["So/"]


def test_the_last_turn_is_found_before_an_end_of_the_conversation() -> None:
    """What is written behind all turns differs, what is learned before does not."""
    template = PlainTemplate(ending="<end>", has_generation=True)
    messages = talk("u:Hi", "a:Yes", "u:Why", "a:So", "u:Oh")
    assert learned(template, messages, "last_assistant") == ["So/"]
    assert learned(template, messages[:2], "last_assistant") == ["Yes/"]


def test_a_stretch_over_several_turns_is_learned_from_the_last_one_on() -> None:
    """Its mark stands before them all."""

    class Joined(PlainTemplate):
        def render(
            self, messages: Sequence[Message], marks: Marks, *, add_generation_prompt: bool = False
        ) -> str:
            assert not add_generation_prompt
            said = "".join(message["content"] for message in messages)
            return f"{marks.learned_open}{said}{marks.learned_close}"

    marked = render_learned(
        Joined(has_generation=True), talk("a:A", "a:B"), "last_assistant", MARKS
    )
    found = unmark(marked, NOTHING, MARKS)
    assert (found.text, found.learned) == ("AB", ((1, 2),))


@pytest.mark.parametrize("loss_on", ["assistant", "all"])
def test_a_template_that_writes_marks_of_its_own_is_refused(loss_on: str) -> None:
    """To take them out would lose text."""
    template = PlainTemplate(ending=MARKS.learned_close)
    with pytest.raises(BadRecordError, match=r"must write no private character"):
        render_learned(template, talk("u:Hi", "a:Yes"), loss_on, MARKS)
