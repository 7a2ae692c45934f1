"""How the ranks of a point differ: a row for each point, its ranks' medians as dots or boxes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from shardbench.plot.bars import ROW_INCHES
from shardbench.plot.canvas import BLUE, GREY, INK, VERMILION, WIDTH_INCHES, legend_above, wrap
from shardbench.units import MILLISECONDS

DOTS_UP_TO = 32
"""Ranks from which on a box (quartiles, and whiskers to the extremes) says more than dots."""


@dataclass(frozen=True)
class Spread:
    """One point's ranks: medians over steps of the whole step and of what was not waited, seconds.

    `straggler` is the rank that others wait for, None where that is nobody or not known.
    """

    label: str
    ranks: NDArray[np.int64]
    step_s: NDArray[np.float64]
    own_s: NDArray[np.float64]
    straggler: int | None


def spread(groups: Sequence[tuple[str, Sequence[Spread]]]) -> Figure:
    """Rows under a heading for each series."""
    rows = sum(len(members) for _, members in groups)
    figure = Figure(
        figsize=(WIDTH_INCHES, 1.5 + 1.3 * ROW_INCHES * (rows + len(groups))), layout="constrained"
    )
    axes = figure.add_subplot()
    positions, labels = [], []
    y = 0.0
    for heading, members in groups:
        axes.text(0, y, wrap(heading), transform=axes.get_yaxis_transform(), weight="bold", va="center")
        for one in members:
            y += 1
            positions.append(y)
            labels.append(one.label)
            _row(axes, y - 0.16, one.own_s, BLUE)
            _row(axes, y + 0.16, one.step_s, GREY)
            if one.straggler is not None:
                x = float(one.own_s[one.ranks == one.straggler][0]) * MILLISECONDS
                axes.plot(
                    [x], [y - 0.16], "o", markersize=9, markerfacecolor="none", markeredgecolor=VERMILION
                )
                axes.annotate(f"rank {one.straggler}", (x, y - 0.16), (7, 0), textcoords="offset points",
                              fontsize=8, color=VERMILION, va="center")  # fmt: skip
        y += 1.2
    axes.set_yticks(positions, labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y - 0.5, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlim(right=1.12 * axes.get_xlim()[1])  # room for a straggler's name
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlabel("median of each rank over timed steps, ms")
    axes.grid(axis="x")
    dot = {"marker": "o", "linestyle": "none", "markersize": 5}
    handles = [
        Line2D([], [], color=BLUE, label="own work (step − exposed)", **dot),
        Line2D([], [], color=GREY, label="step", **dot),
    ]
    if any(one.straggler is not None for _, members in groups for one in members):
        ring = {"markerfacecolor": "none", "markeredgecolor": VERMILION, "color": INK}
        handles.append(Line2D([], [], label="is waited for", **dot | {"markersize": 8}, **ring))
    legend_above(axes, handles=handles)
    return figure


def _row(axes: Axes, y: float, seconds: NDArray[np.float64], colour: str) -> None:
    milliseconds = seconds * MILLISECONDS
    if len(seconds) <= DOTS_UP_TO:
        axes.plot(
            milliseconds, [y] * len(seconds), "o", color=colour, markersize=5, alpha=0.7, markeredgewidth=0
        )
        return
    low, first, middle, third, high = np.percentile(milliseconds, [0, 25, 50, 75, 100])
    axes.plot([low, high], [y, y], color=colour, linewidth=1)
    axes.plot([first, third], [y, y], color=colour, linewidth=6, solid_capstyle="butt", alpha=0.7)
    axes.plot([middle], [y], "|", color=colour, markersize=10, markeredgewidth=2)
