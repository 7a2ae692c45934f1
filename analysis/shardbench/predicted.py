"""Points that nobody ran: step times that a model predicts, for a report to draw beside those that were."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PredictedPoint:
    """The predicted step time of one series at one N, seconds, within `low_s` and `high_s`.

    `study` and `series` are the title and the label under which `shardbench.summary` groups the runs that the
    prediction is made from. Without an interval `low_s` and `high_s` are None.
    """

    study: str
    series: str
    size: int
    step_s: float
    low_s: float | None = None
    high_s: float | None = None
