"""Slow: many ranks on few cores, and tracked memory against what the processes really grow by."""

import resource

import numpy as np
import pytest
import runs
import test_peak


def test_64_ranks_finish_in_a_minute() -> None:
    options = ["-n", "2", "-w", "1", "-o", str(path := runs.new_file())]
    finished = runs.execute(runs.mpi_command("zero3", 64, options), runs.scratch_folder(), timeout_s=240.0)
    assert finished.code == 0, str(finished)
    assert finished.seconds < 60.0, str(finished)
    trace = runs.Trace(path)
    assert trace.ranks == 64
    assert trace.attributes["status"] == "complete"
    assert np.isfinite(trace.steps_agreed("loss")).all()
    assert "sleep" in trace.config["wait_policy"]


def test_256_ranks_complete_a_step() -> None:
    """Each needs some 5 MB and 530 file descriptors; starting MPI takes most of the time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"256 ranks need more than the {hard} file descriptors that the system allows (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    options = ["--trace", "steps", "-n", "1", "-w", "0", "-o", str(path := runs.new_file())]
    finished = runs.execute(runs.mpi_command("zero3", 256, options), runs.scratch_folder(), timeout_s=900.0)
    assert finished.code == 0, str(finished)
    trace = runs.Trace(path)
    assert trace.ranks == 256
    assert trace.attributes["status"] == "complete"
    assert np.isfinite(trace.steps_agreed("loss")).all()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
def test_tracked_memory_explains_process_growth(scenario: str, ranks: int) -> None:
    trace = runs.trace(scenario, ranks, "--model", "25m", "-n", "4", timeout_s=300.0)
    report = []
    for rank in range(ranks):
        samples = trace.of_rank("memory", rank)
        before = samples[(samples["step"] == -1) & (samples["category"] == "process_rss")]["bytes"]
        assert len(before) == 1
        tracked = trace.peaks(rank)["total_tracked"]
        grown = trace.peaks(rank)["process_hwm"] - int(before[0])
        report.append((rank, grown / 1e6, tracked / 1e6))
    print(f"{scenario} N={ranks}: " + "; ".join(f"rank {r}: grown {g:.1f} MB, tracked {t:.1f} MB" for r, g, t in report))
    assert all(abs(grown - tracked) <= 0.10 * tracked + 10.0 for _, grown, tracked in report), report


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("scenario", sorted(test_peak.STAGE))
def test_peak_of_124m(scenario: str, recompute: str) -> None:
    test_peak.check_run(scenario, ["--model", "124m", "--seq", "16"], recompute)
