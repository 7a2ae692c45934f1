"""What all figures share: style, colours, and the way from a matplotlib figure to text."""

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from shardbench.units import number

WIDTH_INCHES = 4.8
INK, MUTED, RULE = "#1b2733", "#56636f", "#dde3e8"

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, AMBER, GREY = "#56b4e9", "#e69f00", "#a9b4be"

SERIES_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY)
SERIES_MARKERS = "osD^vPX"  # one more than colours, so that 42 lines differ

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
class Drawing:
    """A figure: `svg` is an <svg> element for inside an HTML page, `omitted` what is not in it, a clause each."""

    svg: str
    omitted: tuple[str, ...] = ()


def drawn(draw: Callable[[], Figure], key: str, label: str, omitted: Iterable[str] = ()) -> Drawing:
    """Draws in the project's style. `key` makes ids unique in the page, `label` is read to who cannot see."""
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        # Text stays text, so a glyph that matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        return Drawing(_svg(draw(), key, label), tuple(omitted))


def _svg(figure: Figure, key: str, label: str) -> str:
    """The figure as an <svg> element that shares a page with others and points nowhere."""
    for index, axes in enumerate(figure.axes):
        axes.xaxis.label.set_gid(f"x-label-{index}")
        axes.yaxis.label.set_gid(f"y-label-{index}")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # implied inside HTML
    svg = re.sub(r'(\sid="|href="#|url\(#)', lambda match: f"{match.group()}{key}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label, quote=True)}"', 1)


def wrap(text: str, width: int = 50) -> str:
    """A label over as many lines as it needs."""
    return textwrap.fill(text, width)


def sizes_axis(axes: Axes, sizes: Iterable[int]) -> None:
    """A logarithmic x-axis of N that names each N which has room."""
    axes.set_xlabel("N, ranks")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(_readable(sorted(set(sizes)))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _readable(sizes: list[int]) -> list[int]:
    """All but those whose label would touch the one before."""
    ticks = sizes[:1]
    smallest_ratio = (sizes[-1] / sizes[0]) ** (1 / 14)  # about 14 labels fit beside one another
    for size in sizes[1:]:
        if size >= ticks[-1] * smallest_ratio:
            ticks.append(size)
    return ticks


def logarithmic_y(axes: Axes) -> None:
    """A logarithmic y-axis with enough numbers on it, also over less than a decade."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 4, 5, 7)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def compact(value: float) -> str:
    """'0.05', '500', '20 k', '1.5 M'."""
    for size, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def legend_below(axes: Axes, extra: Sequence[Artist] = ()) -> None:
    """The legend under the x-axis' label, where no line can run through it; `extra` entries come last.

    The figure, so far as high as its axes ask for, grows by the legend: entries may take several lines.
    """
    under_label = ScaledTranslation(
        0, -44 / 72, axes.figure.dpi_scale_trans
    )  # points, whatever the figure's height
    legend = axes.legend(
        handles=[*axes.get_legend_handles_labels()[0], *extra],
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + under_label,
        borderaxespad=0,
    )
    figure = axes.figure
    figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)


def legend_above(axes: Axes, **entries: Any) -> None:
    """The legend above the axes, from the figure's left edge: long labels leave an axis little width."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.01, 1),
        bbox_transform=blended_transform_factory(axes.figure.transFigure, axes.transAxes),
        borderaxespad=0.2,
        ncol=3,
        **entries,
    )


def short(value: float) -> str:
    """Three significant digits."""
    return number(value, 3)
