"""tiktoken rank files: a base64 token and its rank a line, read and checked."""

import base64
import binascii

from zephon_beam.errors import RecipeError

_MAX_RANK = 2**31
_REPAIR = "name a rank file as tiktoken writes it: a base64 token, a space and its rank a line"


def parse_ranks(content: bytes, *, name: str) -> dict[bytes, int]:
    """Read the tokens and ranks of a rank file.

    Args:
        content: the file.
        name: of the file, for messages.

    Returns:
        Bytes of each token and its rank, which is also its id; all 256 single bytes are there.

    Raises:
        RecipeError: a line is not a token and a rank, one of them repeats, or a byte is missing.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        token, rank = _parse_line(line, name, number)
        if token in ranks:
            raise _error(name, number, f"the token {token!r} again", "tokens must be distinct")
        ranks[token] = rank
    if len(frozenset(ranks.values())) != len(ranks):
        raise RecipeError(
            f"tokenizer.path must be a rank file with distinct ranks, got {name!r}; two tokens "
            f"would have one id; {_REPAIR}"
        )
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise RecipeError(
            f"tokenizer.path must be a rank file with all 256 single bytes, got {name!r} without "
            f"{bytes(missing[:1])!r}; text with that byte could not be encoded; {_REPAIR}"
        )
    return ranks


def _parse_line(line: bytes, name: str, number: int) -> tuple[bytes, int]:
    fields = line.split(b" ")
    try:
        if len(fields) != 2 or not fields[1].isdigit():
            raise ValueError
        token, rank = base64.b64decode(fields[0], validate=True), int(fields[1])
    except (binascii.Error, ValueError):
        raise _error(name, number, repr(line[:60]), "it is no token and rank") from None
    if not token or rank >= _MAX_RANK:
        raise _error(name, number, repr(line[:60]), "tokens hold a byte, ranks are below 2^31")
    return token, rank


def _error(name: str, number: int, found: str, why: str) -> RecipeError:
    return RecipeError(
        f"tokenizer.path must be a rank file, got {found} in line {number} of {name!r}; {why}; "
        f"{_REPAIR}"
    )
