"""From the outlooks of `shardbench predict` to points that the page draws."""

from pathlib import Path

from shardbench.errors import RunError
from shardbench.predict.directory import read_for_fits
from shardbench.predict.outlook import outlooks_of
from shardbench.predict.supplement import supplement
from shardbench.predicted import PredictedPoint


def predicted_points(directory: Path, largest: int, binaries: Path) -> tuple[list[PredictedPoint], list[str]]:
    """Of every series below `directory` that can be extrapolated, the N up to `largest` that were not run.

    With them a line for each series that cannot be, with the reason, and one for what had to be simulated.

    Raises:
        UsageError: no file can be used for fits, an executable is missing, or `largest` is less than what was run.
        RunError: no series can be extrapolated.
    """
    notes: list[str] = []
    files = read_for_fits(directory).files
    outlooks, refusals = outlooks_of(
        files, largest, binaries, supplement=lambda doubtful: supplement(doubtful, None, notes.append)
    )
    if not outlooks:
        raise RunError(f"nothing below {directory} can be extrapolated: {'; '.join(refusals)}")
    notes += [f"not predicted: {refusal}" for refusal in refusals]
    points = [
        PredictedPoint(
            outlook.configuration.files[0].name,
            guess.ranks,
            guess.step_s,
            guess.low_s,
            guess.high_s,
            guess.exposed_share,
        )
        for outlook in outlooks
        for guess in outlook.predictions
        if outlook.measured_s(guess.ranks) is None
    ]
    return points, notes
