"""From the `transforms` of a recipe to what is called: imported, checked, and with a version."""

import copy
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from zephon_beam.built_ins.base import SPANS
from zephon_beam.built_ins.table import make_built_in
from zephon_beam.checks import require
from zephon_beam.errors import DriftError, RecipeError
from zephon_beam.recipe import Recipe
from zephon_beam.recipe_datasets import BUILT_IN_TRANSFORMS, DatasetRecipe, TransformRecipe
from zephon_beam.transforming.importing import import_function, module_folders
from zephon_beam.transforming.versions import function_version

_KEY = "key"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One transform of a data set, ready to be called."""

    place: str
    """Its place in the recipe, e.g. `datasets.web.transforms[0]`."""
    name: str
    """What the recipe calls."""
    kind: str
    """`map`, `filter` or `flat_map`, or a kind of the built-ins."""
    call: Callable[..., Any]
    """Called with a document, the arguments of the recipe filled in."""
    takes_key: bool
    """Whether it is also given the document's key, as `key`."""
    code_version: str
    """Stands for the code in the fingerprint."""
    special_tokens: tuple[str, ...] = ()
    """Tokens that it puts between texts."""
    folders: tuple[str, ...] = ()
    """Entries of the import path that the function's package was found at."""


Steps = tuple[tuple[Step, ...], ...]
"""The transforms of each data set, in recipe order."""


def load_steps(recipe: Recipe) -> Steps:
    """Import and check everything that a recipe calls.

    Raises:
        RecipeError: a function cannot be found, does not take the arguments, or has no version; or
            a built-in has wrong options or does not fit the data set.
    """
    return tuple(_dataset_steps(name, dataset) for name, dataset in recipe.datasets.items())


def step_versions(steps: Steps) -> dict[str, str]:
    """Return what stands for the code of each transform, by its place in the recipe."""
    return {step.place: step.code_version for own in steps for step in own}


def step_folders(steps: Steps) -> tuple[str, ...]:
    """Return where called functions were found, for workers to look there, too."""
    return tuple(dict.fromkeys(folder for own in steps for step in own for folder in step.folders))


def refuse_other_code(steps: Steps, stored: Mapping[str, str]) -> None:
    """Compare the code of the transforms with that which a stream was created with.

    Raises:
        DriftError: a function, a built-in or the tables of Unicode are others.
    """
    for step in (step for own in steps for step in own):
        known = stored.get(step.place)
        if known == step.code_version:
            continue
        raise DriftError(
            f"{step.place} ({step.name}): expected code {known or 'of no transform'}, found "
            f"{step.code_version}; documents would be transformed otherwise from here on, and the "
            f"stream would no longer be a function of one recipe; {_repair(step)}"
        )


def _repair(step: Step) -> str:
    if "Unicode" in step.code_version:
        return "run it with the Python and zephon-beam that it was created with"
    if step.code_version.startswith("source:"):
        return (
            "restore the function's source, or begin a new stream with it, by `run` or where this "
            "one is, by `fork`"
        )
    return (
        "undo the change, or begin a new stream with it, by `run` or where this one is, by `fork`"
    )


def _dataset_steps(name: str, dataset: DatasetRecipe) -> tuple[Step, ...]:
    steps: list[Step] = []
    for number, transform in enumerate(dataset.transforms):
        place = f"datasets.{name}.transforms[{number}]"
        try:
            if steps and steps[-1].kind == SPANS:
                _refuse_last(steps[-1].name, transform)
            make = _built_in if transform.call in BUILT_IN_TRANSFORMS else _called
            steps.append(make(place, transform, dataset.content_kind))
        except RecipeError as error:
            raise RecipeError(f"{place}.{error}") from error
    return tuple(steps)


def _refuse_last(earlier: str, transform: TransformRecipe) -> None:
    raise RecipeError(
        f"call must come before {earlier}, got {transform.call!r}; {earlier} makes pieces and "
        f"special tokens of a text; put {earlier} last"
    )


def _built_in(place: str, transform: TransformRecipe, content: str) -> Step:
    name = str(transform.call)
    try:
        made = make_built_in(name, transform.with_)
    except RecipeError as error:
        raise RecipeError(f"with.{error}") from error
    require(
        content in made.contents,
        "call",
        f"one that takes {content}",
        name,
        f"{name} is for data sets of {' and '.join(made.contents)}",
    )
    version = transform.version
    repair = "leave it out; a built-in has a version of its own"
    require(version is None, "version", "left out of a built-in", version, repair)
    return Step(
        place=place,
        name=name,
        kind=made.kind,
        call=made,
        takes_key=made.kind == SPANS,
        code_version=f"built-in {name} {made.code_version}",
        special_tokens=made.special_tokens,
    )


def _called(place: str, transform: TransformRecipe, _content: str) -> Step:
    name = str(transform.call)
    function = import_function(name)
    takes_key = _check_signature(name, function, transform)
    return Step(
        place=place,
        name=name,
        kind=transform.kind,
        call=_with_arguments(function, transform.with_),
        takes_key=takes_key,
        code_version=function_version(name, function, transform.version),
        folders=tuple(_folders(name.partition(":")[0].partition(".")[0])),
    )


def _check_signature(name: str, function: Callable[..., Any], transform: TransformRecipe) -> bool:
    """Refuse arguments that do not fit; say whether the function takes a document's key."""
    arguments = transform.with_
    repair = f"{_KEY} is the document's key, which the function gets anyway"
    require(_KEY not in arguments, "with", f"without {_KEY!r}", dict(arguments), repair)
    is_coroutine = inspect.iscoroutinefunction(function)
    require(not is_coroutine, "call", "a plain function", name, "write `def`, not `async def`")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return False
    found = signature.parameters.get(_KEY)
    takes_key = found is not None and found.kind in (
        found.KEYWORD_ONLY,
        found.POSITIONAL_OR_KEYWORD,
    )
    keys = {_KEY: 0} if takes_key else {}
    try:
        signature.bind("", **arguments, **keys)
    except TypeError as error:
        raise RecipeError(
            f"with must fit {name}{signature}, got {dict(arguments)!r}: {error}; it is called with "
            "the document and these arguments by name"
        ) from error
    return takes_key


def _with_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any]
) -> Callable[..., Any]:
    """Fill in the arguments; each call gets its own copy of those that it could change."""
    fixed = dict(arguments)
    if any(isinstance(value, (dict, list)) for value in fixed.values()):

        def call(document: Any, **keys: Any) -> Any:
            return function(document, **copy.deepcopy(fixed), **keys)

        return call
    return partial(function, **fixed) if fixed else function


def _folders(top: str) -> Iterable[str]:
    module = sys.modules.get(top)
    return [] if module is None else filter(os.path.isdir, module_folders(module))
