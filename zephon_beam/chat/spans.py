r"""Which stretches of a rendered conversation are learned.

A template that has `{% generation %}` blocks says so itself. Otherwise a turn is found by rendering
the conversation up to it and up to its end:

    messages[:i], prompted  <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
    messages[:i + 1]        <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n
    learned                                                                       [--------------)

That holds only while the rendering of more messages begins with that of fewer.
"""

from collections.abc import Sequence
from typing import Protocol

from zephon_beam.chat.marks import Marks, refuse_marks
from zephon_beam.chat.messages import Message, assistant_places
from zephon_beam.errors import BadRecordError

_REPAIR = (
    "put what the assistant writes between {% generation %} and {% endgeneration %} in the chat "
    "template, which then says itself what is learned"
)
_REPAIR_LAST = (
    "let the chat template write earlier messages alike whatever follows, or set chat.loss_on: "
    "assistant"
)


class Template(Protocol):
    """Turns messages into text."""

    @property
    def has_generation(self) -> bool:
        """Whether it says itself what is learned."""

    def render(
        self, messages: Sequence[Message], marks: Marks, *, add_generation_prompt: bool = False
    ) -> str:
        """Render messages; what the template generates stands between the marks for learned text.

        Raises:
            BadRecordError: the template refuses these messages.
        """


def render_learned(
    template: Template, messages: Sequence[Message], loss_on: str, marks: Marks
) -> str:
    """Render a conversation with marks around what is learned.

    Args:
        template: of the tokenizer's folder.
        messages: the conversation.
        loss_on: `assistant`, `last_assistant`, or `all`: every token, so nothing is marked.
        marks: characters that neither the template nor the messages have.

    Returns:
        The rendering, with `marks.learned` in pairs.

    Raises:
        BadRecordError: of reason `template`; the template refuses the messages, or what they add
            cannot be found in its rendering.

    Determinism: depends on the arguments alone.
    """
    text = template.render(messages, marks)
    if not template.has_generation:
        refuse_marks(text, marks.learned)
    places = assistant_places(list(messages))
    if loss_on == "last_assistant":
        places = places[-1:]
    if loss_on == "all" or not places:
        return _without_learned(text, marks)
    if template.has_generation:
        if loss_on == "last_assistant":
            return _last_alone(template, messages, places[0], text, marks)
        return text
    pieces = []
    done = 0
    for place in places:
        first, last = _turn(template, messages, place, text, marks)
        pieces += [text[done:first], marks.learned_open, text[first:last], marks.learned_close]
        done = last
    return "".join([*pieces, text[done:]])


def _turn(
    template: Template, messages: Sequence[Message], place: int, text: str, marks: Marks
) -> tuple[int, int]:
    """Find what a message added to a rendering, behind the prompt that asks for it."""
    try:
        is_last = place + 1 == len(messages)
        after = text if is_last else template.render(messages[: place + 1], marks)
        before = template.render(messages[:place], marks, add_generation_prompt=True)
        if not after.startswith(before):
            before = template.render(messages[:place], marks)
    except BadRecordError as error:
        raise BadRecordError(
            f"the assistant's message {place} cannot be found in the rendering: the template "
            f"refuses the messages up to there alone ({error}); {_REPAIR}",
            reason="template",
        ) from error
    if not (after.startswith(before) and text.startswith(after)):
        raise BadRecordError(
            f"the assistant's message {place} cannot be found in the rendering: with the messages "
            f"behind it the template writes the ones before otherwise; {_REPAIR}",
            reason="template",
        )
    return len(before), len(after)


def _without_learned(text: str, marks: Marks) -> str:
    return text.replace(marks.learned_open, "").replace(marks.learned_close, "")


def _last_alone(
    template: Template, messages: Sequence[Message], place: int, text: str, marks: Marks
) -> str:
    """Take away the marks of what stands before the last message of the assistant."""
    earlier = template.render(messages[:place], marks) if place else ""
    shared = _without_learned(earlier, marks)
    if _without_learned(text, marks).startswith(shared):
        return _learned_behind(text, len(shared), marks)
    # What differs may lie behind all that is learned, such as an end of the conversation.
    said = earlier[: earlier.rfind(marks.learned_close) + 1]
    if text.startswith(said) and (said or not assistant_places(list(messages[:place]))):
        return _without_learned(said, marks) + text[len(said) :]
    raise BadRecordError(
        f"the assistant's message {place} cannot be found in the rendering: with it the template "
        f"writes the ones before otherwise; {_REPAIR_LAST}",
        reason="template",
    )


def _learned_behind(text: str, count: int, marks: Marks) -> str:
    """Take away the marks among the first characters, which are counted without marks."""
    end = 0
    while (further := count + sum(text.count(mark, 0, end) for mark in marks.learned)) != end:
        end = further
    head = text[:end]
    is_open = head.rfind(marks.learned_open) > head.rfind(marks.learned_close)
    if is_open and text.startswith(marks.learned_close, end):
        is_open, end = False, end + 1
    return _without_learned(head, marks) + marks.learned_open * is_open + text[end:]
