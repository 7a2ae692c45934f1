"""The bound of jobs/overlap.py is the shortest step of the schedule: no replay of it is shorter, and some are as short."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))

from overlap import Alone, Parts  # noqa: E402

BLOCKS = 5
KINDS = ["embedding", *["block"] * BLOCKS, "head"]


def replay(parts: Parts) -> float:
    """zero3 with prefetch 1 on an ideal machine: one queue of collectives, which never waits for progress."""
    now = network_free = 0.0

    def issue(seconds: float) -> float:
        nonlocal network_free
        network_free = max(now, network_free) + seconds
        return network_free

    layers = range(len(KINDS))
    for direction, order in (("forward", layers), ("backward", layers[::-1])):
        gathered: dict[int, float] = {}
        reduced = now
        for place, layer in enumerate(order):
            for ahead in order[place : place + 2]:
                if ahead not in gathered:
                    gathered[ahead] = issue(parts.alone[KINDS[ahead], "forward"].communication)
            alone = parts.alone[KINDS[layer], direction]
            now = max(now, gathered[layer]) + alone.compute
            if direction == "backward":
                now = max(now, reduced)
                reduced = issue(alone.communication - parts.alone[KINDS[layer], "forward"].communication)
        now = max(now, reduced)
    return now + parts.optimizer


def random_parts(seed: int, compute_scale: float) -> Parts:
    """Blocks far larger than embedding and head, as in the study."""
    chance = random.Random(seed)
    alone = {}
    for kind, size in (("embedding", 0.02), ("block", 1.0), ("head", 0.05)):
        compute = 0.0 if kind == "embedding" else compute_scale * size * chance.uniform(0.5, 1.5)
        gather, reduce = (size * chance.uniform(0.5, 1.5) for _ in range(2))
        alone[kind, "forward"] = Alone(compute, gather)
        alone[kind, "backward"] = Alone(2 * compute, gather + reduce)
    return Parts(blocks=BLOCKS, alone=alone, optimizer=0.3)


@pytest.mark.parametrize("seed", range(100))
def test_no_step_is_shorter(seed: int) -> None:
    parts = random_parts(seed, compute_scale=4 ** random.Random(seed).uniform(-2, 2))
    assert replay(parts) >= parts.bound * (1 - 1e-12)


@pytest.mark.parametrize("compute_scale", [0.05, 20.0])
@pytest.mark.parametrize("seed", range(10))
def test_step_reaches_it_where_one_side_rules(seed: int, compute_scale: float) -> None:
    parts = random_parts(seed, compute_scale)
    assert replay(parts) == pytest.approx(parts.bound, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_hidden_share(seed: int) -> None:
    parts = random_parts(seed, compute_scale=1.0)
    serial = parts.compute + parts.communication + parts.optimizer
    assert parts.hidden(serial) == pytest.approx(0.0, abs=1e-12)
    assert parts.hidden(serial - min(parts.compute, parts.communication)) == pytest.approx(1.0)
