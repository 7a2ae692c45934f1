"""The summary as text for a terminal."""

from shardbench.report.bandwidths import brief_table
from shardbench.report.hiding import judged_overlap
from shardbench.report.parts import NUMERIC, Table
from shardbench.report.scaling import points_table
from shardbench.report.steptime import WAIT_HEADINGS, waits_table
from shardbench.plot.overlapping import clipped
from shardbench.stragglers import Unknown
from shardbench.summary.directory import Directory
from shardbench.summary.series import Point
from shardbench.summary.studies import Study
from shardbench.units import text_table


def text_report(found: Directory) -> str:
    """The summary table of each study and the files left out."""
    blocks = [f"{study.title}\n{_text(points_table(study))}" for study in found.studies]
    for study in found.studies:
        if (waits := _waits(study)).rows:
            blocks.append(f"What ranks waited for ({study.title})\n{_text(waits)}")
    if (collectives := brief_table(found.bandwidths)).rows:
        blocks.append(f"{collectives.title}\n{_text(collectives)}")
    if any(launch.attributes.oversubscribed for launch in found.launches):
        blocks.append("* oversubscribed: more threads than CPUs")
    if found.excluded:
        lines = [f"  {excluded.name}: {excluded.reason}" for excluded in found.excluded]
        blocks.append("\n".join(["Left out:", *lines]))
    return "\n\n".join(blocks)


def _text(table: Table) -> str:
    return text_table([table.headings, *table.rows], NUMERIC)


def _waits(study: Study) -> Table:
    """With the hidden fraction, which has a table of its own on the page."""
    table = waits_table(study)
    points = [point for series in study.series for point in series.points if point.size > 1]
    rows = [(*row, _hidden(point)) for row, point in zip(table.rows, points, strict=True)]
    return Table(table.title, (*WAIT_HEADINGS, "hidden fraction"), rows)


def _hidden(point: Point) -> str:
    overlap = judged_overlap(point)
    return overlap.reason if isinstance(overlap, Unknown) else f"{clipped(overlap):.2f}"
