"""A rank that dies, fails or stands still takes the whole job with it in seconds, and what was flushed stays readable."""

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path

import jobs
import pytest
import runs
from recorder import Record, case

SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")


def assert_failed(job: jobs.Job, finished: runs.Finished, status: str = "failed") -> None:
    """Non-zero, nothing left (see `finish`), the windows flushed so far readable, the file's status the truth."""
    assert finished.code != 0, str(finished)
    flushed = job.flushed()
    trace = jobs.trace_of_ended(job.output)
    assert trace.attributes["status"] == status, str(finished)
    if flushed:
        jobs.assert_keeps(job, flushed, trace)


@pytest.mark.parametrize(("scenario", "ranks", "victim"), [("zero3", 4, 2), ("zero3", 4, 0), ("ddp", 3, 1), ("zero1", 2, 1),
                                                           ("zero2", 3, 0), ("mesh2d", 2, 1)])
@case("rank-killed")
def test_a_killed_rank_ends_the_job(tmp_path: Path, scenario: str, ranks: int, victim: int, record: Record) -> None:
    with jobs.Job(tmp_path, scenario, ranks) as job:
        job.wait_for_steps(jobs.WARMUP + jobs.WINDOW)
        os.kill(job.rank_processes()[victim], signal.SIGKILL)
        finished = job.finish()
        record.seconds(finished.seconds)
        assert_failed(job, finished)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("kind", ["error", "segv", "abort"])
@case("rank-fails")
def test_a_rank_that_fails_in_a_step_ends_the_job(tmp_path: Path, kind: str, victim: int, record: Record) -> None:
    with jobs.Job(tmp_path, rank=victim, call="MPI_Isend_c", at=1500, kind=kind) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)  # from the start of the job on; most of it is before the fault
        record.seconds(finished.seconds)
        assert_failed(job, finished)
        if kind == "error":
            (line,) = jobs.own_lines(finished, "zero3")
            assert line.startswith(f"zero3: rank {victim}: "), line
            assert "MPI_Isend_c" in line
            assert finished.code == jobs.RUN_TIME_FAILURE, str(finished)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("call", ["MPI_Init_thread", "MPI_Comm_split_type", "MPI_Comm_dup", "MPI_Comm_split", "MPI_Allreduce"])
@case("setup-fails")
def test_a_rank_that_fails_in_set_up_ends_the_job(tmp_path: Path, call: str, victim: int, record: Record) -> None:
    with jobs.Job(tmp_path, ranks=2, rank=victim, call=call, at=1, kind="error") as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        record.seconds(finished.seconds)
        assert finished.code != 0, str(finished)
        assert any(call in line for line in jobs.own_lines(finished, "zero3")), str(finished)
        if job.flushes():  # before the first flush there is at most an empty file
            assert jobs.trace_of_ended(job.output).attributes["status"] == "failed"


@pytest.mark.parametrize("victim", [0, 1])
@case("rank-leaves")
def test_a_rank_that_leaves_without_a_word(tmp_path: Path, victim: int, record: Record) -> None:
    """_exit(0) in the middle. MPICH's mpiexec kills the others and may answer 0 itself: only the file's mark tells."""
    with jobs.Job(tmp_path, rank=victim, call="MPI_Isend_c", at=1500, kind="leave") as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        record.seconds(finished.seconds)
        flushed = job.flushed()
        trace = jobs.trace_of_ended(job.output)
        assert trace.attributes["status"] == "failed", str(finished)
        jobs.assert_keeps(job, flushed, trace)


STALL_S = 3


def assert_names_the_stall(finished: runs.Finished, ranks: list[int]) -> None:
    lines = jobs.own_lines(finished, "zero3")
    assert lines, str(finished)
    named = set()
    for line in lines:
        match = re.match(r"zero3: rank (\d+): no progress for 3 s at step \d+, (forward|backward|optimizer)", line)
        if match:
            named.add(int(match[1]))
            assert "--stall-timeout" in line, line  # what to do
    assert named, str(finished)
    assert named <= set(ranks), str(finished)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("kind", ["stop", "freeze"])
@case("rank-stalls")
def test_a_rank_that_stands_still_ends_the_job(tmp_path: Path, kind: str, victim: int, record: Record) -> None:
    options = [*jobs.ENDLESS, "--stall-timeout", str(STALL_S)]
    # Collectives call MPI_Testall, and nothing else does: so it happens in a step, or in a rehearsal of one.
    with jobs.Job(tmp_path, options=options, rank=victim, call="MPI_Testall", at=10_000, kind=kind) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        record.seconds(finished.seconds)
        assert_failed(job, finished)
        # Whoever speaks first ends the job. A frozen rank has no thread left to speak.
        assert_names_the_stall(finished, [rank for rank in range(3) if kind == "stop" or rank != victim])


@pytest.mark.parametrize("call", ["MPI_Init_thread", "MPI_Comm_split_type", "MPI_Comm_dup"])
@case("setup-stalls")
def test_a_rank_that_stands_still_in_set_up_ends_the_job(tmp_path: Path, call: str, record: Record) -> None:
    options = [*jobs.ENDLESS, "--stall-timeout", str(STALL_S)]
    with jobs.Job(tmp_path, ranks=2, options=options, rank=1, call=call, at=1, kind="stop") as job:
        finished = job.finish(limit_s=jobs.LIMIT_S + 2 * STALL_S)
        record.seconds(finished.seconds)
        assert finished.code != 0, str(finished)
        assert any(re.match(r"zero3: (rank \d+: )?.*no progress for 3 s", line) for line in jobs.own_lines(finished, "zero3")), str(finished)


@case("slow-rank")
def test_a_slow_rank_is_not_a_stall(tmp_path: Path, record: Record) -> None:
    """Each product of one rank takes 0.1 s longer: a step takes 10 s, a layer less than the time-out of 5 s."""
    options = ["-n", "1", "-w", "0", "--trace", "steps", "--threads", "1", "--stall-timeout", "5"]
    with jobs.Job(tmp_path, ranks=2, options=options, rank=1, slow_us=100_000) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        record.seconds(finished.seconds)
        assert finished.code == 0, str(finished)
        assert jobs.trace_of_ended(job.output).attributes["status"] == "complete"


@pytest.mark.parametrize("value", ["-1", "x", "nan", "1e400", ""])
@case("stall-timeout-values")
def test_time_outs_that_make_no_sense_are_refused(tmp_path: Path, value: str, record: Record) -> None:
    finished = runs.execute(runs.mpi_command("zero3", 2, [f"--stall-timeout={value}", "-o", "x.h5"]), tmp_path)
    record.seconds(finished.seconds)
    assert finished.code == jobs.USAGE, str(finished)
    assert "--stall-timeout" in finished.stderr
    assert not (tmp_path / "x.h5").exists()


@jobs.not_with_sanitizers
@pytest.mark.parametrize("victim", [0, 1])
@case("out-of-memory")
def test_a_rank_that_runs_out_of_address_space_ends_the_job(tmp_path: Path, victim: int, record: Record) -> None:
    # What rests on each of two ranks is 0.5 GB more than an empty program's 0.6 GB.
    model = ["--model", "124m", "--layers", "2", "--seq", "32", "-n", "3", "-w", "0", "--threads", "1"]
    limited = f'[ "$PMI_RANK" != {victim} ] || ulimit -v 1000000; exec "$0" "$@"'
    with jobs.Job(tmp_path, "ddp", ranks=2, options=model, wrapper=["bash", "-c", limited]) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        record.seconds(finished.seconds)
        assert finished.code == jobs.RUN_TIME_FAILURE, str(finished)
        (line,) = jobs.own_lines(finished, "ddp")
        assert line.startswith(f"ddp: rank {victim}: out of memory"), line
        if job.flushes():  # before the first flush there is at most an empty file
            assert jobs.trace_of_ended(job.output).attributes["status"] == "failed"


@jobs.not_with_sanitizers
@pytest.mark.parametrize("room", [1_000_000, 3_000_000, 4_300_000, 5_000_000])
@case("out-of-memory")
def test_memory_that_is_refused_is_told(tmp_path: Path, room: int, record: Record) -> None:
    """At some point of set-up or rehearsal of rank 1. (A step takes no memory that an earlier one has not given back.)"""
    with jobs.Job(tmp_path, ranks=2, options=["-n", "5", "--threads", "1"], rank=1, memory_bytes=room) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        record.seconds(finished.seconds)
        assert finished.code == jobs.RUN_TIME_FAILURE, str(finished)
        (line,) = jobs.own_lines(finished, "zero3")
        assert line.startswith("zero3: rank 1: out of memory"), line
        if job.flushes():  # before the first flush there is at most an empty file
            assert jobs.trace_of_ended(job.output).attributes["status"] == "failed"


def random_fault(seed: int) -> tuple[str, int, int, dict[str, object]]:
    """Scenario, ranks, victim, fault: a moment of set-up, rehearsal or steps, and something that befalls a rank there."""
    dice = random.Random(seed)
    scenario, ranks = dice.choice(SCENARIOS), dice.randint(2, 5)
    fault: dict[str, object] = {"rank": dice.randrange(ranks), "kind": dice.choice(["error", "kill", "segv", "abort", "stop", "freeze"])}
    calls = {"MPI_Isend_c": (1, 3000), "MPI_Irecv_c": (1, 3000), "MPI_Testall": (1, 3000), "MPI_Test": (1, 300),
             "sgemm_": (1, 3000)}
    fault["call"] = dice.choice(sorted(calls))
    if fault["call"] == "sgemm_" and fault["kind"] == "error":
        fault["kind"] = "kill"  # it has no way to fail
    fault["at"] = dice.randint(*calls[str(fault["call"])])
    return scenario, ranks, int(str(fault["rank"])), fault


def seeds(count: int, quick: int) -> list[object]:
    """0 ... count - 1, of which all but the first are marked slow."""
    return [seed if seed < quick else pytest.param(seed, marks=pytest.mark.slow) for seed in range(count)]


@pytest.mark.parametrize("seed", seeds(20, quick=8))
@case("random-failures")
def test_random_failures(tmp_path: Path, seed: int, record: Record) -> None:
    scenario, ranks, _, fault = random_fault(seed)
    stalls = fault["kind"] in ("stop", "freeze")
    options = [*jobs.ENDLESS, "--stall-timeout", "3" if stalls else "300"]
    with jobs.Job(tmp_path, scenario, ranks, options, **fault) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        ended = time.monotonic()
        # From the last flush on, or from the start where nothing was flushed; a little more than from the fault.
        flushed_at = job.flush_log.stat().st_mtime if job.flush_log.exists() else None
        seconds = min(finished.seconds, time.time() - flushed_at - (time.monotonic() - ended)) if flushed_at else finished.seconds
        record.seconds(seconds)
        assert seconds < jobs.LIMIT_S + (3 if stalls else 0), str(finished)
        assert finished.code != 0, f"{fault}\n{finished}"
        if job.flushes():  # before the first flush there is at most an empty file
            flushed = job.flushed()
            trace = jobs.trace_of_ended(job.output)
            assert trace.attributes["status"] == "failed", f"{fault}\n{finished}"
            if flushed:
                jobs.assert_keeps(job, flushed, trace)


@pytest.mark.parametrize("seed", seeds(50, quick=15))
@case("random-kills")
def test_kills_at_random_instants_keep_every_flushed_window(tmp_path: Path, seed: int, record: Record) -> None:
    """Of one rank (even seeds) or of all at once; every fifth time of everything, mpiexec and rank 0's helper too."""
    dice = random.Random(seed)
    ranks = dice.randint(1, 4)
    with jobs.Job(tmp_path, dice.choice(SCENARIOS), ranks) as job:
        job.wait_for_steps(jobs.WARMUP + jobs.WINDOW * dice.randint(1, 6))
        time.sleep(dice.uniform(0.0, 0.05))
        processes = job.rank_processes()
        everything = seed % 5 == 4
        victims = job.processes() if everything else processes if seed % 2 else [processes[dice.randrange(ranks)]]
        job.begin = time.monotonic()
        for process in victims:
            with contextlib.suppress(ProcessLookupError):  # mpiexec may be quicker with the later ones
                os.kill(process, signal.SIGKILL)
        finished = job.finish()
        record.seconds(finished.seconds)
        assert finished.code != 0, str(finished)
        flushed = job.flushed()
        trace = jobs.trace_of_ended(job.output)
        # Nobody is left to correct the status where everything was killed.
        assert trace.attributes["status"] in (("running", "failed") if everything else ("failed",))
        jobs.assert_keeps(job, flushed, trace)
