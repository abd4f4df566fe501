"""Where a tokenizer's folder keeps its chat template, and what a template is told of the tokenizer.

Looked for in this order, as Transformers does: the file `chat_template.jinja`; in
`tokenizer_config.json` the key `chat_template`, a template or a list of named ones of which
`default` is taken.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from zephon_beam.errors import RecipeError

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
MAP_FILE = "special_tokens_map.json"

_TOKEN_NAMES = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateFiles:
    """A chat template and the special tokens that it can name."""

    source: str
    """Jinja text."""
    special_tokens: Mapping[str, str]
    """Text of `bos_token`, `eos_token` and so on, as far as the folder names them."""
    path: str
    """Where the template was found, for messages."""

    @property
    def digest(self) -> str:
        """Hash of all that decides a rendering besides the conversation, for the fingerprint."""
        content = [self.source, dict(sorted(self.special_tokens.items()))]
        text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
        return blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def read_template(folder: Path) -> TemplateFiles:
    """Read the chat template of a tokenizer's folder.

    Raises:
        RecipeError: the folder has none, or a file that holds none.
    """
    config = _read_object(folder / CONFIG_FILE)
    tokens = _special_tokens(_read_object(folder / MAP_FILE)) | _special_tokens(config)
    path = folder / TEMPLATE_FILE
    if path.is_file():
        try:
            source: Any = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise _not_a_template(path, f"bytes that are no UTF-8: {error}") from error
    else:
        path = folder / CONFIG_FILE
        source = config.get("chat_template")
    if source is None:
        raise RecipeError(
            f"tokenizer.path must be in a folder with a chat template when a data set has "
            f"messages, got {str(folder)!r}; nothing says how a conversation becomes text; add "
            f"the model's {TEMPLATE_FILE}, or its {CONFIG_FILE} with the key chat_template"
        )
    if isinstance(source, list):
        source = _default_of(source, path)
    if not isinstance(source, str):
        raise _not_a_template(path, type(source).__name__)
    return TemplateFiles(source=source, special_tokens=tokens, path=str(path))


def _default_of(templates: list[Any], path: Path) -> Any:
    named = {
        entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)
    }
    if "default" not in named:
        raise _not_a_template(path, f"a list without the name 'default': {list(named)}")
    return named["default"]


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object, empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecipeError(
            f"{path} must be valid JSON, got {error}; it names the special tokens and often the "
            "chat template; copy it from the model again"
        ) from error
    if not isinstance(found, dict):
        raise RecipeError(f"{path} must hold a JSON object, got {type(found).__name__}")
    return dict(found)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _TOKEN_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _not_a_template(path: Path, found: str) -> RecipeError:
    return RecipeError(
        f"chat_template must be a Jinja text, or a list of named ones with a default, got {found} "
        f"in {str(path)!r}; nothing says how a conversation becomes text; copy the file from the "
        "model again"
    )
