"""A chat template as Transformers runs it, but without a clock and without chance."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from zephon_beam.chat.marks import Marks
from zephon_beam.chat.messages import Message
from zephon_beam.chat.template_files import TemplateFiles
from zephon_beam.errors import BadRecordError, RecipeError

_CLOCK = "strftime_now"
_OPEN = "_generation_open"
_CLOSE = "_generation_close"
_RANDOM_FILTERS = ("random",)
_RANDOM_GLOBALS = ("lipsum",)


class ChatTemplate:
    """Renders conversations in Jinja's immutable sandbox.

    What Transformers offers is there: `raise_exception`, its `tojson`, loop controls,
    `{% generation %}`, the special tokens by name, `tools` and `documents` as none. What would
    make two renderings differ is not: `strftime_now` is undefined, so that a template that asks
    whether it is defined takes its fixed date, and any other use is refused; so are chance filters.

    Determinism: a rendering depends on the files and the messages alone.

    Source: `_cached_compile_jinja_template` and `render_jinja_template` of Transformers 5.
    """

    def __init__(self, files: TemplateFiles) -> None:
        """Compile a template.

        Raises:
            RecipeError: it is no valid template, or one that uses the clock or chance.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        for name in _RANDOM_FILTERS:
            del environment.filters[name]
        for name in _RANDOM_GLOBALS:
            del environment.globals[name]
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        try:
            tree = environment.parse(files.source)
            self._template = environment.from_string(tree)
        except TemplateError as error:
            raise RecipeError(
                f"chat template must be valid Jinja without random filters, got {error} "
                f"({files.path}); no conversation can be rendered; mend it, or copy it from the "
                "model again"
            ) from error
        if any(_clock_uses(tree, guarded=False)):
            raise RecipeError(
                f"chat template must not use the clock, got a call of {_CLOCK} ({files.path}); the "
                "same conversation would have other tokens tomorrow; write a fixed date instead, "
                f"or guard the call with {{% if {_CLOCK} is defined %}} and an else"
            )
        names = (node.name for node in tree.find_all(nodes.Name))
        self._has_generation = any(name == _OPEN for name in names)
        self._special_tokens = dict(files.special_tokens)
        constants = (node.value for node in tree.find_all(nodes.Const))
        literals = (value for value in constants if isinstance(value, str))
        self._own_text = "\0".join([files.source, *literals, *self._special_tokens.values()])

    @property
    def own_text(self) -> str:
        """All that it can write of its own: source, literals without escapes, special tokens."""
        return self._own_text

    @property
    def has_generation(self) -> bool:
        """Whether the template says itself what is learned."""
        return self._has_generation

    def render(
        self, messages: Sequence[Message], marks: Marks, *, add_generation_prompt: bool = False
    ) -> str:
        """Render messages; see `zephon_beam.chat.spans.Template.render`."""
        variables: dict[str, Any] = {
            **self._special_tokens,
            "messages": list(messages),
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            _OPEN: marks.learned_open,
            _CLOSE: marks.learned_close,
        }
        try:
            return self._template.render(variables)
        except Exception as error:
            # A template is a program of its own: whatever it raises, it cannot render this.
            raise BadRecordError(
                f"the chat template refuses it: {error or type(error).__name__}", reason="template"
            ) from error


class _Generation(Extension):
    """`{% generation %}`: puts marks around its body instead of counting what was written before.

    Counting goes wrong in a macro or a `set` block, whose output is not yet part of the rendering.
    """

    tags = {"generation"}  # noqa: RUF012  Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        inner = nodes.Scope(body).set_lineno(line)
        return [_output(_OPEN, line), inner, _output(_CLOSE, line)]


def _output(name: str, line: int) -> nodes.Node:
    return nodes.Output([nodes.Name(name, "load")]).set_lineno(line)


def _clock_uses(node: nodes.Node, *, guarded: bool) -> Iterator[int]:
    """Yield the lines where the clock's name is used but in a question whether it is defined."""
    if isinstance(node, nodes.Name):
        if node.name == _CLOCK and not guarded:
            yield node.lineno
        return
    if _asks_for_clock(node, "defined", "undefined"):
        return
    safe: list[nodes.Node] = []
    if isinstance(node, nodes.If) and _implies_clock(node.test):
        safe = node.body
    elif isinstance(node, nodes.CondExpr) and _implies_clock(node.test):
        safe = [node.expr1]
    elif isinstance(node, nodes.And) and _implies_clock(node.left):
        safe = [node.right]
    for child in node.iter_child_nodes():
        inside = guarded or any(child is entry for entry in safe)
        yield from _clock_uses(child, guarded=inside)


def _asks_for_clock(node: nodes.Node, *names: str) -> bool:
    """Say whether an expression asks whether the clock is defined, or is not."""
    if not isinstance(node, nodes.Test) or node.name not in names:
        return False
    return isinstance(node.node, nodes.Name) and node.node.name == _CLOCK


def _implies_clock(node: nodes.Node) -> bool:
    """Say whether a condition can only hold if the clock is defined."""
    if isinstance(node, nodes.And):
        return _implies_clock(node.left) or _implies_clock(node.right)
    return _asks_for_clock(node, "defined")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as Transformers does: Jinja's own filter escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
