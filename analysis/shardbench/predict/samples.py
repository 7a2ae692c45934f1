"""Traces → samples for the fit: how long each collective took, and over which group."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from shardbench import stats
from shardbench.plans import BENCHMARK
from shardbench.predict.alphabeta import LOCAL, Group, Kind, Sample
from shardbench.read import Trace

PROMPT = ("thread", "stream")
"""Ways of progress that see the end of a collective when it comes. The others see it when they look."""


def ranks_per_node(trace: Trace) -> int:
    """Ranks that share a node: the platform's GPUs, the user's word (--ranks-per-node), or those of the fullest host."""
    if trace.config.simulation:
        return int(trace.config.simulation["machine"]["node"]["gpus"])
    said = trace.config.options.get("ranks-per-node")
    return int(said) if said else int(trace.ranks.groupby("host")["rank"].nunique().max())


def group_of(axis: str, dp: int, tp: int, per_node: int) -> Group:
    """The group of rank 0. Rank = dp_index * tp + tp_index; nodes hold `per_node` consecutive ranks."""
    members = {"world": range(dp * tp), "dp": range(0, dp * tp, tp), "tp": range(tp)}[axis]
    return Group(len(members), len({rank // per_node for rank in members}))


def kind_of(collective: str, algorithm: str, dtype: str, axis: str, tp: int, group: Group) -> Kind:
    """Which line a collective belongs to. World and dp are the same wires where tp = 1."""
    dtype = "any" if collective == "all_gather" else dtype  # nothing is computed
    stride = tp if axis == "dp" else 1
    wires = "tp" if axis == "tp" else "dp" if axis == "dp" and tp > 1 else "world"
    return Kind(collective, algorithm, dtype, wires, stride, group.nodes > 1)


def samples_of(trace: Trace) -> dict[Kind, list[Sample]]:
    """One sample for each kind, group and size of a file: the median over what repeats."""
    if trace.attributes.scenario == BENCHMARK:
        return _of_benchmark(trace)
    return _of_steps(trace)


def _of_steps(trace: Trace) -> dict[Kind, list[Sample]]:
    """A collective ends for its last rank as soon as for the others; the shortest row of its ranks has no waiting for late ones
    in it.

    Where nobody sees an end as it comes, only rows that compute waited for count, since their end was looked for.
    """
    timed = stats.timed_steps(trace.steps)["step"].unique()
    events = trace.events
    rows = events[(events["stream"] == "comm") & events["step"].isin(timed) & (events["group_size"] > 1)]
    if rows.empty:
        return {}
    rows = rows.assign(
        k=rows.groupby(["rank", "step", "axis"]).cumcount(), seconds=rows["end_s"] - rows["start_s"]
    )
    if trace.config.options.get("progress") not in PROMPT and (rows["wait_s"] > 0).any():
        rows = rows[rows["wait_s"] > 0]
    seats = trace.ranks.set_index("rank")
    tp_index, dp_index = rows["rank"].map(seats["tp_index"]), rows["rank"].map(seats["dp_index"])
    rows = rows.assign(group=np.select([rows["axis"] == "dp", rows["axis"] == "tp"], [tp_index, dp_index], 0))
    what = ["axis", "kind", "algorithm", "dtype", "bytes"]
    each = rows.groupby([*what, "group", "step", "k"], as_index=False)["seconds"].min()
    return _medians(trace, each[each["algorithm"] != LOCAL], what)


def _of_benchmark(trace: Trace) -> dict[Kind, list[Sample]]:
    rows = trace.collectives
    rows = rows[(rows["warmup"] == 0) & (rows["algorithm"] != LOCAL)]
    if rows.empty or trace.attributes.world_size == 1:
        return {}
    rows = rows.rename(columns={"collective": "kind", "size_bytes": "bytes"}).assign(
        axis="world", seconds=rows["end_s"] - rows["start_s"]
    )
    what = ["axis", "kind", "algorithm", "dtype", "bytes"]
    each = rows.groupby([*what, "line", "repetition"], as_index=False)["seconds"].min()
    return _medians(trace, each, what)


def _medians(trace: Trace, each: pd.DataFrame, what: list[str]) -> dict[Kind, list[Sample]]:
    attributes, per_node = trace.attributes, ranks_per_node(trace)
    found: dict[Kind, list[Sample]] = defaultdict(list)
    seconds = each.groupby(what)["seconds"]
    quartiles = seconds.quantile([0.25, 0.5, 0.75]).unstack()
    for (axis, collective, algorithm, dtype, size), (low, middle, high) in quartiles.iterrows():
        group = group_of(axis, attributes.dp, attributes.tp, per_node)
        if middle > 0 and size > 0:
            kind = kind_of(collective, algorithm, dtype, axis, attributes.tp, group)
            spread = stats.DEVIATIONS_PER_IQR * float(high - low)
            found[kind].append(Sample(group, int(size), float(middle), spread))
    return dict(found)


def pooled(traces: Iterable[Mapping[Kind, list[Sample]]]) -> dict[Kind, list[Sample]]:
    """The samples of several files by kind."""
    found: dict[Kind, list[Sample]] = defaultdict(list)
    for samples in traces:
        for kind, members in samples.items():
            found[kind] += members
    return dict(found)
