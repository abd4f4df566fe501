"""Patterns over buckets: the objects that a pattern like `gs://bucket/data/**/*.jsonl` names.

Patterns mean what they mean for local files: `*` and `?` stay within a folder, `**` is any number
of folders, and a name that starts with a dot must be spelt out. Only names that begin like the
pattern does before its first wildcard are listed.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import islice

from zephon_beam.checks import nearest
from zephon_beam.errors import RecipeError, SourceError
from zephon_beam.sources.places import bucket_of, known_object, remember
from zephon_beam.store.base import is_remote, unknown_scheme
from zephon_beam.store.bucket import split_address

WILDCARD = re.compile(r"[*?[]")
_HINTS = 1000
"""Names that are looked through for the one that may have been meant."""


def are_remote(patterns: Sequence[str]) -> bool:
    """Say whether the files of a data set are in a bucket.

    Raises:
        RecipeError: only some are, they are in several buckets, or an address is not one.
    """
    for pattern in patterns:
        scheme, separator, _ = pattern.partition("://")
        if separator and scheme != "file" and not is_remote(pattern):
            raise unknown_scheme("files", pattern)
    remote = [pattern for pattern in patterns if is_remote(pattern)]
    if not remote:
        return False
    buckets = {split_address(pattern, "files")[:2] for pattern in remote}
    if len(buckets) > 1 or len(remote) < len(patterns):
        raise RecipeError(
            f"files of a data set must all be in one bucket, got {list(patterns)!r}; their order "
            "would depend on where they are; make them data sets of their own"
        )
    return True


def object_root(patterns: Sequence[str]) -> str:
    """Return the address that the names of the objects are relative to.

    The deepest folder that all patterns share before their first wildcard.
    """
    folders = []
    for pattern in patterns:
        scheme, bucket, key = split_address(pattern, "files")
        parts = key.split("/")
        wild = next((i for i, part in enumerate(parts) if WILDCARD.search(part)), len(parts))
        folders.append([f"{scheme}://{bucket}", *parts[: min(wild, len(parts) - 1)]])
    shared = []
    for level in zip(*folders, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/".join(shared)


def list_objects(pattern: str) -> list[str]:
    """Return the addresses of the objects that match a pattern, by name.

    Raises:
        RecipeError: there is no such bucket.
        SourceError: none matches.
    """
    bucket, wanted = bucket_of(pattern)
    first = WILDCARD.search(wanted)
    found, seen_below = [], False
    for info in bucket.list(wanted[: first.start()] if first else wanted):
        # An object like `data/` stands for a folder in some programs; it holds nothing.
        if info.key.endswith("/"):
            continue
        seen_below = seen_below or info.key.startswith(f"{wanted}/")
        if info.key == wanted or matches(info.key, wanted):
            address = f"{bucket.uri}/{info.key}"
            remember(address, info)
            found.append(address)
    if not found:
        raise _no_match(pattern, seen_below)
    return found


def object_sizes(root: str, paths: Sequence[str]) -> dict[str, int]:
    """Return the bytes of objects below a folder, by another listing if the last is forgotten.

    Raises:
        SourceError: one is not there any more.
    """
    known = {path: info.size for path in paths if (info := known_object(path)) is not None}
    if len(known) == len(paths):
        return known
    bucket, folder = bucket_of(root)
    for info in bucket.list(f"{folder}/" if folder else ""):
        known[f"{bucket.uri}/{info.key}"] = info.size
    for path in paths:
        if path not in known:
            raise SourceError(
                f"{path}: expected an object, found none; it was deleted while the run began; "
                "restore it, or leave it out of `files`"
            )
    return known


def matches(key: str, pattern: str) -> bool:
    """Say whether a name matches a pattern, as `glob` would for files."""
    return _match(key.split("/"), pattern.split("/"))


def _match(names: list[str], patterns: list[str]) -> bool:
    """Compare part by part; the last name is that of an object, the others are folders."""
    while patterns:
        first, *rest = patterns
        if first == "**":
            if not rest:
                return bool(names) and not any(name.startswith(".") for name in names)
            depth = next((i for i, name in enumerate(names) if name.startswith(".")), len(names))
            return any(_match(names[skipped:], rest) for skipped in range(depth + 1))
        if not names or not _match_part(names[0], first):
            return False
        names, patterns = names[1:], rest
    return not names


def _match_part(name: str, pattern: str) -> bool:
    if not WILDCARD.search(pattern):
        return name == pattern
    if name.startswith(".") and not pattern.startswith("."):
        return False
    return fnmatchcase(name, pattern)


def _no_match(pattern: str, seen_below: bool) -> SourceError:
    if seen_below:
        return SourceError(
            f"files must match at least one object, got {pattern!r}, which is a folder; write "
            f"e.g. '{pattern}/**/*.jsonl' for the objects in it"
        )
    root = object_root([pattern])
    bucket, folder = bucket_of(root)
    below = f"{folder}/" if folder else ""
    names = [info.key[len(below) :] for info in islice(bucket.list(below), _HINTS)]
    hint = nearest(pattern[len(root) + 1 :], names)
    holds = f"{len(names)}{' or more' if len(names) == _HINTS else ''} names" if names else "none"
    return SourceError(
        f"files must match at least one object, got {pattern!r}; below {root!r} there are "
        f"{holds}; {f'did you mean {hint!r}?' if hint else 'correct the pattern'}"
    )
