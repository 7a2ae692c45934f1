"""Where a step's time goes: its parts, what ranks waited for, how ranks differ, and one step as it happened."""

from collections.abc import Iterator

import numpy as np

from shardbench.onestep import OneStep
from shardbench.plot import bars, ranks, steps
from shardbench.plot.bars import Bar, Bars
from shardbench.report.parts import Figure, Group, Table, figure, ms, name, names, size_text
from shardbench.stats import PARTS
from shardbench.stragglers import Bounded, Unknown, Waits
from shardbench.summary.launch import Launch
from shardbench.summary.series import Point, Series
from shardbench.summary.studies import Study
from shardbench.units import MILLISECONDS, Unit, percent

WAIT_HEADINGS = (
    "scenario",
    "N",
    "exposed ms",
    "for late ranks ms",
    "transfer ms",
    "waited for most, ms a step",
)
WAIT_NOTES = (
    "Of the launch with the median step time; each number is a median over timed steps. The exposed wait is "
    "that of the rank that waits longest in a step. A collective cannot end before its last member asks for "
    "it: what is waited until then is for late ranks, the rest is transfer. Clocks are compared by round trips; "
    "where their uncertainty exceeds the effect, the cell says so.",
)
SPREAD_HEADINGS = (
    "scenario",
    "N",
    "fastest ms",
    "slowest ms",
    "spread",
    "rank effect",
    "rank with most own work",
    "straggler",
)
MOST_TIMELINES = 8
HOW_TO_READ = "Collectives: from when their turn came until their end was seen. What is shorter than a 2,000th of the step is left out."
ROUNDING = 1e-9
"""Relative; simulated ranks that are alike differ in the last digits of sums."""


def time_group(key: str, study: Study) -> Group:
    """Stacked step times of every point, and what stands behind them."""
    group = Group("time", "Step time")
    group.figures.append(_step_time(key, study))
    group.tables += [table for table in (waits_table(study), _spread_table(study)) if table.rows]
    group.figures += _spread(key, study)
    alike = [(s, p) for s in study.series for p in s.points if p.size > 1 and not _differ(p)]
    if alike:
        group.sentences.append(f"All ranks are alike, to the last digits: {names(alike)}.")
    timelines, missing = _timelines(key, study)
    group.figures += timelines
    group.missing += missing
    return group


def waits_table(study: Study) -> Table:
    """A row for each point with more than one rank."""
    rows = [_wait_row(series, point) for series in study.series for point in series.points if point.size > 1]
    return Table("What ranks waited for", WAIT_HEADINGS, rows, WAIT_NOTES)


def _wait_row(series: Series, point: Point) -> tuple[str, ...]:
    launch = point.typical
    if isinstance(launch.waits, Unknown):
        straggler = transfer = late = launch.waits.reason
    else:
        straggler, transfer = _bounded(launch.waits.straggler), _bounded(launch.waits.transfer)
        rank = launch.waits.late_rank
        nobody = rank is None or (launch.waits.late.is_resolved and launch.waits.late.seconds <= 0)
        late = "nobody" if nobody else f"rank {rank}: {_bounded(launch.waits.late)}"
    exposed = ms(float(np.median(launch.exposed_s)))
    size = f"{point.size}{'*' if point.is_oversubscribed else ''}"
    return (series.label, size, exposed, straggler, transfer, late)


def _bounded(bounded: Bounded) -> str:
    if not bounded.is_resolved:
        return f"below ± {ms(bounded.uncertainty_s, 2)} (clocks)"
    return ms(bounded.seconds, 3)


def _step_time(key: str, study: Study) -> Figure:
    groups = [(series.label, [_step_bar(point) for point in series.points]) for series in study.series]
    return figure(
        f"{key}-step-time",
        "Where a step's time goes",
        "Parts of the slowest rank's step, each the median over timed steps. Exposed communication is the "
        "time that compute waited; here the slowest rank's, in the table above the longest wait of any rank.",
        study.title,
        lambda: bars.lying_bars(Bars("time of one step", lambda _: Unit(1, "ms"), groups)),
    )


def _step_bar(point: Point) -> Bar:
    # What is left of a step may be negative by rounding; a bar cannot.
    parts = {part.removesuffix("_s"): max(point.typical.parts_s[part], 0.0) * MILLISECONDS for part in PARTS}
    median_ms = point.step_s.median * MILLISECONDS
    return Bar(f"N = {size_text(point)}", parts, {"median step": median_ms}, median_ms)


def _spread(key: str, study: Study) -> Iterator[Figure]:
    groups = [
        (series.label, [_ranks(point) for point in series.points if _differ(point)])
        for series in study.series
    ]
    filled = [(label, members) for label, members in groups if members]
    if filled:
        yield figure(
            f"{key}-ranks",
            "How ranks differ",
            "A dot for each rank: the median over timed steps of its step, and of what it did not wait. Steps end "
            "together, so a slow rank shows in its own work. More than "
            f"{ranks.DOTS_UP_TO} ranks: quartiles, and a line to the extremes.",
            study.title,
            lambda: ranks.spread(filled),
        )


def _differ(point: Point) -> bool:
    times = point.typical.rank_times
    return any(seconds.max() > seconds.min() * (1 + ROUNDING) for seconds in (times.step_s, times.own_s))


def _ranks(point: Point) -> ranks.Spread:
    times, waits = point.typical.rank_times, point.typical.waits
    return ranks.Spread(
        f"N = {size_text(point)}", times.ranks, times.step_s, times.own_s, _straggler(point.typical, waits)
    )


def _straggler(launch: Launch, waits: Waits | Unknown) -> int | None:
    """The rank that others wait for, where that is more than the clocks' uncertainty and a hundredth of a step."""
    if isinstance(waits, Unknown) or waits.late_rank is None or not waits.late.is_resolved:
        return None
    return waits.late_rank if waits.late.seconds > 0.01 * float(np.median(launch.step_s)) else None


def _spread_table(study: Study) -> Table:
    rows = [
        _spread_row(series, point) for series in study.series for point in series.points if _differ(point)
    ]
    notes = (
        "Own work: step − exposed, each rank's median over timed steps, of the launch with the median step time. "
        "Spread: slowest over fastest, less 1. Rank effect: the share of the variance over ranks and steps that lies "
        "between ranks, 0 to 1; near 1 the same rank is always slow. A straggler is a rank that others wait for during more than 1 % of "
        "the step, beyond what it waits itself.",
    )
    return Table("Spread of the ranks' own work", SPREAD_HEADINGS, rows, notes)


def _spread_row(series: Series, point: Point) -> tuple[str, ...]:
    launch = point.typical
    own_s = launch.rank_times.own_s
    slowest = int(launch.rank_times.ranks[own_s.argmax()])
    straggler = _straggler(launch, launch.waits)
    told = launch.waits.reason if isinstance(launch.waits, Unknown) else "none"
    return (
        series.label,
        f"{point.size}{'*' if point.is_oversubscribed else ''}",
        ms(float(own_s.min())),
        ms(float(own_s.max())),
        percent(float(own_s.max() / own_s.min()) - 1) if own_s.min() > 0 else "-",
        "-" if launch.rank_times.effect is None else f"{launch.rank_times.effect:.2f}",
        f"rank {slowest}",
        told if straggler is None else f"rank {straggler}",
    )


def _timelines(key: str, study: Study) -> tuple[list[Figure], list[str]]:
    """One of each series: the largest N up to 16 that has events, else the smallest."""
    chosen: list[tuple[Series, Point, OneStep]] = []
    unrecorded: list[str] = []
    for series in study.series:
        recorded = [
            (point, point.typical.one_step)
            for point in series.points
            if isinstance(point.typical.one_step, OneStep) and (point.size > 1 or len(series.points) == 1)
        ]
        if recorded:
            few = [item for item in recorded if item[0].size <= 16]
            chosen.append((series, *(few[-1] if few else recorded[0])))
        elif series.points[-1].size > 1:
            unrecorded.append(series.label)
    missing = [f"no timeline of a step without --trace events: {'; '.join(unrecorded)}"] if unrecorded else []
    if len(chosen) > MOST_TIMELINES:
        rest = "; ".join(series.label for series, _, _ in chosen[MOST_TIMELINES:])
        missing.append(
            f"timelines of {MOST_TIMELINES} series are drawn; shardbench timeline draws the others: {rest}"
        )
    figures = [
        _timeline(f"{key}-timeline-{index}", study, series, point, step, "" if index else HOW_TO_READ)
        for index, (series, point, step) in enumerate(chosen[:MOST_TIMELINES])
    ]
    return figures, missing


def _timeline(key: str, study: Study, series: Series, point: Point, step: OneStep, explained: str) -> Figure:
    layers = point.typical.config.model.get("layers")
    last = layers if isinstance(layers, int) else max([span.layer for span in step.spans] + [1]) - 1
    return figure(
        key,
        f"One step of {name(series, point)}",
        f"Rank {step.rank}, step {step.step}, the last timed one. {explained}".rstrip(),
        study.title,
        lambda: steps.timeline(step, last),
    )
