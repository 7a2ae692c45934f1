"""The ranks' clocks on one axis: rank 0's. Pure."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray


class Clocks:
    """Offsets to rank 0's clock at any time of a rank's own clock.

    Linear between two comparisons, constant outside. The uncertainty is the larger one's.
    """

    def __init__(self, clock: pd.DataFrame) -> None:
        ordered = clock.assign(own_s=clock["at_s"] + clock["offset_s"]).sort_values(["rank", "own_s"])
        self._of_rank = {
            rank: (rows["own_s"].to_numpy(), rows["offset_s"].to_numpy(), float(rows["uncertainty_s"].max()))
            for rank, rows in ordered.groupby("rank")
        }

    def common(self, rank: pd.Series, own_s: pd.Series) -> NDArray[np.float64]:
        """Seconds on rank 0's clock, of times on the clocks of the ranks beside them.

        Raises:
            KeyError: a rank's clock was not compared.
        """
        result = np.empty(len(own_s))
        for value, rows in _positions(rank):
            at_s, offset_s, _ = self._of_rank[value]
            times = own_s.to_numpy()[rows]
            result[rows] = times - np.interp(times, at_s, offset_s)
        return result

    def uncertainty(self, rank: pd.Series) -> NDArray[np.float64]:
        """Seconds by which each rank's times on rank 0's clock may be wrong, to either side.

        Raises:
            KeyError: a rank's clock was not compared.
        """
        values, codes = np.unique(rank.to_numpy(), return_inverse=True)
        return np.array([self._of_rank[value][2] for value in values], dtype=np.float64)[codes]


def _positions(column: pd.Series) -> Iterator[tuple[int, NDArray[np.intp]]]:
    values, codes = np.unique(column.to_numpy(), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(values)))
    for value, rows in zip(values.tolist(), np.split(order, ends[:-1])):
        yield value, rows
