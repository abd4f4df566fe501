"""Reading a recipe from a YAML file, strictly.

YAML guesses: it reads 0.7 as a binary fraction, `no` as false, 0123 as 83, and lets the last of
two equal keys win. Here nothing is guessed: decimals stay the text that was written, only true and
false are booleans, only plain decimal integers are integers, and a repeated key is refused.
"""

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from zephon_beam.errors import RecipeError
from zephon_beam.recipe import Recipe
from zephon_beam.recipe_mapping import LocatedMapping, recipe_from_mapping


def load_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe file; nothing else is opened.

    Args:
        path: a YAML (or JSON) file; relative paths inside it are relative to its folder.

    Raises:
        RecipeError: no such file, not YAML, a repeated or unknown key, or a wrong value; the
            message starts with the file and, where there is one, the line.
    """
    file = Path(path).expanduser()
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RecipeError(
            f"recipe must be a file that can be read, got {str(path)!r}: {error.strerror}; "
            "check the path"
        ) from error
    content = _parse(data, str(path))
    if content is None:
        raise RecipeError(f"{path}: recipe must be a mapping, the file is empty; add name, …")
    return recipe_from_mapping(content, base=recipe_folder(path), origin=str(path))


def recipe_folder(path: str | Path) -> str:
    """Return the absolute folder that paths in a recipe file are relative to."""
    return str(Path(path).expanduser().absolute().parent)


def _parse(data: bytes, origin: str) -> Any:
    try:
        loader = _StrictLoader(data)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        problem = error.problem or error.context or ""
        # YAML looks for a missing colon on the next line; the mistake is in the one before.
        keyless = problem == _NO_COLON
        mark = (error.context_mark if keyless else None) or error.problem_mark or error.context_mark
        place = f"{origin}:{mark.line + 1}" if mark else origin
        repair = next((f"; {then}" for part, then in _REPAIRS.items() if part in problem), "")
        raise RecipeError(f"{place}: {problem}{repair}") from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise RecipeError(f"{origin}: recipe must be YAML; {reason}") from error


_NO_COLON = "could not find expected ':'"
_REPAIRS = {
    _NO_COLON: "write a key, a colon, a space and the value, as in `lanes: 8`",
    "mapping values are not allowed here": (
        "the line, or the one before, is indented otherwise than its neighbours, has no space "
        "behind its colon, or needs quotes around a value with a colon"
    ),
    "that cannot start any token": "indent with spaces, and put other signs in quotes",
    "expected alphabetic or numeric character": (
        'a value that begins with `*` or `&` needs quotes, as in "*.jsonl"'
    ),
    "expected '<document start>'": (
        "a recipe is one mapping, whose keys all begin in the same column: name, tokenizer, "
        "datasets, …; source files are named in it, under `datasets`"
    ),
}
"""What a user can do about a problem that YAML names only in its own words."""
_NUMBER = object()
"""Style of a node that is a float."""
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")


class _StrictLoader(yaml.BaseLoader):
    """A loader of text, plain integers, true, false, null, lists and mappings; of no objects."""

    yaml_constructors: ClassVar[dict[str | None, Any]] = {}

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Compose a mapping, refusing a key that is written twice in it."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="keys must be text", problem_mark=key.start_mark)
            if key.value in lines:
                raise yaml.MarkedYAMLError(
                    problem=f"repeated key {key.value!r}, first in line {lines[key.value]}; "
                    "only one of the two could count; remove one",
                    problem_mark=key.start_mark,
                )
            lines[key.value] = key.start_mark.line + 1
        return node


def _construct_mapping(loader: _StrictLoader, node: Any) -> LocatedMapping:
    if not isinstance(node, yaml.MappingNode):
        raise yaml.MarkedYAMLError(problem="expected a mapping", problem_mark=node.start_mark)
    merged: dict[str, Any] = {}
    lines: dict[str, int] = {}
    explicit: list[tuple[str, Any]] = []
    for key, value in node.value:
        if key.value == "with":
            _tag_decimals(value)
        content = loader.construct_object(value, deep=True)
        if key.value == "<<" and key.style is None:
            for source in reversed(content if isinstance(content, list) else [content]):
                if not isinstance(source, LocatedMapping):
                    raise yaml.MarkedYAMLError(
                        problem="`<<` must name a mapping", problem_mark=key.start_mark
                    )
                merged.update(source)
                lines.update(source.lines)
        else:
            explicit.append((key.value, content))
            lines[key.value] = key.start_mark.line + 1
    return LocatedMapping([*merged.items(), *explicit], lines)


def _tag_decimals(node: Any) -> None:
    """Let plain decimals below a node be numbers: what `with` holds is for a user's function."""
    if isinstance(node, yaml.ScalarNode):
        if node.style is None and _DECIMAL.fullmatch(node.value):
            # Not by a tag: whoever writes one is refused.
            node.style = _NUMBER
        return
    for child in node.value:
        for inner in child if isinstance(child, tuple) else (child,):
            _tag_decimals(inner)


def _construct_sequence(loader: _StrictLoader, node: Any) -> list[Any]:
    return loader.construct_sequence(node, deep=True)


def _construct_text(loader: _StrictLoader, node: Any) -> str:
    return str(loader.construct_scalar(node))


def _construct_text_or_float(loader: _StrictLoader, node: Any) -> str | float:
    text = _construct_text(loader, node)
    return float(text) if node.style is _NUMBER else text


def _construct_integer(loader: _StrictLoader, node: Any) -> int:
    return int(_construct_text(loader, node))


def _construct_boolean(loader: _StrictLoader, node: Any) -> bool:
    return _construct_text(loader, node).lower() == "true"


def _construct_null(_loader: _StrictLoader, _node: Any) -> None:
    return None


def _refuse_tag(_loader: _StrictLoader, node: Any) -> None:
    raise yaml.MarkedYAMLError(
        problem=f"tag {node.tag!r} must be left out; a recipe holds plain values only",
        problem_mark=node.start_mark,
    )


# Its own tables: the inherited ones must not be changed, and hold what is not wanted here.
_StrictLoader.yaml_implicit_resolvers = {}
_PLAIN = "tag:yaml.org,2002:"
for _kind, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)", list("-+0123456789")),
):
    _StrictLoader.add_implicit_resolver(_PLAIN + _kind, re.compile(rf"^{_pattern}$"), _first)
for _kind, _constructor in (
    ("null", _construct_null),
    ("bool", _construct_boolean),
    ("int", _construct_integer),
    ("str", _construct_text_or_float),
    ("seq", _construct_sequence),
    ("map", _construct_mapping),
):
    _StrictLoader.add_constructor(_PLAIN + _kind, _constructor)
_StrictLoader.add_constructor(None, _refuse_tag)
