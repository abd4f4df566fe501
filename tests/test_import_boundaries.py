"""Rules of our source that no linter knows: nothing that may differ between two processes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path
    for name in ("zephon_beam", "transforms", "pipelines")
    for path in (ROOT / name).rglob("*.py")
)
_ORDERED = {"sorted", "len", "min", "max", "sum", "any", "all", "set", "frozenset", "bool"}
"""Functions whose result does not depend on the order of what they are given."""
_ITERATES = {"list", "tuple", "iter", "enumerate", "map", "filter", "zip", "reversed", "next"}
_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}


def faults(source: str) -> list[str]:
    """Return what a module does that it must not, as `line: fault`."""
    tree = ast.parse(source)
    return [f"{line}: {fault}" for line, fault in sorted(_faults(tree))]


def _faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            if any(alias.name == "annotations" for alias in node.names):
                yield node.lineno, "from __future__ import annotations"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "hash":
                yield node.lineno, "hash("
            elif node.func.id in _ITERATES and any(map(_is_set, node.args)):
                yield node.lineno, f"{node.func.id} of a set"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "join" and any(map(_is_set, node.args)):
                yield node.lineno, "join of a set"
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            if _is_set(node.iter) and not _is_harmless(node, tree):
                yield node.iter.lineno, "iteration over a set"
        elif isinstance(node, ast.Starred) and _is_set(node.value):
            yield node.lineno, "unpacking of a set"


def _is_set(node: ast.AST) -> bool:
    """Say whether an expression is certainly a set."""
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
    ):
        return _is_set(node.left) or _is_set(node.right) or _is_keys(node.left)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in {"set", "frozenset"}
    return isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS


def _is_keys(node: ast.AST) -> bool:
    """Say whether an expression is the keys of a mapping, whose difference is a set."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "keys"
    )


def _is_harmless(loop: ast.AST, tree: ast.AST) -> bool:
    """Say whether a comprehension goes straight into something that forgets the order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.SetComp) and loop in node.generators:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for argument in node.args:
                inside = getattr(argument, "generators", ())
                if loop in inside and node.func.id in _ORDERED:
                    return True
    return False


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations\n",
        "x = hash('a')\n",
        "for x in {1, 2}: pass\n",
        "for x in set(y): pass\n",
        "x = [a for a in {b for b in c}]\n",
        "x = list({1, 2})\n",
        "x = ','.join(set(y))\n",
        "x = [*set(y)]\n",
        "for x in a.keys() - b.keys(): pass\n",
        "for x in set(a) | b: pass\n",
        "x = next(iter(frozenset(a)))\n",
        "x = tuple(a.union(b) for a in set(c))\n",
    ],
)
def test_the_rules_see_what_they_forbid(source: str) -> None:
    """A rule that finds nothing must not be one that cannot find anything."""
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "x = sorted({1, 2})\n",
        "x = sorted(a for a in {1, 2})\n",
        "x = {a for a in set(y)}\n",
        "x = a in {1, 2}\n",
        "x = len(set(y))\n",
        "for x in dict.fromkeys(y): pass\n",
        "class A:\n    def __hash__(self): return 1\n",
    ],
)
def test_the_rules_allow_what_does_no_harm(source: str) -> None:
    """Membership, size and sorted sets are the same everywhere."""
    assert not faults(source)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_depends_on_hash_or_set_order(path: Path) -> None:
    """Two processes with other hash seeds must do the same; Beam must see our types."""
    assert faults(path.read_text(encoding="utf-8")) == []
