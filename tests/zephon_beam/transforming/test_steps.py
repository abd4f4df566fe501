"""What a recipe calls is found beside it, checked before anything starts, and has a version."""

import functools
import inspect
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from zephon_beam.errors import DriftError, RecipeError
from zephon_beam.recipe import Recipe, TokenizerRecipe
from zephon_beam.recipe_datasets import DatasetRecipe, TransformRecipe
from zephon_beam.transforming.importing import make_importable
from zephon_beam.transforming.steps import (
    Step,
    load_steps,
    refuse_other_code,
    step_folders,
    step_versions,
)

CODE = '''
    """Functions that a recipe calls."""
    import functools

    NUMBER = 3

    def shout(document, mark="!", *, times=1):
        return document + mark * times

    def keyed(document, key):
        return f"{document}{key}"

    async def later(document):
        return document

    def wrapped(function):
        @functools.wraps(function)
        def call(*args, **keys):
            return function(*args, **keys)
        return call

    def bare(function):
        return lambda document: function(document)

    @wrapped
    def decorated(document):
        return document

    @functools.lru_cache
    def cached(document):
        return document

    hidden = bare(shout)
    partial = functools.partial(shout, mark="?")

    class Cleaner:
        @staticmethod
        def strip(document):
            return document.strip()

    def change(document, words):
        words.append(document)
        return str(len(words))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a recipe that has a module beside it, on the import path."""
    # Other tests have one of that name.
    monkeypatch.delitem(sys.modules, "cleaning", raising=False)
    write(tmp_path / "cleaning.py", CODE)
    make_importable([str(tmp_path)])
    yield tmp_path
    make_importable([])


def write(path: Path, code: str) -> None:
    """Write a module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(code))


def recipe(*transforms: TransformRecipe, **dataset: Any) -> Recipe:
    """Return a recipe with transforms."""
    web = DatasetRecipe(files="x", transforms=transforms, **dataset)
    return Recipe(name="x", tokenizer=TokenizerRecipe(path="t"), datasets={"web": web})


def load(call: str, **values: Any) -> Step:
    """Load the one transform of a recipe."""
    ((step,),) = load_steps(recipe(TransformRecipe(call=call, **values)))
    return step


def test_functions_are_found_beside_the_recipe(folder: Path) -> None:
    """With their arguments filled in; a key is given to those that ask for it."""
    step = load("cleaning:shout", with_={"mark": "?", "times": 2})
    assert (step.call("a"), step.takes_key, step.kind) == ("a??", False, "map")
    assert (step.place, step.name) == ("datasets.web.transforms[0]", "cleaning:shout")
    step = load("cleaning:keyed", kind="filter")
    assert (step.call("a", key=5), step.takes_key, step.kind) == ("a5", True, "filter")
    assert load("cleaning:Cleaner.strip", version="1").call(" a ") == "a"
    assert step_folders(load_steps(recipe(TransformRecipe(call="cleaning:shout")))) == (
        str(folder),
    )


def test_the_recipes_folder_is_the_last_place_that_is_searched(folder: Path) -> None:
    """It can add modules, and replace none."""
    write(folder / "json.py", "def loads(document): return 'mine'")
    assert sys.path[-1] == str(folder)
    assert load("json:loads", version="1").call('"a"') == "a"


def test_another_recipe_has_its_own_modules(folder: Path, tmp_path: Path) -> None:
    """Of the same name, in the same process; also packages and what is in them."""
    other = tmp_path / "other"
    for place, word in ((folder, "one"), (other, "two")):
        write(place / "cleaning.py", f"def shout(document): return {word!r}")
        write(place / "pack/__init__.py", "")
        write(place / "pack/inner.py", f"def f(document): return {word!r}")
    for place, word in ((other, "two"), (folder, "one"), (other, "two")):
        make_importable([str(place)])
        assert [load(call).call("") for call in ("cleaning:shout", "pack.inner:f")] == [word, word]
        assert str(folder if place is other else other) not in sys.path


def test_each_call_has_its_own_copy_of_what_it_could_change(folder: Path) -> None:
    """Else a document would depend on those before it."""
    assert folder.exists()
    step = load("cleaning:change", with_={"words": ["x"]})
    assert [step.call("a"), step.call("b")] == ["2", "2"]


@pytest.mark.parametrize(
    ("call", "values", "message"),
    [
        ("cleening:shout", {}, "no module 'cleening', looked in '.*did you mean 'cleaning'"),
        ("absent_zz:f", {}, "no module 'absent_zz'.*put it beside the recipe file"),
        ("json.cleaning:f", {}, r"no module 'json.cleaning', looked in json \(.*json/__init__"),
        ("json.decode:f", {}, "did you mean 'json.decoder'"),
        ("cleaning:shoot", {}, r"cleaning \(.*cleaning.py\) has no 'shoot'; did you mean 'shout'"),
        ("cleaning:Cleaner.stripp", {}, "has no 'stripp'; did you mean 'strip'"),
        (
            "cleaning:NUMBER",
            {},
            "must name a function, got 'cleaning:NUMBER', which is of type int",
        ),
        ("cleaning:later", {}, "call must be a plain function, got 'cleaning:later'"),
        (
            "cleaning:shout",
            {"with_": {"marc": 1}},
            r"with must fit cleaning:shout\(document, mark=",
        ),
        ("cleaning:change", {}, "missing a required argument: 'words'"),
        ("cleaning:keyed", {"with_": {"key": 1}}, "with must be without 'key'"),
        ("cleaning:hidden", {}, "version must be given for 'cleaning:hidden': its source"),
        ("cleaning:partial", {}, "version must be given"),
        ("cleaning:Cleaner", {"with_": {}}, "with must fit|version must be given"),
        ("math:sqrt", {}, "version must be given for 'math:sqrt'"),
        ("raising:f", {}, r"importing raising failed with ValueError: no way; mend the module"),
        ("exiting:f", {}, r"importing exiting failed with SystemExit: 3"),
        ("needing:f", {}, "importing needing failed with ModuleNotFoundError: No module named 'zz"),
        ("unreadable:f", {}, "importing unreadable failed with SyntaxError"),
    ],
)
def test_what_cannot_be_called_is_refused(
    folder: Path, call: str, values: dict[str, Any], message: str
) -> None:
    """Before any work starts, with its place in the recipe and the nearest name."""
    write(folder / "raising.py", "raise ValueError('no\\nway')")
    write(folder / "exiting.py", "raise SystemExit(3)")
    write(folder / "needing.py", "import zz_not_installed")
    write(folder / "unreadable.py", "def f(:")
    with pytest.raises(RecipeError, match=message) as caught:
        load(call, **values)
    assert str(caught.value).startswith("datasets.web.transforms[0].")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("transforms", "dataset", "message"),
    [
        (
            [{"call": "fill_in_the_middle"}, {"call": "normalize"}],
            {},
            r"transforms\[1\].call must come before fill_in_the_middle, got 'normalize'",
        ),
        (
            [{"call": "normalize"}],
            {"messages": "m"},
            r"transforms\[0\].call must be one that takes messages, got 'normalize'",
        ),
        ([{"call": "normalize", "with_": {"form": "X"}}], {}, r"\[0\].with.form must be one of"),
        ([{"call": "deduplicate", "version": "2"}], {}, r"\[0\].version must be left out"),
    ],
)
def test_built_ins_that_do_not_fit_are_refused(
    transforms: list[dict[str, Any]], dataset: dict[str, Any], message: str
) -> None:
    """Likewise."""
    some = [TransformRecipe(**transform) for transform in transforms]
    with pytest.raises(RecipeError, match=message):
        load_steps(recipe(*some, **dataset))


def test_the_version_is_the_source_unless_one_is_given(folder: Path) -> None:
    """Of the function alone, wherever its file lies and whatever surrounds it there."""
    source = 'def shout(document, mark="!", *, times=1):\n    return document + mark * times\n'
    digest = blake2b(source.encode(), digest_size=16).hexdigest()
    assert load("cleaning:shout").code_version == f"source:{digest}"
    write(
        folder / "deep/__init__.py",
        "if True:\n" + "".join(f"    {x}\n" for x in source.splitlines()),
    )
    assert load("deep:shout").code_version == f"source:{digest}"
    assert load("cleaning:shout", version="2").code_version == "version:2"
    assert load("normalize", with_={"form": None}).code_version == "built-in normalize 1"


def test_a_function_that_was_used_has_the_same_version(folder: Path) -> None:
    """What an interpreter does to code that runs often does not show."""
    assert folder.exists()
    step = load("cleaning:shout")
    for _ in range(5000):
        step.call("a")
    assert load("cleaning:shout").code_version == step.code_version


def test_a_decorated_function_is_known_by_its_own_source(folder: Path) -> None:
    """With its decorators, if they say what they wrap."""
    assert load("cleaning:cached").code_version.startswith("source:")
    before = load("cleaning:decorated").code_version
    make_importable([])
    changed = CODE.replace("decorated(document):\n", "decorated(document):\n        # Changed.\n")
    assert changed != CODE
    write(folder / "cleaning.py", changed)
    make_importable([str(folder)])
    assert load("cleaning:decorated").code_version != before


def test_a_file_that_changed_since_it_was_imported_is_refused(folder: Path) -> None:
    """The stream would be said to be made by code that did not run."""
    load("cleaning:shout")
    write(folder / "cleaning.py", CODE.replace("mark * times", "mark + ''"))
    with pytest.raises(RecipeError, match=r"imported before the file was changed.*new process"):
        load("cleaning:shout")
    assert load("cleaning:shout", version="1").call("a") == "a!"


def test_a_stream_of_other_code_is_refused(folder: Path) -> None:
    """Naming the transform and what to do."""
    assert folder.exists()
    steps = load_steps(
        recipe(TransformRecipe(call="cleaning:shout"), TransformRecipe(call="normalize"))
    )
    stored = step_versions(steps)
    assert list(stored) == ["datasets.web.transforms[0]", "datasets.web.transforms[1]"]
    refuse_other_code(steps, stored)
    with pytest.raises(
        DriftError,
        match=r"datasets.web.transforms\[0\] \(cleaning:shout\): expected code source:00, found "
        r"source:.*restore the function's source",
    ):
        refuse_other_code(steps, {**stored, "datasets.web.transforms[0]": "source:00"})
    with pytest.raises(DriftError, match="with the Python and zephon-beam that it was created"):
        refuse_other_code(steps, {**stored, "datasets.web.transforms[1]": "built-in normalize 0"})
    with pytest.raises(DriftError, match="expected code of no transform"):
        refuse_other_code(steps, {})


def test_a_function_itself_may_be_given_in_python() -> None:
    """It is called by the name under which a worker can import it."""
    transform = TransformRecipe(call=dedent, version=None)
    assert transform.call == "textwrap:dedent"
    ((step,),) = load_steps(recipe(transform))
    assert step.call("  a") == "a"
    assert inspect.getsourcefile(functools.wraps) is not None
