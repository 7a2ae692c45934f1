"""Part of a run as events of the Trace Event Format, which Perfetto and Chrome's tracing open.

The format: Google, "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
A rank is a process. Its threads: the steps, compute, and each communicator. Times are microseconds.

A collective is asked for between two computations, where nothing else is; but an arrow can begin in a slice only. So a
slice "issue ..." stands there, and the arrow leads from it through the collective to the wait for it. Where several slices
touch or begin together, as they often do in simulations, viewers take the one on top. So the slice is the nanosecond before
the request, and the arrow ends inside the wait, shortly before its end: there no other slice begins.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import islice
from json import JSONEncoder
from math import isfinite
from os import fsencode
from typing import Any, TextIO

import pandas as pd

from shardbench import __version__
from shardbench.errors import RunError
from shardbench.extract import Extract, Names
from shardbench.stats import PARTS
from shardbench.stragglers import SUBJECT

Event = dict[str, Any]

STEPS, COMPUTE = "steps", "compute"
THREADS = (STEPS, COMPUTE, "comm", "comm reduce_scatter", "comm tp", "comm world")
"""In the order of display. Perfetto takes thread 0 for the system's idle one, so numbers begin with 1."""

ISSUE_NS = 1
EVENTS_AT_ONCE = 1000

# Chrome's tracing knows colours only by name (catapult, tracing/base/color_scheme.html); these differ most.
LAYER_COLOURS = (
    *("rail_response", "rail_load", "rail_idle", "thread_state_runnable"),
    *("thread_state_running", "thread_state_unknown", "thread_state_uninterruptible", "olive"),
)
KIND_COLOURS = {"wait": "terrible", "copy_in": "grey", "copy_out": "grey", "issue": "black"}
OPTIMIZER_COLOUR = "generic_work"

_encode = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def write_trace_events(shown: Extract, out: TextIO) -> None:
    """Writes one JSON object (RFC 8259: no NaN, no infinity). Memory does not grow with the number of events.

    Raises:
        RunError: there is no event.
        TraceError: as for `shardbench.read.read_trace`, perhaps at the end: then what is written means nothing.
        OSError: it cannot be written.
    """
    out.write(f'{{"displayTimeUnit":"ns","otherData":{_encode(_facts(shown))},"traceEvents":[\n')
    events, separator = _events(shown), ""
    # One call for many events: it costs as much as to encode a few.
    while batch := list(islice(events, EVENTS_AT_ONCE)):
        out.write(separator + _encode(batch)[1:-1])
        separator = ",\n"
    out.write("\n]}\n")


def _events(shown: Extract) -> Iterator[Event]:
    threads, counters = _Threads(), _Counters(shown)
    yield from _processes(shown)
    yield from _steps(shown, threads)
    operations = _Operations(Names.of(shown), threads)
    for block in shown.events():
        yield from operations.of(block)
    if not operations.count:
        raise RunError(
            f"{shown.path} has no event of the chosen steps and ranks; choose others, or repeat the run"
        )
    yield from operations.unfinished()
    for block in shown.blocks("memory"):
        yield from counters.of(block)
    yield from counters.untouched()


def _facts(shown: Extract) -> dict[str, Any]:
    """What belongs to the events: where they come from, and what their times mean."""
    attributes = shown.header.attributes
    clock = (
        "one simulated clock"
        if attributes.simulated
        else "rank 0's steady clock, from the run's start; other ranks by the offsets measured before and after "
        "the steps, linear between"
    )
    return {
        "written_by": f"shardbench {__version__}",
        "file": fsencode(shown.path.name).decode("utf-8", "replace"),
        **({"incomplete": shown.header.incomplete} if shown.header.incomplete else {}),
        "times": "microseconds after base_s",
        "base_s": shown.base_s,
        "clock": clock,
        "clock_uncertainty_s": shown.uncertainty_s,
        "steps": int(shown.steps["step"].nunique()),
        "ranks": len(shown.ranks),
        **{
            name: value
            for name, value in vars(attributes).items()
            if isinstance(value, str) or isfinite(value)
        },
    }


def _processes(shown: Extract) -> Iterator[Event]:
    columns = ("rank", "host", "dp_index", "tp_index", "device", "pid")
    for rank, host, dp, tp, device, pid in zip(*(shown.ranks[name].tolist() for name in columns)):
        yield _metadata(rank, "process_name", name=f"rank {rank} (dp {dp}, tp {tp}) on {host}")
        yield _metadata(rank, "process_labels", labels=f"{device}, pid {pid}")
        yield _metadata(rank, "process_sort_index", sort_index=rank)


def _metadata(rank: int, what: str, thread: int = 0, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args}


class _Threads:
    """Numbers the threads of ranks, and names each where it first occurs."""

    def __init__(self) -> None:
        self._named: set[tuple[int, str]] = set()

    def name(self, rank: int, thread: str) -> Iterator[Event]:
        if (rank, thread) not in self._named:
            self._named.add((rank, thread))
            yield _metadata(rank, "thread_name", _number(thread), name=thread)
            yield _metadata(rank, "thread_sort_index", _number(thread), sort_index=_number(thread))


def _number(thread: str) -> int:
    return THREADS.index(thread) + 1


def _slice(
    rank: int, thread: str, start_ns: int, end_ns: int, name: str, category: str, colour: str, args: Event
) -> Event:
    return {
        **{"ph": "X", "name": name, "cat": category, "pid": rank, "tid": _number(thread)},
        **{"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3, "args": args},
        **({"cname": colour} if colour else {}),
    }


def _steps(shown: Extract, threads: _Threads) -> Iterator[Event]:
    rows = shown.steps
    starts = shown.nanoseconds(rows["rank"], rows["start_s"])
    ends = shown.nanoseconds(rows["rank"], rows["start_s"] + rows["step_s"])
    columns = ("rank", "step", "warmup", *PARTS, "loss")
    for start, end, rank, step, warmup, *numbers in zip(
        starts.tolist(), ends.tolist(), *(rows[name].tolist() for name in columns)
    ):
        args = {name: value for name, value in zip((*PARTS, "loss"), numbers) if isfinite(value)}
        name = f"step {step}{' (warm-up)' if warmup else ''}"
        yield from threads.name(rank, STEPS)
        yield _slice(rank, STEPS, start, end, name, "step", "", {"step": step, "warmup": warmup, **args})


class _Operations:
    """Slices and arrows of the table `events`."""

    COLUMNS = tuple(
        "rank step micro layer bucket phase kind stream axis algorithm dtype group_size elements bytes sent_bytes "
        "start_s end_s wait_s issue_ns start_ns end_ns".split()
    )

    def __init__(self, names: Names, threads: _Threads) -> None:
        self._names, self._threads = names, threads
        self._flows = 0
        self._step_of: dict[int, int] = {}
        self._in_flight: dict[int, dict[tuple[Any, ...], deque[Event]]] = defaultdict(
            lambda: defaultdict(deque)
        )
        self.count = 0

    def of(self, block: pd.DataFrame) -> Iterator[Event]:
        for values in zip(*(block[name].tolist() for name in self.COLUMNS)):
            self.count += 1
            row = dict(zip(self.COLUMNS, values))
            if self._step_of.get(row["rank"]) != row["step"]:
                self._step_of[row["rank"]] = row["step"]
                yield from self._unfinished(row["rank"])
            yield from self._collective(row) if row["stream"] == "comm" else self._computation(row)

    def unfinished(self) -> Iterator[Event]:
        """Ends the arrows whose wait the file does not have, in the collective itself."""
        for rank in list(self._in_flight):
            yield from self._unfinished(rank)

    def _unfinished(self, rank: int) -> Iterator[Event]:
        # A step waits for all that it issued: of an earlier one, no wait will come.
        for flows in self._in_flight.pop(rank, {}).values():
            for flow in flows:
                yield {**flow, "ph": "f", "bp": "e"}

    def _collective(self, row: Event) -> Iterator[Event]:
        rank, subject = row["rank"], self._names.operation(*_called(row))
        queue = self._names.queue(row["kind"], row["axis"])
        args = _args(
            row, "axis", "algorithm", "dtype", "group_size", "elements", "bytes", "sent_bytes", "wait_s"
        )
        yield from self._threads.name(rank, COMPUTE)
        yield from self._threads.name(rank, queue)
        issue, start, end = row["issue_ns"], row["start_ns"], row["end_ns"]
        begin = max(0, issue - ISSUE_NS)
        self._flows += 1
        flow = {"cat": "collective", "name": subject, "id": self._flows, "pid": rank}
        through = {**flow, "tid": _number(queue), "ts": start / 1e3}
        asked = f"issue {subject}"
        yield _slice(rank, COMPUTE, begin, issue, asked, "issue", KIND_COLOURS["issue"], _args(row, "axis"))
        yield {**flow, "ph": "s", "tid": _number(COMPUTE), "ts": begin / 1e3}
        yield _slice(rank, queue, start, end, subject, row["kind"], _colour(row), args)
        yield {**through, "ph": "t"}
        self._in_flight[rank][(*(row[name] for name in SUBJECT), row["wait_s"])].append(through)

    def _computation(self, row: Event) -> Iterator[Event]:
        rank, kind = row["rank"], row["kind"]
        flow = None
        name = self._names.operation(*_called(row))
        args = _args(row)
        if kind == "wait":
            key = (*(row[name] for name in SUBJECT), row["end_s"] - row["start_s"])
            args = _args(row, "axis", "elements")
            if flows := self._in_flight[rank].get(key):
                flow = flows.popleft()
                name = f"wait {flow['name']}"
        yield from self._threads.name(rank, COMPUTE)
        yield _slice(rank, COMPUTE, row["start_ns"], row["end_ns"], name, kind, _colour(row), args)
        if flow:
            # Before the issue of the next collective, which may be the wait's last nanosecond.
            inside_ns = max(row["start_ns"], row["end_ns"] - 2 * ISSUE_NS)
            at = max(flow["ts"], inside_ns / 1e3)
            yield {**flow, "ph": "f", "bp": "e", "tid": _number(COMPUTE), "ts": at}


def _called(row: Event) -> tuple[str, int, int, str, str]:
    return row["kind"], row["layer"], row["bucket"], row["axis"], row["phase"]


def _args(row: Event, *names: str) -> Event:
    """What says something of the row: −1 is none, or unknown."""
    of_all = ("step", "micro", "phase", "layer", "bucket")
    return {name: row[name] for name in (*of_all, *names) if row[name] != -1}


def _colour(row: Event) -> str:
    if row["kind"] in KIND_COLOURS:
        return KIND_COLOURS[row["kind"]]
    subject = row["layer"] if row["layer"] >= 0 else row["bucket"]
    return LAYER_COLOURS[subject % len(LAYER_COLOURS)] if subject >= 0 else OPTIMIZER_COLOUR


class _Counters:
    """Memory by category. Each begins with its level at the first step that is shown."""

    def __init__(self, shown: Extract) -> None:
        self._shown = shown
        first_rows = shown.steps.sort_values("step").drop_duplicates("rank")
        starts = shown.nanoseconds(first_rows["rank"], first_rows["start_s"])
        self._start_ns = dict(zip(first_rows["rank"].tolist(), starts.tolist()))
        self._first, self._last = int(shown.steps["step"].min()), int(shown.steps["step"].max())
        self._before: dict[tuple[int, str], int] = {}

    def of(self, block: pd.DataFrame) -> Iterator[Event]:
        block = block[block["step"] <= self._last]
        times = self._shown.nanoseconds(block["rank"], block["at_s"])
        columns = (block[name].tolist() for name in ("rank", "step", "category", "bytes"))
        for at_ns, rank, step, category, count in zip(times.tolist(), *columns):
            if step < self._first:
                self._before[rank, category] = count
            else:
                yield from self._begin(rank, category)
                yield _counter(rank, category, at_ns, count)

    def untouched(self) -> Iterator[Event]:
        """The categories that do not change in what is shown."""
        for rank, category in list(self._before):
            yield from self._begin(rank, category)

    def _begin(self, rank: int, category: str) -> Iterator[Event]:
        count = self._before.pop((rank, category), None)
        if count is not None and rank in self._start_ns:
            yield _counter(rank, category, self._start_ns[rank], count)


def _counter(rank: int, category: str, at_ns: int, count: int) -> Event:
    name = f"memory {category}"
    return {"ph": "C", "name": name, "pid": rank, "tid": 0, "ts": at_ns / 1e3, "args": {"bytes": count}}
