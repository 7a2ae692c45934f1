"""Whether the tables of a training run tell the same story: events, steps, ledger and memory."""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from shardbench import stats
from shardbench.read import SAMPLED, Trace
from shardbench.validate.run import (
    CLOCK_RESOLUTION_S,
    COLLECTIVES,
    LEDGER_RELATIVE,
    STEP_SUM_ABSOLUTE_S,
    STEP_SUM_RELATIVE,
    event_text,
)
from shardbench.validate.sentences import first, more

ELEMENT_BYTES = {"bf16": 2, "fp32": 4}
STEADY_TOLERANCE = 0.10
"""How far the medians of the two halves of the timed steps may be apart in a steady run (SCHEMA.md)."""
TOTAL = "total_tracked"
COUNTED = (
    *(
        f"all_gather_{phase}_{what}"
        for phase in ("forward", "backward", "optimizer")
        for what in ("count", "size")
    ),
    *(f"{kind}_{what}" for kind in ("reduce_scatter", "all_reduce") for what in ("count", "size")),
    *(f"{kind}_elements" for kind in COLLECTIVES),
    *("volume_elements", "volume_bytes"),
)
"""What the ledger says about collectives."""
EXPOSED = ("exposed_ag_forward_s", "exposed_ag_backward_s", "exposed_rs_s", "exposed_ar_s")


def _parts_of_steps(trace: Trace) -> Iterator[str]:
    """No part of a step is negative, and the exposed time is that of its collectives."""
    steps = trace.steps
    for column in (*stats.PARTS, *EXPOSED):
        yield from first(
            steps[steps[column] < -CLOCK_RESOLUTION_S],
            lambda row: f"steps: rank {row['rank']}, step {row['step']}: {column} = {row[column]} s is negative",
        )
    yield from _same_seconds(
        steps, steps[list(EXPOSED)].sum(axis=1, skipna=False), "exposed_s", "its four parts"
    )


def _same_seconds(steps: pd.DataFrame, total_s: pd.Series, column: str, of: str) -> Iterator[str]:
    tolerance = STEP_SUM_ABSOLUTE_S + STEP_SUM_RELATIVE * steps[column].abs()
    # Negated, so that NaN on either side is a violation.
    yield from first(
        steps.assign(total_s=total_s)[~((steps[column] - total_s).abs() <= tolerance)],
        lambda row: f"steps: rank {row['rank']}, step {row['step']}: {column} = {row[column]} s, but {of} add up to "
        f"{row['total_s']} s",
    )


def _steps_in_turn(trace: Trace) -> Iterator[str]:
    """A rank takes one step after the other."""
    steps = trace.steps.sort_values(["rank", "step"])
    ended_s = (steps["start_s"] + steps["step_s"]).groupby(steps["rank"]).shift()
    late = steps.assign(ended_s=ended_s)[steps["start_s"] < ended_s - CLOCK_RESOLUTION_S]
    yield from first(
        late,
        lambda row: f"steps: rank {row['rank']}, step {row['step']} starts at {row['start_s']} s, before the one before "
        f"it ends at {row['ended_s']} s",
    )


def _warmup(trace: Trace) -> Iterator[str]:
    """The first w steps, and the first of every window but the first."""
    options, steps = trace.config.options, trace.steps
    warmup, window = options.get("warmup"), options.get("window")
    if not isinstance(warmup, int) or not isinstance(window, int) or window < 1:
        return
    timed = steps["step"] - warmup
    must = (timed < 0) | ((timed > 0) & (timed % window == 0))
    yield from first(
        steps[(steps["warmup"] != 0) != must],
        lambda row: f"steps: rank {row['rank']}, step {row['step']}: warmup = {row['warmup']}, but with {warmup} warm-up "
        f"steps and windows of {window} it must be {int(row['warmup'] == 0)}",
    )


def _steady(trace: Trace) -> Iterator[str]:
    step_s = stats.maximum_over_ranks(trace.steps, "step_s")
    if len(step_s) < 2 or not np.isfinite(step_s).all():
        return
    halves = np.split(step_s, [(len(step_s) + 1) // 2])
    before_s, after_s = (float(np.median(half)) for half in halves)
    apart_s, allowed_s = abs(after_s - before_s), STEADY_TOLERANCE * before_s
    # What is next to the limit may be on either side of it: rounding.
    if abs(apart_s - allowed_s) > LEDGER_RELATIVE * before_s and trace.attributes.steady != (
        apart_s <= allowed_s
    ):
        yield (
            f"steady is {trace.attributes.steady}, but the medians of the two halves of the timed steps are {before_s} s "
            f"and {after_s} s"
        )


def _events_in_steps(trace: Trace) -> Iterator[str]:
    """What a step has asked for has begun and ended in it."""
    steps = trace.steps.drop_duplicates(["rank", "step"])[["rank", "step", "start_s", "step_s"]]
    steps = steps.assign(from_s=steps["start_s"], to_s=steps["start_s"] + steps["step_s"])
    events = trace.events.merge(steps[["rank", "step", "from_s", "to_s"]], on=["rank", "step"], how="left")
    yield from first(
        events[events["from_s"].isna()],
        lambda row: f"events: {event_text(row)} belongs to no row of steps",
    )
    is_outside = (events["issue_s"] < events["from_s"] - CLOCK_RESOLUTION_S) | (
        events["end_s"] > events["to_s"] + CLOCK_RESOLUTION_S
    )
    yield from first(
        events[is_outside],
        lambda row: f"events: {event_text(row)} lasts from {row['issue_s']} s to {row['end_s']} s, beyond its step, from "
        f"{row['from_s']} s to {row['to_s']} s",
    )


def _event_sums(trace: Trace) -> Iterator[str]:
    """The time of a step's waits is exposed_s, that of its layers compute_s."""
    events = trace.events
    if events.empty:
        return
    is_layer = (events["kind"] == "compute") & (events["phase"] != "optimizer")
    for rows, column, of in (
        (events[events["kind"] == "wait"], "exposed_s", "the waits among events"),
        (events[is_layer], "compute_s", "the layers' compute among events"),
    ):
        seconds = (rows["end_s"] - rows["start_s"]).groupby([rows["rank"], rows["step"]]).sum()
        index = pd.MultiIndex.from_frame(trace.steps[["rank", "step"]])
        total_s = pd.Series(seconds.reindex(index, fill_value=0.0).to_numpy(), trace.steps.index)
        yield from _same_seconds(trace.steps, total_s, column, of)


def _waits_have_collectives(trace: Trace) -> Iterator[str]:
    """Each wait is that of a collective which had been asked for, and is as long as that one's wait_s."""
    subject = ["rank", "step", "axis", "layer", "bucket", "elements"]
    events = trace.events
    collectives = events[events["kind"].isin(COLLECTIVES) & (events["wait_s"] > 0)]
    waits = events[events["kind"] == "wait"]
    waits = waits.assign(wait_s=waits["end_s"] - waits["start_s"])
    waits = waits[waits["wait_s"] > 0]
    both = [*subject, "wait_s"]
    numbered = [rows.assign(nth=rows.groupby(both).cumcount()) for rows in (waits, collectives)]
    pairs = numbered[0].merge(
        numbered[1][[*both, "nth", "kind", "issue_s"]],
        on=[*both, "nth"],
        how="outer",
        suffixes=("", "_collective"),
        indicator=True,
    )
    yield from first(
        pairs[pairs["_merge"] == "left_only"],
        lambda row: f"events: {event_text(row)} lasts {row['wait_s']} s, but no collective has such a wait_s",
    )
    yield from first(
        pairs[pairs["_merge"] == "right_only"],
        lambda row: f"events: {event_text(row | {'kind': row['kind_collective']})} has wait_s = {row['wait_s']} s, but "
        f"there is no such wait",
    )
    yield from first(
        pairs[pairs["start_s"] < pairs["issue_s_collective"] - CLOCK_RESOLUTION_S],
        lambda row: f"events: {event_text(row)} starts at {row['start_s']} s, before its collective is asked for at "
        f"{row['issue_s_collective']} s",
    )


def _collectives_sizes(trace: Trace) -> Iterator[str]:
    """A collective has its axis's ranks, and bytes = elements x the type's size."""
    attributes = trace.attributes
    extent = {"dp": attributes.dp, "tp": attributes.tp, "world": attributes.world_size}
    rows = trace.events[trace.events["kind"].isin(COLLECTIVES)]
    rows = rows.assign(
        members=rows["axis"].map(extent), size=rows["elements"] * rows["dtype"].map(ELEMENT_BYTES)
    )
    yield from first(
        rows[(rows["group_size"] != rows["members"]) & rows["members"].notna()],
        lambda row: f"events: {event_text(row)}: group_size = {row['group_size']}, but axis {row['axis']} has "
        f"{int(row['members'])} ranks",
    )
    yield from first(
        rows[rows["bytes"] != rows["size"]],
        lambda row: f"events: {event_text(row)}: bytes = {row['bytes']}, but elements = {row['elements']} of "
        f"{row['dtype']}",
    )


def _ledger_of_events(trace: Trace) -> Iterator[str]:
    """The last step's collectives are those that the ledger promises, padding included."""
    if trace.events.empty or trace.ledger.empty:
        return
    is_last = trace.events["step"] == trace.steps["step"].max()
    issued = _issued(trace.events[is_last & trace.events["kind"].isin(COLLECTIVES)])
    key = ["rank", "axis", "quantity"]
    rows = trace.ledger[trace.ledger["quantity"].isin(COUNTED)].drop_duplicates(key)
    rows = rows.merge(issued, on=key, how="left").fillna({"issued": 0.0})
    rows["promised"] = rows["expected"] + rows["padding"]
    yield from first(
        rows[(rows["issued"] - rows["promised"]).abs() > LEDGER_RELATIVE * rows["promised"].abs()],
        lambda row: f"ledger: rank {row['rank']}, axis {row['axis']}, {row['quantity']}: expected + padding is "
        f"{row['promised']!r} {row['unit']}, but the events of the last step make {row['issued']!r}",
    )


def _issued(collectives: pd.DataFrame) -> pd.DataFrame:
    """What the ledger counts, from events: rank, axis, quantity and `issued`."""
    kind, n = collectives["kind"], collectives["group_size"]
    volume = collectives["elements"] * np.where(kind == "all_reduce", 2, 1) * (n - 1) / n
    is_gather = kind == "all_gather"
    rows = collectives.assign(
        name=kind.where(~is_gather, kind + "_" + collectives["phase"]),
        volume=volume,
        volume_bytes=volume * collectives["dtype"].map(ELEMENT_BYTES),
    )
    sums = (
        (rows["name"] + "_count", "count", "elements"),
        (rows["name"] + "_size", "sum", "elements"),
        (kind + "_elements", "sum", "volume"),
        ("volume_elements", "sum", "volume"),
        ("volume_bytes", "sum", "volume_bytes"),
    )
    return pd.concat(
        rows.assign(quantity=quantity)
        .groupby(["rank", "axis", "quantity"], as_index=False)
        .agg(issued=(column, how))
        .astype({"issued": float})
        for quantity, how, column in sums
    )


def _memory_adds_up(trace: Trace) -> Iterator[str]:
    """The peak of the sum is no less than any sum of samples, and no more than the sum of the peaks."""
    peaks = trace.memory_peak.drop_duplicates(["rank", "category"])
    total = peaks[peaks["category"] == TOTAL].set_index("rank")["peak_bytes"]
    tracked = peaks[(peaks["category"] != TOTAL) & ~peaks["category"].str.startswith(SAMPLED)]
    bound = tracked.groupby("rank")["peak_bytes"].sum()
    above = total[total > bound.reindex(total.index, fill_value=0)]
    if not above.empty:
        rank = above.index[0]
        yield (
            f"memory_peak: rank {rank}: {TOTAL} = {above.iloc[0]} bytes exceeds the sum of the categories' peaks, "
            f"{bound.get(rank, 0)}{more(len(above), 'rank')}"
        )
    memory = trace.memory[~trace.memory["category"].str.startswith(SAMPLED)]
    before = memory.groupby(["rank", "category"])["bytes"].shift(fill_value=0)
    sums = memory.assign(sum=(memory["bytes"] - before).groupby(memory["rank"]).cumsum())
    sums = sums.assign(peak=sums["rank"].map(total))
    yield from first(
        sums[sums["sum"] > sums["peak"]],
        lambda row: f"memory: rank {row['rank']} at {row['at_s']} s: the categories add up to {row['sum']} bytes, above "
        f"{TOTAL} = {int(row['peak'])}",
    )
    stated = trace.ledger[trace.ledger["quantity"] == "textbook_peak_bytes"]
    stated = stated.assign(peak=stated["rank"].map(total))
    yield from first(
        stated[(stated["measured"] != stated["peak"]) & stated["peak"].notna()],
        lambda row: f"ledger: rank {row['rank']}: textbook_peak_bytes: measured {row['measured']!r} bytes is not "
        f"{TOTAL} = {int(row['peak'])}",
    )


def _whole_model(trace: Trace) -> Iterator[str]:
    elements = int(trace.tensors["elements"].sum())
    if not trace.tensors.empty and elements != trace.attributes.psi:
        yield f"tensors: their elements add up to {elements}, but psi is {trace.attributes.psi}"


def _known_ranks(trace: Trace) -> Iterator[str]:
    ranks = range(trace.attributes.world_size)
    for table in ("clock", "events", "memory", "memory_peak", "ledger"):
        rows = getattr(trace, table)
        yield from first(
            rows[~rows["rank"].isin(ranks)],
            lambda row: f"{table}: rank {row['rank']} does not exist: world_size is {trace.attributes.world_size}",
        )


def _clocks(trace: Trace) -> Iterator[str]:
    """Clocks are compared with rank 0's, and calibrated times are durations."""
    clock = trace.clock
    is_own = (clock["rank"] == 0) & (clock["offset_s"] != 0)
    yield from first(
        clock[is_own | ~(clock["uncertainty_s"] >= 0) | ~np.isfinite(clock["offset_s"].astype(float))],
        lambda row: f"clock: rank {row['rank']} at {row['at_s']} s: offset_s = {row['offset_s']} s, uncertainty_s = "
        f"{row['uncertainty_s']} s; rank 0 has offset 0, and no uncertainty is negative",
    )
    times = ["compute_alone_s", "communication_alone_s"]
    yield from first(
        trace.calibration[~(trace.calibration[times] >= 0).all(axis=1)],
        lambda row: f"calibration: {row['kind']} {row['direction']}: {', '.join(f'{n} = {row[n]} s' for n in times)}; "
        "neither can be negative",
    )


CHECKS: tuple[Callable[[Trace], Iterator[str]], ...] = (
    _parts_of_steps,
    _steps_in_turn,
    _warmup,
    _steady,
    _known_ranks,
    _events_in_steps,
    _event_sums,
    _waits_have_collectives,
    _collectives_sizes,
    _ledger_of_events,
    _memory_adds_up,
    _whole_model,
    _clocks,
)
