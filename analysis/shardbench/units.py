"""Numbers and tables as text, in decimal units and independent of the locale."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import floor, log10

MILLISECONDS = 1e3
"""Milliseconds in a second."""


@dataclass(frozen=True)
class Unit:
    """A unit to print in: `size` of the base unit, and its name."""

    size: float
    name: str


_BYTES = (Unit(1, "B"), Unit(1e3, "kB"), Unit(1e6, "MB"), Unit(1e9, "GB"), Unit(1e12, "TB"))
_ELEMENTS = (
    Unit(1, "elements"),
    Unit(1e3, "10³ elements"),
    Unit(1e6, "10⁶ elements"),
    Unit(1e9, "10⁹ elements"),
)


def byte_unit(largest: float) -> Unit:
    """The decimal unit (GB = 1e9 bytes) in which `largest` bytes read well."""
    return _fitting(largest, _BYTES)


def element_unit(largest: float) -> Unit:
    """The power of ten in which `largest` elements read well."""
    return _fitting(largest, _ELEMENTS)


def _fitting(largest: float, units: tuple[Unit, ...]) -> Unit:
    return [unit for unit in units if unit.size <= max(largest, 1)][-1]


def number(value: float, digits: int = 4) -> str:
    """Fixed-point text with at least `digits` significant digits and commas between thousands."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - floor(log10(abs(value))))
    return f"{value:,.{decimals}f}"


def exact(value: float) -> str:
    """All digits: integers without a decimal point, else the shortest text that reads back."""
    return f"{int(value):,}" if float(value).is_integer() else repr(float(value))


def bytes_text(count: float) -> str:
    """Bytes in a fitting unit, for example '14.00 GB'."""
    unit = byte_unit(count)
    return f"{count:,.0f} B" if unit.size == 1 else f"{number(count / unit.size)} {unit.name}"


def parse_bytes(text: str) -> int:
    """'80GB', '64 GiB', '1e9' → bytes.

    Raises:
        ValueError: it is no positive size; the message says so.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kKMGT]?)(i?)(B?)\s*", text)
    if not match or (match[3] and not match[2]) or match[1].count(".") > 1 or match[1] == ".":
        raise ValueError(f"{text!r} is no size; pass for example 80GB or 64GiB")
    size = float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " ")
    if not 1 <= size < 1e18:
        raise ValueError(f"{text!r} is no size of a memory; pass for example 80GB or 64GiB")
    return int(size)


def percent(share: float) -> str:
    """A share as text, for example '12.3 %'."""
    return f"{100 * share:z.1f} %"


def plural(count: int, noun: str) -> str:
    """'1 run', '2 runs', '3 launches'."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def listed(items: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def text_table(rows: Sequence[Sequence[str]], numeric: Collection[str]) -> str:
    """Rows below their headings, aligned; the columns with the headings `numeric` to the right."""
    columns = []
    for heading, *cells in zip(*rows):
        width = max(map(len, [heading, *cells]))
        align = str.rjust if heading in numeric else str.ljust
        columns.append([align(heading, width), "-" * width, *(align(cell, width) for cell in cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns))
