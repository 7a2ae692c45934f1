"""Points that nobody ran: what a model predicts of their steps, for a report to draw beside those that were."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PredictedPoint:
    """The predicted step time of one series at one N, seconds, within `low_s` and `high_s`.

    `file` names a run of that series, as `shardbench.summary.launch.Launch.name` does. Without an interval `low_s` and `high_s`
    are None. `exposed_share` of the step is exposed communication; None where it was not predicted.
    """

    file: str
    size: int
    step_s: float
    low_s: float | None = None
    high_s: float | None = None
    exposed_share: float | None = None
