"""What a page consists of: groups of tables and figures, all of it text by now."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure as Canvas

from shardbench.plot import Drawing, drawn
from shardbench.summary.series import Point, Series
from shardbench.units import MILLISECONDS, listed, number

LONG = 12
"""Rows from which on a table is closed at first."""

NUMERIC = {
    *("N", "launches", "step ms", "95 % interval", "tokens/s", "exposed ms (share)", "peak memory/rank"),
    *("exposed ms", "for late ranks ms", "transfer ms", "hidden fraction", "T_compute / T_comm"),
    *("IMB overlap %", "OSU overlap %", "compute inflation", "compute alone ms", "communication alone ms"),
    *("elements", "bytes", "elements / Ψ", "× ddp elements", "× ddp bytes"),
    *("fastest ms", "slowest ms", "spread", "rank effect"),
    *("size S", "smallest S", "largest S", "time µs", "busbw GB/s", "wrong"),
}
"""The headings of right-aligned columns."""


@dataclass(frozen=True)
class Table:
    """Rows of text below headings; the first cell names the row. Rows whose second cell ends in * are marked."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    @property
    def is_long(self) -> bool:
        return len(self.rows) > LONG


@dataclass(frozen=True)
class Figure:
    """A drawing and what stands around it."""

    title: str
    caption: str
    drawing: Drawing


@dataclass
class Group:
    """What belongs together under one heading. `missing` says what could not be shown, and why."""

    key: str
    title: str
    sentences: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.sentences or self.tables or self.figures or self.missing)


def figure(
    key: str, title: str, caption: str, subject: str, draw: Callable[[], Canvas], omitted: Iterable[str] = ()
) -> Figure:
    """Draws; `key` is unique in the page, `subject` is what study it is of."""
    return Figure(title, caption, drawn(draw, key, f"{title}. {subject}", omitted))


def size_text(point: Point) -> str:
    """'4', with the mesh where it has two dimensions, and a star where ranks shared CPUs."""
    attributes = point.typical.attributes
    mesh = f" ({attributes.dp}×{attributes.tp})" if attributes.tp > 1 else ""
    return f"{point.size}{mesh}{'*' if point.is_oversubscribed else ''}"


def name(series: Series, point: Point) -> str:
    """A point in a sentence."""
    return f"{series.label}, N = {point.size}"


def ms(seconds: float, digits: int = 4) -> str:
    """Milliseconds as text."""
    return number(seconds * MILLISECONDS, digits)


def omissions(reasons: Iterable[tuple[Series, Point, str]]) -> list[str]:
    """One clause for each reason, with the points that it holds for."""
    by_reason: dict[str, list[tuple[Series, Point]]] = {}
    for series, point, reason in reasons:
        by_reason.setdefault(reason, []).append((series, point))
    return [f"{reason}: {names(points)}" for reason, points in by_reason.items()]


def names(points: Iterable[tuple[Series, Point]]) -> str:
    """'ddp and zero1 at N = 1; zero3 at N = 1, 2'."""
    sizes: dict[str, list[str]] = {}
    for series, point in points:
        sizes.setdefault(series.label, []).append(str(point.size))
    labels: dict[str, list[str]] = {}
    for label, found in sizes.items():
        labels.setdefault(", ".join(found), []).append(label)
    return "; ".join(f"{listed(members)} at N = {found}" for found, members in labels.items())
