"""What a step takes it gives back: descriptors, communicators, requests and memory are the same after many steps."""

import os
import time
from pathlib import Path

import jobs
import numpy as np
import pytest
import runs
from recorder import Record, case

SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")


def descriptors(process: int) -> int:
    """The fewest of some looks: a rank opens files for a moment, such as the kernel's about its memory."""
    looks = []
    for _ in range(10):
        looks.append(len(os.listdir(f"/proc/{process}/fd")))
        time.sleep(0.01)
    return min(looks)


def mappings(process: int) -> int:
    return len(Path(f"/proc/{process}/maps").read_text().splitlines())


@pytest.mark.parametrize("scenario", SCENARIOS)
@case("constant-descriptors")
def test_descriptors_and_mappings_do_not_grow(tmp_path: Path, scenario: str, record: Record) -> None:
    with jobs.Job(tmp_path, scenario, ranks=2) as job:
        job.wait_for_steps(jobs.WARMUP + 2 * jobs.WINDOW)
        early = [descriptors(process) for process in job.rank_processes()]
        first = job.flushed()["steps"]
        # Mappings come and go within a step; a leak of one a step would be hundreds.
        fewest = [min(mappings(process) for _ in range(5)) for process in job.rank_processes()]
        job.wait_for(lambda: job.flushed()["steps"] >= first + 2 * 400)
        assert [descriptors(process) for process in job.rank_processes()] == early
        late = [min(mappings(process) for _ in range(5)) for process in job.rank_processes()]
        assert all(b < a + 100 for a, b in zip(fewest, late, strict=True)), (fewest, late)
        record.seconds(0.0)


@pytest.mark.parametrize("algorithm", ["direct", "ring", "doubling", "hierarchical"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@case("constant-communicators")
def test_communicators_and_requests_do_not_grow(tmp_path: Path, scenario: str, algorithm: str) -> None:
    options = ["-n", "300", "-w", "0", "--window", "10", "--trace", "steps", "--threads", "1", "--algorithm", algorithm]
    options += ["--ranks-per-node", "2"] if algorithm == "hierarchical" else []
    with jobs.Job(tmp_path, scenario, ranks=2, options=options, balance_log=tmp_path / "balance") as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        assert finished.code == 0, str(finished)
    for rank in range(2):
        lines = [line.split() for line in (tmp_path / f"balance.{rank}").read_text().splitlines()]
        assert len(lines) >= 3
        assert len({communicators for communicators, _ in lines}) == 1, lines
        # Between any two lines there were moments when nothing was in flight.
        assert {fewest for _, fewest in lines} == {"0"}, lines


@pytest.mark.parametrize("scenario", SCENARIOS)
@case("constant-memory")
def test_memory_at_step_1000_is_that_at_step_10(tmp_path: Path, scenario: str) -> None:
    finished = runs.execute(runs.mpi_command(scenario, 2, ["-n", "1010", "-w", "0", "--window", "10", "--threads", "1", "-o", "x.h5"]),
                            tmp_path, ASAN_OPTIONS=f"{os.environ.get('ASAN_OPTIONS', '')}:quarantine_size_mb=0")  # or it keeps what was freed
    assert finished.code == 0, str(finished)
    trace = runs.Trace(tmp_path / "x.h5")
    for rank in range(2):
        rows = trace.of_rank("memory", rank)
        tracked = {}
        for category in set(rows["category"]) - {"process_rss", "process_hwm", "process_pss"}:
            own = rows[rows["category"] == category]
            # The level at the end of a step is the last one noted up to then.
            tracked[category] = [own[own["step"] <= step]["bytes"][-1] for step in (10, 1000)]
        assert len(tracked) == 7
        assert all(early == late for early, late in tracked.values()), tracked
        resident = rows[rows["category"] == "process_rss"]
        resident = np.array([resident[resident["step"] == step]["bytes"][0] for step in (9, 999)])
        # The trace itself is written away; HDF5 keeps a cache of metadata of at most 2 MB, on rank 0. A sanitizer adds to
        # each block.
        slack = (3 << 20 if rank == 0 else 1 << 20) * (2 if jobs.sanitizer() else 1)
        assert abs(int(resident[1] - resident[0])) < slack, resident
