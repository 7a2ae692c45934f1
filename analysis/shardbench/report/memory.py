"""Memory per rank, by category, against the formulas."""

from collections.abc import Iterator, Mapping, Sequence

from shardbench.plot import bars
from shardbench.plot.bars import ON_PAPER, TEXTBOOK, Bar, Bars
from shardbench.report.parts import Figure, Group, figure, names, omissions, size_text
from shardbench.summary.series import Point
from shardbench.summary.studies import Study
from shardbench.units import byte_unit, bytes_text

MOST_SIZES = 2
"""At how many N stages are compared: the largest at which most series have a point."""
CATEGORIES = (
    *("parameters", "gradients", "optimizer", "gathered_parameters"),
    *("reduce_buffers", "activations", "workspace"),
)


def memory_group(key: str, study: Study, limit: float | None) -> Group:
    """Static memory by stage at given N and by N, and the peak with everything that is held at once.

    `limit`: what a rank has, bytes; drawn where it is not far beyond what is needed.
    """
    group = Group("memory", "Memory")
    group.figures += [*_stages(key, study), *_static(key, study), *_peak(key, study, limit)]
    points = [(series, point) for series in study.series for point in series.points]
    lacking = [pair for pair in points if _static_bar(pair[1], "") is None and pair[1].peak is None]
    if lacking:
        group.missing.append(f"no memory recorded (trace level none): {names(lacking)}")
    return group


def _stages(key: str, study: Study) -> Iterator[Figure]:
    """What each stage of sharding leaves on a rank, side by side."""
    groups: list[tuple[str, list[Bar]]] = []
    for size in _compared(study):
        members = [
            bar
            for series in study.series
            for point in series.points
            if point.size == size and (bar := _static_bar(point, series.label))
        ]
        if members:
            groups.append((f"N = {size}", members))
    if groups:
        yield figure(
            f"{key}-stages",
            "Static memory by stage of sharding",
            "Parameters, gradients and optimizer state that a rank keeps between steps; measured on the rank that "
            "holds most. Line: what the schedule expects. Diamond: the textbook's formula, in mixed precision 16Ψ "
            "bytes for ddp, 4Ψ + 12Ψ/N for zero1, 2Ψ + 14Ψ/N for zero2, 16Ψ/N for zero3.",
            study.title,
            lambda: bars.lying_bars(Bars("static memory per rank", byte_unit, groups)),
        )


def _compared(study: Study) -> list[int]:
    """The N at which most series have a point, in numeric order; none where that is one series."""
    counts = {
        size: sum(point.size == size for series in study.series for point in series.points)
        for size in study.sizes
    }
    most = max(counts.values())
    return [size for size, count in counts.items() if count == most and most > 1][-MOST_SIZES:]


def _static(key: str, study: Study) -> Iterator[Figure]:
    groups = [
        (series.label, [bar for p in series.points if (bar := _static_bar(p, f"N = {size_text(p)}"))])
        for series in study.series
    ]
    filled = [(label, members) for label, members in groups if members]
    if filled:
        yield figure(
            f"{key}-static",
            "Static memory over N",
            "As above, for every N. What is sharded falls with N, what is replicated stays.",
            study.title,
            lambda: bars.lying_bars(Bars("static memory per rank", byte_unit, filled)),
        )


def _static_bar(point: Point, label: str) -> Bar | None:
    ledger = point.typical.ledger
    if ledger.static_expected is None:
        return None
    marks = {"expected": ledger.static_expected, TEXTBOOK: ledger.static_textbook}
    return Bar(label, ledger.static_bytes, marks, sum(ledger.static_bytes.values()))


def _peak(key: str, study: Study, limit: float | None) -> Iterator[Figure]:
    groups = [
        (series.label, [bar for point in series.points if (bar := _peak_bar(point))])
        for series in study.series
    ]
    filled = [(label, members) for label, members in groups if members]
    absent = [
        (series, point, "not recorded")
        for series in study.series
        for point in series.points
        if point.peak is None
    ]
    if filled:
        reached = max(bar.extent for _, members in filled for bar in members)
        lines = {f"limit {bytes_text(limit)}": limit} if limit is not None and limit < 2 * reached else {}
        yield figure(
            f"{key}-peak",
            "Peak memory by category",
            "Tracked allocations of the rank that needs most. The categories need not peak at the same "
            "moment: their sum is an upper bound. Line and number: the exact peak of the total, where recorded. "
            "Diamond: the peak computed on paper from model and schedule (ledger --peak).",
            study.title,
            lambda: bars.lying_bars(Bars("peak memory per rank", byte_unit, filled, lines)),
            omissions(absent),
        )


def _peak_bar(point: Point) -> Bar | None:
    peak = point.peak
    if peak is None:
        return None
    marks = {
        "tracked total": None if peak.is_bound else peak.total,
        ON_PAPER: point.typical.ledger.peak_textbook,
    }
    return Bar(f"N = {size_text(point)}", _ordered(peak.by_category), marks, peak.total)


def _ordered(by_category: Mapping[str, float], order: Sequence[str] = CATEGORIES) -> Mapping[str, float]:
    return {c: by_category[c] for c in order if c in by_category} | dict(by_category)
