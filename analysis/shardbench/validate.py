"""The invariants of schema version 1: what has to hold between the numbers of one file.

Each check yields one sentence for each invariant that is violated, with the first offending row
and how many there are. The shape of the file (datasets, fields, types) is checked by `read`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from shardbench import stats
from shardbench.read import Trace, TraceError, read_trace
from shardbench.stats import PARTS

STEP_SUM_ABSOLUTE_S = 1e-6
STEP_SUM_RELATIVE = 1e-9
LEDGER_RELATIVE = 1e-12
"""Volumes carry the factor (n-1)/n, which binary fractions hold only to rounding."""
CLOCK_RESOLUTION_S = 1e-9
WIDTH_RELATIVE = 1e-9
"""Rounding between the program's arithmetic and this one."""

MEMORY_QUANTITIES = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "static_bytes")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
VOCABULARY = {
    "phase": ("forward", "backward", "optimizer"),
    "kind": ("compute", *COLLECTIVES, "copy_in", "copy_out", "wait"),
    "stream": ("compute", "comm"),
}
AXES = ("world", "dp", "tp")
BENCHMARK = "collectives"
"""The program that trains nothing: its files have no steps, but a table of collectives."""
BENCHMARK_VOCABULARY = {
    "collective": COLLECTIVES,
    "algorithm": ("direct", "ring", "doubling", "hierarchical", "native", "nccl", "coarse", "local"),
    "dtype": ("bf16", "fp32"),
    "reduction": ("sum", "product", "minimum", "maximum", "average", "none"),
    "stop": ("iterations", "precision", "budget", "rows"),
}
MOST_REPETITIONS = 1 << 20
"""A line of `collectives` that repeats windows ends before it has more timed repetitions."""
ELEMENT_BYTES = {"bf16": 2, "fp32": 4}


def file_violations(path: Path) -> list[str]:
    """Everything that is wrong with a file, one sentence each; empty for a valid file."""
    try:
        trace = read_trace(path)
    except TraceError as error:
        return list(error.problems)
    return violations(trace)


def violations(trace: Trace) -> list[str]:
    """Every violated invariant of a trace, one sentence each; empty where all hold."""
    return [sentence for check in CHECKS for sentence in check(trace)]


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
    yield from _each_once("ranks", "rank", ranks["rank"].tolist(), range(attributes.world_size))
    misplaced = ranks[ranks["rank"] != ranks["dp_index"] * attributes.tp + ranks["tp_index"]]
    yield from _first(
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
    yield from _each_once("steps", "(rank, step)", found, expected)


def _step_sum(trace: Trace) -> Iterator[str]:
    steps = trace.steps.assign(sum_s=trace.steps[list(PARTS)].sum(axis=1, skipna=False))
    tolerance = STEP_SUM_ABSOLUTE_S + STEP_SUM_RELATIVE * steps["step_s"].abs()
    # Negated, so that NaN on either side is a violation.
    wrong = steps[~((steps["step_s"] - steps["sum_s"]).abs() <= tolerance)]
    yield from _first(
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
        values = ", ".join(f"rank {row['rank']}: {row[column]}" for row in _records(rows.head(2)))
        more = _more(len(differing), "step")
        yield f"steps: {column} of step {step} differs between ranks ({values}){more}"


def _finite_numbers(trace: Trace) -> Iterator[str]:
    """Only compute that is imitated has no losses."""
    if trace.attributes.compute != "real":
        return
    numbers = trace.steps[["loss", "grad_norm"]].astype(float)
    yield from _first(
        trace.steps[~np.isfinite(numbers).all(axis=1)],
        lambda row: f"steps: rank {row['rank']}, step {row['step']}: loss {row['loss']}, grad_norm "
        f"{row['grad_norm']}, though compute was real",
    )


def _tokens(trace: Trace) -> Iterator[str]:
    tp_index = trace.ranks.drop_duplicates("rank").set_index("rank")["tp_index"]
    steps = trace.steps.assign(tp_index=trace.steps["rank"].map(tp_index))
    yield from _first(
        steps[(steps["tp_index"] == 0) != (steps["tokens"] > 0)],
        lambda row: f"steps: rank {row['rank']}, step {row['step']}: tokens = {row['tokens']}, must be "
        f"positive on tp_index 0 and 0 elsewhere",
    )


def _event_words(trace: Trace) -> Iterator[str]:
    events = trace.events
    for column, words in VOCABULARY.items():
        yield from _unknown_words(events[column], f"events: {column}", words)
    collectives = events[events["kind"].isin(COLLECTIVES)]
    yield from _unknown_words(collectives["axis"], "events: axis of a collective", AXES)


def _unknown_words(column: pd.Series, place: str, words: tuple[str, ...]) -> Iterator[str]:
    unknown = column[~column.isin(words)]
    if not unknown.empty:
        yield f"{place} is '{unknown.iloc[0]}', must be one of {', '.join(words)}{_more(len(unknown))}"


def _event_times(trace: Trace) -> Iterator[str]:
    events = trace.events
    for earlier, later in (("issue_s", "start_s"), ("start_s", "end_s")):
        yield from _first(
            events[~(events[earlier] <= events[later])],
            lambda row: f"events: {_event(row)}: {earlier} = {row[earlier]} s must not be later "
            f"than {later} = {row[later]} s",
        )
    for column in ("issue_s", "start_s", "end_s", "wait_s"):
        yield from _first(
            events[~(events[column] >= 0)],
            lambda row: f"events: {_event(row)}: {column} = {row[column]} s is not a time >= 0",
        )


def _events_apart(trace: Trace) -> Iterator[str]:
    """One thread computes, copies and waits; one communicator works in issue order."""
    events = trace.events
    compute = events[(events["stream"] == "compute") & ~events["kind"].isin(COLLECTIVES)]
    yield from _overlap(compute, ["rank"], "stream compute")
    if str(trace.config.options.get("communicators")) == "1":
        comm = events[events["stream"] == "comm"]
        # The axes of a mesh have communicators of their own.
        yield from _overlap(comm, ["rank", "axis"], "stream comm with 1 communicator")


def _overlap(events: pd.DataFrame, lane: list[str], name: str) -> Iterator[str]:
    ordered = events.sort_values([*lane, "start_s", "end_s"])
    latest_end = ordered.groupby(lane)["end_s"].cummax()
    ordered = ordered.assign(busy_until_s=latest_end.groupby([ordered[key] for key in lane]).shift())
    yield from _first(
        ordered[ordered["start_s"] < ordered["busy_until_s"] - CLOCK_RESOLUTION_S],
        lambda row: f"events: {name}: {_event(row)} starts at {row['start_s']} s, before an earlier "
        f"event ends at {row['busy_until_s']} s",
    )


def _peaks(trace: Trace) -> Iterator[str]:
    key = ["rank", "category"]
    yield from _first(
        trace.memory_peak[trace.memory_peak.duplicated(key)],
        lambda row: f"memory_peak: rank {row['rank']}, category {row['category']} has more than one row",
    )
    largest = trace.memory.groupby(key, as_index=False)["bytes"].max()
    both = largest.merge(trace.memory_peak, on=key, how="left")
    yield from _first(
        both[~(both["bytes"] <= both["peak_bytes"])],
        lambda row: f"memory: rank {row['rank']}, category {row['category']} has a sample of "
        f"{row['bytes']} bytes, above its peak_bytes "
        f"({'no row' if np.isnan(row['peak_bytes']) else int(row['peak_bytes'])})",
    )


def _ledger(trace: Trace) -> Iterator[str]:
    yield from _first(
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
    yield from _each_once("tensors", "index", index, range(len(index)))


def _collectives_complete(trace: Trace) -> Iterator[str]:
    """Every rank has the same repetitions of every line: w warm-up, n timed in each window, c checked."""
    if trace.attributes.scenario != BENCHMARK or trace.collectives.empty:
        return
    rows, options = trace.collectives, trace.config.options
    try:
        warmup, timed, checked = (int(options[name]) for name in ("warmup_iters", "iters", "check"))
    except (KeyError, TypeError, ValueError):
        yield "config: the options 'warmup_iters', 'iters' and 'check' must be present and integers"
        return
    windows = rows.groupby("line")["window"].max() + 1
    lines = {line: int(windows.get(line, 1)) for line in range(int(rows["line"].max()) + 1)}
    found = list(zip(rows["rank"].tolist(), rows["line"].tolist(), rows["repetition"].tolist()))
    expected = [
        (rank, line, repetition)
        for rank in range(trace.attributes.world_size)
        for line, count in lines.items()
        for repetition in range(warmup + count * timed + checked)
    ]
    yield from _each_once("collectives", "(rank, line, repetition)", found, expected)
    rows = rows.assign(timed_end=warmup + rows["line"].map(lines) * timed)
    is_timed = (rows["repetition"] >= warmup) & (rows["repetition"] < rows["timed_end"])
    yield from _first(
        rows[(rows["warmup"] == 0) != is_timed],
        lambda row: f"collectives: {_line(row)}: warmup = {row['warmup']}, but repetitions {warmup} to "
        f"{row['timed_end'] - 1} are the timed ones",
    )
    window = np.where(is_timed, (rows["repetition"] - warmup) // max(timed, 1), -1)
    yield from _first(
        rows.assign(must=window)[rows["window"] != window],
        lambda row: f"collectives: {_line(row)}: window = {row['window']}, must be {row['must']} with "
        f"{timed} timed repetitions a window",
    )
    is_checked = rows["repetition"] >= rows["timed_end"]
    yield from _first(
        rows[(rows["wrong"] >= 0) != is_checked],
        lambda row: f"collectives: {_line(row)}: wrong = {row['wrong']}, but repetitions from "
        f"{row['timed_end']} on are the checked ones, and -1 stands for the others",
    )


def _collective_stops(trace: Trace) -> Iterator[str]:
    """Each line says once what ended it, and its windows' times agree."""
    rows, precision = trace.collectives, trace.config.options.get("precision")
    if trace.attributes.scenario != BENCHMARK or rows.empty:
        return
    for line, of_line in rows.groupby("line"):
        stops = sorted(set(of_line["stop"]))
        if len(stops) != 1:
            yield f"collectives: line {line}: its rows name several reasons to stop: {', '.join(stops)}"
            continue
        windows = int(of_line["window"].max()) + 1
        if (stops[0] == "iterations") != (precision is None) or (precision is None and windows != 1):
            asked = "no --precision" if precision is None else f"--precision {precision}"
            yield f"collectives: line {line}: stop is '{stops[0]}' after {windows} windows, with {asked}"
        elif precision is not None:
            yield from _narrow_enough(f"collectives: line {line}", of_line, stops[0], float(precision))
            if stops[0] == "rows" and _timed_repetitions(of_line, windows + 1) <= MOST_REPETITIONS:
                yield f"collectives: line {line}: stop is 'rows' with room for another window"


def _timed_repetitions(of_line: pd.DataFrame, windows: int) -> int:
    first = of_line[(of_line["rank"] == of_line["rank"].min()) & (of_line["window"] == 0)]
    return windows * len(first)


def _narrow_enough(name: str, of_line: pd.DataFrame, stop: str, precision: float) -> Iterator[str]:
    """Stop is `precision` exactly where the interval over the windows of the slowest rank is that narrow."""
    times = stats.window_times(of_line)
    if not np.isfinite(times).all() or not len(times):
        return  # said elsewhere
    width = stats.relative_width(stats.estimate_median(times))
    narrow = width is not None and width <= precision * (1 + WIDTH_RELATIVE)
    clearly = width is not None and width <= precision * (1 - WIDTH_RELATIVE)
    if (stop == "precision" and not narrow) or (stop != "precision" and clearly):
        said = "no interval" if width is None else f"an interval {width:.6g} of the median wide"
        yield f"{name}: stop is '{stop}', but its {len(times)} windows have {said}; precision is {precision}"


def _timer(trace: Trace) -> Iterator[str]:
    """The clock's quality is known in files of the program collectives, and never negative."""
    for name in ("timer_overhead_s", "timer_resolution_s"):
        value = float(getattr(trace.attributes, name))
        if value < 0 or np.isinf(value) or (np.isnan(value) and trace.attributes.scenario == BENCHMARK):
            yield f"{name} is {value} s, must be a time from 0"


def _collective_words(trace: Trace) -> Iterator[str]:
    for column, words in BENCHMARK_VOCABULARY.items():
        yield from _unknown_words(trace.collectives[column], f"collectives: {column}", words)
    rows = trace.collectives
    yield from _first(
        rows[(rows["collective"] == "all_gather") != (rows["reduction"] == "none")],
        lambda row: f"collectives: {_line(row)}: reduction is '{row['reduction']}' of {row['collective']}",
    )


def _collective_sizes(trace: Trace) -> Iterator[str]:
    """S = count x element size, times n where count is a rank's; its volume is what all ranks send."""
    rows, n = trace.collectives, trace.attributes.world_size
    is_reduction = rows["collective"] == "all_reduce"
    blocks = np.where(is_reduction, 1, n)
    size = rows["count"] * rows["dtype"].map(ELEMENT_BYTES) * blocks
    yield from _first(
        rows.assign(size=size)[rows["size_bytes"] != size],
        lambda row: f"collectives: {_line(row)}: size_bytes = {row['size_bytes']}, but count "
        f"{row['count']} of {row['dtype']} on {n} ranks makes {row['size']}",
    )
    told = rows[rows["sent_bytes"] >= 0]
    sums = told.groupby(["line", "repetition"], as_index=False).agg(
        sent=("sent_bytes", "sum"), size=("size_bytes", "first"), collective=("collective", "first")
    )
    volume = sums["size"] * (n - 1) * np.where(sums["collective"] == "all_reduce", 2, 1)
    yield from _first(
        sums.assign(volume=volume)[sums["sent"] != volume],
        lambda row: f"collectives: line {row['line']}, repetition {row['repetition']}: all ranks together "
        f"sent {row['sent']} bytes, the volume is {row['volume']}",
    )


def _collective_times(trace: Trace) -> Iterator[str]:
    rows = trace.collectives
    yield from _first(
        rows[~((rows["start_s"] >= 0) & (rows["start_s"] <= rows["end_s"]))],
        lambda row: f"collectives: {_line(row)}: start_s = {row['start_s']} s, end_s = {row['end_s']} s",
    )
    ordered = rows.sort_values(["rank", "line", "repetition"])
    ordered = ordered.assign(busy_until_s=ordered.groupby("rank")["end_s"].shift())
    yield from _first(
        ordered[ordered["start_s"] < ordered["busy_until_s"] - CLOCK_RESOLUTION_S],
        lambda row: f"collectives: {_line(row)} starts at {row['start_s']} s, before the one before it "
        f"ends at {row['busy_until_s']} s",
    )


def _collective_check(trace: Trace) -> Iterator[str]:
    if trace.attributes.scenario == BENCHMARK and trace.attributes.check == "passed":
        yield from _first(
            trace.collectives[trace.collectives["wrong"] > 0],
            lambda row: f"collectives: {_line(row)}: wrong = {row['wrong']}, but check is 'passed'",
        )


def _line(row: dict[str, Any]) -> str:
    return f"rank {row['rank']}, line {row['line']}, repetition {row['repetition']}"


Key = TypeVar("Key", int, tuple[int, int], tuple[int, int, int])


def _each_once(table: str, key: str, found: list[Key], expected: Iterable[Key]) -> Iterator[str]:
    counts, wanted = Counter(found), set(expected)
    missing = wanted - counts.keys()
    surplus = counts.keys() - wanted
    repeated = {value for value, count in counts.items() if count > 1}
    for words, keys in (("is missing", missing), ("is unexpected", surplus), ("is repeated", repeated)):
        if keys:
            yield f"{table}: {key} {min(keys)} {words}{_more(len(keys))}"


def _first(rows: pd.DataFrame, sentence: Callable[[dict[str, Any]], str]) -> Iterator[str]:
    """The sentence of the first offending row, and how many more there are."""
    for row in _records(rows.head(1)):
        yield sentence(row) + _more(len(rows))


def _records(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows as dictionaries of plain Python values, which print without numpy's types."""
    return iter(rows.astype(object).to_dict("records"))


def _more(count: int, noun: str = "row") -> str:
    return f" (and {count - 1} more {noun}{'s' if count > 2 else ''})" if count > 1 else ""


def _event(row: dict[str, Any]) -> str:
    return f"{row['kind']} of rank {row['rank']}, step {row['step']}, layer {row['layer']}"


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
    _collectives_complete,
    _collective_stops,
    _timer,
    _collective_words,
    _collective_sizes,
    _collective_times,
    _collective_check,
)
