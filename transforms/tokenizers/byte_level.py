"""GPT-2's byte-level alphabet: one printable character for each byte of a token."""

from functools import cache


@cache
def byte_of_character() -> dict[str, int]:
    """Map each of the 256 characters to its byte.

    Printable Latin-1 characters stand for themselves, every other byte for the next character
    from U+0100 on.

    Source: `bytes_to_unicode` in the encoder of OpenAI's GPT-2 release (2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    taken = frozenset(printable)
    others = [byte for byte in range(256) if byte not in taken]
    found = {chr(byte): byte for byte in printable}
    found.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return found


def token_text(token: str) -> str | None:
    """Return the text that a byte-level token stands for, None if it is not whole UTF-8."""
    alphabet = byte_of_character()
    try:
        return bytes([alphabet[character] for character in token]).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return None
