"""`bos` and `eos` around conversations, whose templates mostly write them already."""

import numpy as np

from zephon_beam.tokenizer import Array, Framing


def missing_ends(
    ids: Array, offsets: Array, last_written: Array, framing: Framing
) -> tuple[Array, Array]:
    """Say which conversations lack the recipe's `bos` and `eos`.

    Args:
        ids: uint32[total], tokens of the renderings.
        offsets: int64[conversations + 1], bounds of each.
        last_written: int64[conversations], place of the token that holds the last character of a
            rendering which is not white space; many templates end a turn with a line break. Any
            value for an empty rendering.
        framing: what the recipe asks for.

    Returns:
        (bool[conversations], bool[conversations]): whether to put `bos` before, `eos` behind. None
        is put beside one that is there, nor into an empty rendering.
    """
    filled = np.diff(offsets) > 0
    padded = np.append(ids, np.uint32(0))
    lacks_bos = np.zeros(len(filled), bool)
    lacks_eos = np.zeros(len(filled), bool)
    if framing.bos is not None:
        lacks_bos = filled & (padded[offsets[:-1]] != framing.bos)
    if framing.eos is not None:
        lacks_eos = filled & (padded[np.where(filled, last_written, 0)] != framing.eos)
    return lacks_bos, lacks_eos


def widen(
    values: Array, offsets: Array, before: Array, after: Array, *, first: int, last: int
) -> tuple[Array, Array]:
    """Put a value before and behind some stretches of an array.

    Args:
        values: dtype[total].
        offsets: int64[stretches + 1], bounds of each.
        before: bool[stretches], which get `first` before them.
        after: bool[stretches], which get `last` behind them.
        first: value put before.
        last: value put behind.

    Returns:
        (dtype[total + added], int64[stretches + 1]).
    """
    added = np.cumsum(before.astype(np.int64) + after)
    new_offsets = offsets.copy()
    new_offsets[1:] += added
    inside = np.ones(int(new_offsets[-1]), bool)
    heads = new_offsets[:-1][before]
    tails = new_offsets[1:][after] - 1
    inside[heads] = False
    inside[tails] = False
    widened = np.empty(len(inside), values.dtype)
    widened[inside] = values
    widened[heads] = first
    widened[tails] = last
    return widened, new_offsets
