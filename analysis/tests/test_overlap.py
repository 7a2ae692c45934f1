"""The hidden fraction: how often what the rehearsal timed occurs in a step, and what it lacks."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from shardbench.overlap import Overlap, overlap
from shardbench.stragglers import Unknown

LAYERS = 2


def event(kind: str, layer: int, phase: str = "forward", **facts: Any) -> dict[str, Any]:
    stream = "compute" if kind in ("compute", "wait", "copy_in") else "comm"
    row = dict(rank=0, step=1, micro=0, layer=layer, bucket=-1, phase=phase, kind=kind, stream=stream)
    return {**row, **dict(elements=0 if stream == "compute" else 100, start_s=0.0, end_s=0.0), **facts}


def calibrated(kind: str, direction: str, compute_s: float, communication_s: float) -> dict[str, Any]:
    return dict(
        kind=kind, direction=direction, compute_alone_s=compute_s, communication_alone_s=communication_s
    )


def measure(
    events: Sequence[dict[str, Any]],
    calibration: Sequence[dict[str, Any]],
    step_s: float = 10.0,
    **parts: float,
) -> Overlap | Unknown:
    row = dict(rank=0, warmup=0, step_s=step_s, compute_s=0.0, exposed_s=0.0, optimizer_s=0.0, other_s=0.0)
    steps = pd.DataFrame(
        [{**row, **parts, "step": step} for step in (1, 0)] + [{**row, "step": 2, "warmup": 1}]
    )
    return overlap(pd.DataFrame(calibration), steps, pd.DataFrame(events), LAYERS)


def measured(*arguments: Any, **parts: float) -> Overlap:
    found = measure(*arguments, **parts)
    assert isinstance(found, Overlap), found
    return found


@pytest.mark.parametrize(
    ("step_s", "fraction"), [(10.0, 0.0), (6.0, 1.0), (8.0, 0.5), (12.0, -0.5), (5.0, 1.25)]
)
def test_definition(step_s: float, fraction: float) -> None:
    found = Overlap(6.0, 4.0, step_s, 5.0, 5.5)
    assert found.hidden_fraction == pytest.approx(fraction)
    assert found.imb_percent == pytest.approx(100 * min(1, max(0, fraction)))
    assert found.osu_percent == pytest.approx(max(0.0, 100 * fraction))  # compute is the longer one: the same
    assert found.inflation == pytest.approx(1.1)
    assert found.compute_over_communication == 1.5


def test_definitions_part_where_communication_is_longer() -> None:
    """Step 7, compute 2, communication 6: of 6, 1 is hidden; of the shorter one, half."""
    found = Overlap(2.0, 6.0, 7.0, 0.0, 0.0)
    assert (found.hidden_fraction, found.imb_percent) == (0.5, 50.0)
    assert found.osu_percent == pytest.approx(100 / 6)
    assert found.inflation is None


def test_inflation_is_of_layers_in_the_slowest_ranks_step() -> None:
    events = [event("compute", 1), event("all_gather", 1)]
    found = measured(events, [calibrated("block", "forward", 2.0, 1.0)], compute_s=2.5, other_s=0.5)
    assert (found.layers_alone_s, found.layers_in_step_s, found.compute_alone_s) == (2.0, 2.5, 2.5)
    assert found.inflation == 1.25


def test_every_block_and_micro_batch_counts() -> None:
    events = [
        event(kind, layer, phase, micro=micro)
        for micro in range(3)
        for phase in ("forward", "backward")
        for layer in range(LAYERS + 2)
        for kind in ("compute", "all_gather")
    ]
    calibration = [
        calibrated(kind, direction, 1.0 * scale, 0.5 * scale)
        for direction, scale in (("forward", 1.0), ("backward", 2.0))
        for kind in ("embedding", "block", "head")
    ]
    found = measured(events, calibration)
    layers = 3 * (LAYERS + 2)
    assert (found.compute_alone_s, found.communication_alone_s) == (layers * 3.0, layers * 1.5)


def test_pieces_of_a_layer_are_one_layer() -> None:
    """Tensor parallelism splits a layer's compute, and adds collectives, which the calibration has summed."""
    events = [event("compute", 1), event("all_reduce", 1), event("compute", 1), event("all_gather", 1)]
    found = measured(events, [calibrated("block", "forward", 2.0, 3.0)])
    assert (found.compute_alone_s, found.communication_alone_s) == (2.0, 3.0)


def test_unequal_buckets_count_by_their_size() -> None:
    events = [event("compute", 1)] + [
        event("all_reduce", -1, "backward", bucket=i, elements=size) for i, size in enumerate((10, 100, 250))
    ]
    calibration = [calibrated("block", "forward", 1.0, 0.0), calibrated("bucket", "backward", 0.0, 2.0)]
    assert measured(events, calibration).communication_alone_s == pytest.approx(2.0 * 3.6)


def test_what_the_rehearsal_lacks_counts_as_in_the_step() -> None:
    """One after the other, in whatever phase: nothing is hidden."""
    events = [
        event("compute", 1),
        event("all_gather", 1),
        event("compute", -1, "optimizer"),
        event("all_gather", -1, "optimizer", bucket=0),
        event("wait", -1, "optimizer", bucket=0, start_s=5.0, end_s=8.0),
        event("wait", -1, "optimizer", bucket=0, start_s=5.0, end_s=8.0, step=0),
    ]
    calibration = [calibrated("block", "forward", 2.0, 1.5)]
    found = measured(events, calibration, 2.0 + 1.5 + 3.0 + 1.0 + 0.25, optimizer_s=1.0, other_s=0.25)
    assert (found.compute_alone_s, found.communication_alone_s) == (3.25, 4.5)
    assert found.hidden_fraction == pytest.approx(0.0)


def test_absent_for_a_reason() -> None:
    events = [event("compute", 1), event("all_gather", 1)]
    calibration = [calibrated("block", "forward", 1.0, 1.0)]
    assert measure([], calibration) == Unknown("not recorded")
    assert measure(events, []) == Unknown("not recorded")
    assert measure([*events, event("compute", 0)], calibration) == Unknown(
        "no calibration of embedding forward"
    )
    assert measure(events[:1], calibration) == Unknown("nothing to overlap")
