"""What local operations cost, and collectives, as a directory's files tell it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shardbench import stats
from shardbench.predict.schedule import Local, block_of
from shardbench.read import Trace


@dataclass(frozen=True)
class Cost:
    """Seconds of an operation at N data-parallel ranks: whole + shard / N. `spread`: relative, of its median's error."""

    whole: float
    shard: float
    spread: float

    def seconds(self, dp: int) -> float:
        return self.whole + self.shard / dp


@dataclass(frozen=True)
class Observation:
    """One file's local operations: seconds of the slowest rank's median, and what lies between operations.

    `gap_s`: time of a step in which the compute stream has no operation (issuing, allocating), for each operation.
    """

    dp: int
    seconds: Mapping[Local, float]
    spread: Mapping[Local, float]
    gap_s: float


def observe(trace: Trace) -> Observation:
    """Reduces the timed steps of a trace with events."""
    layers, has_root = int(trace.config.model["layers"]), trace.config.options.get("wrap") == "root"
    timed = stats.timed_steps(trace.steps)
    events = trace.events
    rows = events[(events["stream"] == "compute") & events["step"].isin(timed["step"].unique())]
    rows = rows.assign(seconds=rows["end_s"] - rows["start_s"])
    where = ["rank", "step", "micro", "layer", "bucket", "phase", "kind"]
    rows = rows.assign(piece=rows.groupby(where).cumcount())
    work = rows[rows["kind"] != "wait"]
    blocks = work["layer"].map({layer: block_of(layer, layers, has_root) for layer in work["layer"].unique()})
    keys = ["kind", "phase", "block", "bucket", "piece"]
    of_rank = work.assign(block=blocks).groupby([*keys, "rank"])["seconds"]
    table = pd.DataFrame(
        {
            "median": of_rank.median(),
            "deviation": stats.DEVIATIONS_PER_IQR * (of_rank.quantile(0.75) - of_rank.quantile(0.25)),
            "count": of_rank.size(),
        }
    )
    slowest = table.loc[table.groupby(keys)["median"].idxmax()]
    seconds: dict[Local, float] = {}
    spread: dict[Local, float] = {}
    for (kind, phase, block, bucket, piece, _), row in slowest.iterrows():
        key = Local(str(kind), str(phase), str(block), int(bucket), int(piece))
        seconds[key] = float(row["median"])
        # The standard error of a median is 1.2533 that of a mean.
        spread[key] = (
            1.2533 * float(row["deviation"]) / max(row["median"], 1e-12) / float(row["count"]) ** 0.5
        )
    return Observation(trace.attributes.dp, seconds, spread, _gap(rows, timed))


def _gap(rows: pd.DataFrame, timed: pd.DataFrame) -> float:
    each = rows.groupby(["rank", "step"])["seconds"].agg(["sum", "size"])
    step_s = timed.set_index(["rank", "step"])["step_s"]
    gaps = (step_s - each["sum"]) / each["size"]
    return max(float(gaps.median()), 0.0)


@dataclass(frozen=True)
class LocalCosts:
    """Of one configuration, over its files."""

    costs: Mapping[Local, Cost]
    gap_s: float
    sizes: tuple[int, ...]


def local_costs(observations: Sequence[Observation]) -> LocalCosts:
    """Combines the observations of one configuration at one or several N.

    Layers' compute does not depend on N (their work does not). Copies and the optimizer work on whole tensors, shards or both,
    which two or more N tell apart; with one N they count as constant.
    """
    by_key: dict[Local, list[tuple[int, float, float]]] = defaultdict(list)
    for observed in observations:
        for key, seconds in observed.seconds.items():
            by_key[key].append((observed.dp, seconds, observed.spread[key]))
    costs = {key: _cost(key, values) for key, values in by_key.items()}
    sizes = tuple(sorted({observed.dp for observed in observations}))
    return LocalCosts(costs, float(np.median([o.gap_s for o in observations])), sizes)


def _cost(key: Local, values: Sequence[tuple[int, float, float]]) -> Cost:
    dp, seconds, spread = (np.array(column, dtype=np.float64) for column in zip(*values))
    if key.kind == "compute" and key.phase != "optimizer" or len(set(dp)) < 2:
        typical = float(np.median(seconds))
        return Cost(typical, 0.0, _relative(seconds, np.full(len(seconds), typical), spread))
    whole, shard = _whole_and_shard(dp, seconds)
    return Cost(whole, shard, _relative(seconds, whole + shard / dp, spread))


def _whole_and_shard(dp: NDArray[np.float64], seconds: NDArray[np.float64]) -> tuple[float, float]:
    """Least squares, neither below zero."""
    design = np.column_stack([np.ones(len(dp)), 1.0 / dp])
    whole, shard = np.linalg.lstsq(design, seconds, rcond=None)[0]
    if whole < 0:
        return 0.0, max(float(np.sum(seconds / dp) / np.sum(1.0 / dp**2)), 0.0)
    if shard < 0:
        return float(seconds.mean()), 0.0
    return float(whole), float(shard)


def _relative(
    seconds: NDArray[np.float64], fitted: NDArray[np.float64], spread: NDArray[np.float64]
) -> float:
    """A file's own uncertainty, and how far files disagree."""
    size = max(float(fitted.mean()), 1e-12)
    disagreement = float(np.std(seconds - fitted)) / size
    return float(np.hypot(np.mean(spread), disagreement) / np.sqrt(len(seconds)))
