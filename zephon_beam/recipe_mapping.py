"""Strict conversion between plain mappings (YAML, JSON, `stream.json`) and the recipe.

Nothing is guessed: an unknown key, a key at the wrong place or a value of the wrong shape is
refused, with the place where it was written.
"""

import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn, TypeVar

from zephon_beam.checks import nearest, require
from zephon_beam.errors import RecipeError
from zephon_beam.recipe import (
    BadRecordsRecipe,
    ChatRecipe,
    HoldoutRecipe,
    MixingRecipe,
    PackingRecipe,
    Recipe,
    ScheduleEntry,
    ShardRecipe,
    ShuffleRecipe,
    TokenizerRecipe,
)
from zephon_beam.recipe_datasets import DatasetRecipe, TransformRecipe
from zephon_beam.recipe_media import MediaRecipe

_T = TypeVar("_T")


class LocatedMapping(dict[str, Any]):
    """A mapping read from a file: `lines` holds the line of each key, counted from 1."""

    def __init__(self, items: Iterable[tuple[str, Any]], lines: Mapping[str, int]) -> None:
        super().__init__(items)
        self.lines = dict(lines)


_SECTIONS: dict[str, Any] = {
    "tokenizer": TokenizerRecipe,
    "mixing": MixingRecipe,
    "shuffle": ShuffleRecipe,
    "packing": PackingRecipe,
    "chat": ChatRecipe,
    "bad_records": BadRecordsRecipe,
    "holdout": HoldoutRecipe,
    "media": MediaRecipe,
    "shard": ShardRecipe,
}

_OPTIONAL = ("holdout", "media")
"""Sections that may be null."""

_REQUIRED = ("tokenizer", "datasets")
"""Sections without defaults."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")
_UNITS = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}


def recipe_from_mapping(
    mapping: Mapping[str, Any], *, base: str | None = None, origin: str = "recipe"
) -> Recipe:
    """Build a recipe from a plain mapping, refusing everything that is not understood.

    Args:
        mapping: as in the recipe file; a `LocatedMapping` gives errors their line.
        base: folder that relative files and the tokenizer are resolved against; None leaves them
            as they are. A leading `~` is expanded either way, URIs are kept.
        origin: what to call the source in errors, e.g. the path of the file.

    Returns:
        The checked recipe.

    Raises:
        RecipeError: an unknown or misplaced key or a wrong value; the message starts with the
            origin, the line if known, and names the field by its dotted path.
    """
    return _Reading(mapping, base, origin).recipe()


def recipe_to_mapping(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as JSON-able values, with every default written out.

    Determinism: keys are in the order of the dataclasses; `recipe_from_mapping` gives an equal
    recipe back.
    """
    plain: dict[str, Any] = _plain(recipe)
    return plain


def parse_byte_size(field_name: str, value: Any) -> int:
    """Read a number of bytes, as an integer or as text with a unit.

    Args:
        field_name: what to call it in errors.
        value: e.g. 262144, "262144", "256KiB", "64 KB", "1.5MiB"; KB is 1000 bytes, KiB 1024.

    Raises:
        RecipeError: not a whole number of bytes above 0.
    """
    rule = "a number of bytes above 0"
    repair = "write e.g. 262144, 256KiB (1024 bytes each) or 256KB (1000 bytes each)"
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        unit = _UNITS.get(match.group(2).lower()) if match else None
        try:
            size = Decimal(match.group(1)) * unit if match and unit else Decimal(int(value))
        except (InvalidOperation, ValueError):
            raise RecipeError(f"{field_name} must be {rule}, got {value!r}; {repair}") from None
        require(size == int(size) and size > 0, field_name, rule, value, repair)
        return int(size)
    valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
    require(valid, field_name, rule, value, repair)
    return int(value)


class _Reading:
    """One conversion: knows the whole mapping, so that every error can name its place."""

    def __init__(self, root: Any, base: str | None, origin: str) -> None:
        self._root = root
        self._base = base
        self._origin = origin

    def recipe(self) -> Recipe:
        root = self._mapping((), self._root, "a mapping of keys such as name, tokenizer, datasets")
        values = self._known((), root, Recipe, "")
        for key, kind in _SECTIONS.items():
            if key == "mixing" and key in values:
                values[key] = self._mixing(values[key])
            elif key in values and not (key in _OPTIONAL and values[key] is None):
                values[key] = self._section(key, values[key], kind)
        values["datasets"] = self._datasets(values["datasets"])
        if values.get("chunk_bytes") is not None:
            size = values["chunk_bytes"]
            values["chunk_bytes"] = self._build((), parse_byte_size, "chunk_bytes", size)
        return self._build((), Recipe, **values)

    def _section(self, key: str, value: Any, kind: Any) -> Any:
        names = ", ".join(_known_fields(kind))
        value = self._mapping((key,), value, f"a mapping with keys of {names}")
        values = self._known((key,), value, kind, key)
        if key == "tokenizer":
            values["path"] = self._resolve(values["path"], is_glob=False)
        if key == "packing":
            self._check_groups(values.get("within", "all"))
        return self._build((key,), kind, **values)

    def _mixing(self, value: Any) -> MixingRecipe:
        value = self._mapping(("mixing",), value, "a mapping with keys of unit, when_exhausted, …")
        values = self._known(("mixing",), value, MixingRecipe, "mixing")
        if "schedule" in values:
            place = ("mixing", "schedule")
            values["schedule"] = tuple(
                self._entry((*place, str(i)), entry)
                for i, entry in enumerate(self._list(place, values["schedule"], "entries"))
            )
        return self._build(("mixing",), MixingRecipe, **values)

    def _entry(self, place: tuple[str, ...], value: Any) -> ScheduleEntry:
        value = self._mapping(place, value, "a mapping with at_sample (or at_tokens) and weights")
        values = self._known(place, value, ScheduleEntry, "mixing.schedule")
        return self._build(place, ScheduleEntry, **values)

    def _datasets(self, value: Any) -> dict[str, DatasetRecipe]:
        place = ("datasets",)
        if value is None or value == {}:
            example = _example("", "datasets")
            self._fail(place, f"datasets must name at least one data set, got {value!r}; {example}")
        value = self._mapping(place, value, "a mapping of name to data set")
        return {name: self._dataset(name, entry) for name, entry in value.items()}

    def _dataset(self, name: str, value: Any) -> DatasetRecipe:
        place = ("datasets", name)
        value = self._mapping(place, value, "a mapping with at least the key files")
        values = self._known(place, value, DatasetRecipe, "datasets.*")
        files = values["files"]
        if isinstance(files, str):
            values["files"] = self._resolve(files, is_glob=True)
        elif isinstance(files, Sequence):
            values["files"] = tuple(self._resolve(item, is_glob=True) for item in files)
        if "transforms" in values:
            inner = (*place, "transforms")
            values["transforms"] = tuple(
                self._transform((*inner, str(i)), entry)
                for i, entry in enumerate(self._list(inner, values["transforms"], "calls"))
            )
        return self._build(place, DatasetRecipe, **values)

    def _transform(self, place: tuple[str, ...], value: Any) -> TransformRecipe:
        value = self._mapping(place, value, "a mapping with the key call")
        values = self._known(place, value, TransformRecipe, "datasets.*.transforms")
        return self._build(place, TransformRecipe, **values)

    def _check_groups(self, within: Any) -> None:
        for group, members in within.items() if isinstance(within, Mapping) else ():
            self._list(("packing", "within", group), members, "data set names")

    def _known(
        self, place: tuple[str, ...], value: Mapping[str, Any], kind: Any, table: str
    ) -> dict[str, Any]:
        """Return the fields of a dataclass; refuse what is unknown or missing."""
        known = _known_fields(kind)
        values = {}
        for key, item in value.items():
            if key not in known:
                self._refuse_unknown(place, key, list(known))
            values[known[key].name] = item
        for name, field in known.items():
            optional = field.default is not MISSING or field.default_factory is not MISSING
            if field.name not in values and not optional:
                missing = _dotted((*place, name))
                self._fail(place, f"{missing} must be given; {_example(table, name)}")
        return values

    def _refuse_unknown(self, place: tuple[str, ...], key: str, valid: Sequence[str]) -> NoReturn:
        """Say what was probably meant."""
        where = f" in {_dotted(place)}" if place else ""
        homes = _homes(key, top=bool(place))
        hint = nearest(key, valid)
        before, colon, after = key.partition(":")
        if colon and before in valid:
            repair = f"write '{before}: {after}', for YAML wants a space behind the colon"
        elif homes:
            repair = f"it belongs to {homes[0]}"
        elif hint:
            repair = f"did you mean {hint!r}?"
        else:
            repair = f"the keys here are {', '.join(valid)}"
        self._fail((*place, key), f"unknown key {key!r}{where}; {repair}")

    def _mapping(self, place: tuple[str, ...], value: Any, rule: str) -> Mapping[str, Any]:
        name = _dotted(place) or "recipe"
        if not isinstance(value, Mapping):
            example = "write its keys below it, indented"
            if value is None and len(place) == 1 and place[0] not in _REQUIRED:
                example = "leave the key out for its defaults"
            self._fail(place, f"{name} must be {rule}, got {value!r}; {example}")
        for key in value:
            if not isinstance(key, str):
                self._fail(place, f"keys of {name} must be text, got {key!r}; put it in quotes")
        checked: Mapping[str, Any] = value
        return checked

    def _list(self, place: tuple[str, ...], value: Any, of: str) -> Sequence[Any]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            name = _dotted(place)
            self._fail(place, f"{name} must be a list of {of}, got {value!r}; write [ … ]")
        checked: Sequence[Any] = value
        return checked

    def _resolve(self, path: Any, *, is_glob: bool) -> Any:
        """Make a path absolute; whatever is no path is left for the dataclass to refuse."""
        if not isinstance(path, str) or not path or "://" in path:
            return path
        path = os.path.expanduser(path)
        if self._base is None or os.path.isabs(path):
            return path
        base = glob.escape(self._base) if is_glob else self._base
        return os.path.join(base, path)

    def _build(
        self, place: tuple[str, ...], make: Callable[..., _T], *args: Any, **values: Any
    ) -> _T:
        """Call a constructor; give its errors the full path of the field and its line."""
        try:
            return make(*args, **values)
        except RecipeError as error:
            message = str(error)
            dotted = _dotted(place)
            first = message.split(" ", 1)[0]
            if place[:2] == ("mixing", "schedule"):
                message = dotted + message.removeprefix("mixing.schedule")
                place = (*place, *first.removeprefix("mixing.schedule").lstrip(".").split("."))
            elif place and not message.startswith(dotted):
                message = f"{dotted}.{message}"
                place = (*place, first)
            else:
                place = tuple(first.split("."))
            self._fail(place, message, error)

    def _fail(
        self, place: tuple[str, ...], message: str, cause: Exception | None = None
    ) -> NoReturn:
        line = self._line(place)
        where = self._origin if line is None else f"{self._origin}:{line}"
        raise RecipeError(f"{where}: {message}") from cause

    def _line(self, place: tuple[str, ...]) -> int | None:
        """Return the line of the innermost part of a place that was read from a file."""
        line, value = None, self._root
        for key in place:
            if isinstance(value, LocatedMapping) and key in value:
                line, value = value.lines.get(key, line), value[key]
            elif isinstance(value, list) and key.isdecimal():
                value = value[int(key)]
                if isinstance(value, LocatedMapping) and value.lines:
                    line = min(value.lines.values())
            else:
                break
        return line


def _dotted(place: tuple[str, ...]) -> str:
    """Spell a place as users write it: `datasets.web.weight`, `mixing.schedule[0].weights`."""
    lists = (("mixing", "schedule"), ("datasets", *place[1:2], "transforms"))
    for start in lists:
        size = len(start)
        if place[:size] == start and len(place) > size:
            return ".".join((*start[:-1], f"{start[-1]}[{place[size]}]", *place[size + 1 :]))
    return ".".join(place)


def _known_fields(kind: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by their keys; `with` is no name in Python."""
    return {field.name.rstrip("_"): field for field in fields(kind)}


def _homes(key: str, *, top: bool) -> list[str]:
    """Return where else a key would be at its place."""
    homes = [name for name, kind in _SECTIONS.items() if _has(kind, key)]
    homes += ["each data set"] if _has(DatasetRecipe, key) else []
    return homes + (["the top level"] if top and _has(Recipe, key) else [])


def _has(kind: Any, key: str) -> bool:
    return key in _known_fields(kind)


def _example(table: str, name: str) -> str:
    examples = {
        ("", "name"): "add e.g. `name: my-stream`",
        ("", "tokenizer"): "add e.g. `tokenizer: {path: tokenizer.json}`",
        ("", "datasets"): "add e.g. `datasets: {web: {files: data/*.jsonl}}`",
        ("tokenizer", "path"): "add e.g. `path: tokenizer.json`",
        ("datasets.*", "files"): "add e.g. `files: data/*.jsonl`",
        ("datasets.*.transforms", "call"): "add e.g. `call: my_package.clean:strip_html`",
        ("holdout", "fraction"): "add e.g. `fraction: 0.001`",
        ("media", "preset"): "add e.g. `preset: qwen2_vl`",
        ("mixing.schedule", "weights"): "add e.g. `weights: {web: 0.5, code: 0.5}`",
    }
    return examples[table, name]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        known = _known_fields(type(value))
        return {key: _plain(getattr(value, field.name)) for key, field in known.items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Decimal) else value
