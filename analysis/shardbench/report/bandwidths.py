"""Bus bandwidths of collectives alone, from files of the program `collectives`."""

from collections import defaultdict
from collections.abc import Sequence

from shardbench.busbw import BusBandwidth
from shardbench.plot import collectives
from shardbench.plot.collectives import binary_size
from shardbench.report.parts import Group, Table, figure
from shardbench.units import number

HEADINGS = ("collective", "size S", "time µs", "95 % interval", "busbw GB/s", "wrong", "file")
BRIEF_HEADINGS = ("collective", "smallest S", "time µs", "largest S", "time µs", "busbw GB/s", "wrong")
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
    ordered = _ordered(bandwidths)
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


def brief_table(bandwidths: Sequence[BusBandwidth]) -> Table:
    """A row for each collective and N of a file: latency is what its smallest size takes, bandwidth what its largest reaches."""
    groups: dict[tuple[str, str], list[BusBandwidth]] = defaultdict(list)
    for one in _ordered(bandwidths):
        groups[one.label, one.file].append(one)
    rows = [_brief_row(members) for members in groups.values()]
    return Table("Collectives alone", BRIEF_HEADINGS, rows)


def _ordered(bandwidths: Sequence[BusBandwidth]) -> list[BusBandwidth]:
    return sorted(
        bandwidths,
        key=lambda b: (b.collective, b.algorithm, b.dtype, b.reduction, b.size, b.size_bytes, b.file),
    )


def _brief_row(members: Sequence[BusBandwidth]) -> tuple[str, ...]:
    first, last = members[0], members[-1]
    return (
        first.label,
        binary_size(first.size_bytes),
        _us(first.iteration_s.median),
        binary_size(last.size_bytes),
        _us(last.iteration_s.median),
        _gigabytes(last),
        _wrong(members),
    )


def _wrong(members: Sequence[BusBandwidth]) -> str:
    checked = [one.wrong for one in members if one.wrong is not None]
    return str(sum(checked)) if checked else "unchecked"


def _gigabytes(one: BusBandwidth) -> str:
    """busbw, a second."""
    return "0" if one.bytes_per_s is None else number(one.bytes_per_s / 1e9, 4)


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
    return (
        one.label,
        binary_size(one.size_bytes),
        _us(seconds.median),
        interval,
        _gigabytes(one),
        _wrong([one]),
        one.file,
    )


def _us(seconds: float) -> str:
    return number(seconds * 1e6, 4)
