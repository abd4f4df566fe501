"""Apply the transforms of a data set to a part: documents in, documents out, in their order.

Each call sees one document and nothing that an earlier call left, so what becomes of a document
does not depend on which others a worker had before it. The one exception is `deduplicate`, which
looks at its part, and parts are fixed by the source.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from zephon_beam.built_ins.base import FILTER, MAP, PART_FILTER, SPANS
from zephon_beam.errors import BadRecordError, TransformError
from zephon_beam.sources.documents import Documents, Quarantined
from zephon_beam.sources.faults import shorten
from zephon_beam.transforming.part_work import MESSAGES, PartContext, PartWork, dump_messages
from zephon_beam.transforming.steps import Step

MOST_OUTPUTS = 1_000_000
"""Documents that a `flat_map` may make of one."""

_REASON = "transform"
_MOST_REASON = 300
_PASSING = (OSError, MemoryError, RecursionError, ImportError)
"""What a function may meet that another attempt, or another machine, may not."""


def apply_steps(documents: Documents, steps: Sequence[Step], context: PartContext) -> Documents:
    """Apply transforms one behind the other.

    Documents that were set aside pass through in their place. A document that a filter drops, or
    that a `flat_map` makes nothing of, is gone; a part may come out empty.

    Args:
        documents: a part, in the order in which the lane takes it.
        steps: the data set's transforms.
        context: the rest of what the outcome depends on.

    Raises:
        BadRecordError: a function failed on a document, and failures are not set aside.
        TransformError: a function returned something else than its kind says, or met a fault of
            its surroundings such as an `OSError`.

    Determinism: each document depends on its own content and key, if the functions do.
    """
    work = PartWork(documents, context)
    runs: dict[str, Callable[[_StepRun], None]] = {
        MAP: _StepRun.map,
        FILTER: _StepRun.filter,
        "flat_map": _StepRun.flat_map,
        SPANS: _StepRun.cut,
        PART_FILTER: _StepRun.filter_part,
    }
    for step in steps:
        runs[step.kind](_StepRun(step, work, context))
    return work.finish()


class _StepRun:
    """One transform over the documents of a part."""

    def __init__(self, step: Step, work: PartWork, context: PartContext) -> None:
        self._step = step
        self._work = work
        self._context = context
        self._is_messages = context.content == MESSAGES
        self._keys = work.keys() if step.takes_key else None

    def map(self) -> None:
        contents = self._work.contents
        for place, content in enumerate(contents):
            if type(content) is not Quarantined:
                made = self._call(place, content)
                contents[place] = self._checked(place, made, content)
        self._work.is_changed = True

    def filter(self) -> None:
        contents = self._work.contents
        kept = []
        for place, content in enumerate(contents):
            if type(content) is Quarantined:
                kept.append(place)
                continue
            answer = self._call(place, content)
            if type(answer) is Quarantined:
                contents[place] = answer
            elif not isinstance(answer, (bool, np.bool_)):
                raise self._wrong(place, "True or False", answer)
            if answer:
                kept.append(place)
        self._work.keep(kept)

    def flat_map(self) -> None:
        work = self._work
        contents: list[Any] = []
        origins: list[int] = []
        outputs: list[int] = []
        number = 0
        for place, content in enumerate(work.contents):
            origin = work.origins[place]
            if not origins or origins[-1] != origin:
                number = 0
            made: Any = [content]
            if type(content) is not Quarantined:
                made = self._call_many(place, content)
            for document in made:
                contents.append(self._checked(place, document, content))
                origins.append(origin)
                outputs.append(number)
                number += 1
        work.contents, work.origins, work.outputs = contents, origins, outputs
        work.is_changed = work.is_numbered = True

    def cut(self) -> None:
        self._work.pieces = [
            [] if type(content) is Quarantined else self._call(place, content)
            for place, content in enumerate(self._work.contents)
        ]

    def filter_part(self) -> None:
        kept = self._step.call(self._work.texts())
        self._work.keep([place for place, is_kept in enumerate(kept) if is_kept])

    def _call(self, place: int, content: Any) -> Any:
        """Return what the function makes of a document, or why the document is set aside."""
        try:
            if self._keys is None:
                return self._step.call(content)
            return self._step.call(content, key=self._keys[place])
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            return self._fault(place, f"it raised {_describe(error)}", error)

    def _call_many(self, place: int, content: Any) -> Sequence[Any]:
        made = self._call(place, content)
        if type(made) is Quarantined:
            return [made]
        if isinstance(made, (str, bytes, dict)) or not hasattr(made, "__iter__"):
            raise self._wrong(place, "an iterable of documents", made)
        try:
            found = list(islice(made, MOST_OUTPUTS + 1))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            return [self._fault(place, f"it raised {_describe(error)}", error)]
        if len(found) > MOST_OUTPUTS:
            raise self._wrong(place, f"at most {MOST_OUTPUTS} documents", "more of them")
        return found

    def _checked(self, place: int, made: Any, content: Any) -> Any:
        """Return a document that can be tokenized, or why it is set aside."""
        if type(made) is Quarantined or (made is content and not self._is_messages):
            return made
        if self._is_messages:
            return self._checked_messages(place, made)
        if not isinstance(made, str):
            raise self._wrong(place, "a text (str)", made)
        # A subclass may be anything else besides.
        text = str.__str__(made)
        return text if text.isascii() else self._encodable(place, text, text)

    def _checked_messages(self, place: int, made: Any) -> Any:
        if not isinstance(made, list) or not all(isinstance(message, dict) for message in made):
            raise self._wrong(place, "a conversation (a list of dicts)", made)
        if not _has_text_keys(made):
            raise self._wrong(place, "a conversation whose keys are texts", made)
        try:
            text = dump_messages(made)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._wrong(
                place, f"a conversation of plain JSON values ({error})", made
            ) from error
        return self._encodable(place, text, made)

    def _encodable(self, place: int, text: str, made: Any) -> Any:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = f"U+{ord(text[error.start]):04X}"
            return self._fault(
                place, f"it holds the lone surrogate {code}, which is no text", error
            )
        return made

    def _fault(self, place: int, found: str, error: Exception) -> Quarantined:
        """Set a document aside, or raise."""
        file, locator = self._work.file_and_locator(place)
        start = f"{self._start(file, locator)} must return a document, {found}"
        if isinstance(error, _PASSING):
            raise TransformError(
                f"{start}; this need not be the document's fault; run the recipe again, and mend "
                "the function or its surroundings if it repeats"
            ) from error
        message = (
            f"{start}{_line(error)}; every run would stop here, for no document is skipped "
            "silently; mend the "
            "function, filter such documents out before it, or set bad_records.action to quarantine"
        )
        if not self._context.quarantine:
            raise BadRecordError(message, file=file, locator=locator, reason=_REASON) from error
        return Quarantined(
            place=place, file=file, locator=locator, reason=_REASON, message=f"{start}"
        )

    def _wrong(self, place: int, rule: str, found: Any) -> TransformError:
        file, locator = self._work.file_and_locator(place)
        return TransformError(
            f"{self._start(file, locator)} must return {rule}, got {shorten(found)} of type "
            f"{type(found).__name__}; it is a {self._step.kind}; correct the function, or `kind`"
        )

    def _start(self, file: str, locator: int) -> str:
        return f"{self._step.place}, {file}, locator {locator}: {self._step.name}"


def _has_text_keys(value: Any) -> bool:
    """Say whether JSON would keep all keys as they are."""
    if isinstance(value, dict):
        keys = all(isinstance(key, str) for key in value)
        return keys and all(map(_has_text_keys, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_has_text_keys, value))


def _line(error: Exception) -> str:
    """Say in which line of a user's module an error arose; empty where it was raised by ours.

    It is told to who has to mend it, and never stored: it may change while the function does not.
    """
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


def _describe(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _MOST_REASON else f"{text[:_MOST_REASON]}…"
