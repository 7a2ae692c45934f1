"""The same sources under SimGrid SMPI: real payload at 16 and 64 ranks, the events of a real run, deterministic times."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import runs

HOSTS = 64
PLATFORM = f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="n-" suffix="" radical="0-{HOSTS - 1}" speed="1Gf" bw="10GBps" lat="2us"/>
</platform>
"""
# Why each is set: docs of the simulation, and SimGrid's manual. Without them times include what SMPI calibrated for
# another machine, and polling advances the simulated clock.
FLAGS = ["network/model:SMPI", "smpi/bw-factor:0:1", "smpi/lat-factor:0:1", "network/crosstraffic:0",
         "network/TCP-gamma:1e15", "network/weight-S:0", "smpi/host-speed:1Gf", "smpi/simulate-computation:no",
         "smpi/privatization:no", "smpi/test:1e-7", "smpi/grow-injected-times:no"]

pytestmark = [
    pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed"),
    pytest.mark.skipif(not (runs.SIM_BIN / "zero3").exists(), reason=f"{runs.SIM_BIN}/zero3 is not built (preset sim)"),
]


def smpirun(program: str, ranks: int, options: str, output: Path) -> runs.Finished:
    folder: Path = runs.scratch_folder()
    platform, hostfile = folder / "platform.xml", folder / "hosts"
    platform.write_text(PLATFORM)
    hostfile.write_text("".join(f"n-{i}\n" for i in range(HOSTS)))
    return runs.execute(
        ["smpirun", "-quiet", "--log=root.thresh:warning", "-platform", str(platform), "-hostfile", str(hostfile),
         *(f"--cfg={flag}" for flag in FLAGS), "-np", str(ranks), str(runs.SIM_BIN / program), *options.split(),
         "--output", str(output)], folder)


def simulate(program: str, ranks: int, options: str) -> runs.Trace:
    output = runs.new_file()
    finished = smpirun(program, ranks, options, output)
    assert finished.code == 0, str(finished)
    assert output.exists(), str(finished)  # smpirun answers 0 even after MPI_Abort
    trace = runs.Trace(output)
    assert trace.attributes["status"] == "complete", str(finished)
    assert trace.attributes["simulated"] == 1
    assert trace.ranks == ranks
    return trace


REAL = "--compute real --progress poll"


@pytest.mark.parametrize(("scenario", "ranks", "options"), [
    ("zero3", 16, ""),
    ("zero3", 64, ""),
    ("ddp", 16, ""),
    ("zero1", 8, "--param-gather overlap"),
    ("zero2", 8, "--grad-accum 2"),
    ("mesh2d", 8, "--dp 4 --tp 2"),
    ("mesh2d", 8, "--dp 4 --tp 2 --sequence-parallel --recompute full --vocab 101 --tied"),
])
def test_real_payload_passes_the_check(scenario: str, ranks: int, options: str) -> None:
    trace = simulate(scenario, ranks, f"{REAL} --algorithm auto -n 2 -w 1 -c {options}")
    assert trace.attributes["check"] == "passed"
    assert np.isfinite(trace.steps_agreed("loss")).all()


OPTIONS = {
    "zero3": [f"{REAL} --algorithm ring --param-dtype fp32 --threads 1 -n 2 -w 1",
              f"{REAL} --algorithm doubling --grad-accum 2 --prefetch 2,1 --reshard-after-forward blocks --clip 1 "
              "--layout flat --threads 1 -n 1 -w 1"],
    "ddp": [f"{REAL} --algorithm direct --threads 1 -n 1 -w 1"],
    "zero1": [f"{REAL} --algorithm ring --param-gather overlap --communicators 2 --threads 1 -n 1 -w 1"],
    "zero2": [f"{REAL} --algorithm doubling --grad-accum 2 --clip 1 --rs-wait end --threads 1 -n 1 -w 1"],
    "mesh2d": [f"{REAL} --algorithm direct --dp 4 --tp 2 --threads 1 -n 1 -w 1",
               f"{REAL} --algorithm ring --dp 4 --tp 2 --sequence-parallel --recompute full --clip 1 --layout flat --threads 1 "
               "-n 1 -w 1"],
}


@pytest.mark.parametrize(("scenario", "options"), [(s, o) for s, several in OPTIONS.items() for o in several])
def test_events_are_those_of_a_real_run(scenario: str, options: str) -> None:
    simulated = simulate(scenario, 8, options)
    real = runs.trace(scenario, 8, *options.split())
    assert real.attributes["simulated"] == 0
    for rank in range(8):
        for step in real.of_rank("steps", rank)["step"].tolist():
            assert simulated.events(rank, step) == real.events(rank, step)
        assert simulated.ledger(rank) == real.ledger(rank)
    # The same schedule adds in the same order, so not even the last digit differs.
    np.testing.assert_array_equal(simulated.steps_agreed("loss"), real.steps_agreed("loss"))
    np.testing.assert_array_equal(simulated["tensors"]["sum_of_squares"], real["tensors"]["sum_of_squares"])


TIMED = "--compute timed --flops 1e8 --payload phantom --algorithm auto --progress poll -n 3 -w 1"


@pytest.mark.parametrize(("scenario", "options"), [
    ("zero3", f"{REAL} --algorithm auto -n 3 -w 1"),
    ("zero3", TIMED),
    ("zero2", f"{TIMED} --param-gather overlap --grad-accum 2"),
    ("mesh2d", f"{TIMED} --tp 2 --sequence-parallel --recompute full"),
])
def test_simulated_times_are_deterministic(scenario: str, options: str) -> None:
    first, second = (simulate(scenario, 16, options) for _ in range(2))
    for table in ("events", "steps", "clock", "calibration", "ledger"):
        for name in first[table].dtype.names:
            np.testing.assert_array_equal(first[table][name], second[table][name], err_msg=f"{table}.{name}")
    tracked = [t["memory"][[not c.startswith("process_") for c in t["memory"]["category"]]] for t in (first, second)]
    for name in tracked[0].dtype.names:
        np.testing.assert_array_equal(tracked[0][name], tracked[1][name], err_msg=f"memory.{name}")


def test_polls_that_are_rarer_than_steps_are_refused() -> None:
    # A block's forward of 1.7 ms has 7 polls; an all-gather on a ring of 16 has 15 steps.
    options = "--compute timed --flops 2e9 --algorithm {} --progress poll -n 1 -w 0"
    output = runs.new_file()
    finished = smpirun("zero3", 16, options.format("ring"), output)
    assert not output.exists()
    assert "15 steps" in finished.stderr
    assert "7 polls" in finished.stderr
    assert "--progress stream" in finished.stderr
    simulate("zero3", 16, options.format("doubling"))


def test_compute_without_a_length_is_refused() -> None:
    output = runs.new_file()
    finished = smpirun("zero3", 2, "--algorithm ring --progress poll", output)
    assert not output.exists()
    assert "--flops" in finished.stderr


def test_collectives_have_values_only_where_they_are_checked() -> None:
    sizes = "-b 1K -e 1M -f 32 -n 2 --algorithm ring --progress poll -d all"
    phantom, checked = (simulate("collectives", 8, f"{sizes} -c {c}") for c in (0, 1))
    assert (phantom.attributes["payload"], checked.attributes["payload"]) == ("phantom", "real")
    assert checked.attributes["check"] == "passed"
    rows = [t["collectives"][(t["collectives"]["warmup"] == 0)] for t in (phantom, checked)]
    np.testing.assert_allclose(*(r["end_s"] - r["start_s"] for r in rows), rtol=1e-9)


def test_contention_and_jitter_slow_simulated_compute_down() -> None:
    plain, contended, jittered = (
        simulate("zero3", 8, f"{TIMED} {more}") for more in ("", "--contention 0.5", "--jitter rank=0.3"))

    def compute(trace: runs.Trace) -> np.ndarray:
        return np.array([trace.of_rank("steps", rank)["compute_s"][-1] for rank in range(8)])

    assert (compute(contended) > compute(plain) * 1.0001).all()
    assert (compute(contended) < compute(plain) * 1.5).all()
    assert np.ptp(compute(plain)) < 1e-6 * compute(plain).max()
    assert np.ptp(compute(jittered)) > 0.05 * compute(plain).max()
    for name in ("compute_alone_s", "communication_alone_s"):
        np.testing.assert_allclose(jittered["calibration"][name], plain["calibration"][name], rtol=1e-6, atol=1e-9)
