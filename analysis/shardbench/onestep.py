"""One step of one rank as spans on its two streams, for a timeline that fits a page. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import pandas as pd

from shardbench import stats
from shardbench.stragglers import Unknown


class Lane(Enum):
    """Where a span is drawn. The stream `comm` has a lane for each direction that data take, and one for axis tp."""

    COMPUTE = "compute"
    GATHER = "all-gather"
    REDUCE = "reduction"
    TENSOR = "axis tp"


@dataclass(frozen=True)
class Span:
    """What a stream did from `start_s` to `end_s`, seconds from the step's start. `layer`: −1 is none."""

    lane: Lane
    kind: str
    phase: str
    layer: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class OneStep:
    """The last timed step of the lowest rank, its spans in the order of lanes and then of time."""

    rank: int
    step: int
    step_s: float
    spans: tuple[Span, ...]


def one_step(steps: pd.DataFrame, events: pd.DataFrame, resolution: float = 1 / 2000) -> OneStep | Unknown:
    """The arguments are tables of a trace.

    Neighbours of one kind and layer become one span where the gap is below `resolution` (a part of the step), and
    spans that stay shorter than that are left out: they would be narrower than what a screen shows.
    """
    timed = stats.timed_steps(steps)
    row = timed[timed["rank"] == timed["rank"].min()].sort_values("step").iloc[-1]
    rank, step, step_s = int(row["rank"]), int(row["step"]), float(row["step_s"])
    own = events[(events["rank"] == rank) & (events["step"] == step)]
    if own.empty:
        return Unknown("not recorded")
    shortest_s = resolution * step_s
    spans = [span for span in _merged(own, float(row["start_s"]), shortest_s) if _length(span) >= shortest_s]
    return OneStep(rank, step, step_s, tuple(spans))


def _length(span: Span) -> float:
    return span.end_s - span.start_s


def _merged(events: pd.DataFrame, origin_s: float, gap_s: float) -> Iterator[Span]:
    ordered = events.sort_values(["start_s", "end_s"])
    lanes = list(map(_lane, ordered["stream"], ordered["kind"], ordered["axis"]))
    columns = [ordered[name].tolist() for name in ("kind", "phase", "layer", "start_s", "end_s")]
    spans: dict[Lane, list[Span]] = {lane: [] for lane in Lane}
    for lane, kind, phase, layer, start_s, end_s in zip(lanes, *columns):
        span = Span(lane, kind, phase, layer, start_s - origin_s, end_s - origin_s)
        members = spans[lane]
        if members and _continues(members[-1], span, gap_s):
            before = members.pop()
            span = replace(span, start_s=before.start_s, end_s=max(before.end_s, span.end_s))
        members.append(span)
    for members in spans.values():
        yield from members


def _continues(before: Span, span: Span, gap_s: float) -> bool:
    same = (before.kind, before.phase, before.layer) == (span.kind, span.phase, span.layer)
    return same and span.start_s - before.end_s < gap_s


def _lane(stream: str, kind: str, axis: str) -> Lane:
    if stream == "compute":
        return Lane.COMPUTE
    if axis == "tp":
        return Lane.TENSOR
    return Lane.GATHER if kind == "all_gather" else Lane.REDUCE
