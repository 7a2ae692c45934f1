"""From the outlooks of `shardbench predict` to points that the page draws."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardbench.errors import RunError, UsageError
from shardbench.predict.directory import read_for_fits
from shardbench.predict.model import Configuration, Measured
from shardbench.predict.outlook import Outlook, outlooks_of
from shardbench.predict.supplement import supplement
from shardbench.predicted import PredictedPoint
from shardbench.report.unpredicted import nothing_predicted, unpredicted
from shardbench.summary.studies import Study


@dataclass(frozen=True)
class Request:
    """What is to be predicted: each doubling up to N = `largest`; with `files_only` from nothing but the files."""

    largest: int
    binaries: Path
    files_only: bool = False
    sim_bin: Path | None = None


def predicted_points(
    directory: Path, studies: Sequence[Study], request: Request
) -> tuple[list[PredictedPoint], list[str]]:
    """Of every series of `studies`, read from `directory`, that can be extrapolated, the N that were not run.

    With them lines that say what had to be simulated, and what is not predicted or not drawn, and why.
    """
    notes: list[str] = []

    def add(doubtful: Sequence[Configuration]) -> list[Measured]:
        return [] if request.files_only else supplement(doubtful, request.sim_bin, notes.append)

    try:
        files = read_for_fits(directory).files
        outlooks, refusals = outlooks_of(files, request.largest, request.binaries, supplement=add)
    except (RunError, UsageError) as error:  # what was run is worth a page all the same
        return [], [nothing_predicted(str(error))]
    notes += unpredicted(refusals)
    series_of = _series_by_run(studies)
    run: dict[str, set[int]] = defaultdict(set)
    for file in files:
        run[series_of.get(file.name, file.name)].add(file.ranks)
    rivals: dict[str, list[Outlook]] = defaultdict(list)
    for outlook in outlooks:
        name = outlook.configuration.files[0].name
        rivals[series_of.get(name, name)].append(outlook)
    points: list[PredictedPoint] = []
    for name, members in rivals.items():
        chosen = max(members, key=lambda outlook: _weight(outlook.configuration))
        points += _points(chosen, name, run[name])
        if others := [other.configuration.label for other in members if other is not chosen]:
            notes.append(
                f"not drawn: {'; '.join(others)}: {chosen.configuration.label} stands for the series "
                "(largest N, then most files)"
            )
    return points, notes


def _series_by_run(studies: Sequence[Study]) -> dict[str, str]:
    """For each run one that stands for its series."""
    return {
        launch.name: series.base.typical.name
        for study in studies
        for series in study.series
        for point in series.points
        for launch in point.launches
    }


def _weight(configuration: Configuration) -> tuple[int, int]:
    """A series has one line, also where its runs differ in what it does not tell apart, such as threads."""
    return max(configuration.measured), len(configuration.files)


def _points(outlook: Outlook, file: str, run: set[int]) -> Iterator[PredictedPoint]:
    for guess in outlook.predictions:
        if guess.ranks not in run:
            yield PredictedPoint(
                file, guess.ranks, guess.step_s, guess.low_s, guess.high_s, guess.exposed_share
            )
