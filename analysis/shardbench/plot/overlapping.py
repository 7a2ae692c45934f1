"""How much communication hides, over how much compute there is for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from shardbench.overlap import Overlap
from shardbench.plot.canvas import (
    MUTED,
    SERIES_COLOURS,
    SERIES_MARKERS,
    WIDTH_INCHES,
    compact,
    legend_below,
    wrap,
)


@dataclass(frozen=True)
class Overlaps:
    """One series' points that can be judged, in numeric order of N."""

    label: str
    points: Sequence[tuple[int, Overlap]]


def hidden_and_inflation(series: Sequence[Overlaps]) -> Figure:
    """The hidden fraction, and compute in the step over compute alone, both over T_compute / T_comm."""
    figure = Figure(figsize=(WIDTH_INCHES, 5.3), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    named: list[tuple[float, float, int, str]] = []
    for one, colour, marker in zip(series, cycle(SERIES_COLOURS), cycle(SERIES_MARKERS)):
        ordered = sorted(one.points, key=lambda point: point[1].compute_over_communication)
        ratios = [overlap.compute_over_communication for _, overlap in ordered]
        style = {"color": colour, "marker": marker, "markersize": 6, "linewidth": 1}
        above.plot(ratios, [clipped(overlap) for _, overlap in ordered], **style)
        inflated = [(ratio, o.inflation) for ratio, (_, o) in zip(ratios, ordered) if o.inflation is not None]
        below.plot(*(zip(*inflated) if inflated else ([], [])), **style, label=wrap(one.label))
        named += [(ratio, clipped(overlap), size, colour) for ratio, (size, overlap) in zip(ratios, ordered)]
    above.axhline(1, color=MUTED, linewidth=1, linestyle=":")
    above.axhline(0, color=MUTED, linewidth=0.8)
    above.set_ylim(min(-0.05, 1.1 * min(above.get_ylim()[0], 0.0)), 1.12)
    above.set_ylabel("hidden fraction, 1 = all")
    below.axhline(1, color=MUTED, linewidth=1, linestyle=":")
    below.set_ylabel("compute inflation, × alone")
    low, high = below.get_ylim()
    below.set_ylim(min(low, 0.95), max(high, 1.05))
    below.set_xlabel("T_compute / T_comm, both alone (ratio)")
    below.set_xscale("log")
    below.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    _number_decade(below)
    _label_sizes(above, named)
    for axes in (above, below):
        axes.axvline(1, color=MUTED, linewidth=1, linestyle=":")
        axes.grid(axis="y")
    legend_below(below)
    return figure


def clipped(overlap: Overlap) -> float:
    """The hidden fraction within [-1, 1]: beyond, noise of short alone times is all that there is to see."""
    return min(1.0, max(-1.0, overlap.hidden_fraction))


def _label_sizes(axes: Axes, points: Sequence[tuple[float, float, int, str]]) -> None:
    """Names each point's N, as (x, y, N, colour), unless the name would touch one that is there already."""
    placed: list[tuple[float, float]] = []
    for x, y, size, colour in points:
        across, up = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
        if all(abs(across - a) > 0.12 or abs(up - u) > 0.1 for a, u in placed):
            placed.append((across, up))
            axes.annotate(
                f"N={size}", (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=8, color=colour
            )


def _multiples(ratio: float) -> tuple[float, ...]:
    if ratio < 5:
        return (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    return (1, 2, 5) if ratio < 100 else (1,)


def _number_decade(axes: Axes) -> None:
    """Numbers within a decade where the axis spans few of them."""
    low, high = axes.get_xlim()
    low, high = min(low, 0.8), max(high, 1.25)
    axes.set_xlim(low, high)
    ticks = [m * 10.0**e for e in range(-6, 7) for m in _multiples(high / low)]
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.xaxis.set_minor_locator(NullLocator())
