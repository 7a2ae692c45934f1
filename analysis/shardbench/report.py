"""Writes a directory's summary: a text table for the terminal and one self-contained HTML page."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from shardbench import __version__, plot
from shardbench.narrate import integrity_sentences, study_sentences
from shardbench.read import SCHEMA_VERSION
from shardbench.stats import Estimate
from shardbench.stragglers import Bounded, Unknown
from shardbench.summary import Directory, Launch, Point, Series, Study, warnings
from shardbench.units import MILLISECONDS, bytes_text, number, percent, text_table


@dataclass(frozen=True)
class Row:
    """One point as text, in the order of `HEADINGS`."""

    scenario: str
    size: str
    launches: str
    step_ms: str
    interval_ms: str
    basis: str
    tokens_per_s: str
    exposed: str
    peak: str
    ledger: str
    check: str
    is_oversubscribed: bool


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


NUMERIC = (
    *("N", "launches", "step ms", "95 % interval", "tokens/s", "exposed ms (share)", "peak memory/rank"),
    *("exposed ms", "for late ranks ms", "transfer ms", "hidden fraction"),
)
"""The headings of right-aligned columns."""


@dataclass(frozen=True)
class WaitRow:
    """What one point's exposed communication consists of, in the order of `WAIT_HEADINGS`."""

    scenario: str
    size: str
    exposed_ms: str
    straggler_ms: str
    transfer_ms: str
    late: str
    hidden: str


WAIT_HEADINGS = (
    "scenario",
    "N",
    "exposed ms",
    "for late ranks ms",
    "transfer ms",
    "waited for most, ms a step",
    "hidden fraction",
)
WAIT_NOTES = (
    "Of the launch with the median step time; each number is a median over timed steps. The exposed wait is "
    "that of the rank that waits longest in a step. A collective cannot end before its last member asks for "
    "it: what is waited until then is for late ranks, the rest is transfer. Clocks are compared by round trips; "
    "where their uncertainty exceeds the effect, the cell says so.",
    "Hidden fraction: (compute alone + communication alone − step) / the smaller of the two. 1: the shorter "
    "one vanished behind the longer one; 0: one after the other; below 0: both at once slowed them down. The "
    "alone times come from a rehearsal. What the rehearsal lacks counts as it was in the step: the optimizer "
    "and other parts as compute, that phase's waits as communication.",
    "Over shared memory (all ranks on one host) overlap is not measurable: the cores that copy the messages "
    "are those that compute, so what seems hidden is only moved around.",
)
"""What the columns mean: waits, the hidden fraction, and where it cannot be measured."""


@dataclass(frozen=True)
class FigureText:
    """What stands around a figure."""

    title: str
    caption: str


FIGURES: Mapping[str, FigureText] = {
    "throughput": FigureText(
        "Throughput against N",
        "Global tokens of a step over the median step time. Dotted: ideal, the throughput of the "
        "smallest N (the base) times N over base N. Pale bars: the 95 % interval.",
    ),
    "efficiency": FigureText(
        "Parallel efficiency",
        "Throughput per rank against that of the base N. Dotted: ideal, 100 %.",
    ),
    "step_time": FigureText(
        "Where a step's time goes",
        "Parts of the slowest rank's step, each the median over timed steps. Exposed communication is the "
        "time that compute waited; here the slowest rank's, in the table the longest wait of any rank.",
    ),
    "static_memory": FigureText(
        "Static memory per rank",
        "Parameters, gradients and optimizer state, measured on the rank that holds most. Line: what "
        "the schedule expects for that rank. Diamond: the textbook formula for the stage, "
        "16Ψ for ddp to 16Ψ/N for zero3 in mixed precision.",
    ),
    "peak_memory": FigureText(
        "Peak memory by category",
        "Tracked allocations of the rank that needs most. The categories need not peak at the same "
        "moment: their sum is an upper bound. Line and number: the exact peak of the total, where recorded.",
    ),
    "volume": FigureText(
        "Communication volume over dp",
        "Elements per rank and optimizer step, the factor (N−1)/N included, of the rank that communicates "
        "most. Line: measured. Diamond: the textbook's 2Ψ(N−1)/N, for zero3 3Ψ(N−1)/N. A single rank "
        "communicates nothing and is not drawn.",
    ),
}


def text_report(found: Directory) -> str:
    """The summary table of each study and the files left out, for a terminal."""
    blocks = [
        f"{study.title}\n{text_table([HEADINGS, *map(_cells, _rows(study))], NUMERIC)}"
        for study in found.studies
    ]
    for study in found.studies:
        if rows := _wait_rows(study):
            cells = [WAIT_HEADINGS, *map(dataclasses.astuple, rows)]
            blocks.append(f"What ranks waited for ({study.title})\n{text_table(cells, NUMERIC)}")
    if any(launch.attributes.oversubscribed for launch in found.launches):
        blocks.append("* oversubscribed: more threads than CPUs")
    if found.excluded:
        lines = [f"  {excluded.name}: {excluded.reason}" for excluded in found.excluded]
        blocks.append("\n".join(["Left out:", *lines]))
    return "\n\n".join(blocks)


def html_report(found: Directory) -> str:
    """The page: one file without external references, all text escaped."""
    environment = Environment(
        loader=PackageLoader("shardbench"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = _unbroken
    studies = [
        {
            "title": study.title,
            "sentences": study_sentences(study),
            "rows": _rows(study),
            "wait_rows": [dataclasses.astuple(row) for row in _wait_rows(study)],
            "figures": _figures(study),
            "scaling": _scaling_texts(study),
        }
        for study in found.studies
    ]
    common, own_headings, own_rows = _provenance(found.launches)
    return environment.get_template("report.html").render(
        directory=found.name,
        period=_period(found.launches),
        launches=found.launches,
        integrity=integrity_sentences(found.launches),
        warnings=warnings(found.launches),
        studies=studies,
        headings=HEADINGS,
        wait_headings=WAIT_HEADINGS,
        wait_notes=WAIT_NOTES,
        numeric=NUMERIC,
        excluded=found.excluded,
        common_provenance=common,
        provenance_headings=own_headings,
        provenance_rows=own_rows,
        version=__version__,
        schema_version=SCHEMA_VERSION,
    )


def _unbroken(text: str) -> str:
    """Keeps 'N = 4' and '95 %' on one line."""
    return text.replace("N = ", "N\u00a0=\u00a0").replace(" %", "\u00a0%")


def _rows(study: Study) -> list[Row]:
    return [_row(series, point) for series in study.series for point in series.points]


def _row(series: Series, point: Point) -> Row:
    peak = point.peak
    return Row(
        scenario=series.label,
        size=f"{point.size}{'*' if point.is_oversubscribed else ''}",
        launches=str(len(point.launches)),
        step_ms=number(point.step_s.median * MILLISECONDS),
        interval_ms=_interval_ms(point.step_s),
        basis=point.basis,
        tokens_per_s=number(point.tokens_per_s),
        exposed=f"{number(point.exposed_s.median * MILLISECONDS)} ({percent(point.exposed_share)})",
        peak="not recorded" if peak is None else f"{'≤ ' if peak.is_bound else ''}{bytes_text(peak.total)}",
        ledger=point.ledger_verdict,
        check=point.check,
        is_oversubscribed=point.is_oversubscribed,
    )


def _wait_rows(study: Study) -> list[WaitRow]:
    """A row for each point with more than one rank."""
    return [_wait_row(series, point) for series in study.series for point in series.points if point.size > 1]


def _wait_row(series: Series, point: Point) -> WaitRow:
    launch = point.typical
    if isinstance(launch.waits, Unknown):
        straggler = transfer = late = launch.waits.reason
    else:
        straggler, transfer = _bounded_ms(launch.waits.straggler), _bounded_ms(launch.waits.transfer)
        rank = launch.waits.late_rank
        late = "nobody" if rank is None else f"rank {rank}: {_bounded_ms(launch.waits.late)}"
    return WaitRow(
        scenario=series.label,
        size=f"{point.size}{'*' if point.is_oversubscribed else ''}",
        exposed_ms=number(float(np.median(launch.exposed_s)) * MILLISECONDS),
        straggler_ms=straggler,
        transfer_ms=transfer,
        late=late,
        hidden=_hidden(launch),
    )


def _bounded_ms(bounded: Bounded) -> str:
    if not bounded.is_resolved:
        return f"below ± {number(bounded.uncertainty_s * MILLISECONDS, 2)} (clocks)"
    return number(bounded.seconds * MILLISECONDS, 3)


def _hidden(launch: Launch) -> str:
    """Clipped to [-1, 1] for display: beyond, noise of short alone times is all that there is to see."""
    if launch.shares_memory:
        return "not measurable (one host)"
    if isinstance(launch.overlap, Unknown):
        return launch.overlap.reason
    return f"{min(1.0, max(-1.0, launch.overlap.hidden_fraction)):.2f}"


def _interval_ms(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{number(estimate.low * MILLISECONDS)} – {number(estimate.high * MILLISECONDS)}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.scenario,
        row.size,
        row.launches,
        row.step_ms,
        row.interval_ms,
        row.basis,
        row.tokens_per_s,
        row.exposed,
        row.peak,
        row.ledger,
        row.check,
    )


def _figures(study: Study) -> list[dict[str, str]]:
    drawn = plot.draw(study)
    return [
        {"svg": drawn[name], "title": text.title, "caption": text.caption}
        for name, text in FIGURES.items()
        if name in drawn
    ]


def _scaling_texts(study: Study) -> list[str]:
    """What is held fixed over N and what the base is, said once where all series agree."""
    labels: dict[str, list[str]] = defaultdict(list)
    for series in study.series:
        kind = (
            "Strong scaling (global batch fixed)"
            if series.is_strong
            else "Weak scaling (batch per rank fixed)"
        )
        labels[f"{kind}, base N = {series.base.size}"].append(series.label)
    if len(labels) == 1:
        return list(labels)
    return [f"{text}: {', '.join(members)}" for text, members in labels.items()]


def _period(launches: Sequence[Launch]) -> str:
    created = sorted(launch.attributes.created_utc for launch in launches)
    return created[0] if created[0] == created[-1] else f"{created[0]} to {created[-1]}"


def _provenance(
    launches: Sequence[Launch],
) -> tuple[list[tuple[str, str]], list[str], list[list[str]]]:
    """What all runs share, said once; and a table of what is each run's own."""
    launches = sorted(launches, key=lambda run: (run.attributes.scenario, run.size, run.name))
    facts = [dict(_facts(launch)) for launch in launches]
    names = list(facts[0])
    shared = [name for name in names if len({fact[name] for fact in facts}) == 1]
    own = [name for name in names if name not in shared]
    common = [(name, facts[0][name]) for name in shared]
    return (
        common,
        ["file", *own],
        [[launch.name, *(fact[n] for n in own)] for launch, fact in zip(launches, facts)],
    )


def _facts(launch: Launch) -> Iterator[tuple[str, str]]:
    attributes = launch.attributes
    yield "N", str(launch.size)
    yield "commit", attributes.git_commit[:12] + (" (modified)" if attributes.git_dirty else "")
    yield "build", attributes.build_type
    yield "MPI", attributes.mpi_library
    yield "HDF5", attributes.hdf5_version
    yield "NCCL", attributes.nccl_version or "none"
    yield "backend", attributes.backend
    yield "waiting", launch.config.wait_policy
    yield "algorithm", str(launch.config.options.get("algorithm", "unknown"))
    yield "host", ", ".join(launch.hosts)
    yield "threads per rank", str(launch.threads)
    yield "started (UTC)", attributes.created_utc
    yield "command line", attributes.command_line
