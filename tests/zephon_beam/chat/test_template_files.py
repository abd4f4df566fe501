"""Where a tokenizer's folder says how conversations become text."""

import json
from pathlib import Path
from typing import Any

import pytest

from zephon_beam.chat.template_files import TemplateFiles, read_template
from zephon_beam.errors import RecipeError


def write(folder: Path, **files: Any) -> Path:
    """Write files, text as it is and anything else as JSON."""
    for name, content in files.items():
        path = folder / (name + (".jinja" if name == "chat_template" else ".json"))
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_a_file_of_its_own_comes_before_the_configuration(tmp_path: Path) -> None:
    """As in Transformers."""
    write(tmp_path, chat_template="own", tokenizer_config={"chat_template": "configured"})
    assert read_template(tmp_path).source == "own"
    (tmp_path / "chat_template.jinja").unlink()
    found = read_template(tmp_path)
    assert found.source == "configured"
    assert found.path == str(tmp_path / "tokenizer_config.json")


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    """Older folders hold one for tools, too."""
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    write(tmp_path, tokenizer_config={"chat_template": named})
    assert read_template(tmp_path).source == "d"


def test_special_tokens_are_texts_or_described_and_the_configuration_wins(tmp_path: Path) -> None:
    """Both files name them; null names none."""
    write(
        tmp_path,
        chat_template="x",
        tokenizer_config={"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None},
        special_tokens_map={"eos_token": "<other>", "unk_token": {"content": "<unk>"}},
    )
    found = read_template(tmp_path).special_tokens
    assert found == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_the_digest_covers_the_template_and_the_tokens_it_sees() -> None:
    """And not where the folder lies nor the order in which tokens are named."""

    def digest(source: str, path: str = "a", **tokens: str) -> str:
        return TemplateFiles(source=source, special_tokens=tokens, path=path).digest

    base = digest("x", bos_token="a", eos_token="b")
    assert base == "ae9e7a81fb3db4bf8037d4e0f3dbc5f3"
    assert base == digest("x", "elsewhere", eos_token="b", bos_token="a")
    others = [digest("y", bos_token="a", eos_token="b"), digest("x", bos_token="a"), digest("x")]
    assert len({base, *others, digest("x", bos_token="b", eos_token="a")}) == 5


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({}, "must be in a folder with a chat template when a data set has messages"),
        ({"tokenizer_config": {}}, "add the model's chat_template.jinja"),
        ({"tokenizer_config": "{"}, "tokenizer_config.json must be valid JSON"),
        ({"tokenizer_config": []}, "tokenizer_config.json must hold a JSON object, got list"),
        ({"tokenizer_config": {"chat_template": 3}}, "must be a Jinja text, .*, got int"),
        (
            {"tokenizer_config": {"chat_template": [{"name": "rag", "template": "x"}]}},
            r"got a list without the name 'default': \['rag'\]",
        ),
    ],
)
def test_a_folder_without_a_usable_template_is_refused_with_the_repair(
    tmp_path: Path, files: dict[str, Any], fault: str
) -> None:
    """Before any work starts."""
    with pytest.raises(RecipeError, match=fault):
        read_template(write(tmp_path, **files))


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Templates are UTF-8."""
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="bytes that are no UTF-8"):
        read_template(tmp_path)
