"""Find the files of a data set and learn what each says of itself, without reading its data."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from zephon_beam.checks import nearest, require_choice
from zephon_beam.errors import RecipeError, SourceError
from zephon_beam.sources.compressed import (
    COMPRESSIONS,
    MAGIC_BYTES,
    sniff_compression,
    split_ending,
)
from zephon_beam.sources.documents import Content
from zephon_beam.sources.formats import (
    FORMATS,
    UNSUPPORTED_ENDINGS,
    can_expand,
    source_format,
)
from zephon_beam.sources.object_listing import (
    WILDCARD,
    are_remote,
    list_objects,
    object_root,
    object_sizes,
)
from zephon_beam.sources.open_source import joint_identity, read_identity
from zephon_beam.sources.places import OpenFile, opened_file
from zephon_beam.store.base import is_remote

_TEXT_FORMATS = ("jsonl", "text")
_UNREADABLE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileScan:
    """What one file says of itself."""

    path: str
    """Absolute path, or address of an object, as opened."""
    size: int
    """Bytes."""
    identity: str
    """Local files: BLAKE2b of the first and last 64 KiB and the size, in hexadecimal; objects:
    what their store says of their content; of formats of two files, both."""
    row_groups: tuple[tuple[int, int], ...] = ()
    """(rows, expanded bytes) of each row group, for formats that have them."""


def resolve_format(declared: str, paths: Sequence[str]) -> str:
    """Return the format of a data set, telling it by the files' endings if it is `auto`.

    Raises:
        RecipeError: the endings are mixed, unknown or of a format that this version does not read.
    """
    require_choice("format", declared, ("auto", *FORMATS))
    by_ending = {ending: name for name, entry in FORMATS.items() for ending in entry.endings}
    found: dict[str, str] = {}
    for path in paths:
        ending, compression = split_ending(path)
        known = by_ending.get(ending)
        name = known if declared == "auto" else declared
        if name is None and ending not in UNSUPPORTED_ENDINGS:
            shown = os.path.splitext(path)[1].lower()
            raise RecipeError(
                f"format must be declared for files with the ending {shown!r}, got 'auto' and "
                f"{path!r}; write e.g. format: text (each file is one document) or format: jsonl"
            )
        if name is None or (compression is not None and not can_expand(name)):
            raise _unsupported(path, name)
        if name in _TEXT_FORMATS and known is not None and known not in _TEXT_FORMATS:
            raise RecipeError(
                f"format must be that of the files, got {declared!r} and {path!r}, which is named "
                f"like {known}; its bytes would be taken for text; write format: {known}, or "
                "leave the file out of `files`"
            )
        found.setdefault(name, path)
    if declared != "auto":
        return declared
    if len(found) != 1:
        files = ", ".join(f"{path!r} ({name})" for name, path in found.items()) or "no files"
        raise RecipeError(
            f"format must be one for all files of a data set, got {files}; make them data sets of "
            "their own, or narrow `files`"
        )
    return next(iter(found))


def _unsupported(path: str, name: str | None) -> RecipeError:
    ending = os.path.splitext(path)[1].lower()
    tool = UNSUPPORTED_ENDINGS.get(ending, "gzip -d")
    repair = f"expand it with `{tool}`" if tool else "convert it to one of these"
    compressed = "" if name is None else f" of {name} and not compressed"
    return RecipeError(
        f"format must be one of {', '.join(FORMATS)}, and files{compressed} readable, got a file "
        f"with the ending {ending!r}: {path!r}; this version cannot read it; {repair}"
    )


def data_root(patterns: Sequence[str]) -> str:
    """Return the absolute folder, or its address, that names in the catalog are relative to.

    The deepest folder that all patterns share before their first wildcard. It is told from the
    patterns alone, so that files which come or go do not rename the others.
    """
    if are_remote(patterns):
        return object_root(patterns)
    folders = []
    for pattern in patterns:
        fixed = Path(_local(pattern)).parts
        wild = next((i for i, part in enumerate(fixed) if WILDCARD.search(part)), len(fixed))
        folders.append(os.path.join(*fixed[: max(1, min(wild, len(fixed) - 1))]))
    return os.path.commonpath(folders)


def list_files(patterns: Sequence[str]) -> list[str]:
    """Return the files that match any of the patterns, each once.

    `**` matches folders of any depth; names that start with a dot must be spelt out.

    Returns:
        Absolute paths, or addresses of objects, ordered by the code points of their names
        relative to `data_root`.

    Raises:
        RecipeError: an address is not one that this version reads, or some files are elsewhere.
        SourceError: a pattern matches no file, or a file that cannot be read.
    """
    root = data_root(patterns)
    found: dict[str, str] = {}
    for pattern in patterns:
        if is_remote(pattern):
            found.update((relative_name(path, root), path) for path in list_objects(pattern))
            continue
        local = _local(pattern)
        # A name that looks like a pattern is taken as it is if there is such a file.
        matches = [local] if os.path.isfile(local) else glob(local, recursive=True)
        files = [path for path in matches if not os.path.isdir(path)]
        if not files:
            raise _no_match(pattern, local, matches)
        for path in files:
            _refuse_unreadable(path)
            found[relative_name(path, root)] = path
    return [found[name] for name in sorted(found)]


def relative_name(path: str, root: str) -> str:
    """Return the name of a file in the catalog: relative to the root, with `/`.

    Raises:
        ValueError: the file is not below the root.
    """
    prefix = root if root.endswith(os.sep) else root + os.sep
    if not path.startswith(prefix):
        raise ValueError(f"path must be below {root!r}, got {path!r}")
    return path[len(prefix) :].replace(os.sep, "/")


def file_sizes(root: str, paths: Sequence[str]) -> dict[str, int]:
    """Return the bytes of files that were just listed, by path.

    Args:
        root: folder that they are below.
        paths: of the files.
    """
    if are_remote([root]):
        return object_sizes(root, paths)
    return {path: os.stat(path).st_size for path in paths}


def scan_file(path: str, format: str) -> FileScan:
    """Read a file's size, its two ends and, where there is one, its footer.

    Raises:
        SourceError: the file is missing, unreadable, or its footer is damaged.
    """
    read_row_groups, companion = FORMATS[format].read_row_groups, FORMATS[format].companion
    try:
        with opened_file(path) as file:
            size = file.size
            identity = read_identity(file, size)
            if companion is not None:
                identity = joint_identity(identity, _companion_identity(companion(path)))
            first_bytes = _first_bytes(file, path, format)
    except OSError as error:
        if error.errno in _UNREADABLE:
            raise _unreadable(path, error) from error
        raise
    _refuse_other_compression(path, format, first_bytes)
    row_groups = read_row_groups(path) if read_row_groups is not None else ()
    return FileScan(path=path, size=size, identity=identity, row_groups=row_groups)


def _companion_identity(path: str) -> str:
    try:
        with opened_file(path) as file:
            return read_identity(file, file.size)
    except OSError as error:
        if error.errno in _UNREADABLE:
            raise _unreadable(path, error) from error
        raise


def check_columns(format: str, path: str, content: Content) -> None:
    """Make sure before any work that a file has the field that holds the documents.

    Parquet: by the footer. JSONL: by the first document, if it starts within 64 KiB.

    Raises:
        RecipeError: it has no such field, or the field holds no text; names those there are.
        SourceError: the file is missing, unreadable or damaged.
    """
    entry = source_format(format, path)
    if content.kind not in entry.kinds:
        raise RecipeError(
            f"{content.kind} must name a field of files that have some, got {content.field!r} and "
            f"{path!r}, which is read as {format}; leave {content.kind} out, or correct `format`"
        )
    try:
        with opened_file(path) as file:
            _refuse_other_compression(path, format, _first_bytes(file, path, format))
        entry.check_field(path, content)
    except OSError as error:
        if error.errno in _UNREADABLE:
            raise _unreadable(path, error) from error
        raise


def _local(pattern: str) -> str:
    """Return a pattern as an absolute local path."""
    _, separator, rest = pattern.partition("://")
    return os.path.abspath(os.path.expanduser(rest if separator else pattern))


def _no_match(pattern: str, local: str, folders: Sequence[str]) -> SourceError:
    """Say which part of a pattern is wrong, as far as the disk tells."""
    if folders:
        return SourceError(
            f"files must match at least one file, got {pattern!r}, which matches only folders; "
            f"write e.g. {os.path.join(pattern, '**', '*.jsonl')!r} for the files in them"
        )
    folder = Path(data_root([local]))
    if not folder.is_dir():
        return SourceError(
            f"files must match at least one file, got {pattern!r}, whose folder {str(folder)!r} "
            "does not exist; correct the path (it is relative to the recipe file)"
        )
    names = sorted(entry.name for entry in folder.iterdir())
    hint = nearest(Path(local).name, names)
    holds = f"{len(names)} other names" if names else "nothing"
    return SourceError(
        f"files must match at least one file, got {pattern!r}; the folder {str(folder)!r} holds "
        f"{holds}; {f'did you mean {hint!r}?' if hint else 'correct the pattern'}"
    )


def _first_bytes(file: OpenFile, path: str, format: str) -> bytes:
    """Read the bytes that tell a compression, if they are looked at."""
    return file.pread(MAGIC_BYTES, 0) if source_format(format, path).is_sniffed else b""


def _refuse_other_compression(path: str, format: str, first_bytes: bytes) -> None:
    """Make sure that a file's name says how it is compressed, so that it is not read as text."""
    if not source_format(format, path).is_sniffed:
        return
    found, expected = sniff_compression(first_bytes), split_ending(path)[1]
    if found is None or found == expected:
        return
    ending = next((key for key, value in COMPRESSIONS.items() if value == found), None)
    repair = "expand it" if ending is None else f"rename it so that it ends in {ending}"
    raise SourceError(
        f"{path}: expected {expected or 'data that is not compressed'}, as its name says, found "
        f"{found} data; its bytes would be taken for documents; {repair}, or leave it out of "
        "`files`"
    )


def _refuse_unreadable(path: str) -> None:
    if not os.path.isfile(path):
        raise SourceError(
            f"files must be regular files, got {path!r}, which is a broken link or a device; its "
            "documents would be missing; restore it, or leave it out of `files`"
        )
    if not os.access(path, os.R_OK):
        raise SourceError(
            f"files must be readable, got {path!r}, which this user may not read; its documents "
            "would be missing; change its permissions, or leave it out of `files`"
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SourceError(
            f"files must have names in UTF-8, got {path!r}; the name could not be stored; rename it"
        ) from None


def _unreadable(path: str, error: OSError) -> SourceError:
    return SourceError(
        f"{path}: expected a readable file, found none ({error.strerror}); its documents would be "
        "missing; restore it, change its permissions, or leave it out of `files`"
    )
