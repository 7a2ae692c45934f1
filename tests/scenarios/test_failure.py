"""What fails on one rank ends the whole job in seconds, and what was flushed before stays readable."""

import json
import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import runs

WINDOW, WARMUP = 4, 1
OPTIONS = ["-w", str(WARMUP), "--window", str(WINDOW), "--threads", "1"]
ENDLESS = ["-n", "32000", *OPTIONS]


def ranks_of(job: subprocess.Popen[str], scenario: str) -> list[int]:
    """Process ids by rank."""
    found = {}
    for process in runs.descendants(job.pid):
        try:
            if Path(f"/proc/{process}/comm").read_text().strip() != scenario:
                continue
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found.update({int(v[9:]): process for v in variables if v.startswith(b"PMI_RANK=")})
    return [found[rank] for rank in sorted(found)]


def start_endless(folder: Path, scenario: str, ranks: int, windows: int) -> tuple[subprocess.Popen[str], Path]:
    """A job that will not end by itself and has flushed at least `windows` windows."""
    output = folder / "endless.h5"
    job = runs.start(runs.mpi_command(scenario, ranks, [*ENDLESS, "-o", str(output)]), folder)
    wait_for_windows(job, output, scenario, ranks, windows)
    return job, output


def wait_for_windows(job: subprocess.Popen[str], output: Path, scenario: str, ranks: int, windows: int) -> None:
    """A file larger than one that ended after `windows` windows has something of the next; those before are flushed."""
    enough = runs.trace(scenario, ranks, "-n", str(windows * WINDOW), *OPTIONS).path.stat().st_size
    deadline = time.monotonic() + runs.TIMEOUT_S
    while not output.exists() or output.stat().st_size <= enough:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(("scenario", "ranks", "victim"), [("zero3", 4, 2), ("zero3", 4, 0), ("ddp", 3, 1)])
def test_one_killed_rank_ends_the_job(tmp_path: Path, scenario: str, ranks: int, victim: int) -> None:
    job, output = start_endless(tmp_path, scenario, ranks, windows=1)
    try:
        processes = ranks_of(job, scenario)
        assert len(processes) == ranks
        begin = time.monotonic()
        os.kill(processes[victim], signal.SIGKILL)
        job.communicate(timeout=runs.TIMEOUT_S)
        assert time.monotonic() - begin < 10.0
        assert job.returncode != 0
        assert not any(Path(f"/proc/{process}").exists() for process in processes)
        assert runs.Trace(output).attributes["status"] != "complete"
    finally:
        runs.kill_tree(job)


@pytest.mark.parametrize("windows", [1, 2, 3, 5, 8, 13])
def test_killed_job_keeps_its_flushed_windows(tmp_path: Path, windows: int) -> None:
    job, output = start_endless(tmp_path, "zero3", 3, windows)
    try:
        time.sleep(random.Random(windows).uniform(0.0, 0.1))
        processes = ranks_of(job, "zero3")
        for process in processes:
            os.kill(process, signal.SIGKILL)
        assert len(processes) == 3
        job.communicate(timeout=runs.TIMEOUT_S)
        assert job.returncode != 0
    finally:
        runs.kill_tree(job)

    trace = runs.Trace(output)
    assert trace.attributes["status"] == "failed"  # by the caretaker
    assert trace.config["options"]["window"] == WINDOW
    counts = [len(trace.of_rank("steps", rank)) for rank in range(3)]
    complete = (min(counts) - WARMUP) // WINDOW
    assert complete >= windows
    # At most the window that was being written is there in part.
    assert all(count in (WARMUP + complete * WINDOW, WARMUP + (complete + 1) * WINDOW) for count in counts)
    last = WARMUP + complete * WINDOW
    for rank in range(3):
        steps = trace.of_rank("steps", rank)
        assert steps["step"].tolist() == list(range(len(steps)))
        assert np.isfinite(steps["loss"][:last]).all()
        events = trace.of_rank("events", rank)
        per_step = np.bincount(events["step"], minlength=last)[:last]
        assert (per_step == per_step[0]).all()
        assert per_step[0] > 0


def test_file_that_stops_growing_ends_the_job(tmp_path: Path) -> None:
    """A full disk, imitated by a limit on the size of the files that rank 0 writes."""
    output = tmp_path / "endless.h5"
    # With the signal ignored, write() fails as it does on a full disk.
    shell = ["bash", "-c", 'trap "" XFSZ; exec "$0" "$@"', str(runs.BIN / "zero3")]
    job = runs.start([runs.MPIEXEC, "-n", "3", *shell, *ENDLESS, "-o", str(output)], tmp_path)
    try:
        wait_for_windows(job, output, "zero3", 3, windows=2)
        limit = output.stat().st_size + 10_000
        resource.prlimit(ranks_of(job, "zero3")[0], resource.RLIMIT_FSIZE, (limit, limit))
        begin = time.monotonic()
        stderr = job.communicate(timeout=runs.TIMEOUT_S)[1]
        assert time.monotonic() - begin < 10.0
        assert job.returncode != 0
        assert "endless.h5" in stderr, stderr
    finally:
        runs.kill_tree(job)


@pytest.mark.parametrize("victim", [0, 1])
def test_refusal_by_one_rank_before_mpi_starts(tmp_path: Path, victim: int) -> None:
    """mpiexec's colon syntax gives each rank its own options."""
    fine = ["-n", "1", str(runs.BIN / "zero3"), "-n", "1", "-o", "x.h5"]
    refused = [*fine, "--prefech", "2"]
    parts = [refused, fine] if victim == 0 else [fine, refused]
    finished = runs.execute([runs.MPIEXEC, *parts[0], ":", *parts[1]], tmp_path, timeout_s=20.0)
    assert finished.code != 0, str(finished)
    assert "--prefech" in finished.stderr, str(finished)


@pytest.mark.parametrize("victim", [0, 1])
def test_file_that_one_rank_cannot_read(tmp_path: Path, victim: int) -> None:
    """As when a calibration lies on one node's own disk."""
    times = {"forward": 1e-4, "backward": 1e-4}
    (tmp_path / "there.json").write_text(json.dumps({"embedding": times, "block": times, "head": times}))
    parts = [["-n", "1", str(runs.BIN / "zero3"), "-n", "1", "-o", "x.h5", "--compute", "timed", "--calibration",
              "missing.json" if rank == victim else "there.json"] for rank in range(2)]
    finished = runs.execute([runs.MPIEXEC, *parts[0], ":", *parts[1]], tmp_path, timeout_s=20.0)
    assert finished.code != 0, str(finished)
    assert "missing.json" in finished.stderr, str(finished)
