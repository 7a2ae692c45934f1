"""A step's schedule on a rank whose operations take given times. Pure.

Compute does one thing after another. A collective begins when it was asked for and its communicator has done what was asked
before; compute stands still where the schedule waits for one. All ranks are alike, so one stands for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardbench.predict.schedule import Collective, Local, Operation, Wait

Times = NDArray[np.float64]
"""Seconds, one for each draw of the uncertain costs."""


@dataclass(frozen=True)
class Step:
    """Seconds of a step, of which compute stood still for communication, and of collectives alone."""

    step_s: Times
    exposed_s: Times
    communication_s: Times


def replay(
    operations: Sequence[Operation],
    local_s: Callable[[Local], Times],
    collective_s: Callable[[Collective], Times],
) -> Step:
    """Runs one step. The functions give what an operation takes; arrays of one length."""
    now: Times = np.zeros(1)
    exposed: Times = np.zeros(1)
    communication: Times = np.zeros(1)
    free: dict[str, Times] = {}
    done: list[Times] = []
    for operation in operations:
        match operation:
            case Local():
                now = now + local_s(operation)
            case Collective():
                seconds = collective_s(operation)
                communication = communication + seconds
                end = np.maximum(now, free.get(operation.queue, now)) + seconds
                free[operation.queue] = end
                done.append(end)
            case Wait():
                stood = np.maximum(done[operation.collective] - now, 0.0)
                exposed, now = exposed + stood, now + stood
    return Step(now, exposed, communication)
