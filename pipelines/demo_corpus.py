"""The corpus of the demo: the source code and the documentation of Apache Beam itself.

A demo needs real text that every user already has, that is the same everywhere and that needs no
download. The pinned apache-beam package is such text, about 17 MB of it:

    code/apache_beam/**/*.py       data set `code`: the Python modules, one document a file
    prose/part-0000N.jsonl         data set `prose`: {"text", "module", "name"} of each docstring

All 16 wheels of Beam 2.77.0 and its source archive hold the same `.py` files, byte for byte, so
neither the Python version nor the platform matters. The files are those that the installation's own
list (RECORD) names, so that neither stray files nor byte code take part. Prose leaves out tests and
generated modules: their docstrings are few or mechanical, and parsing them would double the time.
`TOKENIZER_FILE` is a tokenizer trained on this corpus (see `pipelines.train_demo_tokenizer`).
"""

import ast
import hashlib
import json
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from zephon_beam.errors import DriftError, ZephonBeamError

BEAM_VERSION = "2.77.0"
CORPUS_DIGEST = "26da601bd98593e37d604277c5eca4a4"
TOKENIZER_FILE = Path(__file__).parent / "demo_data" / "tokenizer.json"
PROSE_PARTS = 8
MIN_PROSE_CHARS = 20

_GENERATED_FOLDER = "/internal/clients/"
_NOT_PROSE_SUFFIXES = ("_test.py", "_pb2.py", "_pb2_grpc.py", "_pb2_urns.py")
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_STATEMENT_FIELDS = ("body", "handlers", "orelse", "finalbody", "cases")


def write_demo_corpus(folder: Path) -> None:
    """Write the two data sets of the demo under `folder`, always with the same bytes.

    Files that are there already are overwritten, so an interrupted write is repaired by another.

    Args:
        folder: where `code/` and `prose/` go; created when it does not exist.

    Raises:
        ZephonBeamError: apache-beam is missing, is not version 2.77.0 or lacks some of its files.
        DriftError: the installed files are not those of the release, so the corpus is another one.

    Determinism: the bytes depend on the apache-beam version only; not on the Python version, the
    platform, the hash seed or what else is installed.
    """
    modules = _beam_modules()
    for name, source in modules:
        _write(folder / "code" / name, source)
    lines = [line for name, source in modules if _has_prose(name) for line in _prose(name, source)]
    for part in range(PROSE_PARTS):
        first, end = (len(lines) * edge // PROSE_PARTS for edge in (part, part + 1))
        _write(folder / "prose" / f"part-{part:05d}.jsonl", "".join(lines[first:end]).encode())
    digest = corpus_digest(folder)
    if digest != CORPUS_DIGEST:
        raise DriftError(
            f"demo corpus: expected digest {CORPUS_DIGEST}, found {digest} ({folder}); a stream "
            "of it would differ from everybody else's; write it to an empty folder, and if that "
            f"fails too, run pip install --force-reinstall --no-deps apache-beam=={BEAM_VERSION}"
        )


def corpus_digest(folder: Path) -> str:
    """Return the BLAKE2b digest of the names and bytes of all files of a written corpus.

    Args:
        folder: what `write_demo_corpus` was given.

    Returns:
        32 hexadecimal digits (16 bytes).

    Determinism: depends on the relative names and the contents of the files under `code/` and
    `prose/`; not on their times, their permissions or the order in which the folder lists them.
    """
    digest = hashlib.blake2b(digest_size=16)
    found = {
        path.relative_to(folder).as_posix(): path
        for data_set in ("code", "prose")
        for path in (folder / data_set).rglob("*")
        if path.is_file()
    }
    for name in sorted(found):
        content = found[name].read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def docstrings(source: str) -> Iterator[tuple[str, str]]:
    """Yield (qualified name, docstring) of a module and of each class and function in it.

    Statements are visited in source order, expressions not at all. The module's own docstring has
    the name "". Docstrings come without their common indentation and outer blank lines, but are
    otherwise the constants as written (Python 3.13 would clean them by rules of its own).

    Args:
        source: the text of a Python module.

    Raises:
        SyntaxError: `source` is not a Python module.

    Determinism: depends on `source` only, for syntax that all supported Pythons parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in somebody else's strings
        module = ast.parse(source)
    yield from _docstrings_below(module, "")


def _docstrings_below(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the docstring of `node`, if it can have one, then those of the statements inside it."""
    inner = prefix
    if isinstance(node, (ast.Module, *_DEFINITIONS)):
        if not isinstance(node, ast.Module):
            name = prefix + node.name
            inner = f"{name}." if isinstance(node, ast.ClassDef) else f"{name}.<locals>."
        else:
            name = ""
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            text = first.value.value
            if isinstance(text, str):
                yield name, _dedent(text)
    for field in _STATEMENT_FIELDS:
        below = getattr(node, field, ())
        for statement in below if isinstance(below, list) else ():
            yield from _docstrings_below(statement, inner)


def _dedent(text: str) -> str:
    """Return `text` without outer blank lines and the indentation that all but line 1 share."""
    first, *rest = (line.rstrip(" ") for line in text.expandtabs(8).split("\n"))
    margin = min((len(line) - len(line.lstrip(" ")) for line in rest if line), default=0)
    return "\n".join([first.lstrip(" "), *(line[margin:] for line in rest)]).strip("\n")


def _prose(name: str, source: bytes) -> Iterator[str]:
    """Yield one JSON line for each docstring of the module that is long enough."""
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for qualified_name, text in docstrings(source.decode("utf-8")):
        if len(text) >= MIN_PROSE_CHARS:
            document = {"text": text, "module": module, "name": qualified_name}
            yield json.dumps(document, ensure_ascii=False) + "\n"


def _has_prose(name: str) -> bool:
    return not name.endswith(_NOT_PROSE_SUFFIXES) and _GENERATED_FOLDER not in name


def _beam_modules() -> list[tuple[str, bytes]]:
    """Return (name such as apache_beam/io/avroio.py, content) of Beam's modules, sorted by name."""
    try:
        beam = metadata.distribution("apache-beam")
    except metadata.PackageNotFoundError as missing:
        raise ZephonBeamError(
            f"apache-beam must be installed in version {BEAM_VERSION}, got none; the demo corpus "
            "is made of its files; run pip install 'zephon-beam[beam]'"
        ) from missing
    if beam.version != BEAM_VERSION:
        raise ZephonBeamError(
            f"apache-beam must be version {BEAM_VERSION}, got {beam.version!r}; the demo corpus is "
            "made of its files and would be another one; run pip install 'zephon-beam[beam]'"
        )
    paths = {path.as_posix(): path for path in beam.files or ()}
    names = sorted(
        name for name in paths if name.startswith("apache_beam/") and name.endswith(".py")
    )
    try:
        return [(name, Path(str(paths[name].locate())).read_bytes()) for name in names]
    except OSError as error:
        raise ZephonBeamError(
            f"apache-beam must be installed with all its files, got {error}; the demo corpus is "
            f"made of them; run pip install --force-reinstall --no-deps apache-beam=={BEAM_VERSION}"
        ) from error


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
