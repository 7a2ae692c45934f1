"""Imitated compute of real runs: the seconds of the calibration file, times the jitter that docs/contract.md defines."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import runs

MASK = (1 << 64) - 1
SEED = 7
STEPS = 3
TIMES = {"embedding": {"forward": 0.001, "backward": 0.001},
         "block": {"forward": 0.004, "backward": 0.006, "recompute": 0.003},
         "head": {"forward": 0.002, "backward": 0.002},
         "optimizer": {"step": 0.005}}


def splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def normal(rank: int, draw: int) -> float:
    a = splitmix64(splitmix64((SEED << 48) ^ (rank << 16) ^ draw))
    b = splitmix64(a)
    u, v = ((a >> 11) + 1) * 2.0**-53, (b >> 11) * 2.0**-53
    return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)


def timed(*options: str) -> runs.Trace:
    path: Path = runs.scratch_folder() / "times.json"
    path.write_text(json.dumps(TIMES))
    return runs.trace("zero3", 2, "--compute", "timed", "--calibration", str(path), "--seed", str(SEED), "-n", str(STEPS), "-w", "0",
                      *options)


def seconds(trace: runs.Trace, rank: int, step: int, layer: int, phase: str) -> float:
    events = trace.of_rank("events", rank)
    chosen = events[(events["step"] == step) & (events["layer"] == layer) & (events["phase"] == phase)
                    & (events["kind"] == "compute")]
    return float((chosen["end_s"] - chosen["start_s"]).sum())


def shortest_block(trace: runs.Trace, rank: int, step: int, phase: str) -> float:
    """A sleep is never too short, but may be too long: of the two blocks the one that was disturbed less."""
    return min(seconds(trace, rank, step, layer, phase) for layer in (1, 2))


@pytest.mark.parametrize(("options", "jitter"), [([], (0.0, 0.0)), (["--jitter", "rank=0.4,step=0.3"], (0.4, 0.3)),
                                                 (["--jitter", "step=0.5"], (0.0, 0.5))])
def test_blocks_take_as_long_as_the_file_and_the_jitter_say(options: list[str], jitter: tuple[float, float]) -> None:
    trace = timed(*options)
    of_rank, of_step = jitter
    assert trace.config["options"]["jitter"] == ({"rank": of_rank, "step": of_step} if options else None)
    ratios = []
    for rank in range(2):
        for step in range(STEPS):
            factor = math.exp(of_rank * normal(rank, 0) + of_step * normal(rank, step + 1))
            for phase in ("forward", "backward"):
                expected = factor * TIMES["block"][phase]
                taken = shortest_block(trace, rank, step, phase)
                assert taken > 0.999 * expected
                ratios.append(taken / expected)
            optimizer = trace.of_rank("steps", rank)["optimizer_s"][step]
            assert optimizer > 0.999 * factor * TIMES["optimizer"]["step"]
    assert np.median(ratios) < 1.15  # even on a busy machine, half of them


def test_rehearsals_are_without_jitter() -> None:
    assert math.exp(normal(0, 0)) > 2.0  # which the slowest rank's time would show
    rows = timed("--jitter", "rank=1")["calibration"]
    block = rows[(rows["kind"] == "block") & (rows["direction"] == "forward")]
    assert block["compute_alone_s"][0] == pytest.approx(TIMES["block"]["forward"], rel=0.5)


def test_recomputation_takes_what_the_file_says() -> None:
    keeping, recomputing = timed(), timed("--recompute", "full")
    longer = [shortest_block(recomputing, rank, step, "backward") - shortest_block(keeping, rank, step, "backward")
              for rank in range(2) for step in range(STEPS)]
    assert np.median(longer) == pytest.approx(TIMES["block"]["recompute"], rel=0.3)
