"""Bandwidths of the program `collectives`, as nccl-tests defines them. Pure.

algbw = S / t, with t the median over windows of the slowest rank's iteration; busbw = algbw · f, f = 2(N−1)/N for an
all-reduce and (N−1)/N for an all-gather and a reduce-scatter (nccl-tests, doc/PERFORMANCE.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from shardbench import stats
from shardbench.stats import Estimate


@dataclass(frozen=True)
class BusBandwidth:
    """One line of `collectives`: a collective of `size_bytes` (S) over N = `size` ranks of one kind of machine."""

    file: str
    origin: str
    collective: str
    algorithm: str
    dtype: str
    reduction: str
    size: int
    size_bytes: int
    iteration_s: Estimate
    wrong: int | None
    """Elements over all ranks; None where nothing was checked."""

    @property
    def bytes_per_s(self) -> float | None:
        """busbw; None where the clock saw no time pass."""
        if self.iteration_s.median <= 0:
            return None
        passes = 2 if self.collective == "all_reduce" else 1
        return passes * (self.size - 1) / self.size * self.size_bytes / self.iteration_s.median

    @property
    def label(self) -> str:
        """What its line over sizes is called."""
        reduction = "" if self.reduction in ("none", "sum") else f" {self.reduction}"
        return f"{self.collective}{reduction}, {self.algorithm}, {self.dtype}, N = {self.size}, {self.origin}"


def bus_bandwidths(
    collectives: pd.DataFrame, size: int, file: str, origin: str = "measured"
) -> Iterator[BusBandwidth]:
    """One for each line of the table `collectives` of a file of N = `size` ranks that has timed windows."""
    for _, line in collectives.groupby("line"):
        seconds = stats.window_times(line)
        if not len(seconds):
            continue
        first = line.iloc[0]
        checked = line["wrong"][line["wrong"] >= 0]
        yield BusBandwidth(
            file=file,
            origin=origin,
            collective=str(first["collective"]),
            algorithm=str(first["algorithm"]),
            dtype=str(first["dtype"]),
            reduction=str(first["reduction"]),
            size=size,
            size_bytes=int(first["size_bytes"]),
            iteration_s=stats.estimate_median(seconds),
            wrong=int(checked.sum()) if len(checked) else None,
        )
