"""Documents that are token ids already: what makes a list of ids one, and how lists are joined.

An id is an integer in [0, `Content.id_limit`), the tokenizer's vocabulary. A loss mask is a list of
0 and 1 (or booleans), as long as its document.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_beam.sources.documents import TokenLists
from zephon_beam.sources.faults import shorten

Array = npt.NDArray[Any]

NO_TOKENS = "not_tokens"
ID_RANGE = "token_range"
LOSS_MASK = "loss_mask"


class TokenFault(NamedTuple):
    """Why a value is no list of ids, or no loss mask."""

    rule: str
    found: str
    reason: str


def list_fault(field: str, found: str) -> TokenFault:
    """Return the fault of a field that holds no list of integers."""
    return TokenFault(f"field {field!r} must be a list of token ids", found, NO_TOKENS)


def range_fault(field: str, found: int, limit: int) -> TokenFault:
    """Return the fault of an id that the vocabulary does not have."""
    rule = f"ids in {field!r} must be from 0 to {limit - 1}, those of the tokenizer's vocabulary"
    return TokenFault(rule, str(found), ID_RANGE)


def mask_fault(field: str, rule: str, found: str) -> TokenFault:
    """Return the fault of a loss mask."""
    return TokenFault(f"field {field!r} must {rule}", found, LOSS_MASK)


def ids_of_list(value: object, field: str, limit: int) -> Array | TokenFault:
    """Return a Python list of ids as uint32[ids], or its fault."""
    if not isinstance(value, list):
        return list_fault(field, describe(value))
    wrong = [item for item in value if type(item) is not int] if _mixed(value) else []
    if wrong:
        return list_fault(field, f"{describe(wrong[0])} in it")
    if value and (min(value) < 0 or max(value) >= limit):
        return range_fault(field, next(v for v in value if not 0 <= v < limit), limit)
    return np.array(value, np.uint32)


def mask_of_list(value: object, field: str, length: int) -> Array | TokenFault:
    """Return a Python list of 0 and 1 as uint8[length], or its fault."""
    if not isinstance(value, list):
        return mask_fault(field, "be a list of 0 and 1", describe(value))
    if not set(map(type, value)) <= {int, bool} or not set(value) <= {0, 1}:
        return mask_fault(field, "be a list of 0 and 1", shorten(value))
    if len(value) != length:
        return length_fault(field, len(value), length)
    return np.array(value, np.uint8)


def describe(value: object) -> str:
    """Show a value in a message, and what is missing as `null`."""
    return "null" if value is None else shorten(value)


def length_fault(field: str, found: int, length: int) -> TokenFault:
    """Return the fault of a mask that is not as long as its document."""
    rule = f"have a value for each of the {length} tokens of its document"
    return mask_fault(field, rule, f"{found} values")


def join_lists(ids: Sequence[Array], masks: Sequence[Array] | None) -> TokenLists:
    """Lay documents out one behind the other.

    Args:
        ids: uint32 arrays, one a document.
        masks: uint8 arrays of the same lengths, or None.
    """
    offsets = np.zeros(len(ids) + 1, np.int64)
    np.cumsum([len(array) for array in ids], out=offsets[1:])
    nothing = np.zeros(0, np.uint32)
    learned = None if masks is None else np.concatenate([np.zeros(0, np.uint8), *masks])
    return TokenLists(tokens=np.concatenate([nothing, *ids]), offsets=offsets, learned=learned)


def concatenate_lists(lists: Sequence[TokenLists]) -> TokenLists:
    """Join lists of documents; a single one is returned as it is, without copying."""
    if len(lists) == 1:
        return lists[0]
    offsets = [np.zeros(1, np.int64)]
    total = 0
    for entry in lists:
        offsets.append(entry.offsets[1:] - entry.offsets[0] + total)
        total = int(offsets[-1][-1]) if len(offsets[-1]) else total
    masks = [entry.learned for entry in lists if entry.learned is not None]
    return TokenLists(
        tokens=np.concatenate([np.zeros(0, np.uint32), *(entry.tokens for entry in lists)]),
        offsets=np.concatenate(offsets),
        learned=np.concatenate([np.zeros(0, np.uint8), *masks]) if masks else None,
    )


def with_empty_list(lists: TokenLists | None) -> TokenLists | None:
    """Return lists with an empty document behind them; of what holds no tokens, None."""
    if lists is None:
        return None
    offsets = np.append(lists.offsets, lists.offsets[-1])
    return TokenLists(tokens=lists.tokens, offsets=offsets, learned=lists.learned)


def _mixed(value: list[object]) -> bool:
    return not set(map(type, value)) <= {int}
