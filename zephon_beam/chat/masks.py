r"""From spans of characters to the tokens that are learned, and from those to the loss mask.

    rendered   <|im_start|> assistant \n Hello <|im_end|> \n <|im_start|> user \n Thanks …
    span                                [------------------)
    learned          0          0      0   1       1      1       0        0   0    0
    loss_mask        0          0      1   1       1      0       0        0   0    0

`learned` belongs to a token, `loss_mask` to the label at its place: the token that follows.
"""

import numpy as np
import numpy.typing as npt

from zephon_beam.tokenizer import Array


def tokens_within(starts: Array, ends: Array, spans: Array) -> npt.NDArray[np.bool_]:
    """Say which tokens hold at least one character of a span.

    So a token that straddles the edge of a span is learned: what of it lies inside could not be
    learned otherwise. Transformers decides alike.

    Args:
        starts: int64[tokens], first character of each token.
        ends: int64[tokens], first character behind each token.
        spans: int64[spans, 2], first character and first one behind; in order, without overlap.
            An empty span holds nothing.

    Returns:
        bool[tokens].

    Source: `return_assistant_tokens_mask` of Transformers 5.
    """
    spans = spans[spans[:, 0] < spans[:, 1]]
    if not len(spans):
        return np.zeros(len(starts), bool)
    # The first span that ends behind the token's start is the only one the token can begin in.
    nearest = np.searchsorted(spans[:, 1], starts, side="right")
    reached = nearest < len(spans)
    firsts = spans[np.where(reached, nearest, 0), 0]
    return np.asarray(reached & (firsts < ends), bool)


def loss_mask(learned: Array, offsets: Array) -> npt.NDArray[np.uint8]:
    """Move `learned` from tokens to the labels before them.

    Args:
        learned: uint8[total], 1 for tokens that are learned.
        offsets: int64[documents + 1], bounds of each document.

    Returns:
        uint8[total]: 1 iff the token that follows in the same document is learned; 0 at the last
        token of a document. It is made before documents are cut, so no cut can move it.
    """
    mask = np.zeros(len(learned), np.uint8)
    mask[:-1] = learned[1:]
    mask[offsets[1:][np.diff(offsets) > 0] - 1] = 0
    return mask


def whole_mask(offsets: Array) -> npt.NDArray[np.uint8]:
    """Return the loss mask of documents that are learned whole."""
    return loss_mask(np.ones(int(offsets[-1]), np.uint8), offsets)
