"""Pure statistics: medians with nonparametric intervals, and how ranks are combined.

Two rules hold throughout. A step is as slow as its slowest rank, so ranks are combined by the
maximum before steps are combined by the median. Ratios are formed from medians and never averaged.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, pi

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MINIMUM_SAMPLES = 6
"""Below six samples even [minimum, maximum] covers the median with less than 95 %."""

DEVIATIONS_PER_IQR = 0.7413
"""A normal distribution's standard deviation over its interquartile range."""

DEVIATIONS_PER_MAD = 1.4826
"""And over its median absolute deviation (Rousseeuw and Croux, JASA 88, 1993, 1273-1283)."""

PARTS = ("compute_s", "exposed_s", "optimizer_s", "other_s")
"""The columns of `steps` that add up to step_s, seconds."""


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % interval, in the unit of the samples.

    `low` and `high` are None where there are fewer than `MINIMUM_SAMPLES` samples.
    """

    median: float
    low: float | None
    high: float | None
    samples: int


def interval_depth(samples: int) -> int | None:
    """How many samples to count in from each end for a 95 % interval of the median.

    The k-th smallest and k-th largest of n samples enclose the median with probability
    1 - 2 P(Bin(n, 1/2) < k), whatever the distribution (Conover, Practical Nonparametric
    Statistics, section 3.2). Returns the largest k with at least 95 %, in exact integer
    arithmetic, or None where no k reaches it.
    """
    coefficient, below, depth = 1, 1, 0  # below = sum of C(n, i) for i <= depth
    while 40 * below <= 2**samples:  # P(Bin <= depth) <= 1/40 = 2.5 % for each side
        depth += 1
        coefficient = coefficient * (samples - depth + 1) // depth
        below += coefficient
    return depth or None


def estimate_median(samples: Iterable[float]) -> Estimate:
    """The median of the samples with its nonparametric 95 % interval.

    Raises:
        ValueError: there is no sample, or one is not finite.
    """
    ordered = sorted(float(sample) for sample in samples)
    if not ordered or not all(map(isfinite, ordered)):
        raise ValueError("a median needs at least one sample, and finite ones")
    depth = interval_depth(len(ordered))
    low, high = (ordered[depth - 1], ordered[-depth]) if depth else (None, None)
    return Estimate(float(np.median(ordered)), low, high, len(ordered))


def relative_width(estimate: Estimate) -> float | None:
    """How wide the interval is, relative to the median; None without an interval.

    0 where both ends are equal, also at 0: a coarse clock may show no time at all.
    """
    if estimate.low is None or estimate.high is None:
        return None
    if estimate.low == estimate.high:
        return 0.0
    return (estimate.high - estimate.low) / estimate.median


@dataclass(frozen=True)
class Ratio:
    """Of two medians, and the interval of that ratio; None where it has no finite value."""

    value: float | None
    low: float | None
    high: float | None


def ratio_of_medians(base: Estimate, other: Estimate) -> Ratio:
    """other / base, of independent samples that are not negative.

    The interval is [other.low / base.high, other.high / base.low]. It excludes 1 exactly where the two intervals are
    apart, and covers the true ratio wherever both cover their medians: at least in 0.95^2 = 90 % of cases, whatever the
    distributions. One miss alone does harm only where it exceeds the other side's reach, so that the coverage is 95 %
    where one side hardly scatters, and 99 % where both scatter alike; tests count it.
    """
    if base.low is None or base.high is None or other.low is None or other.high is None:
        low = high = None
    else:
        low, high = _divided(other.low, base.high), _divided(other.high, base.low)
    return Ratio(_divided(other.median, base.median), low, high)


def _divided(dividend: float, divisor: float) -> float | None:
    return dividend / divisor if divisor else None


def window_times(collectives: pd.DataFrame) -> NDArray[np.float64]:
    """Seconds of one iteration of the slowest rank, for each window of one line of `collectives`, in order.

    On each rank from when a window's first iteration began to when its last was done, over their number.
    """
    timed = collectives[collectives["window"] >= 0]
    of_rank = timed.groupby(["window", "rank"]).agg(
        first=("start_s", "min"), last=("end_s", "max"), count=("end_s", "size")
    )
    seconds = (of_rank["last"] - of_rank["first"]) / of_rank["count"]
    return np.asarray(seconds.groupby(level="window").max(), dtype=np.float64)


def timed_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of `steps` that are not flagged warm-up."""
    return steps[steps["warmup"] == 0]


def maximum_over_ranks(steps: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """The largest value of any rank, for each timed step in order; the column's unit."""
    largest = timed_steps(steps).groupby("step")[column].max()
    return np.asarray(largest, dtype=np.float64)


def parts_of_slowest_rank(steps: pd.DataFrame) -> pd.DataFrame:
    """`PARTS` of the rank with the largest step_s, one row for each timed step, seconds.

    One rank's parts add up to a step; maxima taken part by part over the ranks would exceed it.
    """
    timed = timed_steps(steps)
    return timed.loc[timed.groupby("step")["step_s"].idxmax(), list(PARTS)]


def tokens_per_step(steps: pd.DataFrame) -> int:
    """Tokens of the global batch: the sum over ranks in a timed step."""
    return int(timed_steps(steps).groupby("step")["tokens"].sum().median())


def scaling_efficiency(throughput: float, size: int, base_throughput: float, base_size: int) -> float:
    """Throughput against the base's, for each rank; 1 is ideal, for strong and weak scaling."""
    return (throughput / base_throughput) / (size / base_size)


def rank_effect(steps: pd.DataFrame, column: str) -> float | None:
    """The share of a column's variance over (rank, timed step) that lies between ranks, from 0 to 1.

    0: ranks differ no more than their steps make them. 1: each rank is always equally fast, and they differ. It is the
    intraclass correlation ICC(1) = between / (between + within) (Shrout and Fleiss, Psychological Bulletin 86, 1979,
    420-428), with robust variances in place of means of squares, so that one slow step is not taken for a slow rank:

    - within: (`DEVIATIONS_PER_MAD` MAD)^2 of the deviations from each rank's median;
    - between: the variance of the ranks' medians, less what within adds to it: a median of n normal samples has the
      variance pi/2 within / n for large n (Cramer, Mathematical Methods of Statistics, 1946, section 28.5).

    Take it of compute_s: collectives make the ranks' step_s alike. None for one rank and below `MINIMUM_SAMPLES` steps.
    """
    values = timed_steps(steps).groupby(["step", "rank"])[column].mean().unstack().to_numpy()
    if values.shape[0] < MINIMUM_SAMPLES or values.shape[1] < 2:
        return None
    medians = np.median(values, axis=0)
    within = float((DEVIATIONS_PER_MAD * np.median(np.abs(values - medians))) ** 2)
    between = max(0.0, float(np.var(medians, ddof=1)) - pi / 2 * within / values.shape[0])
    return between / (between + within) if between > 0 else 0.0
