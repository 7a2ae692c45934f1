"""A signal that asks the job to end: steps done so far are kept, and the file says that it was interrupted."""

import dataclasses
import os
import signal
import time
from pathlib import Path

import jobs
import pytest
import runs
from recorder import Record, case

# Imitated layers, so that a step takes a quarter of a second and "the running step, at most one more" can be told.
SLOW = ["--compute", "timed", "--flops", "1e8", "-n", "3000", "-w", "1", "--window", "3", "--threads", "1"]
# A step takes minutes.
ONE_LONG_STEP = ["--compute", "timed", "--flops", "1e5", "--trace", "steps", "-n", "2", "-w", "0", "--threads", "1"]

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


def send(job: jobs.Job, number: signal.Signals, target: str) -> None:
    if target == "mpiexec":
        job.process.send_signal(number)
        return
    processes = job.rank_processes()
    assert len(processes) == job.ranks
    for process in processes if target == "all" else [processes[int(target)]]:
        os.kill(process, number)


def assert_interrupted(job: jobs.Job, finished: runs.Finished, number: signal.Signals, sent_at: float) -> None:
    assert finished.code == jobs.RUN_TIME_FAILURE, str(finished)
    jobs.assert_no_crash(finished)
    (line,) = jobs.own_lines(finished, job.scenario)
    assert number.name in line, line
    trace = jobs.trace_of_ended(job.output)
    assert trace.attributes["status"] == "interrupted"
    steps = [trace.of_rank("steps", rank) for rank in range(job.ranks)]
    for own in steps:
        assert own["step"].tolist() == list(range(len(steps[0]))), "ranks ended at different steps"
        assert (own["step_s"] > 0).all()
    # A run has a clock of its own. The first flush with steps came right after the last of them.
    at, rows = next((at, rows) for at, rows in job.flushes() if rows.get("steps"))
    last = steps[0][rows["steps"] // job.ranks - 1]
    starts = steps[0]["start_s"] + (at - last["start_s"] - last["step_s"])
    # The step that was running is finished, and at most the next one; a signal may travel while a step ends.
    assert (starts > sent_at).sum() <= 2, (starts, sent_at)
    assert starts[-1] + steps[0]["step_s"][-1] > sent_at, "the running step is missing"


@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
@pytest.mark.parametrize("target", ["0", "2", "all", "mpiexec"])
@case("signal")
def test_a_signal_interrupts_the_job(tmp_path: Path, number: signal.Signals, target: str, record: Record) -> None:
    with jobs.Job(tmp_path, options=SLOW) as job:
        job.wait_for_steps(4)
        time.sleep(0.1)
        job.begin = time.monotonic()
        send(job, number, target)
        finished = job.finish()
        record.seconds(finished.seconds)
        if target == "mpiexec" and finished.code == 0:
            # Having got the signal too, it sometimes answers 0 when its ranks end at once. The file knows better.
            finished = dataclasses.replace(finished, code=jobs.RUN_TIME_FAILURE)
        assert_interrupted(job, finished, number, job.begin)


@pytest.mark.parametrize("scenario", ["ddp", "zero1", "zero2", "mesh2d"])
@case("signal")
def test_every_scenario_can_be_interrupted(tmp_path: Path, scenario: str, record: Record) -> None:
    with jobs.Job(tmp_path, scenario, options=SLOW) as job:
        job.wait_for_steps(4)
        job.begin = time.monotonic()
        send(job, signal.SIGTERM, "1")
        finished = job.finish()
        record.seconds(finished.seconds)
        assert_interrupted(job, finished, signal.SIGTERM, job.begin)


@pytest.mark.parametrize("moment_s", [0.0, 0.003, 0.01, 0.03, 0.1, 0.2, 0.4])
@case("signal-any-moment")
def test_a_signal_at_any_moment(tmp_path: Path, moment_s: float, record: Record) -> None:
    """Also during MPI_Init, set-up, rehearsal and flushes: the job ends, never as if it were complete."""
    with jobs.Job(tmp_path, ranks=2, options=jobs.ENDLESS) as job:
        job.wait_for(lambda: len(job.rank_processes()) == 2)
        time.sleep(moment_s)
        job.begin = time.monotonic()
        send(job, signal.SIGTERM, "all")
        finished = job.finish()
        record.seconds(finished.seconds)
        assert finished.code != 0, str(finished)
        if job.flushes():
            assert jobs.trace_of_ended(job.output).attributes["status"] in ("interrupted", "failed")


@pytest.mark.parametrize("target", ["0", "1", "all"])
@case("second-signal")
def test_a_second_signal_ends_the_job_at_once(tmp_path: Path, target: str, record: Record) -> None:
    with jobs.Job(tmp_path, options=ONE_LONG_STEP) as job:
        job.wait_for(lambda: len(job.flush_log.read_text().splitlines()) >= 2 if job.flush_log.exists() else False)
        time.sleep(0.3)
        send(job, signal.SIGTERM, target)
        time.sleep(0.5)
        assert job.process.poll() is None, "one signal must let the step finish"
        job.begin = time.monotonic()
        send(job, signal.SIGTERM, target)
        finished = job.finish()
        record.seconds(finished.seconds)
        assert finished.code != 0, str(finished)
        assert jobs.trace_of_ended(job.output).attributes["status"] != "complete"


@case("signal-collectives")
def test_the_program_collectives_is_interrupted_too(tmp_path: Path, record: Record) -> None:
    options = ["-b", "1M", "-e", "16M", "-i", "64K", "-n", "100"]  # lines of a fraction of a second
    # (-o is the reduction there.)
    command = [runs.MPIEXEC, "-n", "2", str(runs.BIN / "collectives"), *options, "--output", "x.h5"]
    process = runs.start(command, tmp_path)
    try:
        deadline = time.monotonic() + jobs.PATIENCE_S
        while not (tmp_path / "x.h5").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.3)
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=jobs.PATIENCE_S)
        seconds = time.monotonic() - begin
        record.seconds(seconds)
        assert seconds < jobs.LIMIT_S
        # mpiexec, which got the signal too, sometimes answers 0 when its ranks end at once.
        assert process.returncode in (0, jobs.RUN_TIME_FAILURE), stdout + stderr
        assert "interrupted by SIGTERM" in stderr, stdout + stderr
        assert jobs.trace_of_ended(tmp_path / "x.h5").attributes["status"] == "interrupted"
    finally:
        runs.kill_tree(process)
