"""Collectives that proceed on streams of simulated GPUs: right results, the calls of a real run, exact and repeatable times."""

import os
import shutil
import sys

import numpy as np
import pytest
import runs

pytestmark = [
    pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed"),
    pytest.mark.skipif(not (runs.SIM_BIN / "zero3").exists(), reason=f"{runs.SIM_BIN}/zero3 is not built (preset sim)"),
]

SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")


def simulate(scenario: str, ranks: int, *options: str, platform: str = "h100-fat-tree") -> runs.Trace:
    output = runs.new_file()
    command = [sys.executable, "-m", "shardbench", "simulate", scenario, "--ranks", str(ranks), "--platform", platform, "--",
               *options, "-o", str(output)]
    path = os.pathsep.join([str(runs.ROOT / "analysis"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    finished = runs.execute(command, runs.scratch_folder(), timeout_s=400, PYTHONPATH=path, SHARDBENCH_SIM_BIN=str(runs.SIM_BIN))
    assert finished.code == 0, str(finished)
    trace = runs.Trace(output)
    assert (trace.attributes["status"], trace.attributes["simulated"], trace.ranks) == ("complete", 1, ranks), str(finished)
    return trace


def mesh(scenario: str) -> tuple[str, ...]:
    return ("--tp", "2") if scenario == "mesh2d" else ()


@pytest.mark.parametrize(("scenario", "ranks", "algorithm"), [
    *((scenario, 8, "nccl") for scenario in SCENARIOS),
    ("zero3", 8, "coarse"), ("zero3", 8, "hierarchical"), ("mesh2d", 8, "doubling"), ("zero2", 12, "nccl"), ("zero3", 1, "nccl"),
    ("zero3", 64, "nccl"), ("ddp", 64, "ring"), ("mesh2d", 64, "nccl"),
])
def test_real_payload_passes_the_check(scenario: str, ranks: int, algorithm: str) -> None:
    trace = simulate(scenario, ranks, "--compute", "real", "-c", "--algorithm", algorithm, "-n", "2", "-w", "1", *mesh(scenario))
    assert trace.attributes["check"] == "passed"
    assert np.isfinite(trace.steps_agreed("loss")).all()


ALGORITHMS = {2: ("direct", "ring"), 4: ("doubling", "hierarchical"), 8: ("ring", "hierarchical")}


@pytest.mark.parametrize(("scenario", "ranks", "algorithm"),
                         [(s, n, a) for s in SCENARIOS for n, algorithms in ALGORITHMS.items() for a in algorithms])
def test_collectives_are_those_of_a_real_run(scenario: str, ranks: int, algorithm: str) -> None:
    options = ["--compute", "timed", "--flops", "1e11", "--payload", "phantom", "--algorithm", algorithm, "--ranks-per-node", "2",
               "--clip", "1", "-n", "1", "-w", "1", *mesh(scenario)]
    if scenario in ("zero1", "zero2"):
        options += ["--grad-accum", "2", "--param-gather", "overlap"]
    simulated, real = simulate(scenario, ranks, *options), runs.trace(scenario, ranks, *options)
    for rank in range(ranks):
        for step in range(2):
            expected = [event for event in real.events(rank, step) if event["group_size"] > 0]
            assert expected, "there is nothing to compare"
            assert [event for event in simulated.events(rank, step) if event["group_size"] > 0] == expected
        assert simulated.ledger(rank) == real.ledger(rank)


@pytest.mark.parametrize(("scenario", "options"), [
    ("zero3", ("--model", "8b", "--communicators", "2")),
    ("zero3", ("--model", "8b", "--algorithm", "doubling", "--jitter", "rank=0.1,step=0.05", "--contention", "0.2")),
    ("mesh2d", ("--model", "8b", "--tp", "8", "--sequence-parallel", "--jitter", "rank=0.1,step=0.05", "--contention", "0.2")),
    ("zero2", ("--model", "1b", "--grad-accum", "2")),
])
def test_times_repeat_to_the_last_digit(scenario: str, options: tuple[str, ...]) -> None:
    first, second = (simulate(scenario, 64, *options, "--layers", "4", "-n", "2", "-w", "1") for _ in range(2))
    for table in ("events", "steps", "clock", "calibration", "ledger", "memory", "memory_peak"):
        for name in first[table].dtype.names:
            np.testing.assert_array_equal(first[table][name], second[table][name], err_msg=f"{table}.{name}")


def compute_and_transfers(trace: runs.Trace, rank: int) -> tuple[np.ndarray, np.ndarray]:
    rows = trace.of_rank("events", rank)
    return rows[rows["kind"] == "compute"], rows[rows["stream"] == "comm"]


def test_contention_slows_compute_while_transfers_are_under_way() -> None:
    gamma = 0.5
    options = ("--model", "8b", "--layers", "4", "--flops", "1e15", "--compute", "timed", "-n", "1", "-w", "0", "--param-dtype", "bf16")
    alone, contended = simulate("zero3", 16, *options), simulate("zero3", 16, *options, "--contention", str(gamma))
    before, _ = compute_and_transfers(alone, 3)
    after, transfers = compute_and_transfers(contended, 3)
    # A transfer begins when the last rank has come to it.
    begins = np.max([compute_and_transfers(contended, rank)[1]["start_s"] for rank in range(16)], axis=0)
    slowed = 0
    for plain, slow in zip(before, after, strict=True):
        overlap = sum(max(0.0, min(t["end_s"], slow["end_s"]) - max(begin, slow["start_s"]))
                      for begin, t in zip(begins, transfers, strict=True))
        length = slow["end_s"] - slow["start_s"]
        assert length - overlap + overlap / (1 + gamma) == pytest.approx(plain["end_s"] - plain["start_s"], rel=1e-6, abs=1e-9)
        slowed += overlap > 0.1 * length
    assert slowed >= 6, "hardly any compute met a transfer"


def test_a_late_rank_delays_all() -> None:
    trace = simulate("zero3", 16, "--model", "8b", "--layers", "2", "-n", "1", "-w", "0", "--jitter", "rank=0.5", platform="flat")
    ends, issued = [], []
    for rank in range(16):
        _, transfers = compute_and_transfers(trace, rank)
        ends.append(transfers["end_s"])
        issued.append(transfers["issue_s"])
    np.testing.assert_array_equal(ends, [ends[0]] * 16)
    last_issue = np.max(issued, axis=0)
    assert (np.ptp(issued, axis=0) > 1e-3).any(), "nobody was late"
    assert (ends[0] > last_issue).all()


def test_two_transfers_share_a_link() -> None:
    """On two communicators an all-gather and a reduce-scatter that run together have half of the bandwidth each."""
    trace = simulate("zero3", 4, "--model", "8b", "--layers", "3", "--communicators", "2", "--algorithm", "coarse", "-n", "1", "-w", "0",
                     "--compute", "timed", "--flops", "1e18", platform="flat")
    bandwidth, hops_s = 10e9, 3 * 2e-6
    _, transfers = compute_and_transfers(trace, 0)
    moved = {}  # seconds of a whole link that each transfer needs
    for i, t in enumerate(transfers):
        moved[i] = t["bytes"] * 3 / 4 / bandwidth
    shared = 0
    for i, t in enumerate(transfers):
        others = [o for j, o in enumerate(transfers) if j != i]
        overlap = sum(max(0.0, min(o["end_s"], t["end_s"]) - max(o["start_s"], t["start_s"])) for o in others)
        length = t["end_s"] - t["start_s"]
        assert length == pytest.approx(moved[i] + hops_s + overlap / 2, rel=1e-2, abs=3 * hops_s)
        shared += overlap > 0.1 * length
    assert shared >= 4, "hardly anything ran together"


@pytest.mark.parametrize(("options", "said"), [
    (("--algorithm", "nccl", "--progress", "poll"), "--progress stream"),
    (("--algorithm", "native"), "native"),
    (("--progress", "thread"), "stream or poll"),
])
def test_what_no_stream_can_do_is_refused(options: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "shardbench", "simulate", "zero3", "--ranks", "4", "--platform", "flat", "--", *options]
    path = os.pathsep.join([str(runs.ROOT / "analysis"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    finished = runs.execute(command, runs.scratch_folder(), PYTHONPATH=path, SHARDBENCH_SIM_BIN=str(runs.SIM_BIN))
    assert finished.code == 2, str(finished)
    assert said in finished.stderr
