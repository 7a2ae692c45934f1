"""Bus bandwidth of collectives alone over their size."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from shardbench.busbw import BusBandwidth
from shardbench.plot.canvas import (
    SERIES_COLOURS,
    SERIES_MARKERS,
    WIDTH_INCHES,
    legend_below,
    logarithmic_y,
    wrap,
)
from shardbench.units import bytes_text


def bus_bandwidth(lines: Mapping[str, Sequence[BusBandwidth]]) -> Figure:
    """A line for each label, in order of size; every value is above 0."""
    figure = Figure(figsize=(WIDTH_INCHES, 3.1), layout="constrained")
    axes = figure.add_subplot()
    for (label, points), colour, marker in zip(lines.items(), cycle(SERIES_COLOURS), cycle(SERIES_MARKERS)):
        values = [(point.bytes_per_s or 0.0) / 1e9 for point in points]
        sizes = [point.size_bytes for point in points]
        axes.plot(sizes, values, color=colour, marker=marker, markersize=5, label=wrap(label))
    axes.set_xscale("log", base=2)
    axes.set_xlabel("size S, bytes")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: binary_size(int(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("bus bandwidth, GB/s")
    logarithmic_y(axes)
    axes.grid(axis="y")
    legend_below(axes)
    return figure


def binary_size(count: int) -> str:
    """'512', '4 Ki', '16 Mi', as sizes of collectives are chosen; other sizes in decimal units."""
    for exponent, suffix in ((30, " Gi"), (20, " Mi"), (10, " Ki")):
        if count >= 1 << exponent and count % (1 << exponent) == 0:
            return f"{count >> exponent}{suffix}"
    return str(count) if count < 1024 else bytes_text(count)
