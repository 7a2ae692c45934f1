"""The invariants of files of the program `collectives`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from shardbench import stats
from shardbench.plans import BENCHMARK
from shardbench.read import Trace
from shardbench.validate.run import CLOCK_RESOLUTION_S, COLLECTIVES
from shardbench.validate.sentences import each_once, first, unknown_words

WIDTH_RELATIVE = 1e-9
"""Rounding between the program's arithmetic and this one."""
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
    yield from each_once("collectives", "(rank, line, repetition)", found, expected)
    rows = rows.assign(timed_end=warmup + rows["line"].map(lines) * timed)
    is_timed = (rows["repetition"] >= warmup) & (rows["repetition"] < rows["timed_end"])
    yield from first(
        rows[(rows["warmup"] == 0) != is_timed],
        lambda row: f"collectives: {_line(row)}: warmup = {row['warmup']}, but repetitions {warmup} to "
        f"{row['timed_end'] - 1} are the timed ones",
    )
    window = np.where(is_timed, (rows["repetition"] - warmup) // max(timed, 1), -1)
    yield from first(
        rows.assign(must=window)[rows["window"] != window],
        lambda row: f"collectives: {_line(row)}: window = {row['window']}, must be {row['must']} with "
        f"{timed} timed repetitions a window",
    )
    is_checked = rows["repetition"] >= rows["timed_end"]
    yield from first(
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


def _collective_words(trace: Trace) -> Iterator[str]:
    for column, words in BENCHMARK_VOCABULARY.items():
        yield from unknown_words(trace.collectives[column], f"collectives: {column}", words)
    rows = trace.collectives
    yield from first(
        rows[(rows["collective"] == "all_gather") != (rows["reduction"] == "none")],
        lambda row: f"collectives: {_line(row)}: reduction is '{row['reduction']}' of {row['collective']}",
    )


def _collective_sizes(trace: Trace) -> Iterator[str]:
    """S = count x element size, times n where count is a rank's; its volume is what all ranks send."""
    rows, n = trace.collectives, trace.attributes.world_size
    is_reduction = rows["collective"] == "all_reduce"
    blocks = np.where(is_reduction, 1, n)
    size = rows["count"] * rows["dtype"].map(ELEMENT_BYTES) * blocks
    yield from first(
        rows.assign(size=size)[rows["size_bytes"] != size],
        lambda row: f"collectives: {_line(row)}: size_bytes = {row['size_bytes']}, but count "
        f"{row['count']} of {row['dtype']} on {n} ranks makes {row['size']}",
    )
    told = rows[rows["sent_bytes"] >= 0]
    sums = told.groupby(["line", "repetition"], as_index=False).agg(
        sent=("sent_bytes", "sum"), size=("size_bytes", "first"), collective=("collective", "first")
    )
    volume = sums["size"] * (n - 1) * np.where(sums["collective"] == "all_reduce", 2, 1)
    yield from first(
        sums.assign(volume=volume)[sums["sent"] != volume],
        lambda row: f"collectives: line {row['line']}, repetition {row['repetition']}: all ranks together "
        f"sent {row['sent']} bytes, the volume is {row['volume']}",
    )


def _collective_times(trace: Trace) -> Iterator[str]:
    rows = trace.collectives
    yield from first(
        rows[~((rows["start_s"] >= 0) & (rows["start_s"] <= rows["end_s"]))],
        lambda row: f"collectives: {_line(row)}: start_s = {row['start_s']} s, end_s = {row['end_s']} s",
    )
    ordered = rows.sort_values(["rank", "line", "repetition"])
    ordered = ordered.assign(busy_until_s=ordered.groupby("rank")["end_s"].shift())
    yield from first(
        ordered[ordered["start_s"] < ordered["busy_until_s"] - CLOCK_RESOLUTION_S],
        lambda row: f"collectives: {_line(row)} starts at {row['start_s']} s, before the one before it "
        f"ends at {row['busy_until_s']} s",
    )


def _collective_check(trace: Trace) -> Iterator[str]:
    if trace.attributes.scenario == BENCHMARK and trace.attributes.check == "passed":
        yield from first(
            trace.collectives[trace.collectives["wrong"] > 0],
            lambda row: f"collectives: {_line(row)}: wrong = {row['wrong']}, but check is 'passed'",
        )


def _line(row: dict[str, Any]) -> str:
    return f"rank {row['rank']}, line {row['line']}, repetition {row['repetition']}"


CHECKS: tuple[Callable[[Trace], Iterator[str]], ...] = (
    _collectives_complete,
    _collective_stops,
    _collective_words,
    _collective_sizes,
    _collective_times,
    _collective_check,
)
