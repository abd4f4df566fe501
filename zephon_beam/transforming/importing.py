"""From a `call` in a recipe to the function, and where functions may lie.

The recipe's folder is put at the very end of the import path, so it can add modules and never
replace one. When a process goes on to another recipe, the folder of the one before is taken off
again and the modules that came from it are forgotten: two recipes may each have a `clean.py`.
"""

import importlib
import os
import pkgutil
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from zephon_beam.checks import nearest
from zephon_beam.errors import RecipeError

_LOCK = threading.Lock()
_APPENDED: dict[str, frozenset[str]] = {}
"""Folders that were put on the path, and the modules that were there before."""


def make_importable(folders: Sequence[str]) -> None:
    """Put folders at the end of the import path, in place of those of another recipe."""
    with _LOCK:
        for folder in [folder for folder in _APPENDED if folder not in folders]:
            _forget(folder, _APPENDED.pop(folder))
        for folder in folders:
            if folder not in sys.path:
                _APPENDED[folder] = frozenset(sys.modules)
                sys.path.append(folder)
        importlib.invalidate_caches()


def _forget(folder: str, before: frozenset[str]) -> None:
    """Take a folder off the path again, with the modules that were imported from it."""
    if folder in sys.path:
        sys.path.remove(folder)
    loaded = dict(sys.modules)
    for name in loaded:
        top = name.partition(".")[0]
        if top not in before and top in loaded and folder in module_folders(loaded[top]):
            del sys.modules[name]


def module_folders(module: ModuleType) -> list[str]:
    """Return the entries of the import path that a top-level module was found at."""
    places = list(getattr(module, "__path__", [])) or [getattr(module, "__file__", None)]
    return [os.path.dirname(os.path.abspath(place)) for place in places if place]


def import_function(call: str) -> Callable[..., Any]:
    """Import what a recipe calls.

    Args:
        call: `package.module:function`.

    Raises:
        RecipeError: there is no such module or function, or importing it fails; the message
            starts with `call`, and names the nearest one and where it was looked for.
    """
    name, _, attribute = call.partition(":")
    module = _import_module(call, name)
    found: Any = module
    for part in attribute.split("."):
        inner = getattr(found, part, None)
        if inner is None:
            callables = [key for key, value in vars(found).items() if callable(value)]
            hint = nearest(part, callables)
            repair = f"did you mean {hint!r}?" if hint else "define it there"
            raise RecipeError(
                f"call must name a function, got {call!r}; {_where(module)} has no {part!r}; "
                f"{repair}"
            )
        found = inner
    if not callable(found):
        raise RecipeError(
            f"call must name a function, got {call!r}, which is of type {type(found).__name__}; "
            "name the function itself"
        )
    function: Callable[..., Any] = found
    return function


def _import_module(call: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise _failed(call, name, error) from error
        parent, _, last = missing.rpartition(".")
        hint = nearest(last, _modules_beside(parent))
        repair = "put it beside the recipe file, or install its package"
        if hint:
            repair = f"did you mean {f'{parent}.{hint}' if parent else hint!r}?"
        raise RecipeError(
            f"call must name a function that can be imported, got {call!r}; there is no module "
            f"{missing!r}, {_looked_in(parent)}; {repair} (on remote workers: --extra_package)"
        ) from error
    except (Exception, SystemExit) as error:
        raise _failed(call, name, error) from error


def _failed(call: str, name: str, error: BaseException) -> RecipeError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return RecipeError(
        f"call must name a function that can be imported, got {call!r}; importing {name} failed "
        f"with {reason}; mend the module, or install what it needs"
    )


def _modules_beside(parent: str) -> list[str]:
    """Return the modules that could have been meant."""
    folders = list(getattr(sys.modules.get(parent), "__path__", [])) if parent else list(_APPENDED)
    return [module.name for module in pkgutil.iter_modules(folders)]


def _looked_in(parent: str) -> str:
    if parent:
        return f"looked in {_where(sys.modules[parent])}"
    folders = ", ".join(repr(folder) for folder in _APPENDED)
    return (
        f"looked in {folders} and where Python has its packages"
        if folders
        else ("looked where Python has its packages")
    )


def _where(module: ModuleType) -> str:
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), None)
    return f"{module.__name__} ({place})" if place else module.__name__
