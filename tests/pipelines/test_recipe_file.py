"""Reading recipe files: nothing is guessed, every error names file and line."""

import re
from pathlib import Path

import pytest

from pipelines.recipe_file import load_recipe
from zephon_beam.errors import RecipeError

CONTRACT = """\
name: web-code
seed: 0
lanes: 8                        # fixed for the life of a stream
seq_len: 2048
samples_per_shard: 256
tokenizer:
  path: tokenizer.json
  eos: "<|endoftext|>"          # token text or id, appended to each document; null: none
  bos: null
  pad: 0
  allow_special: false
datasets:                       # the order counts
  web:
    files: data/web/*.jsonl     # glob, URI, or a list of them
    format: auto
    text: text
    weight: 0.7                 # parsed as a decimal, never as a float
    passes: repeat              # or a number
    transforms: []
  code: {files: data/code/*.parquet, text: content, weight: 0.3}
mixing:
  unit: tokens                  # tokens | documents
  when_exhausted: continue      # continue | stop
  schedule: []                  # - {at_sample: 1000000, weights: {web: 0.5, code: 0.5}}
shuffle: {chunks: true, documents: true, interleave: 4}
packing: {method: best_fit, open_bins: 64, overlong: split, within: all, max_segments: null}
chat: {loss_on: assistant}      # assistant | last_assistant | all
bad_records: {action: fail, max_fraction: 0.001}      # fail | quarantine
chunk_bytes: 1MiB
shard: {compression: none}      # none | zstd
"""

SHORT = """\
name: mine
tokenizer: {path: tokenizer.json}
datasets:
  web: {files: "*.jsonl", weight: 1}
"""


def write(folder: Path, text: str | bytes) -> Path:
    """Write a recipe file."""
    path = folder / "recipe.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path, text: str) -> None:
    """Require that a file is refused with a text in the message."""
    with pytest.raises(RecipeError, match=re.escape(text)):
        load_recipe(path)


def test_the_documented_recipe_is_read(tmp_path: Path) -> None:
    """The example of the format, with every default written out, parses."""
    recipe = load_recipe(write(tmp_path, CONTRACT))
    assert recipe.name == "web-code"
    assert recipe.dataset_names == ("web", "code")
    assert recipe.datasets["web"].weight == "0.7"
    assert recipe.datasets["web"].patterns == (f"{tmp_path}/data/web/*.jsonl",)
    assert recipe.tokenizer.path == f"{tmp_path}/tokenizer.json"
    assert recipe.tokenizer.bos is None
    assert recipe.tokenizer.allow_special is False
    assert recipe.chunk_bytes == 1 << 20
    assert recipe.shuffle.interleave == 4


def test_paths_are_relative_to_the_file_not_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe means the same wherever the command is run."""
    (tmp_path / "recipes").mkdir()
    write(tmp_path / "recipes", SHORT)
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("recipes/recipe.yaml")
    assert recipe.tokenizer.path == f"{tmp_path}/recipes/tokenizer.json"


@pytest.mark.parametrize(
    ("written", "weight"),
    [
        ("0.7", "0.7"),
        ("'0.7'", "0.7"),
        ("1e-5", "0.00001"),
        ("0.1", "0.1"),
        ("7", "7"),
        ("0.123456789012", "0.123456789012"),
        ("0.30000000000", "0.3"),
    ],
)
def test_decimals_are_exact(tmp_path: Path, written: str, weight: str) -> None:
    """A weight never passes through a binary fraction."""
    recipe = load_recipe(write(tmp_path, SHORT.replace("weight: 1", f"weight: {written}")))
    assert recipe.datasets["web"].weight == weight


def test_a_weight_with_more_digits_than_a_float_holds_is_seen_whole(tmp_path: Path) -> None:
    """A float would have cut it to a legal one."""
    path = write(tmp_path, SHORT.replace("weight: 1", "weight: 0.70000000000000000001"))
    refused(
        path, "recipe.yaml:4: datasets.web.weight must be a decimal of at least 0 with at most 12"
    )


@pytest.mark.parametrize("word", ["no", "on", "off", "yes", "y", "n"])
def test_words_are_text_not_booleans(tmp_path: Path, word: str) -> None:
    """Only true and false are booleans, as keys and as values."""
    text = SHORT.replace("name: mine", f"name: {word}").replace("web:", f"{word}:")
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.name == word
    assert recipe.dataset_names == (word,)
    path = write(tmp_path, f"{SHORT}shuffle: {{chunks: {word}}}\n")
    refused(path, f"shuffle.chunks must be true or false, got {word!r}; write true or false")


@pytest.mark.parametrize("word", ["false", "False", "FALSE"])
def test_false_is_a_boolean(tmp_path: Path, word: str) -> None:
    """The two words that YAML 1.2 keeps are read."""
    recipe = load_recipe(write(tmp_path, f"{SHORT}shuffle: {{chunks: {word}}}\n"))
    assert recipe.shuffle.chunks is False


@pytest.mark.parametrize("written", ["0123", "0x10", "1:30", "0o17", "1e3", "8.0", "'8'"])
def test_numbers_in_other_notations_are_refused_not_converted(tmp_path: Path, written: str) -> None:
    """An integer is written in plain decimal digits."""
    path = write(tmp_path, f"{SHORT}seed: {written}\n")
    refused(
        path,
        f"recipe.yaml:5: seed must be an integer of at least 0, got {written.strip(chr(39))!r}",
    )


def test_plain_integers_stay_integers(tmp_path: Path) -> None:
    """Also with the underscores that make long ones readable."""
    recipe = load_recipe(write(tmp_path, f"{SHORT}seed: 1_000_000\nlanes: 16\n"))
    assert recipe.seed == 1_000_000
    assert recipe.lanes == 16


def test_keys_are_the_text_that_was_written(tmp_path: Path) -> None:
    """A data set may be called 2024, true or null."""
    text = SHORT + "  2024: {files: a}\n  true: {files: b}\n  null: {files: c}\n"
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.dataset_names == ("web", "2024", "true", "null")


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    """What is written next to `<<` wins over what is merged, wherever it stands."""
    text = SHORT + "  a: &a {files: a, weight: 2, passes: 1}\n  b: {weight: 3, <<: *a}\n"
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.datasets["b"].patterns == (f"{tmp_path}/a",)
    assert recipe.datasets["b"].weight == "3"
    assert recipe.datasets["b"].passes == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SHORT + "seed: 1\nlanes: 2\nseed: 2\n", ":7: repeated key 'seed', first in line 5"),
        (SHORT + "  web: {files: b}\n", ":5: repeated key 'web', first in line 4"),
        (SHORT.replace("weight: 1", "weight: 1, weight: 2"), ":4: repeated key 'weight'"),
        (SHORT.replace("weight: 1", "'weight': 1, weight: 2"), ":4: repeated key 'weight'"),
    ],
)
def test_repeated_keys_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """The last of two equal keys must not win silently."""
    path = write(tmp_path, text)
    refused(path, f"{path}{message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SHORT + "lane: 2\n", ":5: unknown key 'lane'; did you mean 'lanes'?"),
        (
            SHORT + "shuffle:\n  chunks: true\n  inter_leave: 4\n",
            ":7: unknown key 'inter_leave' in",
        ),
        (
            SHORT + "  code:\n    files: a\n    wieght: 1\n",
            ":7: unknown key 'wieght' in datasets.code",
        ),
        (SHORT + "  code:\n    files: a\n    weight: -1\n", ":7: datasets.code.weight must be a"),
        (SHORT + "  code:\n    text: a\n", ":5: datasets.code.files must be given"),
        (SHORT + "lanes: 0\n", ":5: lanes must be an integer from 1 to 65536, got 0"),
        (
            SHORT + "mixing:\n  schedule:\n    - at_sample: 8\n      weights:\n        web: x\n",
            ":9: mixing.schedule[0].weights.web must be a decimal",
        ),
        (SHORT + "holdout: {fraction: 2}\n", ":5: holdout.fraction must be above 0 and below 1"),
        (
            SHORT + "  code:\n    files: a\n    transforms:\n      - call: a:b\n        kind: x\n",
            ":9: datasets.code.transforms[0].kind must be one of",
        ),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    """Whoever edits the file finds the place at once."""
    path = write(tmp_path, text)
    refused(path, f"{path}{message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": recipe must be a mapping, the file is empty"),
        ("# nothing\n", ": recipe must be a mapping, the file is empty"),
        (
            "- a\n- b\n",
            ": recipe must be a mapping of keys such as name, tokenizer, datasets, got [",
        ),
        (
            "just text\n",
            ": recipe must be a mapping of keys such as name, tokenizer, datasets, got 'j",
        ),
        ("name: [\n", ":2: expected the node content, but found '<stream end>'"),
        (
            "name: a\n\tlanes: 8\n",
            ":2: found character '\\t' that cannot start any token; indent with spaces",
        ),
        (
            "name: a\nlanes:8\nseed: 1\n",
            ":2: could not find expected ':'; write a key, a colon, a space and the value",
        ),
        (
            "datasets:\n  a:\n    weight:1\n    files: b\n",
            ":4: mapping values are not allowed here; the line, or the one before, is indented",
        ),
        (
            "name: a\ntokenizer: {path:a.json}\ndatasets: {a: {files: b}}\n",
            ":2: unknown key 'path:a.json' in tokenizer; write 'path: a",
        ),
        (
            "name: a\nfiles: *.jsonl\n",
            ":2: expected alphabetic or numeric character, but found '.'; a value that begins",
        ),
        ("  name: a\nlanes: 8\n", ":2: expected '<document start>', but found '<block map"),
        (
            '{"text": "a"}\n{"text": "b"}\n',
            ":2: expected '<document start>', but found '{'; a recipe is one mapping, whose keys",
        ),
        ("name: a\n---\nname: b\n", ":2: but found another document"),
        ("name: *unknown\n", ":1: found undefined alias 'unknown'"),
        ("name: &a [*a]\n", ":1: found unconstructable recursive node"),
        ("? [a]\n: b\n", ":1: keys must be text"),
        ("<<: 3\n", ":1: `<<` must name a mapping"),
        (b"name: \xff\xfe\n", ": recipe must be YAML; "),
    ],
)
def test_what_is_no_recipe_file_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    """Each kind of broken file has its own words, and the file's name."""
    path = write(tmp_path, text)
    refused(path, f"{path}{message}")


def test_what_a_function_is_given_holds_floats(tmp_path: Path) -> None:
    """Below `with` a plain decimal is a number; what is in quotes stays text, and so do words."""
    given = "a: 0.5, b: [1e-3, .5, -2., +1.5E2, 3], c: {d: '0.5', e: 1.2.3, f: e5, g: .}, h: 1_0.5"
    calls = f"[{{call: 'm:f', with: {{{given}}}, version: '1.5'}}]"
    text = SHORT.replace("weight: 1", f"weight: 0.5, transforms: {calls}")
    assert text != SHORT
    (transform,) = load_recipe(write(tmp_path, text)).datasets["web"].transforms
    assert transform.with_ == {
        "a": 0.5,
        "b": [0.001, 0.5, -2.0, 150.0, 3],
        "c": {"d": "0.5", "e": "1.2.3", "f": "e5", "g": "."},
        "h": "1_0.5",
    }
    assert load_recipe(write(tmp_path, text)).datasets["web"].weight == "0.5"


def test_a_list_that_holds_itself_is_refused(tmp_path: Path) -> None:
    """Instead of following it for ever."""
    calls = "[{call: 'm:f', with: {a: &x [*x]}}]"
    text = SHORT.replace("weight: 1", f"transforms: {calls}")
    with pytest.raises(RecipeError):
        load_recipe(write(tmp_path, text))


@pytest.mark.parametrize("value", ["!!python/object/apply:os.getcwd []", "!!float 0.7", "!x y"])
def test_tags_are_refused(tmp_path: Path, value: str) -> None:
    """A recipe can neither run code nor smuggle in a float."""
    path = write(tmp_path, f"{SHORT}seed: {value}\n")
    refused(path, f"{path}:5: tag ")


def test_missing_file_is_a_recipe_error(tmp_path: Path) -> None:
    """The path that was given is named."""
    path = tmp_path / "no.yaml"
    refused(
        path, f"recipe must be a file that can be read, got '{path}': No such file or directory"
    )
    refused(tmp_path, f"recipe must be a file that can be read, got '{tmp_path}': Is a directory")
