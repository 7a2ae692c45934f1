"""Lines over N: throughput, efficiency, exposed share; and step time and memory over the prefetch depth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from shardbench.plot.canvas import (
    INK,
    MUTED,
    SERIES_COLOURS,
    SERIES_MARKERS,
    VERMILION,
    WIDTH_INCHES,
    legend_below,
    logarithmic_y,
    sizes_axis,
    wrap,
)
from shardbench.predicted import PredictedPoint
from shardbench.summary.series import Point, Series
from shardbench.summary.setups import Depth, depth_text
from shardbench.units import MILLISECONDS, byte_unit, number

Predicted = Mapping[str, Sequence[PredictedPoint]]
"""The predicted points of each series, by its label, in numeric order of N."""


@dataclass(frozen=True)
class Ends:
    """From where on a series no longer scales: shares of a step, and of the base's efficiency."""

    exposed: float
    efficiency: float


def throughput(scaled: Sequence[Series], predicted: Predicted) -> Figure:
    """Tokens/s over N, with each series' ideal line from its base and the intervals' bars."""

    def draw(axes: Axes, series: Series, colour: str) -> list[float]:
        points = predicted.get(series.label, ())
        last = max([series.points[-1].size, *(point.size for point in points)])
        ideal = [series.base.tokens_per_s, series.base.tokens_per_s * last / series.base.size]
        axes.plot([series.base.size, last], ideal, color=colour, linewidth=1, linestyle=":", zorder=1)
        for point in series.points:
            if point.tokens_per_s_interval:
                _interval(axes, point.size, point.tokens_per_s_interval, colour)
        for guess in points:
            if guess.low_s and guess.high_s:
                ends = (
                    series.tokens_at(guess.size) / guess.high_s,
                    series.tokens_at(guess.size) / guess.low_s,
                )
                _interval(axes, guess.size, ends, colour)
        values = [point.tokens_per_s for point in series.points]
        _predict(axes, series, values, points, colour, lambda p: series.tokens_at(p.size) / p.step_s)
        return values

    figure, axes = _over_sizes(scaled, predicted, draw)
    axes.set_ylabel("throughput, tokens/s")
    logarithmic_y(axes)
    return figure


def efficiency(scaled: Sequence[Series], predicted: Predicted, ends: Ends) -> Figure:
    """Throughput per rank against the base's, %."""

    def draw(axes: Axes, series: Series, colour: str) -> list[float]:
        def value(guess: PredictedPoint) -> float:
            rate = series.tokens_at(guess.size) / guess.step_s
            return 100 * rate / series.base.tokens_per_s * series.base.size / guess.size

        values = [100 * series.efficiency(point) for point in series.points]
        _predict(axes, series, values, predicted.get(series.label, ()), colour, value)
        return values

    figure, axes = _over_sizes(scaled, predicted, draw)
    axes.axhline(100, color=MUTED, linewidth=1, linestyle=":", zorder=1)
    _limit(axes, 100 * ends.efficiency)
    axes.set_ylabel("parallel efficiency, % of base")
    axes.set_ylim(0, max(108.0, axes.get_ylim()[1]))
    return figure


def exposed_share(scaled: Sequence[Series], predicted: Predicted, ends: Ends) -> Figure:
    """Exposed communication as a share of the step, %."""
    known = {
        label: [guess for guess in guesses if guess.exposed_share is not None]
        for label, guesses in predicted.items()
    }

    def draw(axes: Axes, series: Series, colour: str) -> list[float]:
        values = [100 * point.exposed_share for point in series.points]
        guesses = known.get(series.label, ())
        _predict(axes, series, values, guesses, colour, lambda guess: 100 * (guess.exposed_share or 0.0))
        return values

    figure, axes = _over_sizes(scaled, known, draw)
    _limit(axes, 100 * ends.exposed)
    axes.set_ylabel("exposed communication, % of step")
    axes.set_ylim(0, max(1.15 * 100 * ends.exposed, axes.get_ylim()[1]))
    return figure


def prefetch(depths: Sequence[Depth], lines: Mapping[int, Mapping[Depth, Point]]) -> Figure:
    """Step time and peak memory over the prefetch depth, a line for each N; `lines` by N and depth."""
    figure = Figure(figsize=(WIDTH_INCHES, 5.2 + 0.1 * len(lines)), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    peaks = [point.peak.total for line in lines.values() for point in line.values() if point.peak]
    unit = byte_unit(max(peaks, default=1.0))
    for (size, line), colour, marker in zip(lines.items(), cycle(SERIES_COLOURS), cycle(SERIES_MARKERS)):
        style = {"color": colour, "marker": marker, "markersize": 6}
        reached = [depth for depth in depths if depth in line]
        positions = [depths.index(depth) for depth in reached]
        for position, depth in zip(positions, reached):
            estimate = line[depth].step_s
            if estimate.low is not None and estimate.high is not None:
                ends = (estimate.low * MILLISECONDS, estimate.high * MILLISECONDS)
                _interval(above, position, ends, colour)
        above.plot(
            positions, [line[d].step_s.median * MILLISECONDS for d in reached], **style, label=f"N = {size}"
        )
        known = [(x, peak.total / unit.size) for x, d in zip(positions, reached) if (peak := line[d].peak)]
        if known:
            below.plot(*zip(*known), **style)
    above.set_ylabel("step time, ms")
    below.set_ylabel(f"peak memory/rank, {unit.name}")
    below.set_xlabel("prefetch, groups ahead in forward, backward")
    below.set_xticks(range(len(depths)), [depth_text(depth) for depth in depths])
    below.set_xlim(-0.3, len(depths) - 0.7)
    for axes in (above, below):
        axes.grid(axis="y")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(6))
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncol=4)
    return figure


def _over_sizes(
    scaled: Sequence[Series], predicted: Predicted, draw: Callable[[Axes, Series, str], list[float]]
) -> tuple[Figure, Axes]:
    """Lines over N; `draw` returns a series' values and may draw more beside them."""
    bases = len({series.base.size for series in scaled})
    figure = Figure(figsize=(WIDTH_INCHES, 3.1), layout="constrained")
    axes = figure.add_subplot()
    for series, colour, marker in zip(scaled, cycle(SERIES_COLOURS), cycle(SERIES_MARKERS)):
        values = draw(axes, series, colour)
        sizes = [point.size for point in series.points]
        base = f" (base N = {series.base.size})" if bases > 1 else ""
        name = f"{wrap(series.label)}{base}"
        simulated = bool(series.base.typical.attributes.simulated)
        fill = {"fillstyle": "bottom" if simulated else "full", "markerfacecoloralt": "white"}
        axes.plot(sizes, values, color=colour, marker=marker, markersize=7, label=name, zorder=3, **fill)
        for point, value in zip(series.points, values):
            if point.is_oversubscribed:
                axes.annotate(
                    "*", (point.size, value), (4, 2), textcoords="offset points", color=colour, weight="bold"
                )
    sizes_axis(
        axes,
        [point.size for series in scaled for point in series.points]
        + [guess.size for points in predicted.values() for guess in points],
    )
    axes.grid(axis="y")
    legend_below(axes, _origins(scaled, predicted))
    return figure, axes


def _origins(scaled: Sequence[Series], predicted: Predicted) -> list[Line2D]:
    """What each kind of mark stands for, of the kinds that occur."""
    origins = {bool(series.base.typical.attributes.simulated) for series in scaled}
    kinds = []
    if False in origins:
        kinds.append(("measured", "full", "-"))
    if True in origins:
        kinds.append(("simulated", "bottom", "-"))
    if any(predicted.values()):
        kinds.append(("predicted", "none", "--"))
    return [
        Line2D(
            [],
            [],
            color=INK,
            marker="o",
            fillstyle=fill,
            markerfacecoloralt="white",
            linestyle=line,
            label=name,
        )
        for name, fill, line in kinds
    ]


def _predict(
    axes: Axes,
    series: Series,
    values: Sequence[float],
    guesses: Sequence[PredictedPoint],
    colour: str,
    value: Callable[[PredictedPoint], float],
) -> None:
    """Marks at `guesses`, and a line through them and the last point that was run before them; `values` are the series'."""
    if not guesses:
        return
    guessed = [(guess.size, value(guess)) for guess in guesses]
    run = [(point.size, y) for point, y in zip(series.points, values) if point.size < guesses[0].size]
    axes.plot(*zip(*run[-1:], *guessed), color=colour, linestyle="--", linewidth=1, zorder=2)
    marker = {"marker": "o", "markersize": 7, "fillstyle": "none", "linestyle": "none"}
    axes.plot(*zip(*guessed), color=colour, zorder=4, **marker)


def _interval(axes: Axes, x: float, ends: tuple[float, float], colour: str) -> None:
    axes.plot([x] * 2, ends, color=colour, linewidth=3, alpha=0.35, zorder=2)


def _limit(axes: Axes, value: float) -> None:
    axes.axhline(value, color=VERMILION, linewidth=1, linestyle="--", zorder=1)
    axes.annotate(
        f"limit {number(value, 2)} %", (1, value), (-2, 3), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", color=VERMILION, fontsize=9,
    )  # fmt: skip
