"""Bus bandwidths of collectives alone, from files of the program `collectives`."""

from collections import defaultdict
from collections.abc import Sequence

from shardbench.busbw import BusBandwidth
from shardbench.plot import collectives
from shardbench.plot.collectives import binary_size
from shardbench.report.parts import Group, Table, figure
from shardbench.units import number

HEADINGS = ("collective", "size S", "time µs", "95 % interval", "busbw GB/s", "wrong", "file")
NOTE = (
    "Time: on the slowest rank, of one iteration; the median over windows, with an interval where there are six or more. "
    "busbw = S / time · 2(N−1)/N for an all-reduce, S / time · (N−1)/N for the other two: what a link must carry. "
    "shardbench fit makes latency and bandwidth of them."
)


def bandwidth_group(bandwidths: Sequence[BusBandwidth]) -> Group:
    """Empty without such files."""
    group = Group("collectives", "Collectives alone")
    if not bandwidths:
        return group
    ordered = sorted(
        bandwidths,
        key=lambda b: (b.collective, b.algorithm, b.dtype, b.reduction, b.size, b.size_bytes, b.file),
    )
    files: dict[str, set[str]] = defaultdict(set)
    for one in ordered:
        files[one.label].add(one.file)
    lines: dict[str, list[BusBandwidth]] = defaultdict(list)
    for one in ordered:
        if one.bytes_per_s:
            lines[f"{one.label} ({one.file})" if len(files[one.label]) > 1 else one.label].append(one)
    undrawn: dict[str, list[str]] = defaultdict(list)
    for one in ordered:
        if not one.bytes_per_s:
            undrawn[_why_not(one)].append(f"{one.label}, {binary_size(one.size_bytes)}")
    omitted = [f"{reason}: {'; '.join(names)}" for reason, names in undrawn.items()]
    if lines:
        group.figures.append(
            figure("collectives-busbw", "Bus bandwidth over size", NOTE, "Collectives alone",
                   lambda: collectives.bus_bandwidth(lines), omitted)
        )  # fmt: skip
    else:
        group.missing += omitted
    group.tables.append(Table("Collectives alone", HEADINGS, [_row(one) for one in ordered], (NOTE,)))
    return group


def _why_not(one: BusBandwidth) -> str:
    return (
        "a group of one rank has no bus bandwidth"
        if one.size == 1
        else "no time passed, or nothing was moved"
    )


def _row(one: BusBandwidth) -> tuple[str, ...]:
    seconds = one.iteration_s
    interval = (
        "-" if seconds.low is None or seconds.high is None else f"{_us(seconds.low)} – {_us(seconds.high)}"
    )
    busbw = "0" if one.bytes_per_s is None else number(one.bytes_per_s / 1e9, 4)
    return (
        one.label,
        binary_size(one.size_bytes),
        _us(seconds.median),
        interval,
        busbw,
        str(one.wrong),
        one.file,
    )


def _us(seconds: float) -> str:
    return number(seconds * 1e6, 4)
