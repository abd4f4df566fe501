"""The part of a recipe that says where documents come from and what is done to them."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from zephon_beam.checks import require, require_choice, require_int, require_text
from zephon_beam.errors import RecipeError
from zephon_beam.weights import canonical_weight, parse_weight

FORMATS = ("auto", "jsonl", "parquet", "avro", "arrow", "text", "webdataset", "megatron")
"""Source formats that this version reads."""

TRANSFORM_KINDS = ("map", "filter", "flat_map")
"""What a called function returns: a document, whether to keep it, or several documents."""

BUILT_IN_TRANSFORMS = ("normalize", "filter_length", "fill_in_the_middle", "deduplicate")
"""Transforms that a recipe calls by one word."""

_CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformRecipe:
    """A function that is called with each document, or a built-in by its name."""

    call: str | Callable[..., Any]
    """`package.module:function`; in Python also the function itself, if it can be imported."""
    kind: str = "map"
    with_: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function, plain JSON values; spelt `with` in a recipe file."""
    version: str | None = None
    """Stands for the function in the fingerprint; None: its source code does."""

    def __post_init__(self) -> None:
        call = self.call if isinstance(self.call, str) else _importable_name(self.call)
        object.__setattr__(self, "call", call)
        built_in = call in BUILT_IN_TRANSFORMS
        require(
            built_in or bool(_CALL.fullmatch(call)),
            "call",
            f"`package.module:function` or one of {', '.join(BUILT_IN_TRANSFORMS)}",
            call,
            "e.g. call: my_package.clean:strip_html",
        )
        require_choice("kind", self.kind, TRANSFORM_KINDS)
        repair = "leave it out for a built-in"
        require(not built_in or self.kind == "map", "kind", "map", self.kind, repair)
        repair = "write a mapping of argument to plain value, e.g. with: {minimum: 10}"
        valid = isinstance(self.with_, Mapping) and all(isinstance(key, str) for key in self.with_)
        require(valid, "with", "a mapping", self.with_, repair)
        try:
            plain = json.loads(json.dumps(dict(self.with_), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise RecipeError(
                f"with must be plain JSON values, got {self.with_!r} ({error}); {repair}"
            ) from error
        object.__setattr__(self, "with_", plain)
        if self.version is not None:
            require_text("version", self.version, 'write it in quotes, e.g. version: "2"')


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRecipe:
    """One source of documents and its share of the mixture."""

    files: str | tuple[str, ...]
    """Glob or path, or several; the order of files is the sorted order of their names."""
    format: str = "auto"
    text: str = "text"
    """Dotted name of the field that holds the text."""
    messages: str | None = None
    """Dotted name of the field that holds a conversation, instead of `text`."""
    content: str | None = None
    """Dotted name of the field that holds texts, images and videos in turn, instead of `text`."""
    tokens: str | None = None
    """Dotted name of the column that holds token ids, instead of `text`."""
    loss_mask: str | None = None
    """With `tokens`: the column that says which of them are learned."""
    weight: str | int | float | Decimal = "1"
    """Relative weight, a decimal; or `size`: the catalog's bytes, frozen with the stream."""
    passes: str | int = "repeat"
    """How often every document is delivered; `repeat`: without end."""
    transforms: tuple[TransformRecipe, ...] = ()
    """Applied in order to each document before it is tokenized."""

    def __post_init__(self) -> None:
        patterns = (self.files,) if isinstance(self.files, str) else self.files
        valid = isinstance(patterns, (tuple, list)) and len(patterns) > 0
        valid = valid and all(isinstance(item, str) and item for item in patterns)
        require(valid, "files", "a glob or a list of globs", self.files, "e.g. data/*.jsonl")
        object.__setattr__(self, "files", tuple(patterns))
        require_choice("format", self.format, FORMATS)
        require_text("text", self.text, "name the field that holds the text")
        self._check_content()
        if self.weight != "size":
            weight = canonical_weight(parse_weight("weight", self.weight))
            object.__setattr__(self, "weight", weight)
        if self.passes != "repeat":
            require_int("passes", self.passes, 1, "write repeat or a number of passes")
        object.__setattr__(self, "transforms", tuple(self.transforms))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The globs as a tuple, however they were given."""
        return (self.files,) if isinstance(self.files, str) else self.files

    @property
    def content_kind(self) -> str:
        """What documents are when they are read: `text`, `messages`, `content` or `tokens`."""
        if self.tokens is not None or self.format == "megatron":
            return "tokens"
        if self.content is not None:
            return "content"
        return "text" if self.messages is None else "messages"

    def _check_content(self) -> None:
        for name in ("messages", "content", "tokens", "loss_mask"):
            if getattr(self, name) is not None:
                require_text(name, getattr(self, name), "name a field, or leave it out")
        given = [f"text: {self.text}"] if self.text != "text" else []
        others = ("messages", "content", "tokens")
        given += [f"{name}: {getattr(self, name)}" for name in others if getattr(self, name)]
        given += ["format: megatron"] if self.format == "megatron" else []
        repair = "a document has one content; leave out the others"
        rule = "the only one of text, messages, content and tokens"
        require(len(given) < 2, "text", rule, given, repair)
        require(
            self.loss_mask is None or self.tokens is not None,
            "loss_mask",
            "given with tokens only",
            self.loss_mask,
            "for conversations say chat.loss_on; plain text is learned whole",
        )
        require(
            self.content_kind != "tokens" or not self.transforms,
            "transforms",
            "empty for documents that are tokens already",
            [transform.call for transform in self.transforms],
            "transforms act on text; apply them before tokenizing",
        )
        require(
            self.content_kind != "content" or not self.transforms,
            "transforms",
            "empty for documents with images and videos",
            [transform.call for transform in self.transforms],
            "transforms act on text; apply them before the recipe reads the documents",
        )


def _importable_name(function: Any) -> str:
    """Return the name under which a worker can import a function."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "")
    importable = callable(function) and module not in (None, "__main__") and "<" not in name
    require(
        importable,
        "call",
        "a function at the top level of a module that workers can import",
        function,
        "move it to a module of its own, out of __main__, other functions and lambdas",
    )
    return f"{module}:{name}"
