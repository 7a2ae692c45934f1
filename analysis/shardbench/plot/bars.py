"""Lying, stacked bars with marks for what formulas say."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from shardbench.plot.canvas import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    PURPLE,
    SKY,
    VERMILION,
    WIDTH_INCHES,
    legend_above,
    short,
    wrap,
)
from shardbench.units import Unit

ROW_INCHES = 0.25
COLOURS = {
    "compute": BLUE,
    "exposed": VERMILION,
    "parameters": BLUE,
    "gradients": VERMILION,
    "optimizer": GREEN,
    "gathered_parameters": SKY,
    "reduce_buffers": AMBER,
    "activations": PURPLE,
    "workspace": GREY,
    "other": GREY,
    "expected": BLUE,
    "padding": AMBER,
}
TEXTBOOK = "textbook formula"
ON_PAPER = "computed on paper"
"""Reference values: diamonds. Other marks are what was measured or expected: lines."""


@dataclass(frozen=True)
class Bar:
    """One lying bar: its parts in drawing order and reference values, all in one base unit.

    `total` is what is written at its end; parts that peak at different times do not add up to it.
    """

    label: str
    parts: Mapping[str, float]
    marks: Mapping[str, float | None]
    total: float

    @property
    def extent(self) -> float:
        """Where the bar and its marks end."""
        return max(sum(self.parts.values()), *(mark or 0.0 for mark in self.marks.values()), 0.0)


@dataclass(frozen=True)
class Bars:
    """A chart: bars under headings, and `lines` across all of them, by label."""

    quantity: str
    unit: Callable[[float], Unit]
    groups: Sequence[tuple[str, Sequence[Bar]]]
    lines: Mapping[str, float] = field(default_factory=dict)


def lying_bars(chart: Bars) -> Figure:
    """Stacked bars under their headings; there is at least one."""
    bars = [bar for _, members in chart.groups for bar in members]
    extent = max([bar.extent for bar in bars] + list(chart.lines.values())) or 1.0
    unit = chart.unit(extent)
    rows = len(bars) + 1.3 * len(chart.groups)
    figure = Figure(figsize=(WIDTH_INCHES, 1.45 + ROW_INCHES * rows), layout="constrained")
    axes = figure.add_subplot()
    positions: list[float] = []
    y = 0.0
    for heading, members in chart.groups:
        axes.text(0, y, wrap(heading), transform=axes.get_yaxis_transform(), weight="bold", va="center")
        for bar in members:
            y += 1
            positions.append(y)
            _draw_bar(axes, y, bar, unit, extent)
        y += 1.3
    axes.set_yticks(positions, [wrap(bar.label, 24) for bar in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y - 0.7, -0.6)
    axes.set_xlim(0, 1.16 * extent / unit.size)  # the total stands at a bar's end
    for label, value in chart.lines.items():
        axes.axvline(value / unit.size, color=MUTED, linewidth=1, linestyle=":", zorder=0)
        axes.text(value / unit.size, 0.1, f" {label}", color=MUTED, fontsize=9, va="bottom")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlabel(f"{chart.quantity}, {unit.name}")
    axes.grid(axis="x")
    _legend(axes)
    return figure


def _draw_bar(axes: Axes, y: float, bar: Bar, unit: Unit, extent: float) -> None:
    left = 0.0
    for part, length in bar.parts.items():
        axes.barh(
            y,
            length / unit.size,
            left=left / unit.size,
            height=0.72,
            color=COLOURS.get(part, INK),
            edgecolor="white",
            linewidth=0.5,
            label=part.replace("_", " "),
        )
        left += length
    for name, value in bar.marks.items():
        if value is not None:
            _draw_mark(axes, y, value / unit.size, name)
    end = (bar.extent + 0.03 * extent) / unit.size
    axes.text(end, y, short(bar.total / unit.size), va="center", fontsize=9, color=INK)


def _draw_mark(axes: Axes, y: float, x: float, name: str) -> None:
    shape = (
        {"marker": "D", "markersize": 5.5, "markerfacecolor": "white", "markeredgewidth": 1.2}
        if name in (TEXTBOOK, ON_PAPER)
        else {"marker": "|", "markersize": 15, "markeredgewidth": 2}
    )
    axes.plot([x], [y], linestyle="none", markeredgecolor=INK, label=name, clip_on=False, **shape)


def _legend(axes: Axes) -> None:
    """Each part and then each mark once, in the order of drawing, above the bars."""
    named = [artist for artist in [*axes.containers, *axes.lines] if not artist.get_label().startswith("_")]
    once = {artist.get_label(): artist for artist in reversed(named)}
    names = list(dict.fromkeys(artist.get_label() for artist in named))
    legend_above(axes, handles=[once[name] for name in names], labels=names, markerscale=0.75)
