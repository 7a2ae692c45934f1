"""Sweeps of real runs under mpiexec: what is left when a sweep is killed, and what the next one makes of it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import runs

STUDY = """
output = "out put; $(touch x)"
scenario = ["ddp", "zero3"]
ranks = [1, 2]
repetitions = 2
options = {steps = %d, warmup = 1, window = 4, threads = 1, trace = "steps"}
"""
POINTS, REPETITIONS = 4, 2


def sweep_command(*options: str) -> list[str]:
    return [sys.executable, "-m", "shardbench", "sweep", "study.toml", *options]


def variables() -> dict[str, str]:
    return {"SHARDBENCH_BIN": str(runs.BIN), "SHARDBENCH_SIM_BIN": str(runs.SIM_BIN), "MPIEXEC": runs.MPIEXEC,
            "PYTHONPATH": str(runs.ROOT / "analysis")}


def write_study(folder: Path, steps: int) -> Path:
    (folder / "study.toml").write_text(STUDY % steps)
    return folder / "out put; $(touch x)"


def statuses(output: Path) -> Counter[str]:
    return Counter(runs.Trace(path).attributes["status"] for path in output.glob("*.h5"))


def wait_for_file(output: Path, sweep: subprocess.Popen[str], number: int) -> None:
    """Until so many runs have begun to write."""
    deadline = time.monotonic() + runs.TIMEOUT_S
    while len(list(output.glob("*.h5"))) < number:
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_every_run_is_complete_once(output: Path) -> None:
    traces = [runs.Trace(path) for path in output.glob("*.h5")]
    assert Counter((t.attributes["scenario"], t.ranks) for t in traces) == {
        (scenario, ranks): REPETITIONS for scenario in ("ddp", "zero3") for ranks in (1, 2)
    }
    assert {t.attributes["status"] for t in traces} == {"complete"}
    assert not list(output.glob(".sweep/*.claim*"))


def test_a_study_is_run_predicted_and_then_done(tmp_path: Path) -> None:
    output = write_study(tmp_path, steps=3)
    dry = runs.execute(sweep_command("--dry-run"), tmp_path, **variables())
    assert dry.code == 0, str(dry)
    assert "8 runs of 4 points, 8 to do, 8 of unknown length" in dry.stdout
    assert not output.exists()
    finished = runs.execute(sweep_command(), tmp_path, **variables())
    assert (finished.code, finished.stderr) == (0, ""), str(finished)
    assert_every_run_is_complete_once(output)
    assert {path.name for path in tmp_path.iterdir()} == {"study.toml", output.name}
    for path in output.glob("*.h5"):
        predicted = next(line for line in dry.stdout.splitlines() if line.startswith(path.stem[:-3]))
        assert peak_text(path) in predicted
    again = runs.execute(sweep_command(), tmp_path, **variables())
    assert again.code == 0
    assert "0 to do" in again.stdout


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_half_way_killed_it_resumes_and_each_run_is_complete_once(tmp_path: Path, how: signal.Signals) -> None:
    output = write_study(tmp_path, steps=300)
    sweep = runs.start(sweep_command(), tmp_path, **variables())
    wait_for_file(output, sweep, number=POINTS * REPETITIONS // 2)
    sweep.send_signal(how)
    stdout, stderr = sweep.communicate(timeout=runs.TIMEOUT_S)
    assert sweep.returncode == (-how if how == signal.SIGKILL else 128 + how), (stdout, stderr)
    done = {path: path.stat().st_mtime_ns for path in output.glob("*.h5")}
    finished = runs.execute(sweep_command(), tmp_path, timeout_s=4 * runs.TIMEOUT_S, **variables())
    assert finished.code == 0, str(finished)
    assert_every_run_is_complete_once(output)
    unchanged = [path for path, written in done.items() if path.stat().st_mtime_ns == written]
    # All that were done then, but for the last, which may have ended just in time.
    assert len(done) - len(unchanged) <= 1
    assert f"{POINTS * REPETITIONS - len(unchanged)} to do" in finished.stdout, str(finished)


def test_a_signal_leaves_a_readable_file(tmp_path: Path) -> None:
    output = write_study(tmp_path, steps=30000)
    sweep = runs.start(sweep_command(), tmp_path, **variables())
    wait_for_file(output, sweep, number=1)
    time.sleep(1)
    sweep.terminate()
    stdout, stderr = sweep.communicate(timeout=runs.TIMEOUT_S)
    assert sweep.returncode == 128 + signal.SIGTERM, (stdout, stderr)
    assert "stopped by SIGTERM after 0 of 8 runs" in stderr
    assert statuses(output) == {"interrupted": 1}
    files = [str(path) for path in output.glob("*.h5")]
    valid = runs.execute([sys.executable, "-m", "shardbench", "validate", *files], tmp_path)
    assert "interrupted" in valid.stdout, str(valid)


def test_what_an_executable_refuses_is_refused_before_anything_runs(tmp_path: Path) -> None:
    text = 'output = "out"\nscenario = "zero3"\nranks = [1, 3]\noptions = {global-batch = 4}\n'
    (tmp_path / "study.toml").write_text(text)
    finished = runs.execute(sweep_command(), tmp_path, **variables())
    assert finished.code == 2, str(finished)
    assert "zero3_tiny_global-batch4_n3_" in finished.stderr
    assert "is refused: zero3: " in finished.stderr
    assert len(finished.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == ["study.toml"]


COLLECTIVES = """
output = "out"
scenario = "collectives"
options = {minbytes = "1K", maxbytes = "64K", stepfactor = 8, iters = 3, warmup_iters = 1}
[[study]]
ranks = [1, 3]
repetitions = 2
[[study]]
ranks = 16
launcher = "simulate"
platform = "flat"
"""


@pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed")
@pytest.mark.skipif(not (runs.SIM_BIN / "collectives").exists(), reason=f"{runs.SIM_BIN}/collectives is not built (preset sim)")
def test_collectives_alone_are_points_too(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(COLLECTIVES)
    dry = runs.execute(sweep_command("--dry-run"), tmp_path, **variables())
    assert "5 runs of 3 points, 5 to do" in dry.stdout, str(dry)
    finished = runs.execute(sweep_command(), tmp_path, **variables())
    assert (finished.code, finished.stderr) == (0, ""), str(finished)
    traces = [runs.Trace(path) for path in (tmp_path / "out").glob("collectives_*.h5")]
    assert Counter((t.ranks, t.attributes["simulated"]) for t in traces) == {(1, 0): 2, (3, 0): 2, (16, 1): 1}
    assert all(set(t["collectives"]["size_bytes"]) <= {1008, 8192, 8160, 65536, 65520, 1024} for t in traces)
    again = runs.execute(sweep_command(), tmp_path, **variables())
    assert "0 to do" in again.stdout, str(again)


def peak_text(path: Path) -> str:
    """The largest tracked peak of a rank, as a dry run prints it."""
    rows = runs.Trace(path)["memory_peak"].tolist()
    return f"{max(bytes_ for _, category, bytes_ in rows if category == 'total_tracked') / 1e6:#.4g} MB"


SIMULATED_DEFAULTS = """
output = "out"
scenario = "ddp"
ranks = 8
model = "25m"
launcher = "simulate"
platform = "flat"
options = {steps = 1, warmup = 1, trace = "steps"}
"""


@pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed")
@pytest.mark.skipif(not (runs.SIM_BIN / "ddp").exists(), reason=f"{runs.SIM_BIN}/ddp is not built (preset sim)")
def test_memory_of_a_simulation_is_known_before_it(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(SIMULATED_DEFAULTS)
    dry = runs.execute(sweep_command("--dry-run"), tmp_path, **variables())
    finished = runs.execute(sweep_command(), tmp_path, **variables())
    assert (finished.code, finished.stderr) == (0, ""), str(finished)
    (path,) = (tmp_path / "out").glob("*.h5")
    assert peak_text(path) in dry.stdout, str(dry)


SIMULATED = """
output = "out"
scenario = "zero3"
ranks = [2, 16]
launcher = "simulate"
platform = "flat"
set = {"node.nic_latency_s" = [1e-6, 1e-3]}
options = {compute = "timed", flops = 1e12, payload = "phantom", progress = "none", algorithm = "ring", steps = 2, warmup = 1}
"""


@pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed")
@pytest.mark.skipif(not (runs.SIM_BIN / "zero3").exists(), reason=f"{runs.SIM_BIN}/zero3 is not built (preset sim)")
def test_a_grid_of_simulated_machines(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(SIMULATED)
    finished = runs.execute(sweep_command(), tmp_path, **variables())
    assert (finished.code, finished.stderr) == (0, ""), str(finished)
    step_s = {}
    for path in (tmp_path / "out").glob("*.h5"):
        trace = runs.Trace(path)
        assert (trace.attributes["status"], trace.attributes["simulated"]) == ("complete", 1)
        step_s[trace.ranks, "0.001" in path.name] = trace["steps"]["step_s"].max()
    assert len(step_s) == 4
    assert all(step_s[ranks, True] > 10 * step_s[ranks, False] for ranks in (2, 16))
    again = runs.execute(sweep_command(), tmp_path, **variables())
    assert "0 to do" in again.stdout, str(again)
