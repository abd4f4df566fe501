"""Choose the backend of a recipe's tokenizer, and load it.

`hf` defines what is right for a `tokenizer.json`, `tiktoken` for a rank file. `auto` takes
fastokens where the gate shows that it gives the same ids. So the choice is a run option: it changes
the speed and never a byte, and neither the recipe nor the fingerprint knows of it.
"""

import json
import logging
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from transforms.tokenizers.fast_tokens import FastTokenizer
from transforms.tokenizers.gate import INSTALL, fastokens_refusal, is_admitted, is_installed
from transforms.tokenizers.hugging_face import HuggingFaceTokenizer
from transforms.tokenizers.tiktoken_ranks import TiktokenTokenizer
from zephon_beam.checks import require_choice
from zephon_beam.errors import DriftError, RecipeError
from zephon_beam.recipe import TokenizerRecipe
from zephon_beam.tokenizer import Tokenizer

BACKENDS = ("auto", "hf", "fastokens", "tiktoken")
"""Values of the run option `backend`."""

_LOGGER = logging.getLogger(__name__)
_RANK_SUFFIX = ".tiktoken"


def check_backend(backend: str) -> None:
    """Refuse what is no backend.

    Raises:
        RecipeError: with the values that are.
    """
    require_choice("--backend", backend, BACKENDS, "leave it out, or write auto, hf or fastokens")


def tokenizer_file(recipe: TokenizerRecipe) -> Path:
    """Return the path of the tokenizer's file.

    Raises:
        RecipeError: there is none.
    """
    path = Path(recipe.path)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise RecipeError(
            "tokenizer.path must be a tokenizer.json, a folder with one or a rank file, got "
            f"{recipe.path!r}; there is no such file; paths are relative to the recipe file"
        )
    return path


@lru_cache(maxsize=4)
def tokenizer_digest(content: bytes) -> str:
    """Hash the content of a tokenizer file, as the fingerprint takes it."""
    return blake2b(content, digest_size=16).hexdigest()


def load_reference(recipe: TokenizerRecipe) -> Tokenizer:
    """Load the tokenizer that defines what is right.

    Raises:
        RecipeError: there is no usable file.
    """
    path = tokenizer_file(recipe)
    return _load(recipe, path, path.read_bytes(), "auto", reference=True)


def load_vocabulary(recipe: TokenizerRecipe) -> Tokenizer:
    """Load what answers for the recipe's vocabulary: the reference, or what stands in for it.

    A process that has found fastokens equal loads it to encode, and the reference for nothing else.

    Raises:
        RecipeError: there is no usable file.
    """
    path = tokenizer_file(recipe)
    content = path.read_bytes()
    stands_in = not _has_ranks(recipe, path, content) and is_admitted(content)
    return load_tokenizer(recipe, backend="fastokens") if stands_in else load_reference(recipe)


def load_tokenizer(
    recipe: TokenizerRecipe, *, backend: str = "auto", expected_digest: str | None = None
) -> Tokenizer:
    """Load the recipe's tokenizer with the backend that was asked for.

    Raises:
        RecipeError: there is no usable file, or the backend may not encode it.
        DriftError: its content is not the expected one.

    Determinism: ids depend on the recipe and the file alone, never on the backend.
    """
    path = tokenizer_file(recipe)
    content = path.read_bytes()
    found = tokenizer_digest(content)
    if expected_digest is not None and found != expected_digest:
        raise DriftError(
            f"tokenizer: expected {expected_digest}, found {found} ({path}); with another one the "
            "stream would go on with other tokens; restore the file, or start a new stream"
        )
    return _load(recipe, path, content, backend, reference=False)


def choose_backend(recipe: TokenizerRecipe, backend: str) -> str:
    """Return the backend that encodes: what was asked for, or the fastest that may.

    Says in the log why `auto` could not take the fast one.

    Raises:
        RecipeError: the backend that was asked for may not encode the file.
    """
    check_backend(backend)
    path = tokenizer_file(recipe)
    content = path.read_bytes()
    if _has_ranks(recipe, path, content):
        return _ranks_backend(backend, path)
    if backend == "auto":
        reason = fastokens_refusal(content, name=str(path))
        if reason is not None:
            load_reference(recipe)  # what is no tokenizer at all is an error, not a slow one
            _LOGGER.warning(
                "tokenizer %s is encoded by the tokenizers library, the slow one: %s", path, reason
            )
    return _json_backend(content, backend, path)


def _load(
    recipe: TokenizerRecipe, path: Path, content: bytes, backend: str, *, reference: bool
) -> Tokenizer:
    check_backend(backend)
    if _has_ranks(recipe, path, content):
        _ranks_backend(backend, path)
        return _build_ranks(
            content,
            str(recipe.pattern),
            tuple(sorted(recipe.special.items())),
            recipe.allow_special,
            str(path),
        )
    chosen = "hf" if reference else _json_backend(content, backend, path)
    return _build_json(content, chosen, recipe.allow_special, str(path))


@lru_cache(maxsize=4)
def _build_json(content: bytes, backend: str, allow_special: bool, name: str) -> Tokenizer:
    """Build each tokenizer once in a process: large vocabularies take a second."""
    kind = FastTokenizer if backend == "fastokens" else HuggingFaceTokenizer
    return kind(content, allow_special=allow_special, name=name)


@lru_cache(maxsize=4)
def _build_ranks(
    content: bytes,
    pattern: str,
    special: tuple[tuple[str, int], ...],
    allow_special: bool,
    name: str,
) -> Tokenizer:
    return TiktokenTokenizer(
        content, pattern=pattern, special=dict(special), allow_special=allow_special, name=name
    )


def _has_ranks(recipe: TokenizerRecipe, path: Path, content: bytes) -> bool:
    """Say whether the file is a rank file, and refuse half a description of one."""
    is_ranks = path.suffix == _RANK_SUFFIX or (recipe.pattern is not None and not _is_json(content))
    if is_ranks and recipe.pattern is None:
        raise RecipeError(
            f"tokenizer.pattern must be given for the rank file {str(path)!r}, got null; a rank "
            "file does not say how text is split; write the pattern that it was made with"
        )
    if not is_ranks and (recipe.pattern is not None or recipe.special):
        field = "pattern" if recipe.pattern is not None else "special"
        raise RecipeError(
            f"tokenizer.{field} must be left out for a tokenizer.json, got "
            f"{getattr(recipe, field)!r}; {str(path)!r} has its own; remove it, or name a rank file"
        )
    return is_ranks


def _is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except ValueError:
        return False


def _ranks_backend(backend: str, path: Path) -> str:
    if backend in ("auto", "tiktoken"):
        return "tiktoken"
    raise RecipeError(
        f"--backend must be auto or tiktoken for the rank file {str(path)!r}, got {backend!r}; it "
        "reads a tokenizer.json only; leave it out"
    )


def _json_backend(content: bytes, backend: str, path: Path) -> str:
    """Return `hf` or `fastokens`, refusing a named backend that may not encode the file."""
    if backend == "hf":
        return "hf"
    if backend == "tiktoken":
        raise RecipeError(
            f"--backend must be auto, hf or fastokens for {str(path)!r}, got 'tiktoken'; it reads "
            "rank files only; leave it out"
        )
    reason = fastokens_refusal(content, name=str(path))
    if reason is None:
        return "fastokens"
    if backend == "auto":
        return "hf"
    repair = INSTALL if not is_installed() else "leave it out, and the tokenizers library is used"
    raise RecipeError(
        f"--backend must be one that gives the tokens of the tokenizers library for "
        f"{str(path)!r}, got 'fastokens': {reason}; the stream would be another one; {repair}"
    )
