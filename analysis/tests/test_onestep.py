"""One step as spans: which step, lanes, merging and what is too short to see."""

from typing import Any

import pandas as pd
import pytest

from shardbench.onestep import Lane, OneStep, one_step
from shardbench.stragglers import Unknown


def event(kind: str, start_s: float, end_s: float, layer: int = 1, **facts: Any) -> dict[str, Any]:
    stream = "comm" if kind in ("all_gather", "reduce_scatter", "all_reduce") else "compute"
    row = dict(rank=0, step=2, kind=kind, stream=stream, axis="dp", layer=layer, phase="forward")
    return {**row, "start_s": 100 + start_s, "end_s": 100 + end_s, **facts}


def stepped(*events: dict[str, Any]) -> OneStep:
    """Of two ranks with steps 0 (warm-up), 1 and 2; step 2 begins at 100 s and takes 1 s."""
    rows = [
        dict(rank=rank, step=step, warmup=int(step == 0), start_s=98.0 + step, step_s=1.0)
        for rank in (1, 0)
        for step in (2, 0, 1)
    ]
    found = one_step(pd.DataFrame(rows), pd.DataFrame(events))
    assert isinstance(found, OneStep)
    return found


def spans(*events: dict[str, Any]) -> list[tuple[Lane, str, int, float, float]]:
    found = stepped(*events)
    return [(s.lane, s.kind, s.layer, round(s.start_s, 9), round(s.end_s, 9)) for s in found.spans]


def test_the_last_timed_step_of_the_lowest_rank() -> None:
    other_rank, other_step = event("compute", 0.1, 0.3, rank=1), event("compute", 0.0, 0.4, step=1)
    found = stepped(event("compute", 0.1, 0.2), other_rank, other_step)
    assert (found.rank, found.step, found.step_s) == (0, 2, 1.0)
    assert [(round(s.start_s, 9), round(s.end_s, 9)) for s in found.spans] == [(0.1, 0.2)]


def test_lanes() -> None:
    assert spans(
        event("all_gather", 0.0, 0.1),
        event("reduce_scatter", 0.2, 0.3),
        event("all_reduce", 0.3, 0.4, layer=-1),
        event("all_gather", 0.4, 0.5, axis="tp"),
        event("wait", 0.0, 0.1),
        event("copy_in", 0.1, 0.2),
    ) == [
        (Lane.COMPUTE, "wait", 1, 0.0, 0.1),
        (Lane.COMPUTE, "copy_in", 1, 0.1, 0.2),
        (Lane.GATHER, "all_gather", 1, 0.0, 0.1),
        (Lane.REDUCE, "reduce_scatter", 1, 0.2, 0.3),
        (Lane.REDUCE, "all_reduce", -1, 0.3, 0.4),
        (Lane.TENSOR, "all_gather", 1, 0.4, 0.5),
    ]


def test_pieces_of_a_layer_are_joined_and_others_are_not() -> None:
    assert spans(
        event("compute", 0.0, 0.1),
        event("compute", 0.1001, 0.2),
        event("compute", 0.3, 0.4),
        event("compute", 0.4, 0.5, layer=2),
        event("compute", 0.5, 0.6, layer=2, phase="backward"),
    ) == [
        (Lane.COMPUTE, "compute", 1, 0.0, 0.2),
        (Lane.COMPUTE, "compute", 1, 0.3, 0.4),
        (Lane.COMPUTE, "compute", 2, 0.4, 0.5),
        (Lane.COMPUTE, "compute", 2, 0.5, 0.6),
    ]


@pytest.mark.parametrize(("length_s", "is_kept"), [(0.0, False), (0.0004, False), (0.0006, True)])
def test_what_is_narrower_than_a_screen_shows_is_left_out(length_s: float, is_kept: bool) -> None:
    assert bool(spans(event("wait", 0.5, 0.5 + length_s))) is is_kept


def test_a_trace_without_events() -> None:
    columns = ["rank", "step", "kind", "stream", "axis", "layer", "phase", "start_s", "end_s"]
    rows = pd.DataFrame([dict(rank=0, step=0, warmup=0, start_s=0.0, step_s=1.0)])
    assert one_step(rows, pd.DataFrame(columns=columns)) == Unknown("not recorded")
