"""Draws a study as SVG text to embed in a page.

Figures are narrow and stacked bars lie down, so that a figure grows in height and stays readable
on a phone. Only what is there is drawn: an absent quantity gives no bar, and no bars no figure.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from shardbench.stats import PARTS
from shardbench.summary import Point, Series, Study
from shardbench.units import MILLISECONDS, Unit, byte_unit, element_unit, number

WIDTH_INCHES = 4.8
ROW_INCHES = 0.25
INK, MUTED, RULE = "#1b2733", "#56636f", "#dde3e8"

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, AMBER, GREY = "#56b4e9", "#e69f00", "#a9b4be"

STEP_COLOURS = {
    "compute": BLUE,
    "exposed": VERMILION,
    "optimizer": GREEN,
    "other": GREY,
}
MEMORY_COLOURS = {
    "parameters": BLUE,
    "gradients": VERMILION,
    "optimizer": GREEN,
    "gathered_parameters": SKY,
    "reduce_buffers": AMBER,
    "activations": PURPLE,
    "workspace": GREY,
}
VOLUME_COLOURS = {"expected": BLUE, "padding": AMBER}
SERIES_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY)
SERIES_MARKERS = "osD^vP"
OTHER_COLOUR = INK

TEXTBOOK = "textbook formula"

STYLE = {
    "svg.fonttype": "none",  # text stays text: searchable, and set in the page's font
    "svg.hashsalt": "shardbench",  # the same input gives the same page, byte for byte
    "text.parse_math": False,  # a name may contain dollar signs
    "axes.formatter.use_locale": False,
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.3,
    "legend.columnspacing": 1.0,
}


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
        return max(sum(self.parts.values()), *(mark or 0.0 for mark in self.marks.values()))


@dataclass(frozen=True)
class BarChart:
    """What a chart of lying bars shows: of each point a bar, or nothing."""

    title: str
    quantity: str
    colours: Mapping[str, str]
    unit: Callable[[float], Unit]
    bar: Callable[[Point], Bar | None]


def draw(study: Study) -> dict[str, str]:
    """The figures of a study by name, as SVG elements to place inside an HTML page.

    Names: throughput, efficiency (both only where a series has two sizes or more), step_time,
    static_memory, peak_memory, volume (each only where it was recorded).
    """
    figures: dict[str, str] = {}
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        # Text stays text, so a glyph that matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        scaled = [series for series in study.series if len(series.points) > 1]
        if scaled:
            figures["throughput"] = _svg(_throughput(scaled), f"Throughput against N. {study.title}")
            figures["efficiency"] = _svg(_efficiency(scaled), f"Efficiency against N. {study.title}")
        for name, chart in BAR_CHARTS.items():
            bars = [(series.label, _series_bars(series, chart)) for series in study.series]
            filled = [(label, members) for label, members in bars if members]
            if filled:
                figures[name] = _svg(_lying_bars(filled, chart), f"{chart.title}. {study.title}")
    return figures


def _series_bars(series: Series, chart: BarChart) -> list[Bar]:
    return [bar for bar in map(chart.bar, series.points) if bar]


def _step_time_bar(point: Point) -> Bar:
    # What is left of a step may be negative by rounding; a bar cannot.
    lengths = [max(point.typical.parts_s[part], 0.0) * MILLISECONDS for part in PARTS]
    median_ms = point.step_s.median * MILLISECONDS
    return Bar(_size_label(point), dict(zip(STEP_COLOURS, lengths)), {"median step": median_ms}, median_ms)


def _static_memory_bar(point: Point) -> Bar | None:
    ledger = point.typical.ledger
    if ledger.static_expected is None:
        return None
    marks = {"expected": ledger.static_expected, TEXTBOOK: ledger.static_textbook}
    return Bar(_size_label(point), ledger.static_bytes, marks, sum(ledger.static_bytes.values()))


def _peak_memory_bar(point: Point) -> Bar | None:
    peak = point.peak
    if peak is None:
        return None
    in_order = {c: peak.by_category[c] for c in MEMORY_COLOURS if c in peak.by_category}
    marks = {"tracked total": None if peak.is_bound else peak.total}
    return Bar(_size_label(point), in_order | dict(peak.by_category), marks, peak.total)


def _volume_bar(point: Point) -> Bar | None:
    ledger = point.typical.ledger
    if not ledger.volume_measured or ledger.volume_expected is None:
        return None
    parts = {
        "expected": ledger.volume_expected,
        "padding": max(ledger.volume_measured - ledger.volume_expected, 0.0),
    }
    marks = {"measured": ledger.volume_measured, TEXTBOOK: ledger.volume_textbook}
    return Bar(_size_label(point), parts, marks, ledger.volume_measured)


BAR_CHARTS = {
    "step_time": BarChart(
        "Step time by part", "time of one step", STEP_COLOURS, lambda _: Unit(1, "ms"), _step_time_bar
    ),
    "static_memory": BarChart(
        "Static memory by category",
        "static memory per rank",
        MEMORY_COLOURS,
        byte_unit,
        _static_memory_bar,
    ),
    "peak_memory": BarChart(
        "Peak memory by category", "peak memory per rank", MEMORY_COLOURS, byte_unit, _peak_memory_bar
    ),
    "volume": BarChart(
        "Communication volume",
        "volume per rank and step",
        VOLUME_COLOURS,
        element_unit,
        _volume_bar,
    ),
}


def _throughput(scaled: Sequence[Series]) -> Figure:
    def draw_series(axes: Axes, series: Series, colour: str) -> list[float]:
        base, last = series.base, series.points[-1]
        ideal = [base.tokens_per_s, base.tokens_per_s * last.size / base.size]
        axes.plot([base.size, last.size], ideal, color=colour, linewidth=1, linestyle=":", zorder=1)
        for point in series.points:
            if point.tokens_per_s_interval:
                ends = point.tokens_per_s_interval
                axes.plot([point.size] * 2, ends, color=colour, linewidth=3, alpha=0.35, zorder=2)
        return [point.tokens_per_s for point in series.points]

    figure, axes = _scaling_axes(scaled, draw_series)
    axes.set_ylabel("throughput, tokens/s")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 4, 5, 7)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _compact(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    return figure


def _efficiency(scaled: Sequence[Series]) -> Figure:
    figure, axes = _scaling_axes(
        scaled, lambda axes, series, _: [100 * series.efficiency(point) for point in series.points]
    )
    axes.axhline(100, color=MUTED, linewidth=1, linestyle=":", zorder=1)
    axes.set_ylabel("parallel efficiency, % of base")
    axes.set_ylim(0, max(108.0, axes.get_ylim()[1]))
    return figure


def _scaling_axes(
    scaled: Sequence[Series], draw_series: Callable[[Axes, Series, str], list[float]]
) -> tuple[Figure, Axes]:
    """Lines over N; `draw_series` returns a series' values and may draw more beside them."""
    figure = Figure(figsize=(WIDTH_INCHES, 3.3 + 0.2 * len(scaled)), layout="constrained")
    axes = figure.add_subplot()
    for series, colour, marker in zip(scaled, cycle(SERIES_COLOURS), cycle(SERIES_MARKERS)):
        values = draw_series(axes, series, colour)
        sizes = [point.size for point in series.points]
        name = f"{_wrap(series.label)} (base N = {series.base.size})"
        axes.plot(sizes, values, color=colour, marker=marker, markersize=6, label=name, zorder=3)
        crowded = [(p.size, v) for p, v in zip(series.points, values) if p.is_oversubscribed]
        if crowded:
            axes.plot(*zip(*crowded), marker, color=colour, markerfacecolor="white", zorder=4)
    axes.set_xlabel("ranks N")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(_readable_ticks(scaled)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), borderaxespad=0)
    return figure, axes


def _readable_ticks(scaled: Sequence[Series]) -> list[int]:
    """Every N that occurs, less those whose label would touch the one before."""
    sizes = sorted({point.size for series in scaled for point in series.points})
    ticks = sizes[:1]
    smallest_ratio = (sizes[-1] / sizes[0]) ** (1 / 14)  # about 14 labels fit beside one another
    for size in sizes[1:]:
        if size >= ticks[-1] * smallest_ratio:
            ticks.append(size)
    return ticks


def _lying_bars(bars_by_heading: Sequence[tuple[str, list[Bar]]], chart: BarChart) -> Figure:
    """Stacked bars under one heading for each series."""
    bars = [bar for _, members in bars_by_heading for bar in members]
    extent = max(bar.extent for bar in bars) or 1.0
    unit = chart.unit(extent)
    rows = len(bars) + 1.3 * len(bars_by_heading)
    figure = Figure(figsize=(WIDTH_INCHES, 1.35 + ROW_INCHES * rows), layout="constrained")
    axes = figure.add_subplot()
    positions: list[float] = []
    y = 0.0
    for heading, members in bars_by_heading:
        text = _wrap(heading)
        axes.text(0, y, text, transform=axes.get_yaxis_transform(), weight="bold", va="center")
        for bar in members:
            y += 1
            positions.append(y)
            _draw_bar(axes, y, bar, chart, unit, extent)
        y += 1.3
    axes.set_yticks(positions, [bar.label for bar in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y - 0.7, -0.6)
    axes.set_xlim(0, 1.16 * extent / unit.size)  # the total stands at a bar's end
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlabel(f"{chart.quantity}, {unit.name}")
    axes.grid(axis="x")
    _bar_legend(axes)
    return figure


def _draw_bar(axes: Axes, y: float, bar: Bar, chart: BarChart, unit: Unit, extent: float) -> None:
    left = 0.0
    for part, length in bar.parts.items():
        axes.barh(
            y,
            length / unit.size,
            left=left / unit.size,
            height=0.72,
            color=chart.colours.get(part, OTHER_COLOUR),
            edgecolor="white",
            linewidth=0.5,
            label=part.replace("_", " "),
        )
        left += length
    for name, value in bar.marks.items():
        if value is not None:
            _draw_mark(axes, y, value / unit.size, name)
    end = (bar.extent + 0.02 * extent) / unit.size
    axes.text(end, y, number(bar.total / unit.size, 3), va="center", fontsize=9, color=INK)


def _draw_mark(axes: Axes, y: float, x: float, name: str) -> None:
    shape = (
        {"marker": "D", "markersize": 5.5, "markerfacecolor": "white", "markeredgewidth": 1.2}
        if name == TEXTBOOK
        else {"marker": "|", "markersize": 15, "markeredgewidth": 2}
    )
    axes.plot([x], [y], linestyle="none", markeredgecolor=INK, label=name, clip_on=False, **shape)


def _bar_legend(axes: Axes) -> None:
    """Each part and then each mark once, in the order of drawing, above the bars."""
    drawn = [*axes.containers, *axes.lines]
    once = {artist.get_label(): artist for artist in reversed(drawn)}
    names = list(dict.fromkeys(artist.get_label() for artist in drawn))
    axes.legend(
        [once[name] for name in names],
        names,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
        ncol=3,
        markerscale=0.75,
    )


def _size_label(point: Point) -> str:
    attributes = point.typical.attributes
    mesh = f" ({attributes.dp}×{attributes.tp})" if attributes.tp > 1 else ""
    return f"N = {point.size}{mesh}{'*' if point.is_oversubscribed else ''}"


def _wrap(text: str) -> str:
    return textwrap.fill(text, 50)


def _compact(value: float) -> str:
    """'500', '20 k', '1.5 M'."""
    for size, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def _svg(figure: Figure, title: str) -> str:
    """The figure as an <svg> element that shares a page with others and points nowhere."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # implied inside HTML
    prefix = re.sub(r"\W+", "-", title) + "-"  # ids are the page's, not the figure's
    svg = re.sub(r'(\sid="|href="#|url\(#)', lambda match: match.group() + prefix, svg)
    label = escape(title, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
