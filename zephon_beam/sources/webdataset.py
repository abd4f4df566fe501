"""WebDataset: tar archives whose members with one key are one sample, read from their start.

    a/01.txt  a/01.jpg  a/02.txt  a/02.json  …      key `a/01`: fields `txt`, `jpg`
    a/03.en.txt                                      key `a/03`: field `en.txt`

The key of a member is its name up to the first dot of its last component, the field is what
follows; names without either belong to no sample. A sample's members stand together: a key that
comes again later is a bad record, for it would be two samples or half of one. A sample belongs to
the part in which its first header begins, and that place is its document's locator.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from zephon_beam.errors import BadRecordError
from zephon_beam.sources.compressed import DamageError, damaged_record, open_bytes
from zephon_beam.sources.documents import Content, FileDocuments, Part
from zephon_beam.sources.faults import (
    RecordFaults,
    bad_record,
    describe_fields,
    wrong_field,
)
from zephon_beam.sources.jsonl import check_object, parse_object
from zephon_beam.sources.open_readers import OpenReaders
from zephon_beam.sources.open_source import SourceFile, unchecked_source
from zephon_beam.sources.tar_members import Member, MemberWalker
from zephon_beam.sources.webdataset_media import (
    MissingMemberError,
    Range,
    content_text,
    media_kind,
    messages_of_sample,
    sample_content,
)

_BOM = b"\xef\xbb\xbf"
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.DOTALL)
_RERUN = "then run the recipe into a new place"


def read(source: SourceFile, part: Part, faults: RecordFaults) -> FileDocuments:
    """Read the documents of the samples that start in a part.

    Raises:
        BadRecordError: a sample has no such text, its key came before, or the archive is damaged,
            and faults raise.
        DriftError: the file is not that of the catalog.
    """
    start = part.part * part.part_bytes
    stop = start + part.part_bytes
    place = (source.path, source.version, part.content)
    reader = _readers.take(place, start) or _SampleReader(source, part.content)
    texts: list[str] = []
    locators: list[int] = []
    for sample in reader.take(start, stop):
        text = ""
        try:
            text = _text(sample, source.name, part.content)
        except BadRecordError as error:
            faults.report(error, len(texts))
        texts.append(text)
        locators.append(sample.offset)
    if not reader.ended:
        _readers.keep(place, reader)
    return FileDocuments(
        texts=texts,
        locators=np.array(locators, dtype=np.int64),
        source_bytes=max(0, reader.end - start) if reader.ended else part.part_bytes,
        last=reader.ended,
    )


def check_field(path: str, content: Content) -> None:
    """Look for the field in the first sample of a file.

    Raises:
        RecipeError: the sample has no such field, or it holds something else.
        BadRecordError: the sample has another fault, or the archive is damaged there.
    """
    with unchecked_source(path) as source:
        reader = _SampleReader(source, content)
        sample = next(reader.take(0, source.size + 1), None)
    if sample is None:
        return
    name, inner = _wanted(content)
    if sample.fault is None and not sample.has_document:
        raise wrong_field(name, path, sample.fields, content.kind)
    for member in sample_content(content).names:
        if sample.fault is None and media_kind(member) and member not in sample.fields:
            raise wrong_field(member, path, sample.fields, content.kind)
    if sample.fault is None and inner is not None:
        place = f"member {sample.key}.{name}"
        check_object(sample.body, path, inner, place=place, thing="member")
    else:
        _text(sample, path, content)


def read_at(source: SourceFile, content: Content, locator: int) -> str | None:
    """Return the document of the sample that begins at a place of an archive; None without one.

    Raises:
        BadRecordError: it has no such text.
        OSError: the file cannot be read now.
    """
    reader = _SampleReader(source, content, locator)
    sample = next(reader.take(locator, locator + 1), None)
    return None if sample is None else _text(sample, source.name, content)


@dataclass(kw_only=True, slots=True)
class _Sample:
    """What is known of a sample; also of one that is not whole."""

    key: str
    offset: int
    fields: dict[str, None] = field(default_factory=dict)
    """Fields that it has, in order."""
    ranges: dict[str, Range] = field(default_factory=dict)
    """Where the content of each whole member lies."""
    has_document: bool = False
    """Whether the member that holds the document is there, whole."""
    body: bytes = b""
    """Content of that member, unless it was passed over."""
    fault: BadRecordError | None = None


class _SampleReader:
    """The samples of an archive, from its start on, or from where one begins."""

    def __init__(self, source: SourceFile, content: Content, start: int = 0) -> None:
        self.reached = start
        self.ended = False
        """Whether no sample and no damage starts behind what was taken."""
        self._source = source
        self._wanted = _wanted(content)[0]
        self._stream = open_bytes(source)
        self._stream.skip(start)
        self._walker = MemberWalker(self._stream)
        self._next: Member | None = None
        """The first member of the next sample; None before the first one, and at the end."""
        self._started = False
        self._damage: DamageError | None = None
        """Damage that is no sample's, and is a bad record of its own at the place it was met."""
        self._keys: set[str] = set()

    @property
    def end(self) -> int:
        """Expanded bytes so far; all there are if `ended`."""
        return self._stream.offset

    def take(self, start: int, stop: int) -> Iterator[_Sample]:
        """Yield the samples that start in [start, stop); the damage, if any, is the last one.

        Raises:
            OSError: the file cannot be read now.
        """
        self.reached = stop
        if not self._started:
            self._started = True
            self._next = self._advance()
        while self._next is not None and self._next.offset < stop:
            sample = self._sample(self._next, is_read=self._next.offset >= start)
            if sample.offset >= start:
                yield sample
        if self._next is not None:
            return
        self.ended = self._damage is None or self.end < stop
        if self._damage is not None and start <= self.end < stop:
            fault = damaged_record(self._source, self.end, self.end, self._damage.found)
            yield _Sample(key="", offset=self.end, fault=fault)

    def _sample(self, first: Member, *, is_read: bool) -> _Sample:
        """Gather the sample that a member begins."""
        key = _split(first.name)[0]
        sample = _Sample(key=key, offset=first.offset)
        if key in self._keys:
            rule = f"members of the sample {key!r} must stand together"
            self._set_fault(sample, rule, "more of them behind other samples", "interleaved")
        self._keys.add(key)
        following: Member | None = first
        while following is not None and _split(following.name)[0] == key:
            self._add(sample, following, is_read=is_read)
            following = self._advance() if self._damage is None else None
        self._next = following
        if self._damage is not None and sample.fault is None and not sample.has_document:
            # The damage is that of this sample, and not another bad record behind it.
            found = self._damage.found
            sample.fault = damaged_record(self._source, sample.offset, self.end, found)
            self._damage = None
        return sample

    def _add(self, sample: _Sample, member: Member, *, is_read: bool) -> None:
        """Add a member to its sample, and read it if it holds the document."""
        name = _split(member.name)[1]
        if name in sample.fields:
            rule = f"sample {sample.key!r} must have each field once"
            self._set_fault(sample, rule, f"{name!r} twice", "repeated_field")
        sample.fields[name] = None
        if not member.is_sparse:
            sample.ranges[name] = (self._stream.offset, member.size)
        if name != self._wanted or sample.has_document:
            return
        if member.is_sparse:
            rule = f"member {member.name!r} must be stored whole"
            self._set_fault(sample, rule, "a sparse file", "sparse")
            return
        try:
            if is_read:
                sample.body = self._walker.read_body()
            else:
                self._walker.pass_over_body()
        except DamageError as error:
            self._damage = error
            return
        sample.has_document = True

    def _advance(self) -> Member | None:
        """Return the next member that belongs to a sample; None at the end, whole or damaged."""
        try:
            member = self._walker.next()
            while member is not None and not (member.is_file and _split(member.name)[0]):
                member = self._walker.next()
        except DamageError as error:
            self._damage = error
            return None
        return member

    def _set_fault(self, sample: _Sample, rule: str, found: str, reason: str) -> None:
        """Keep the first fault of a sample."""
        if sample.fault is None:
            sample.fault = _bad_sample(
                self._source.name, sample, rule, found, reason, f"write the archive anew, {_RERUN}"
            )


def _text(sample: _Sample, file: str, content: Content) -> str:
    """Return the document of a sample.

    Raises:
        BadRecordError: it has none, or one that cannot be read.
    """
    if sample.fault is not None:
        raise sample.fault
    if content.kind in ("content", "messages"):
        return _content_text(sample, file, content)
    return _document_text(sample, file, content)


def _content_text(sample: _Sample, file: str, content: Content) -> str:
    """Return the parts of a sample as JSON."""
    wanted = sample_content(content)
    text = _document_text(sample, file, wanted.document)
    try:
        if content.kind == "messages":
            return messages_of_sample(text, sample.ranges)
        return content_text(text, wanted, sample.ranges)
    except MissingMemberError as error:
        (name,) = error.args
        rule = f"sample {sample.key!r} must have the field {name!r}"
        found = f"none ({describe_fields(name, sample.fields)})"
        repair = f"correct `content` in the recipe, or the archive, {_RERUN}"
        raise _bad_sample(file, sample, rule, found, "missing_field", repair) from error


def _document_text(sample: _Sample, file: str, content: Content) -> str:
    name, inner = _wanted(content)
    if not sample.has_document:
        rule = f"sample {sample.key!r} must have the field {name!r}"
        found = f"none ({describe_fields(name, sample.fields)})"
        repair = f"correct `{content.kind}` in the recipe, or the archive, {_RERUN}"
        raise _bad_sample(file, sample, rule, found, "missing_field", repair)
    body = sample.body.removeprefix(_BOM)
    if inner is not None:
        place = f"member {sample.key}.{name}"
        return parse_object(
            body, inner, file=file, locator=sample.offset, place=place, thing="member"
        )
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        rule = f"member {sample.key + '.' + name!r} must be valid UTF-8"
        found = f"byte 0x{body[error.start]:02x} at byte {error.start} of it"
        repair = f"write it as UTF-8, {_RERUN}"
        raise _bad_sample(file, sample, rule, found, "utf8", repair) from error


def _bad_sample(
    file: str, sample: _Sample, rule: str, found: str, reason: str, repair: str
) -> BadRecordError:
    place = f"expanded byte {sample.offset}"
    return bad_record(
        file, sample.offset, place, rule=rule, found=found, reason=reason, repair=repair
    )


def _split(name: str) -> tuple[str, str]:
    """Return (key, field in lower case) of a member's name; empty ones if it has no field."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2].lower()) if found else ("", "")


def _wanted(content: Content) -> tuple[str, Content | None]:
    """Return (field of a sample, what to look for in it if it is JSON).

    `txt` and `en.txt` are fields that hold text; `json.caption` is the value `caption` in the
    field `json`, and `meta.json.a.b` the value `a.b` in the field `meta.json`.
    """
    content = sample_content(content).document
    names = content.field.split(".")
    lower = [name.lower() for name in names]
    place = lower.index("json") + 1 if "json" in lower else len(names)
    path = ".".join(names[place:])
    inner = replace(content, field=path) if path or content.kind != "text" else None
    return ".".join(lower[:place]), inner


_readers = OpenReaders[_SampleReader]()
