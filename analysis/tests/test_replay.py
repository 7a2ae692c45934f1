"""Steps whose length can be told by hand."""

import numpy as np
import pytest

from shardbench.predict.replay import Step, replay
from shardbench.predict.schedule import Collective, Local, Operation, Wait, operations

COMPUTE = Local("compute", "forward", "block", -1, 0)


def gather(queue: str = "dp") -> Collective:
    return Collective("all_gather", "ring", "bf16", "dp", 1000, queue)


def run(schedule: list[Operation], compute_s: float = 3.0, collective_s: float = 2.0) -> Step:
    return replay(schedule, lambda _: np.array([compute_s]), lambda _: np.array([collective_s]))


def test_without_prefetch_everything_stands_one_after_another() -> None:
    step = run([gather(), Wait(0), COMPUTE, gather(), Wait(1), COMPUTE])
    assert (step.step_s, step.exposed_s, step.communication_s) == (10.0, 4.0, 4.0)


def test_what_is_gathered_ahead_is_hidden() -> None:
    step = run([gather(), gather(), Wait(0), COMPUTE, Wait(1), COMPUTE])
    assert (step.step_s, step.exposed_s) == (8.0, 2.0)


def test_what_takes_longer_than_compute_is_exposed_by_the_difference() -> None:
    step = run([gather(), gather(), Wait(0), COMPUTE, Wait(1), COMPUTE], compute_s=1.5)
    assert (step.step_s, step.exposed_s) == (5.5, 2.5)


def test_one_queue_is_in_order_and_two_are_not() -> None:
    one = [gather(), gather(), Wait(1), Wait(0)]
    assert run(one).step_s == 4.0
    assert run([gather("a"), gather("b"), Wait(1), Wait(0)]).step_s == 2.0


def test_draws_are_independent() -> None:
    step = replay(
        [gather(), Wait(0), COMPUTE], lambda _: np.array([1.0, 2.0]), lambda _: np.array([10.0, 20.0])
    )
    assert step.step_s.tolist() == [11.0, 22.0]


def event(kind: str, stream: str, layer: int, **changes: object) -> dict[str, object]:
    row: dict[str, object] = {"micro": 0, "layer": layer, "bucket": -1, "phase": "forward", "kind": kind, "stream": stream,
                              "axis": "dp", "algorithm": "ring", "dtype": "bf16", "group_size": 4, "elements": 500,
                              "bytes": 1000}  # fmt: skip
    return row | changes


def test_a_wait_means_the_first_of_its_subject_that_is_pending() -> None:
    rows = [
        event("all_gather", "comm", 1), event("all_gather", "comm", 2), event("wait", "compute", 2),
        event("all_gather", "comm", 1), event("wait", "compute", 1), event("wait", "compute", 1),
    ]  # fmt: skip
    found = [o.collective for o in operations(rows, 2, False, 1) if isinstance(o, Wait)]
    assert found == [1, 0, 2]


def test_pieces_of_a_layer_are_counted_and_classes_told_apart() -> None:
    rows = [event("compute", "compute", layer) for layer in (0, 1, 1, 2, 3, -1)]
    found = [(o.block, o.piece) for o in operations(rows, 2, False, 1) if isinstance(o, Local)]
    assert found == [("embedding", 0), ("block", 0), ("block", 1), ("block", 0), ("head", 0), ("none", 0)]
    assert [o.block for o in operations(rows[:1], 2, True, 1) if isinstance(o, Local)] == ["root"]


@pytest.mark.parametrize(
    ("communicators", "queues"), [(1, ["dp", "dp"]), (2, ["dp all_gather", "dp reduce_scatter"])]
)
def test_two_communicators_are_two_queues(communicators: int, queues: list[str]) -> None:
    rows = [event("all_gather", "comm", 1), event("reduce_scatter", "comm", 1)]
    assert [o.queue for o in operations(rows, 2, False, communicators) if isinstance(o, Collective)] == queues
