"""What hides behind compute, by three definitions, and what gathering further ahead gains and costs."""

from collections.abc import Iterator, Mapping

from shardbench.overlap import Overlap
from shardbench.plot import overlapping, scaling
from shardbench.plot.overlapping import Overlaps, clipped
from shardbench.report.parts import Figure, Group, Table, figure, ms, omissions
from shardbench.stragglers import Unknown
from shardbench.summary.launch import Launch
from shardbench.summary.series import Point, Series
from shardbench.summary.setups import Depth, depth_text
from shardbench.summary.studies import PrefetchFamily, Study
from shardbench.units import MILLISECONDS, bytes_text, number, percent

HEADINGS = (
    *("scenario", "N", "compute alone ms", "communication alone ms", "step ms", "T_compute / T_comm"),
    *("hidden fraction", "IMB overlap %", "OSU overlap %", "compute inflation"),
)
NOTES = (
    "Hidden fraction: (compute alone + communication alone − step) / the smaller of the two. 1: the shorter "
    "one vanished behind the longer one; 0: one after the other; below 0: both at once slowed them down. The "
    "alone times come from a rehearsal. What the rehearsal lacks counts as it was in the step: the optimizer "
    "and other parts as compute, that phase's waits as communication.",
    "From the same three times, as two benchmarks define overlap. IMB-NBC (Intel MPI Benchmarks): the same fraction in "
    "per cent, clipped to 0 … 100. OSU (osu_iallgather and its like): 100 · (1 − (step − compute alone) / communication "
    "alone), not below 0. They differ where communication is the longer one.",
    "Compute inflation: layers' compute in the step over the same compute alone; above 1, communication under way slows "
    "compute.",
)
SHARED_MEMORY = (
    "Over shared memory (all ranks on one host) overlap is not measurable: the cores that copy the messages "
    "are those that compute, so what seems hidden is only moved around."
)
PREFETCH_HEADINGS = ("prefetch", "N", "step ms", "exposed ms (share)", "peak memory/rank")
MOST_LINES = 6


def overlap_group(key: str, study: Study) -> Group:
    """Nothing of it is claimed for ranks that share memory."""
    group = Group("overlap", "Overlap")
    table = overlap_table(study)
    if table.rows:
        group.tables.append(table)
    judged = [
        Overlaps(
            series.label,
            [
                (point.size, overlap)
                for point in series.points
                if point.size > 1 and isinstance(overlap := judged_overlap(point), Overlap)
            ],
        )
        for series in study.series
    ]
    filled = [one for one in judged if one.points]
    omitted = omissions(
        (series, point, unknown.reason)
        for series in study.series
        for point in series.points
        if point.size > 1 and isinstance(unknown := judged_overlap(point), Unknown)
    )
    if filled:
        group.figures.append(
            figure(
                f"{key}-hidden",
                "Hidden fraction and compute inflation",
                "Over how much compute there is for the communication, both alone. Dotted: everything hidden; compute as "
                "fast as alone; as much compute as communication.",
                study.title,
                lambda: overlapping.hidden_and_inflation(filled),
                omitted,
            )
        )
    else:
        group.missing += [f"hidden fraction {clause}" for clause in omitted]
    if any(point.typical.shares_memory for series in study.series for point in series.points):
        group.sentences.append(SHARED_MEMORY)
    return group


def judged_overlap(point: Point) -> Overlap | Unknown:
    """The overlap of a point's typical launch, or why it cannot be told."""
    launch: Launch = point.typical
    if launch.shares_memory:
        return Unknown("not measurable (one host)")
    if isinstance(launch.overlap, Unknown) and launch.overlap.reason == "not recorded":
        return Unknown("not recorded (needs --trace events)")
    return launch.overlap


def overlap_table(study: Study) -> Table:
    """A row for each point whose overlap can be told."""
    rows = [
        _row(series, point, overlap)
        for series in study.series
        for point in series.points
        if point.size > 1 and isinstance(overlap := judged_overlap(point), Overlap)
    ]
    return Table("Hidden fraction, by three definitions", HEADINGS, rows, NOTES)


def _row(series: Series, point: Point, overlap: Overlap) -> tuple[str, ...]:
    return (
        series.label,
        f"{point.size}{'*' if point.is_oversubscribed else ''}",
        ms(overlap.compute_alone_s),
        ms(overlap.communication_alone_s),
        ms(overlap.step_s),
        number(overlap.compute_over_communication, 3),
        f"{clipped(overlap):.2f}",
        f"{overlap.imb_percent:.1f}",
        f"{overlap.osu_percent:.1f}",
        "not recorded" if overlap.inflation is None else inflation_text(overlap),
    )


def inflation_text(overlap: Overlap) -> str:
    """'1.034 × (+0.41 ms)'."""
    assert overlap.inflation is not None
    more = (overlap.layers_in_step_s - overlap.layers_alone_s) * MILLISECONDS
    return f"{overlap.inflation:.3f} × ({more:+,.2f} ms)"


def prefetch_group(key: str, study: Study) -> Group:
    """For series that differ in nothing but the prefetch depth."""
    group = Group("prefetch", "Prefetch depth")
    for index, family in enumerate(study.prefetch_families):
        group.figures += _prefetch(f"{key}-prefetch-{index}", study, family)
        group.tables.append(_prefetch_table(family))
        if _shares_memory(family):
            group.sentences.append(
                f"{family.scenario}: all ranks share one host's memory, so these step times do not tell what prefetch "
                "hides."
            )
    return group


def _prefetch(key: str, study: Study, family: PrefetchFamily) -> Iterator[Figure]:
    lines = {size: by_depth for size, by_depth in family.points.items() if len(by_depth) > 1}
    if not lines:
        return
    shown = _few(lines)
    rest = [str(size) for size in lines if size not in shown]
    yield figure(
        key,
        f"Prefetch depth of {family.scenario}",
        "Step time (median; pale bars: 95 % interval) and peak memory of the rank that needs most, over how many groups "
        "are gathered ahead of the one in use.",
        study.title,
        lambda: scaling.prefetch(family.depths, shown),
        [f"N = {', '.join(rest)}, which the table has"] if rest else [],
    )


def _few(lines: Mapping[int, Mapping[Depth, Point]]) -> dict[int, Mapping[Depth, Point]]:
    """At most `MOST_LINES` of them, evenly chosen, the first and the last among them."""
    sizes = list(lines)
    if len(sizes) > MOST_LINES:
        picked = {round(i * (len(sizes) - 1) / (MOST_LINES - 1)) for i in range(MOST_LINES)}
        sizes = [size for index, size in enumerate(sizes) if index in picked]
    return {size: lines[size] for size in sizes}


def _prefetch_table(family: PrefetchFamily) -> Table:
    rows = [
        (
            depth_text(depth),
            f"{size}{'*' if point.is_oversubscribed else ''}",
            ms(point.step_s.median),
            f"{ms(point.exposed_s.median)} ({percent(point.exposed_share)})",
            "not recorded" if point.peak is None else bytes_text(point.peak.total),
        )
        for size, by_depth in family.points.items()
        for depth in family.depths
        if (point := by_depth.get(depth))
    ]
    return Table(f"Prefetch depth of {family.scenario}", PREFETCH_HEADINGS, rows)


def _shares_memory(family: PrefetchFamily) -> bool:
    return any(p.typical.shares_memory for by_depth in family.points.values() for p in by_depth.values())
