"""Whose time a wait is: that of a rank which came late, or that of the transfer. Pure.

A collective cannot end before its last member has asked for it. So what a rank waits before that moment
is straggler wait, the rest is transfer (queueing and contention included). The moment lies on another
rank's clock: offsets come from the `clock` table, and so does how far they may be wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shardbench import stats
from shardbench.clocks import Clocks

SUBJECT = ("rank", "step", "axis", "layer", "bucket", "elements")
"""A wait names no collective, but repeats its subject; and its length is wait_s, to the last bit."""

ROWS_AT_ONCE = 200_000
"""Of collectives: bounds the working memory to some 100 MB."""


@dataclass(frozen=True)
class Bounded:
    """Seconds a step, median over timed steps, right to ± `uncertainty_s`, which is the clocks'."""

    seconds: float
    uncertainty_s: float

    @property
    def is_resolved(self) -> bool:
        """Whether the effect exceeds the uncertainty, so that the number means something."""
        return self.uncertainty_s == 0 or self.seconds > self.uncertainty_s


@dataclass(frozen=True)
class Waits:
    """The longest exposed wait of any rank in each step, split; and who is waited for.

    `late_rank` is the rank that others wait for most beyond what it waits itself, `late_s` the longest
    wait of any rank for it; None and 0 where nobody is waited for.
    """

    straggler: Bounded
    transfer: Bounded
    late_rank: int | None
    late: Bounded


@dataclass(frozen=True)
class Unknown:
    """Why there is no number: a short clause for a table's cell."""

    reason: str


def split_waits(
    ranks: pd.DataFrame, clock: pd.DataFrame, steps: pd.DataFrame, events: pd.DataFrame
) -> Waits | Unknown:
    """Splits the waits of a complete run's timed steps; the arguments are the tables of a trace."""
    if events.empty:
        return Unknown("not recorded")
    if not set(ranks["rank"]) <= set(clock["rank"]):
        return Unknown("clocks not compared")
    timed = np.sort(stats.timed_steps(steps)["step"].unique())
    pieces = []
    for batch in _batches(events, timed):
        collectives = _collectives(events[events["step"].isin(batch)], ranks)
        if isinstance(collectives, Unknown):
            return collectives
        pieces.append(_by_late_rank(collectives, Clocks(clock)))
    return _summary(pd.concat(pieces), stats.timed_steps(steps))


def _batches(events: pd.DataFrame, steps: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    count = int((events["stream"] == "comm").sum())
    yield from np.array_split(steps, max(1, min(len(steps), -(-count // ROWS_AT_ONCE))))


def _collectives(events: pd.DataFrame, ranks: pd.DataFrame) -> pd.DataFrame | Unknown:
    """One row a collective and rank: its wait, and which collective of which group it is."""
    kept = ["rank", "step", "axis", "layer", "bucket", "kind", "elements", "group_size", "issue_s"]
    collectives = events.loc[events["stream"] == "comm", [*kept, "wait_s"]]
    waits = events.loc[events["kind"] == "wait", [*kept, "start_s", "end_s"]]
    waits = waits.assign(wait_s=waits["end_s"] - waits["start_s"])
    of_collectives, of_waits = _nth_of_subject(collectives, waits)
    has_wait = np.isin(of_collectives, of_waits)
    if len(waits) != has_wait.sum() or (~has_wait & (collectives["wait_s"] > 0)).any():
        return Unknown("waits without their collectives")
    found = collectives.reset_index(drop=True)
    wait_start_s = found["issue_s"].to_numpy(copy=True)
    wait_start_s[has_wait] = pd.Series(waits["start_s"].to_numpy(), of_waits)[of_collectives[has_wait]]
    found["wait_start_s"] = wait_start_s
    # Members of a group issue the same collectives in the same order.
    found["k"] = found.groupby(["rank", "step", "axis"]).cumcount()
    if not set(found["axis"]) <= {"dp", "tp", "world"}:
        return Unknown("unknown axis")
    seat = ranks.drop_duplicates("rank").set_index("rank")
    tp_index, dp_index = found["rank"].map(seat["tp_index"]), found["rank"].map(seat["dp_index"])
    found["group"] = np.select([found["axis"] == "dp", found["axis"] == "tp"], [tp_index, dp_index], 0)
    found["collective"] = found.groupby(["step", "axis", "group", "k"]).ngroup()
    # k tells a rank's collectives apart, so that each row of a collective is another member.
    members = found.groupby("collective")["k"].transform("size")
    first = found.drop_duplicates("collective").set_index("collective").loc[found["collective"]]
    alike = [(found[name].to_numpy() == first[name].to_numpy()).all() for name in ("elements", "kind")]
    if not all(alike) or (members != found["group_size"]).any():
        return Unknown("ranks' collectives do not match")
    return found


def _nth_of_subject(
    collectives: pd.DataFrame, waits: pd.DataFrame
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number for each row of both, equal where a wait is a collective's: the n-th of its subject and length."""
    same = [*SUBJECT, "wait_s"]
    subject = pd.concat([collectives[same], waits[same]]).groupby(same, sort=False).ngroup().to_numpy()
    parts = np.split(subject, [len(collectives)])
    nth = [pd.Series(part).groupby(part).cumcount().to_numpy() for part in parts]
    subjects = subject.max(initial=0) + 1
    return parts[0] + subjects * nth[0], parts[1] + subjects * nth[1]


def _by_late_rank(collectives: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    """Straggler waits summed by (step, rank, late rank): the middle, and the bounds that the clocks leave."""
    issue_s = clocks.common(collectives["rank"], collectives["issue_s"])
    wait_start_s = clocks.common(collectives["rank"], collectives["wait_start_s"])
    doubt_s = clocks.uncertainty(collectives["rank"])
    rank, collective = collectives["rank"].to_numpy(), collectives["collective"].to_numpy()
    last = _last_other(issue_s, collective)
    rows = pd.DataFrame({"step": collectives["step"].to_numpy(), "rank": rank, "late": rank[last]})
    is_alone = rows["rank"] == rows["late"]
    for column, sign in (("low_s", -1), ("middle_s", 0), ("high_s", 1)):
        asked_s = issue_s + sign * doubt_s
        asked_last_s = asked_s[_last_other(asked_s, collective)] + sign * doubt_s
        waited_s = np.clip(asked_last_s - wait_start_s, 0.0, collectives["wait_s"].to_numpy())
        rows[column] = np.where(is_alone, 0.0, waited_s)
    return rows.groupby(["step", "rank", "late"], as_index=False).sum()


def _last_other(time_s: NDArray[np.float64], collective: NDArray[np.int64]) -> NDArray[np.intp]:
    """For each row that of the latest other member of its collective; itself in a group of one."""
    if len(time_s) == 0:
        return np.empty(0, np.intp)
    order = np.lexsort((time_s, collective))
    ends = np.searchsorted(collective[order], np.arange(collective.max() + 1), "right")
    starts = ends - np.bincount(collective)
    last, before = order[ends - 1], order[np.maximum(ends - 2, starts)]
    own = last[collective]
    return np.where(own == np.arange(len(own)), before[collective], own)


BOUNDS = ["low_s", "middle_s", "high_s"]


def _summary(waits: pd.DataFrame, timed: pd.DataFrame) -> Waits:
    steps = np.sort(timed["step"].unique())
    waits = waits[waits["rank"] != waits["late"]]
    of_rank = waits.groupby(["step", "rank"])[BOUNDS].sum()
    longest = timed.loc[timed.groupby("step")["exposed_s"].idxmax(), ["step", "rank", "exposed_s"]]
    index = pd.MultiIndex.from_frame(longest[["step", "rank"]])
    split = of_rank.reindex(index, fill_value=0.0)
    straggler = _bounded(split)
    rest = longest["exposed_s"].to_numpy()[:, None] - split.to_numpy()[:, ::-1]
    transfer = _bounded(pd.DataFrame(np.maximum(rest, 0.0), columns=BOUNDS))
    caused = waits.groupby(["step", "late"])[BOUNDS].max()
    candidates = sorted(set(waits["late"]))
    if not candidates or not caused["middle_s"].any():
        return Waits(straggler, transfer, None, Bounded(0.0, 0.0))
    late_s, own_s = (_of_each(sums, steps, candidates) for sums in (caused, of_rank))
    worst = max(range(len(candidates)), key=lambda index: late_s[index].seconds - own_s[index].seconds)
    return Waits(straggler, transfer, int(candidates[worst]), late_s[worst])


def _of_each(sums: pd.DataFrame, steps: NDArray[np.int64], ranks: Sequence[int]) -> list[Bounded]:
    """Of sums by (step, rank), where what is not there is 0."""
    kept = sums[sums.index.get_level_values(1).isin(ranks)]
    table = np.zeros((len(steps), len(ranks), len(BOUNDS)))
    step, rank = (kept.index.get_level_values(level).to_numpy() for level in (0, 1))
    table[np.searchsorted(steps, step), np.searchsorted(ranks, rank)] = kept.to_numpy()
    return [_between(*bounds) for bounds in np.median(table, axis=0)]


def _bounded(sums: pd.DataFrame) -> Bounded:
    return _between(*(float(sums[column].median()) for column in BOUNDS))


def _between(low: float, middle: float, high: float) -> Bounded:
    return Bounded(float(middle), max(float(high - middle), float(middle - low), 0.0))
