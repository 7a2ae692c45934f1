"""The command `shardbench simulate`: real simulations on the shipped platforms, their verdicts, their refusals."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import runs

ANALYSIS = runs.ROOT / "analysis"
REAL = ("--compute", "real", "--payload", "real", "--progress", "poll", "--algorithm", "ring", "-n", "2", "-w", "1")

pytestmark = [
    pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed"),
    pytest.mark.skipif(not (runs.SIM_BIN / "zero3").exists(), reason=f"{runs.SIM_BIN}/zero3 is not built (preset sim)"),
]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "shardbench", "simulate", *arguments]


def simulate(*arguments: str, folder: Path | None = None) -> runs.Finished:
    return runs.execute(command(*arguments), folder or runs.scratch_folder(), **environment())


def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(ANALYSIS), "SHARDBENCH_SIM_BIN": str(runs.SIM_BIN)}


def simulated(scenario: str, ranks: int, platform: str, *options: str, changes: tuple[str, ...] = ()) -> runs.Trace:
    output = runs.new_file()
    settings = [word for change in changes for word in ("--set", change)]
    arguments = [scenario, "--ranks", str(ranks), "--platform", platform, *settings, "--", *options, "-o", str(output)]
    finished = simulate(*arguments)
    assert finished.code == 0, str(finished)
    trace = runs.Trace(output)
    assert (trace.attributes["status"], trace.attributes["simulated"]) == ("complete", 1), str(finished)
    assert trace.ranks == ranks
    return trace


def hosts(trace: runs.Trace) -> list[str]:
    rows = np.sort(trace["ranks"], order="rank")
    return rows["host"].tolist()


@pytest.mark.parametrize(("ranks", "platform"), [
    (1, "h100-fat-tree"),  # one node: no network
    (3, "flat"),
    (8, "h100-fat-tree"),
    (16, "h100-fat-tree"),  # two nodes at one leaf switch
    (16, "ethernet"),
    (24, "ethernet"),  # two leaf switches, the second half empty
])
def test_every_shape_of_a_platform_carries_a_real_step(ranks: int, platform: str) -> None:
    trace = simulated("zero3", ranks, platform, *REAL, "-c")
    assert trace.attributes["check"] == "passed"
    per_node = 1 if platform == "flat" else 8
    assert hosts(trace) == [f"node{r // per_node}-gpu{r % per_node}" for r in range(ranks)]


# --- what a message costs -----------------------------------------------------------------------------------------------

MESH = ("--compute", "timed", "--flops", "1e15", "--payload", "phantom", "--progress", "stream", "--algorithm", "ring",
        "--prefetch", "0", "--model", "25m", "--layers", "2", "-n", "1", "-w", "1")
# Ranks look for messages every 0.1 us, and do not ask at the same moment.
POLLING_S = 0.4e-6


@pytest.mark.parametrize(("ranks", "tp", "platform", "changes", "latency_s", "bandwidth"), [
    (2, 1, "flat", (), 2e-6, 10e9),
    (2, 1, "h100-fat-tree", (), 0.6e-6, 450e9),
    # Two nodes of 4 GPUs, whose pairs exchange at once, each over its own NIC.
    (8, 4, "h100-fat-tree", ("node.gpus=4",), 2.4e-6, 50e9),
    (8, 4, "h100-fat-tree", ("node.gpus=4", "node.nic_bandwidth=25e9"), 2.4e-6, 25e9),
    # Each node at a leaf switch of its own: two cables more.
    (8, 4, "h100-fat-tree", ("node.gpus=4", "network.leaf_nodes=1"), 2.8e-6, 50e9),
    (8, 4, "h100-fat-tree", ("node.gpus=4", "network.leaf_nodes=1", "network.link_latency_s=2e-6"), 10e-6, 50e9),
    # 4 nodes of a leaf exchange with 4 of another: over 4 spine switches, or all over one.
    (8, 4, "h100-fat-tree", ("node.gpus=1", "network.leaf_nodes=4"), 2.8e-6, 50e9),
    (8, 4, "h100-fat-tree-4to1", ("node.gpus=1", "network.leaf_nodes=4"), 2.8e-6, 12.5e9),
])
def test_pairs_exchange_at_the_platforms_speed(
    ranks: int, tp: int, platform: str, changes: tuple[str, ...], latency_s: float, bandwidth: float
) -> None:
    trace = simulated("mesh2d", ranks, platform, *MESH, "--tp", str(tp), changes=changes)
    gathers = trace["events"][(trace["events"]["kind"] == "all_gather") & (trace["events"]["axis"] == "dp")]
    assert set(gathers["group_size"]) == {2}
    took = gathers["end_s"] - gathers["start_s"]
    expected = latency_s + gathers["bytes"] / 2 / bandwidth
    assert np.median(took - expected) == pytest.approx(0, abs=POLLING_S)
    np.testing.assert_allclose(took, expected, rtol=2e-3, atol=4 * POLLING_S)


# --- what is recorded ---------------------------------------------------------------------------------------------------

def test_the_file_says_what_was_simulated() -> None:
    trace = simulated("ddp", 2, "h100-fat-tree", *REAL, changes=("node.nic_bandwidth=25e9",))
    simulation = trace.config["simulation"]
    assert simulation["platform"] == "h100-fat-tree"
    assert simulation["changed"] == {"node.nic_bandwidth": 25e9}
    assert "network/weight-S:0" in simulation["flags"]
    assert re.fullmatch(r"\d+\.\d+.*", simulation["simgrid"])


def test_two_runs_are_the_same() -> None:
    first, second = (simulated("zero3", 16, "ethernet", *REAL) for _ in range(2))
    for name in first["events"].dtype.names:
        np.testing.assert_array_equal(first["events"][name], second["events"][name], err_msg=name)


def test_without_an_output_the_file_is_named_after_the_run(tmp_path: Path) -> None:
    finished = simulate("ddp", "--ranks", "2", "--platform", "flat", "--", *REAL, folder=tmp_path)
    assert finished.code == 0, str(finished)
    assert [re.sub(r"\d{8}T\d{6}Z", "TIME", path.name) for path in tmp_path.iterdir()] == ["ddp_n2_TIME_sim.h5"]


# --- verdicts -----------------------------------------------------------------------------------------------------------

ENDLESS = ("--compute", "real", "--payload", "real", "--progress", "poll", "--algorithm", "ring", *runs.ENDLESS)
REFUSED_S = 20


def test_refused_options_are_a_usage_error(tmp_path: Path) -> None:
    arguments = ["zero3", "--ranks", "4", "--platform", "flat", "--", *REAL, "--global-batch", "7", "-o", "a.h5"]
    finished = simulate(*arguments, folder=tmp_path)
    assert finished.code == 2, str(finished)
    refusal, verdict = finished.stderr.splitlines()
    assert "--global-batch 7" in refusal
    assert verdict.startswith("shardbench simulate: the scenario refused its options")
    assert list(tmp_path.iterdir()) == []


def test_two_outputs_are_refused(tmp_path: Path) -> None:
    arguments = ["zero3", "--ranks", "4", "--platform", "flat", "--", *REAL, "-o", "a.h5", "-o", "b.h5"]
    finished = simulate(*arguments, folder=tmp_path)
    assert finished.code == 2, str(finished)
    assert "--output is given 2 times" in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_an_earlier_run_is_neither_replaced_nor_taken_for_success(tmp_path: Path) -> None:
    arguments = ["ddp", "--ranks", "2", "--platform", "flat", "--", *REAL, "-o", "a.h5"]
    assert simulate(*arguments, folder=tmp_path).code == 0
    written = (tmp_path / "a.h5").read_bytes()
    finished = simulate(*arguments, folder=tmp_path)
    assert finished.code == 2, str(finished)
    assert "--overwrite" in finished.stderr
    refused = simulate(*arguments, "--overwrite", "--global-batch", "7", folder=tmp_path)
    assert refused.code == 2, str(refused)
    assert (tmp_path / "a.h5").read_bytes() == written
    assert simulate(*arguments, "--overwrite", folder=tmp_path).code == 0


def test_a_run_that_cannot_write_fails(tmp_path: Path) -> None:
    arguments = ["zero3", "--ranks", "4", "--platform", "flat", "--", *ENDLESS, "-o", "a.h5"]
    limited = ["prlimit", f"--fsize={300 << 10}", *command(*arguments)]
    finished = runs.execute(limited, tmp_path, **environment())
    assert finished.code == 1, str(finished)
    assert "File too large" in finished.stderr
    # A file without a window is removed.
    assert finished.stderr.splitlines()[-1].startswith("shardbench simulate: the run ")


FLUSHED_BYTES = 1_000_000  # more than a file has before its first steps


def start_endless(folder: Path) -> subprocess.Popen[str]:
    """A simulation that has flushed steps and goes on."""
    arguments = ["zero3", "--ranks", "4", "--platform", "flat", "--", *ENDLESS, "-o", "a.h5"]
    job = runs.start(command(*arguments), folder, **environment())
    deadline = time.monotonic() + REFUSED_S
    while not (folder / "a.h5").exists() or (folder / "a.h5").stat().st_size < FLUSHED_BYTES:
        assert job.poll() is None and time.monotonic() < deadline, job.communicate()
        time.sleep(0.05)
    return job


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_request_to_stop_ends_the_simulator_too(tmp_path: Path, stop: signal.Signals) -> None:
    job = start_endless(tmp_path)
    started = set(runs.descendants(job.pid))
    job.send_signal(stop)
    _, stderr = job.communicate(timeout=REFUSED_S)
    assert job.returncode == 1
    assert f"stopped by {stop.name}" in stderr.splitlines()[-1]
    assert not any(is_running(process) for process in started)


def test_the_simulator_does_not_outlive_the_command(tmp_path: Path) -> None:
    job = start_endless(tmp_path)
    started = set(runs.descendants(job.pid))
    job.kill()
    job.communicate(timeout=REFUSED_S)
    deadline = time.monotonic() + REFUSED_S
    while any(is_running(process) for process in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_simulator_is_a_failure(tmp_path: Path) -> None:
    job = start_endless(tmp_path)
    simulator = runs.descendants(job.pid)[-1]
    assert Path(f"/proc/{simulator}/comm").read_text().strip() == "smpimain"
    os.kill(simulator, signal.SIGKILL)
    _, stderr = job.communicate(timeout=REFUSED_S)
    assert job.returncode == 1
    assert stderr.splitlines()[-1].startswith("shardbench simulate: the run did not come to its end: a.h5")


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("arguments", "words"), [
    (["--platform", "h100-fattree"], ["did you mean h100-fat-tree?", "ethernet, flat, h100-fat-tree"]),
    (["--platform", "flat", "--set", "node.nic_bandwith=1e9"], ["did you mean node.nic_bandwidth?"]),
    (["--platform", "flat", "--sim-bin", "nowhere"], ["no simulated scenarios in nowhere", "--preset sim"]),
])
def test_what_cannot_be_simulated_is_refused_in_one_line(arguments: list[str], words: list[str]) -> None:
    finished = simulate("zero3", "--ranks", "4", *arguments, "--", *REAL)
    assert finished.code == 2, str(finished)
    (line,) = finished.stderr.splitlines()
    assert all(word in line for word in words), line


# --- the loader by itself -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("description", "words"), [
    (None, "it is not set"),
    ("{", "parse error"),
    ('{"ranks": 1, "node": {"gpus": 0}, "network": {"topology": "flat"}}', "at least 1"),
    ('{"ranks": 1, "node": {"gpus": 1}, "network": {"topology": "torus"}}', "neither fat-tree nor flat"),
    ('{"ranks": 1, "node": {"gpus": 1}, "network": {"topology": "flat"}}', "'gpu_link_bandwidth' not found"),
])
def test_the_loader_refuses_what_it_cannot_build(tmp_path: Path, description: str | None, words: str) -> None:
    (tmp_path / "hosts").write_text("node0-gpu0\n")
    variables = {}
    if description is not None:
        (tmp_path / "p.json").write_text(description)
        variables["SHARDBENCH_PLATFORM"] = "p.json"
    loader = runs.SIM_BIN.parent / "lib/libshardbench_platform.so"
    quiet = "--log=root.thresh:warning"
    line = ["smpirun", "-quiet", quiet, "-platform", str(loader), "-hostfile", "hosts", "-np", "1", str(runs.SIM_BIN / "ddp")]
    finished = runs.execute(line, tmp_path, **variables)
    assert finished.code == 2, str(finished)
    (problem,) = finished.stderr.splitlines()
    assert problem.startswith("platform: SHARDBENCH_PLATFORM") and words in problem
