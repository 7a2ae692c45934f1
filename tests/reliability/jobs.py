"""Jobs to which something happens while they run.

Each is started with a library between the ranks and what they call (tests/faults/inject.c), which injects what is asked for and
logs what has been flushed. Each carries a mark in its environment, by which every process of it is found, whoever its parent is.
"""

import contextlib
import functools
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest
import runs

WINDOW, WARMUP, ENDLESS = runs.WINDOW, runs.WARMUP, runs.ENDLESS

# Whatever befalls a rank, its job is over by then.
LIMIT_S = 10.0
# How long a job may take to get where a test wants it: only a hang is to be found here, and the machine may be busy.
PATIENCE_S = runs.TIMEOUT_S

RUN_TIME_FAILURE, USAGE = 1, 2

INJECT = runs.BIN.parent / "lib/inject.so"
MARK = "SHARDBENCH_TEST_JOB"


@functools.cache
def sanitizer() -> str:
    """The sanitizer's run-time library of the executables, or nothing."""
    text = subprocess.run(["ldd", str(runs.BIN / "zero3")], capture_output=True, text=True, check=True).stdout
    return next((line.split()[2] for line in text.splitlines() if "libasan" in line), "")


def preload() -> str:
    library = Path(os.environ.get("SHARDBENCH_INJECT") or INJECT)
    if not library.exists():
        pytest.fail(f"{library} is not there; build the target inject")
    return f"{sanitizer()}:{library}".lstrip(":")


not_with_sanitizers = pytest.mark.skipif("jobs.sanitizer()", reason="a sanitizer brings its own malloc and needs much address space")


class Job:
    """A running job; when the block is left, nothing of it runs any more."""

    def __init__(self, folder: Path, scenario: str = "zero3", ranks: int = 3, options: Sequence[str] = ENDLESS,
                 output: str = "x.h5", wrapper: Sequence[str] = (), before_mpiexec: Sequence[str] = (), **faults: object) -> None:
        self.folder, self.scenario, self.ranks = folder, scenario, ranks
        self.output = folder / output
        self.flush_log = folder / "flushed.log"
        self.mark = uuid.uuid4().hex
        variables = {"LD_PRELOAD": preload(), "FAULT_FLUSH_LOG": self.flush_log,
                     **{f"FAULT_{name.upper()}": value for name, value in faults.items()}}
        if "memory_bytes" in faults:
            variables["UCX_MEM_EVENTS"] = "n"  # or it replaces the mmap that shall fail
        # Only for the ranks: mpiexec itself shall have nothing to do with faults.
        environment = [word for name, value in variables.items() for word in ("-genv", name, str(value))]
        self.command = [*before_mpiexec, runs.MPIEXEC, *environment, "-n", str(ranks), *wrapper, str(runs.BIN / scenario),
                        *options, "-o", output]
        self.begin = time.monotonic()
        self.process = runs.start(self.command, folder, **{MARK: self.mark})

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while left := self.processes():
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.01)
        if self.process.poll() is None or not self.process.stdout.closed:
            self.process.communicate()

    def processes(self) -> list[int]:
        """Every live process of the job."""
        wanted, found = f"{MARK}={self.mark}".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def rank_processes(self) -> list[int]:
        return runs.ranks_of(self.process, self.scenario)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None:
                pytest.fail(f"ended too early: {self.process.returncode}, {self.process.communicate()}")
            assert time.monotonic() < deadline, "the job does not get where it should"
            time.sleep(0.002)

    def wait_for_steps(self, steps: int) -> None:
        """Until at least so many are flushed. `begin` then says when that was."""
        self.wait_for(lambda: self.flushed().get("steps", 0) >= steps * self.ranks)
        self.wait_for(lambda: len(self.rank_processes()) == self.ranks)
        self.begin = time.monotonic()

    def flushes(self) -> list[tuple[float, dict[str, int]]]:
        """When each flush of rank 0 that had returned did so (monotonic clock), and the rows of each table then."""
        try:
            lines = [line.split() for line in self.flush_log.read_text().splitlines()]
        except OSError:
            return []
        # Rank 0's helper flushes, too.
        return [(float(at), {name: int(rows) for name, _, rows in (word.partition("=") for word in tables)})
                for process, at, *tables in lines if process == lines[0][0]]

    def flushed(self) -> dict[str, int]:
        """Rows of each table at the last flush that had returned, exactly."""
        flushes = self.flushes()
        return flushes[-1][1] if flushes else {}

    def finish(self, limit_s: float = LIMIT_S) -> runs.Finished:
        """Waits for the end, which must come in time and leave no process behind; `seconds` count from `begin`."""
        try:
            stdout, stderr = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {PATIENCE_S} s: {' '.join(self.command)}")
        while left := self.processes():
            assert time.monotonic() < self.begin + PATIENCE_S, f"left behind: {left}"
            time.sleep(0.002)
        finished = runs.Finished(tuple(self.command), self.process.returncode, stdout, stderr, time.monotonic() - self.begin)
        assert finished.seconds < limit_s, str(finished)
        return finished


def trace_of_ended(path: Path) -> runs.Trace:
    """The file of a job that was not started by `Job`: rank 0's helper may still be at it when mpiexec has ended."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return runs.Trace(path)
        except BlockingIOError:  # HDF5's lock
            assert time.monotonic() < deadline, "the file stays locked"
            time.sleep(0.01)


def assert_no_crash(finished: runs.Finished) -> None:
    """Nobody died of a signal: neither mpiexec nor a rank, not even while it was exiting."""
    assert finished.signal is None, str(finished)
    for words in ("BAD TERMINATION", "Segmentation fault", "Caught signal", "ERROR: AddressSanitizer", "ERROR: LeakSanitizer",
                  "runtime error:", "HDF5-DIAG"):
        assert words not in finished.stderr + finished.stdout, str(finished)


def own_lines(finished: runs.Finished, scenario: str) -> list[str]:
    """What the program said; the rest is mpiexec's and the MPI library's (such as the notice of MPI_Abort)."""
    return [line for line in finished.stderr.splitlines() if line.startswith(f"{scenario}: ")]


def assert_keeps(job: Job, flushed: dict[str, int], trace: runs.Trace) -> None:
    """The file holds every row that had been flushed, and those rows are whole."""
    assert flushed, "nothing was flushed, so that there is nothing to keep"
    for table, rows in flushed.items():
        assert len(trace[table]) >= rows, (table, rows, len(trace[table]))
    whole = flushed.get("steps", 0) // job.ranks
    for rank in range(job.ranks):
        steps = trace.of_rank("steps", rank)
        assert steps["step"][:whole].tolist() == list(range(whole))
        assert np.isfinite(steps["loss"][:whole]).all()
        assert (steps["step_s"][:whole] > 0).all()
        events = trace.of_rank("events", rank)
        per_step = np.bincount(events["step"], minlength=whole)[:whole]
        assert (per_step == per_step[:1]).all()
        assert whole == 0 or per_step[0] > 0
        assert set(events["kind"][: per_step.sum()]) <= {"compute", "wait", "copy_in", "copy_out", "all_reduce",
                                                         "reduce_scatter", "all_gather"}
