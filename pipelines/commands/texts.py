"""How commands write: one JSON object for programs, aligned text for people."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def write_json(facts: Mapping[str, Any]) -> None:
    """Write one JSON object on one line of standard output."""
    sys.stdout.write(json.dumps(facts, ensure_ascii=False) + "\n")


def write_line(text: str = "") -> None:
    """Write a line of text on standard output."""
    sys.stdout.write(text + "\n")


def write_facts(facts: Mapping[str, str]) -> None:
    """Write one line a fact, the values aligned."""
    width = max(map(len, facts))
    for name, value in facts.items():
        write_line(f"{name:<{width}}  {value}")


def write_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *others = zip(row, widths, strict=True)
        cells = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)]
        write_line("  ".join(cells).rstrip())


def count(number: int) -> str:
    """Spell a number with separators between thousands."""
    return f"{number:,}"


def percent(fraction: float, decimals: int = 2) -> str:
    """Spell a fraction in percent."""
    return f"{100 * fraction:.{decimals}f} %"


def size(byte_count: int) -> str:
    """Spell a number of bytes with a unit."""
    scaled, unit = float(byte_count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if scaled < 1024 or unit == "TiB":
            break
        scaled /= 1024
    return f"{byte_count:,} B" if unit == "B" else f"{scaled:.1f} {unit}"
