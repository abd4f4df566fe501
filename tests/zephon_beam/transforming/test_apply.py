"""What becomes of the documents of a part, one by one, and what is said when a function fails."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.built_ins.base import PART_FILTER, SPANS
from zephon_beam.built_ins.deduplicate import Deduplicate
from zephon_beam.built_ins.fill_in_the_middle import FillInTheMiddle
from zephon_beam.errors import BadRecordError, TransformError
from zephon_beam.keyed import keyed_int
from zephon_beam.sources.documents import Documents, Quarantined, take_documents
from zephon_beam.transforming import apply
from zephon_beam.transforming.apply import apply_steps
from zephon_beam.transforming.part_work import PartContext
from zephon_beam.transforming.steps import Step

NAMES = ("a.jsonl", "b.jsonl")
CONTEXT = PartContext(
    dataset="web", seed=7, pass_number=3, content="text", file_name=NAMES.__getitem__
)
LENIENT = replace(CONTEXT, quarantine=True)
CHAT = replace(CONTEXT, content="messages")


def step(kind: str, call: Callable[..., Any], *, takes_key: bool = False) -> Step:
    """Return a step of a data set."""
    return Step(
        place="datasets.web.transforms[0]",
        name="clean:f",
        kind=kind,
        call=call,
        takes_key=takes_key,
        code_version="version:1",
    )


def part(texts: Sequence[str], bad: Sequence[int] = ()) -> Documents:
    """Return a part of documents of two files, some of which were set aside."""
    entries = [
        Quarantined(place=place, file="a.jsonl", locator=10 * place, reason="json", message="m")
        for place in bad
    ]
    return Documents(
        texts=["" if place in bad else text for place, text in enumerate(texts)],
        files=np.array([place % 2 for place in range(len(texts))], np.uint32),
        locators=np.arange(len(texts), dtype=np.int64) * 10,
        outputs=np.zeros(len(texts), np.uint32),
        source_bytes=4,
        last=True,
        quarantined=tuple(entries),
    )


def facts(documents: Documents) -> list[tuple[int, int, int, str]]:
    """Return (file, locator, output, text) of each document."""
    return list(
        zip(
            documents.files.tolist(),
            documents.locators.tolist(),
            documents.outputs.tolist(),
            documents.texts,
            strict=True,
        )
    )


def halves(text: str) -> Iterator[str]:
    """Yield a text's two halves, of an empty text nothing."""
    if text:
        yield text[: len(text) // 2]
        yield text[len(text) // 2 :]


TEXTS = st.lists(st.text(max_size=5), max_size=8)
CHAINS = st.lists(
    st.sampled_from(
        [
            step("map", str.upper),
            step("filter", lambda text: len(text) != 1),
            step("flat_map", halves),
            step("flat_map", lambda text: [text, text + "!"]),
            step("map", lambda text, key: f"{text}{key % 100}", takes_key=True),
            step("filter", lambda _text, key: np.bool_(key % 3), takes_key=True),
        ]
    ),
    max_size=4,
)


@given(TEXTS, CHAINS, st.randoms(use_true_random=False))
def test_a_document_becomes_the_same_whatever_lies_beside_it(
    texts: list[str], chain: list[Step], random: Any
) -> None:
    """Alone, or in a part in any order; so no bundling or shuffle can show."""
    documents = part(texts)
    alone = [
        facts(apply_steps(take_documents(documents, [place]), chain, CONTEXT))
        for place in range(len(texts))
    ]
    order = list(range(len(texts)))
    random.shuffle(order)
    together = facts(apply_steps(take_documents(documents, order), chain, CONTEXT))
    assert together == [fact for place in order for fact in alone[place]]


@given(TEXTS, CHAINS)
def test_outputs_of_flat_maps_stay_unique(texts: list[str], chain: list[Step]) -> None:
    """However they are nested: a source document's outputs are told apart by their number."""
    places = [fact[:3] for fact in facts(apply_steps(part(texts), chain, CONTEXT))]
    assert len(set(places)) == len(places)


def test_outputs_are_numbered_in_order() -> None:
    """Those that are filtered leave a gap; a later flat_map numbers what there is."""
    some = [step("flat_map", lambda _text: ["a", "b", "c"])]
    some.append(step("filter", lambda text: text != "b"))
    found = apply_steps(part(["x", "y"]), some, CONTEXT)
    assert found.outputs.tolist() == [0, 2, 0, 2]
    some.append(step("flat_map", lambda text: [text, text]))
    found = apply_steps(part(["x", "y"]), some, CONTEXT)
    assert found.outputs.tolist() == [0, 1, 2, 3] * 2
    assert found.texts == ["a", "a", "c", "c"] * 2


def test_keys_are_of_seed_data_set_pass_file_locator_and_output() -> None:
    """As documented; behind a flat_map also of the output's number."""
    seen: list[int] = []

    def note(text: str, key: int) -> str:
        seen.append(key)
        return text

    take = step("map", note, takes_key=True)
    start = (7, "document", "web", 3)
    apply_steps(part(["x", "y"]), [take], CONTEXT)
    assert seen == [keyed_int(*start, "a.jsonl", 0), keyed_int(*start, "b.jsonl", 10)]
    seen.clear()
    apply_steps(part(["x"]), [step("flat_map", lambda _text: ["p", "q"]), take], CONTEXT)
    assert seen == [keyed_int(*start, "a.jsonl", 0, output) for output in (0, 1)]
    seen.clear()
    for context in (replace(CONTEXT, seed=8), replace(CONTEXT, pass_number=4)):
        apply_steps(part(["x"]), [take], context)
    assert len({*seen, keyed_int(*start, "a.jsonl", 0)}) == 3


def test_documents_that_were_set_aside_pass_every_transform() -> None:
    """Functions do not see them, filters do not drop them, and their places are right."""
    chain = [
        step("filter", lambda text: text != "drop"),
        step("map", lambda text: text[0]),
        step("flat_map", lambda text: [text, text]),
        step(PART_FILTER, Deduplicate()),
    ]
    found = apply_steps(part(["drop", "bad", "keep", "bad", "good"], bad=[1, 3]), chain, CONTEXT)
    assert found.texts == ["", "k", "", "g"]
    assert [(entry.place, entry.locator) for entry in found.quarantined] == [(0, 10), (2, 30)]
    assert found.locators.tolist() == [10, 20, 30, 40]


def test_a_part_of_which_nothing_is_left_is_empty() -> None:
    """It still arrives, so that the numbers of chunks have no holes."""
    found = apply_steps(part(["x", "y"]), [step("filter", lambda _text: False)], CONTEXT)
    assert (len(found), found.texts, found.source_bytes, found.last) == (0, [], 4, True)
    found = apply_steps(part(["x", "y"]), [step("flat_map", lambda _text: [])], CONTEXT)
    assert len(found) == 0
    assert len(apply_steps(part([]), [step("map", str.upper)], CONTEXT)) == 0


def fail(text: str) -> str:
    """Fail on some documents, with a message of several lines."""
    if "!" in text:
        raise ValueError("cannot\nclean " + text)
    return text + "."


def broken_iterator(text: str) -> Iterator[str]:
    """Fail in the middle of some documents."""
    yield text
    yield fail(text)


def test_a_failure_names_data_set_transform_place_and_exception() -> None:
    """In one line, chained to what was raised."""
    with pytest.raises(BadRecordError) as caught:
        apply_steps(part(["a", "b!", "c!"]), [step("map", fail)], CONTEXT)
    error = caught.value
    assert str(error).startswith(
        "datasets.web.transforms[0], b.jsonl, locator 10: clean:f must return a document, it "
        "raised ValueError: cannot clean b! in test_apply.py, line "
    )
    assert "\n" not in str(error)
    assert (error.file, error.locator, error.reason) == ("b.jsonl", 10, "transform")
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize(
    ("kind", "call", "texts"),
    [
        ("map", fail, ["a.", "", "c."]),
        ("filter", lambda text: bool(fail(text)), ["a", "", "c"]),
        ("flat_map", broken_iterator, ["a", "a.", "", "c", "c."]),
        ("map", lambda text: "\ud800" if "!" in text else text, ["a", "", "c"]),
    ],
)
def test_a_document_that_a_function_fails_on_is_set_aside(
    kind: str, call: Callable[..., Any], texts: list[str]
) -> None:
    """It keeps its place, empty, and later transforms pass it by."""
    found = apply_steps(
        part(["a", "b!", "c"]), [step(kind, call), step("filter", lambda t: t != "")], LENIENT
    )
    assert found.texts == texts
    (entry,) = found.quarantined
    assert found.texts[entry.place] == ""
    assert (entry.file, entry.locator, entry.reason) == ("b.jsonl", 10, "transform")
    assert "clean:f must return a document" in entry.message
    assert "every run would stop" not in entry.message


@pytest.mark.parametrize("error", [OSError("disk"), MemoryError(), RecursionError(), ImportError()])
def test_faults_that_are_not_the_documents_are_raised(error: Exception) -> None:
    """Also where documents may be set aside: another attempt may succeed."""

    def call(_text: str) -> str:
        raise error

    with pytest.raises(TransformError, match="need not be the document's fault") as caught:
        apply_steps(part(["a"]), [step("map", call)], LENIENT)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("kind", "returned", "message"),
    [
        ("map", None, r"must return a text \(str\), got None of type NoneType; it is a map"),
        ("map", b"x", r"must return a text \(str\), got b'x' of type bytes"),
        ("map", True, r"must return a text \(str\), got True"),
        ("filter", None, "must return True or False, got None of type NoneType; it is a filter"),
        ("filter", 1, "must return True or False, got 1 of type int"),
        ("flat_map", "ab", "must return an iterable of documents, got 'ab' of type str"),
        ("flat_map", None, "must return an iterable of documents, got None"),
        ("flat_map", [1], r"must return a text \(str\), got 1"),
    ],
)
def test_what_is_no_document_is_refused(kind: str, returned: Any, message: str) -> None:
    """It is the function that is wrong, so no document is set aside for it."""
    with pytest.raises(TransformError, match=f"a.jsonl, locator 0: clean:f {message}"):
        apply_steps(part(["a"]), [step(kind, lambda _text: returned)], LENIENT)


def test_endless_outputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of filling the memory."""
    monkeypatch.setattr(apply, "MOST_OUTPUTS", 3)
    assert len(apply_steps(part(["a"]), [step("flat_map", lambda t: [t] * 3)], CONTEXT)) == 3
    with pytest.raises(TransformError, match="must return at most 3 documents"):
        apply_steps(part(["a"]), [step("flat_map", lambda text: iter(lambda: text, 0))], CONTEXT)


def test_a_lone_surrogate_is_refused() -> None:
    """It cannot be tokenized."""
    with pytest.raises(BadRecordError, match=r"it holds the lone surrogate U\+D800"):
        apply_steps(part(["a"]), [step("map", lambda _text: "x\ud800")], CONTEXT)


def test_texts_of_a_subclass_become_plain() -> None:
    """What else such an object is must not reach the tokenizer."""
    found = apply_steps(part(["a"]), [step("map", np.str_)], CONTEXT)
    assert found.texts == ["a"]
    assert type(found.texts[0]) is str


def test_conversations_are_given_parsed_and_taken_back() -> None:
    """As a list of dicts, spelt as JSON afterwards; a filter leaves the spelling alone."""
    spelt = ' [ {"role":"user", "content":"h\\u00e9"} ] '
    texts = [spelt, "[]"]

    def answer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*messages, {"role": "assistant", "content": "ok", "n": [1, 2.5, None]}]

    found = apply_steps(part(texts), [step("map", answer)], CHAT)
    assert [json.loads(text) for text in found.texts] == [
        answer(json.loads(text)) for text in texts
    ]
    found = apply_steps(part(texts), [step("filter", bool)], CHAT)
    assert found.texts == [spelt]
    doubled = step("flat_map", lambda messages: [messages, messages])
    found = apply_steps(part(texts), [step("filter", bool), doubled], CHAT)
    assert [json.loads(text) for text in found.texts] == [json.loads(spelt)] * 2
    assert found.outputs.tolist() == [0, 1]
    copies = part([spelt, spelt.strip(), "[]"])
    assert len(apply_steps(copies, [step(PART_FILTER, Deduplicate())], CHAT)) == 2


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"role": "user"}, "a list of dicts"),
        (({"role": "user"},), "a list of dicts"),
        (["text"], "a list of dicts"),
        ([{"role": {1: "x"}}], "whose keys are texts"),
        ([{"role": {1, 2}}], "plain JSON values"),
        ([{"role": float("nan")}], "plain JSON values"),
    ],
)
def test_what_is_no_conversation_is_refused(returned: Any, message: str) -> None:
    """Before it would be spelt as another one."""
    with pytest.raises(TransformError, match=message):
        apply_steps(part(["[]"]), [step("map", lambda _messages: returned)], CHAT)


def test_pieces_belong_to_their_documents() -> None:
    """A document that was set aside has none; others hold what they held."""
    cut = step(SPANS, FillInTheMiddle(rate=1), takes_key=True)
    found = apply_steps(part(["one", "bad", "three"], bad=[1]), [cut], CONTEXT)
    assert found.texts == ["", "", ""]
    assert found.spans is not None
    assert found.spans.bounds.tolist() == [0, 6, 6, 12]
    assert found.spans.special.tolist().count(True) == 6
    assert [entry.place for entry in found.quarantined] == [1]
