"""A command that is asked to end, or whose output goes nowhere: one line, exit code 1, and nothing left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardbench.processes import STOPPING, Together
from synthetic import synthetic

# Stops itself in the middle of an export, so that the moment is always the same.
STOPPED = """
import os, signal, sys, time
from shardbench.cli import main
from shardbench.export import tables

def stopped(*arguments, parts=tables.parts):
    yield from parts(*arguments)
    assert len(os.listdir(sys.argv[4])) == 2  # the file in the making, beside the trace
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    time.sleep(60)

tables.parts = stopped
sys.exit(main(["export", sys.argv[2], "-o", sys.argv[3]]))
"""

REHEARSALS = """
import itertools, os, signal, subprocess, sys, threading
from shardbench.cli import main
from shardbench.predict import advise, rehearsals

started = itertools.count()

def start(*arguments, popen=subprocess.Popen, **settings):
    if next(started) == 0:  # of those that several threads start at the same time
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    return popen(["sleep", "50"], **settings)

advise._peak_bytes = lambda request, candidate: 1
rehearsals.subprocess.Popen = start
sys.exit(main(["advise", "--model=tiny", "--gpu-memory=1GB", "--ranks=64", "--bin", sys.argv[1]]))
"""


def run(program: str, *arguments: object, **settings: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=40, **settings)


@pytest.mark.parametrize("number", STOPPING)
def test_a_stopped_command_leaves_no_file(number: signal.Signals, tmp_path: Path) -> None:
    synthetic().write(tmp_path / "run.h5")
    done = run(STOPPED, number.name, tmp_path, tmp_path / "out.csv", tmp_path)
    assert (done.returncode, done.stderr) == (1, f"shardbench export: stopped by {number.name}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["run.h5"]


def test_stopped_advice_waits_for_no_rehearsal_and_leaves_no_folder(tmp_path: Path) -> None:
    done = run(
        REHEARSALS,
        tmp_path,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (1, "shardbench advise: stopped by SIGTERM\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("unbuffered", ["", "1"])  # noticed at the end, and at once
def test_output_that_cannot_be_written_is_one_line(unbuffered: str, tmp_path: Path) -> None:
    trace = synthetic().write(tmp_path / "run.h5")
    program = "from shardbench.cli import main; import sys; sys.exit(main())"
    with open("/dev/full", "w") as full:
        done = run(
            program, "validate", trace, stdout=full, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}
        )
    problem = "the output cannot be read or written (No space left on device)"
    assert done.returncode == 1
    assert done.stderr == f"shardbench validate: {problem}; check its disk and permissions\n"


def test_a_process_that_is_started_after_the_end_is_ended_too() -> None:
    processes = Together()
    processes.terminate()
    with subprocess.Popen(["sleep", "50"], text=True) as late:
        processes.add(late)
    assert late.returncode == -signal.SIGTERM
