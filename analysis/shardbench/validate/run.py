"""The invariants of a training run's tables, each by itself."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from shardbench import stats
from shardbench.plans import BENCHMARK
from shardbench.read import Trace
from shardbench.stats import PARTS
from shardbench.validate.sentences import each_once, first, more, records, unknown_words

STEP_SUM_ABSOLUTE_S = 1e-6
STEP_SUM_RELATIVE = 1e-9
LEDGER_RELATIVE = 1e-12
"""Volumes carry the factor (n-1)/n, which binary fractions hold only to rounding."""
CLOCK_RESOLUTION_S = 1e-9

MEMORY_QUANTITIES = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "static_bytes")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
VOCABULARY = {
    "phase": ("forward", "backward", "optimizer"),
    "kind": ("compute", *COLLECTIVES, "copy_in", "copy_out", "wait"),
    "stream": ("compute", "comm"),
}
AXES = ("world", "dp", "tp")


def _status(trace: Trace) -> Iterator[str]:
    if trace.incomplete:
        yield trace.incomplete


def _mesh(trace: Trace) -> Iterator[str]:
    """Rank = dp_index · tp + tp_index, each rank once."""
    attributes, ranks = trace.attributes, trace.ranks
    if attributes.dp * attributes.tp != attributes.world_size:
        yield (
            f"mesh: dp·tp = {attributes.dp}·{attributes.tp} = {attributes.dp * attributes.tp}, "
            f"but world_size is {attributes.world_size}"
        )
    yield from each_once("ranks", "rank", ranks["rank"].tolist(), range(attributes.world_size))
    misplaced = ranks[ranks["rank"] != ranks["dp_index"] * attributes.tp + ranks["tp_index"]]
    yield from first(
        misplaced,
        lambda row: f"ranks: rank {row['rank']} has dp_index {row['dp_index']} and tp_index "
        f"{row['tp_index']}, must be rank = dp_index·{attributes.tp} + tp_index",
    )


def _datasets_filled(trace: Trace) -> Iterator[str]:
    """Only the trace level and a phantom payload excuse an empty dataset."""
    level = trace.config.options.get("trace", "events")
    needed = {"ranks", "steps"}
    if trace.attributes.scenario == BENCHMARK:
        needed, level = {"ranks", "collectives"}, "none"
    if level in ("steps", "events"):
        needed |= {"memory_peak", "ledger"}
        if trace.attributes.payload == "real":
            needed.add("tensors")
    if level == "events":
        needed |= {"events", "memory"}
    for name in sorted(needed):
        if getattr(trace, name).empty and name == "collectives":
            yield "collectives: no rows"
        elif getattr(trace, name).empty:
            yield f"{name}: no rows, although the option trace is '{level}'"


def _steps_complete(trace: Trace) -> Iterator[str]:
    options, steps = trace.config.options, trace.steps
    if trace.attributes.scenario == BENCHMARK:
        return
    try:
        warmup, timed = int(options["warmup"]), int(options["steps"])
    except (KeyError, TypeError, ValueError):
        yield "config: the options 'warmup' and 'steps' must be present and integers"
        return
    expected = [(rank, step) for rank in range(trace.attributes.world_size) for step in range(warmup + timed)]
    found = list(zip(steps["rank"].tolist(), steps["step"].tolist()))
    if len(found) != len(expected):
        yield (
            f"steps: {len(found)} rows, expected {trace.attributes.world_size} ranks x "
            f"({warmup} warm-up + {timed} timed) steps = {len(expected)}"
        )
    yield from each_once("steps", "(rank, step)", found, expected)


def _step_sum(trace: Trace) -> Iterator[str]:
    steps = trace.steps.assign(sum_s=trace.steps[list(PARTS)].sum(axis=1, skipna=False))
    tolerance = STEP_SUM_ABSOLUTE_S + STEP_SUM_RELATIVE * steps["step_s"].abs()
    # Negated, so that NaN on either side is a violation.
    wrong = steps[~((steps["step_s"] - steps["sum_s"]).abs() <= tolerance)]
    yield from first(
        wrong,
        lambda row: f"steps: rank {row['rank']}, step {row['step']}: step_s = {row['step_s']} s, but "
        f"compute_s + exposed_s + optimizer_s + other_s = {row['sum_s']} s",
    )


def _same_on_every_rank(trace: Trace) -> Iterator[str]:
    for column in ("loss", "grad_norm"):
        # NaN (timed compute) counts as a value of its own here, equal to itself.
        distinct = trace.steps.groupby("step")[column].agg(lambda values: values.nunique(dropna=False))
        differing = distinct[distinct > 1]
        if differing.empty:
            continue
        step = differing.index[0]
        rows = trace.steps[trace.steps["step"] == step].drop_duplicates(column)
        values = ", ".join(f"rank {row['rank']}: {row[column]}" for row in records(rows.head(2)))
        others = more(len(differing), "step")
        yield f"steps: {column} of step {step} differs between ranks ({values}){others}"


def _finite_numbers(trace: Trace) -> Iterator[str]:
    """Only compute that is imitated has no losses."""
    if trace.attributes.compute != "real":
        return
    numbers = trace.steps[["loss", "grad_norm"]].astype(float)
    yield from first(
        trace.steps[~np.isfinite(numbers).all(axis=1)],
        lambda row: f"steps: rank {row['rank']}, step {row['step']}: loss {row['loss']}, grad_norm "
        f"{row['grad_norm']}, though compute was real",
    )


def _tokens(trace: Trace) -> Iterator[str]:
    tp_index = trace.ranks.drop_duplicates("rank").set_index("rank")["tp_index"]
    steps = trace.steps.assign(tp_index=trace.steps["rank"].map(tp_index))
    yield from first(
        steps[(steps["tp_index"] == 0) != (steps["tokens"] > 0)],
        lambda row: f"steps: rank {row['rank']}, step {row['step']}: tokens = {row['tokens']}, must be "
        f"positive on tp_index 0 and 0 elsewhere",
    )


def _event_words(trace: Trace) -> Iterator[str]:
    events = trace.events
    for column, words in VOCABULARY.items():
        yield from unknown_words(events[column], f"events: {column}", words)
    collectives = events[events["kind"].isin(COLLECTIVES)]
    yield from unknown_words(collectives["axis"], "events: axis of a collective", AXES)


def _event_times(trace: Trace) -> Iterator[str]:
    events = trace.events
    for earlier, later in (("issue_s", "start_s"), ("start_s", "end_s")):
        yield from first(
            events[~(events[earlier] <= events[later])],
            lambda row: f"events: {event_text(row)}: {earlier} = {row[earlier]} s must not be later "
            f"than {later} = {row[later]} s",
        )
    for column in ("issue_s", "start_s", "end_s", "wait_s"):
        yield from first(
            events[~(events[column] >= 0)],
            lambda row: f"events: {event_text(row)}: {column} = {row[column]} s is not a time >= 0",
        )


def _events_apart(trace: Trace) -> Iterator[str]:
    """One thread computes, copies and waits; one communicator works in issue order."""
    events = trace.events
    compute = events[(events["stream"] == "compute") & ~events["kind"].isin(COLLECTIVES)]
    yield from _overlap(compute, ["rank"], "stream compute")
    comm = events[events["stream"] == "comm"]
    communicators = str(trace.config.options.get("communicators"))
    # The axes of a mesh have communicators of their own; with two, each kind of dp's collectives has one.
    of_kind = comm["kind"].where((comm["axis"] == "dp") & (communicators == "2"), "")
    name = f"stream comm with {communicators} communicator{'s' if communicators == '2' else ''}"
    yield from _overlap(comm.assign(communicator=of_kind), ["rank", "axis", "communicator"], name)


def _overlap(events: pd.DataFrame, lane: list[str], name: str) -> Iterator[str]:
    ordered = events.sort_values([*lane, "start_s", "end_s"])
    latest_end = ordered.groupby(lane)["end_s"].cummax()
    ordered = ordered.assign(busy_until_s=latest_end.groupby([ordered[key] for key in lane]).shift())
    yield from first(
        ordered[ordered["start_s"] < ordered["busy_until_s"] - CLOCK_RESOLUTION_S],
        lambda row: f"events: {name}: {event_text(row)} starts at {row['start_s']} s, before an earlier "
        f"event ends at {row['busy_until_s']} s",
    )


def event_text(row: dict[str, Any]) -> str:
    return f"{row['kind']} of rank {row['rank']}, step {row['step']}, layer {row['layer']}"


def _peaks(trace: Trace) -> Iterator[str]:
    key = ["rank", "category"]
    yield from first(
        trace.memory_peak[trace.memory_peak.duplicated(key)],
        lambda row: f"memory_peak: rank {row['rank']}, category {row['category']} has more than one row",
    )
    largest = trace.memory.groupby(key, as_index=False)["bytes"].max()
    both = largest.merge(trace.memory_peak, on=key, how="left")
    yield from first(
        both[~(both["bytes"] <= both["peak_bytes"])],
        lambda row: f"memory: rank {row['rank']}, category {row['category']} has a sample of "
        f"{row['bytes']} bytes, above its peak_bytes "
        f"({'no row' if np.isnan(row['peak_bytes']) else int(row['peak_bytes'])})",
    )


def _ledger(trace: Trace) -> Iterator[str]:
    yield from first(
        ledger_mismatches(trace.ledger),
        lambda row: f"ledger: rank {row['rank']}, axis {row['axis']}, {row['quantity']}: measured "
        f"{row['measured']!r} {row['unit']} is not expected {row['expected']!r} + padding {row['padding']!r}",
    )


def ledger_mismatches(ledger: pd.DataFrame) -> pd.DataFrame:
    """The rows in which measured = expected + padding does not hold.

    Exact for counts, sizes and bytes of memory; 1e-12 relative for volumes, which carry (n-1)/n.
    Rows named textbook_* state formulas that no schedule has to follow, so they never mismatch.
    """
    rows = ledger[~ledger["quantity"].str.startswith("textbook_")]
    promised = rows["expected"] + rows["padding"]
    is_exact = (
        (rows["unit"] == "count")
        | rows["quantity"].str.endswith("_size")
        | rows["quantity"].isin(MEMORY_QUANTITIES)
    )
    tolerance = np.where(is_exact, 0.0, LEDGER_RELATIVE * promised.abs())
    return rows[~((rows["measured"] - promised).abs() <= tolerance)]


def _tensors(trace: Trace) -> Iterator[str]:
    index = trace.tensors["index"].tolist()
    yield from each_once("tensors", "index", index, range(len(index)))


def _timer(trace: Trace) -> Iterator[str]:
    """The clock's quality is known in files of the program collectives, and never negative."""
    for name in ("timer_overhead_s", "timer_resolution_s"):
        value = float(getattr(trace.attributes, name))
        if value < 0 or np.isinf(value) or (np.isnan(value) and trace.attributes.scenario == BENCHMARK):
            yield f"{name} is {value} s, must be a time from 0"


CHECKS: tuple[Callable[[Trace], Iterator[str]], ...] = (
    _status,
    _mesh,
    _datasets_filled,
    _steps_complete,
    _step_sum,
    _same_on_every_rank,
    _finite_numbers,
    _tokens,
    _event_words,
    _event_times,
    _events_apart,
    _peaks,
    _ledger,
    _tensors,
    _timer,
)
