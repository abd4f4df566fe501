"""What reaches a lane: its head, and tokenized parts.

Where the graph runs fused, a part goes from the tokenizer to the lane as the arrays that it is. It
is encoded only where an engine cuts the graph and where it waits: in a state, or in a carry.
"""

from dataclasses import dataclass

import apache_beam as beam

from zephon_beam.sequences import SequencePart, decode_part, encode_part

_HEAD = b"H"
_PART = b"P"
_NUDGE = b"N"
_DRAIN = b"E"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneMessage:
    """A lane's head, a part of its supply, or the end of that; else a nudge to say where it is."""

    head: bytes | None = None
    """The encoded state or carry that the lane starts from, empty for a fresh lane."""
    part: SequencePart | None = None
    encoding: bytes | None = None
    """What `part` was decoded from, so that it is not encoded again where it only passes."""
    all_parts: int | None = None
    """Of an endless job that is drained: how many parts it has supplied the lane with."""

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return len(self.head or b"") if self.part is None else self.part.nbytes


def decode_message(encoded: bytes) -> LaneMessage:
    """Make a message of an encoded part.

    Raises:
        CorruptObjectError: not a part.
    """
    return LaneMessage(part=decode_part(encoded), encoding=encoded)


def encoded_part(message: LaneMessage) -> bytes:
    """Return the part of a message as an Arrow IPC stream; see `encode_part`.

    Raises:
        ValueError: the message is no part.
    """
    if message.encoding is not None:
        return message.encoding
    if message.part is None:
        raise ValueError("message must be a part; heads are kept as a lane's state")
    return encode_part(message.part)


class LaneMessageCoder(beam.coders.Coder):
    """Encodes `LaneMessage` as a kind byte and what it holds, if anything."""

    def encode(self, value: LaneMessage) -> bytes:
        """Encode a message."""
        if value.part is not None:
            return _PART + encoded_part(value)
        if value.all_parts is not None:
            return b"%b%d" % (_DRAIN, value.all_parts)
        return _NUDGE if value.head is None else _HEAD + value.head

    def decode(self, encoded: bytes) -> LaneMessage:
        """Decode what `encode` made."""
        content = encoded[len(_PART) :]
        if encoded[: len(_PART)] == _HEAD:
            return LaneMessage(head=content)
        if encoded[: len(_PART)] == _NUDGE:
            return LaneMessage()
        if encoded[: len(_PART)] == _DRAIN:
            return LaneMessage(all_parts=int(content))
        return decode_message(content)

    def estimate_size(self, value: LaneMessage) -> int:
        """Say about how many bytes `encode` would make; runners ask this of sampled elements."""
        return value.size

    def is_deterministic(self) -> bool:
        """Equal values have equal encodings."""
        return True

    def to_type_hint(self) -> type[LaneMessage]:
        """Return the type this coder is registered for."""
        return LaneMessage


beam.coders.registry.register_coder(LaneMessage, LaneMessageCoder)
