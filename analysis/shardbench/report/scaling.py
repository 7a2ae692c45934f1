"""The table of points, and how throughput, efficiency and exposure change over N."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from shardbench.ends import DEFINITION, EFFICIENCY_LIMIT, EXPOSED_LIMIT
from shardbench.narrate import speed_sentence
from shardbench.plot import scaling as plot
from shardbench.predicted import PredictedPoint
from shardbench.report.parts import Figure, Group, Table, figure, ms, names, size_text
from shardbench.stats import Estimate
from shardbench.summary.series import Point, Series
from shardbench.summary.studies import Study
from shardbench.units import bytes_text, number, percent, plural

HEADINGS = (
    "scenario",
    "N",
    "launches",
    "step ms",
    "95 % interval",
    "interval from",
    "tokens/s",
    "exposed ms (share)",
    "peak memory/rank",
    "ledger",
    "check",
)
KINDS = {
    True: "Strong scaling (global batch fixed)",
    False: "Weak scaling (batch per rank fixed)",
}


def scaling_group(key: str, study: Study, predicted: Sequence[PredictedPoint] = ()) -> Group:
    """The table, and for strong and weak scaling each the figures that have two N or more."""
    group = Group("scaling", "Scaling")
    if speed := speed_sentence(study):
        group.sentences.append(speed)
    group.tables.append(points_table(study))
    for is_strong in (False, True):
        members = [series for series in study.series if series.is_strong is is_strong]
        if members:
            group.figures += _figures(f"{key}-{'strong' if is_strong else 'weak'}", study, members, predicted)
            group.missing += _single_sizes(members)
    return group


def points_table(study: Study) -> Table:
    """Every point, in the order of series and N."""
    rows = [point_row(series, point) for series in study.series for point in series.points]
    mismatches = [
        f"✗ Ledger of {series.label}, N = {size_text(point)}: {point.ledger_verdict}"
        for series in study.series
        for point in series.points
        if point.ledger_verdict not in ("ok", "not recorded")
    ]
    crowded = any(point.is_oversubscribed for series in study.series for point in series.points)
    notes = [
        *mismatches,
        "Step time: the maximum over ranks of each step, then the median over timed steps. "
        + "".join(f"{text}. " for text in scaling_bases(study)),
        *(["* oversubscribed: more threads than CPUs."] if crowded else []),
    ]
    return Table("Every point", HEADINGS, rows, notes)


def point_row(series: Series, point: Point) -> tuple[str, ...]:
    """One point as text, in the order of `HEADINGS`."""
    peak = point.peak
    return (
        series.label,
        f"{point.size}{'*' if point.is_oversubscribed else ''}",
        str(len(point.launches)),
        ms(point.step_s.median),
        _interval(point.step_s),
        point.basis,
        number(point.tokens_per_s),
        f"{ms(point.exposed_s.median)} ({percent(point.exposed_share)})",
        "not recorded" if peak is None else f"{'≤ ' if peak.is_bound else ''}{bytes_text(peak.total)}",
        point.ledger_verdict,
        point.check,
    )


def scaling_bases(study: Study) -> list[str]:
    """What is held fixed over N and what the base is, said once where all series agree."""
    labels: dict[str, list[str]] = defaultdict(list)
    for series in study.series:
        labels[f"{KINDS[series.is_strong]}, base N = {series.base.size}"].append(series.label)
    if len(labels) == 1:
        return list(labels)
    return [f"{text}: {', '.join(members)}" for text, members in labels.items()]


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{ms(estimate.low)} – {ms(estimate.high)}"


def _figures(
    key: str, study: Study, members: Sequence[Series], predicted: Sequence[PredictedPoint]
) -> Iterator[Figure]:
    guesses = {
        series.label: sorted((p for p in predicted if p.file in files), key=lambda p: p.size)
        for series in members
        if (files := {launch.name for point in series.points for launch in point.launches})
    }
    scaled = [series for series in members if len(series.points) > 1 or guesses[series.label]]
    if not scaled:
        return
    bases = {series.base.size for series in scaled}
    kind = f"{KINDS[members[0].is_strong]}{f', base N = {bases.pop()}' if len(bases) == 1 else ''}"
    ends = plot.Ends(EXPOSED_LIMIT, EFFICIENCY_LIMIT)
    guessed = " Dashed and hollow: predicted, pale bars its interval." if any(guesses.values()) else ""
    yield figure(
        f"{key}-throughput",
        "Throughput against N",
        f"{kind}. Global tokens of a step over the median step time. Dotted: ideal, the base's "
        f"throughput times N over base N. Pale bars: the 95 % interval.{guessed}",
        study.title,
        lambda: plot.throughput(scaled, guesses),
    )
    yield figure(
        f"{key}-efficiency",
        "Parallel efficiency",
        f"{kind}. Throughput per rank against that of the base N. Dotted: ideal, 100 %. Dashed: below it, scaling "
        f"has ended.{guessed}",
        study.title,
        lambda: plot.efficiency(scaled, guesses, ends),
    )
    run = [series for series in scaled if any(point.size > 1 for point in series.points)]
    if run:
        yield figure(
            f"{key}-exposed",
            "Exposed communication against N",
            f"{kind}. The longest wait of any rank in each step, median over steps, over the median step. {DEFINITION}"
            f"{guessed.replace(', pale bars its interval', '')}",
            study.title,
            lambda: plot.exposed_share(run, guesses, ends),
        )


def _single_sizes(members: Sequence[Series]) -> list[str]:
    alone = [(series, series.base) for series in members if len(series.points) == 1]
    return [f"no line over N for series of one N: {names(alone)}"] if alone else []


def counted(study: Study) -> str:
    """'18 runs at N = 1, 2, 4' for a table of contents."""
    sizes = ", ".join(map(str, study.sizes))
    return f"{plural(len(study.launches), 'run')}, N = {sizes}"
