"""A test that hangs is ended with everything that it started, and so is one whose CTest is interrupted or dies."""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import runs
from recorder import Record, case

GUARD = runs.ROOT / "cmake/guard.py"
MARK = "SHARDBENCH_HUNG_TEST"  # an environment variable that all descendants of a test inherit, orphans too
TIMEOUT_S = 5

PROJECT = """
cmake_minimum_required(VERSION 3.21)
project(hung LANGUAGES NONE)
set(SHARDBENCH_PYTHON {python})
include({testing})
enable_testing()
shardbench_add_guarded_test(hung TIMEOUT {timeout} COMMAND {mpiexec} -n 2 sleep 1000)
"""


def marked(mark: str) -> list[int]:
    """Live processes that carry the mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def sleeping(mark: str) -> list[int]:
    found = []
    for process in marked(mark):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text() == "sleep\n":
                found.append(process)
    return found


def wait_until_two_sleep(mark: str) -> None:
    deadline = time.monotonic() + runs.TIMEOUT_S
    while len(sleeping(mark)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_none_left(mark: str) -> None:
    deadline = time.monotonic() + 10.0
    while left := marked(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.fixture
def hung_project(tmp_path: Path) -> Path:
    """A configured CMake project whose one test is a job that sleeps."""
    if shutil.which("ctest") is None:
        pytest.fail("no ctest; it is needed to test what a hung test leaves behind")
    mpiexec = shutil.which(runs.MPIEXEC)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(
        python=sys.executable, testing=runs.ROOT / "cmake/testing.cmake", timeout=TIMEOUT_S, mpiexec=mpiexec))
    finished = runs.execute(["cmake", "-S", ".", "-B", "build"], tmp_path)
    assert finished.code == 0, str(finished)
    return tmp_path / "build"


@case("hung-test")
def test_a_hung_test_is_killed_with_its_ranks(hung_project: Path, record: Record) -> None:
    begin = time.monotonic()
    finished = runs.execute(["ctest", "--output-on-failure"], hung_project, **{MARK: str(hung_project)})
    record.seconds(time.monotonic() - begin)
    assert finished.code != 0, str(finished)
    assert "still running after" in finished.stdout, str(finished)
    assert "sleep" in finished.stdout, str(finished)
    assert_none_left(str(hung_project))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
@case("interrupted-ctest")
def test_an_interrupted_ctest_leaves_nothing(hung_project: Path, number: signal.Signals, record: Record) -> None:
    mark = f"{hung_project} {number.name}"
    ctest = runs.start(["ctest"], hung_project, **{MARK: mark})
    try:
        wait_until_two_sleep(mark)
        begin = time.monotonic()
        ctest.send_signal(number)
        ctest.communicate(timeout=runs.TIMEOUT_S)
        assert_none_left(mark)
        record.seconds(time.monotonic() - begin)
    finally:
        runs.kill_tree(ctest)


@pytest.mark.parametrize(("script", "code", "said"), [
    ("exit 3", 3, ""),
    ("kill -SEGV $$", 128 + signal.SIGSEGV, ""),
    ("setsid sleep 1000 & exit 0", 125, "left behind"),
    ("(setsid sleep 1000 & sleep 1000) & exec sleep 1000", 124, "still running after 1 s"),
], ids=["code", "signal", "left behind", "hung"])
@case("hung-test")
def test_the_guard_tells_how_a_test_ended(tmp_path: Path, script: str, code: int, said: str) -> None:
    finished = runs.execute([sys.executable, str(GUARD), "1" if code == 124 else "60", "bash", "-c", script], tmp_path,
                            **{MARK: str(tmp_path)})
    assert finished.code == code, str(finished)
    assert said in finished.stderr, str(finished)
    assert_none_left(str(tmp_path))


@case("interrupted-ctest")
def test_the_guard_stops_when_told(tmp_path: Path) -> None:
    guard = runs.start([sys.executable, str(GUARD), "600", runs.MPIEXEC, "-n", "2", "sleep", "1000"], tmp_path,
                       **{MARK: str(tmp_path)})
    try:
        wait_until_two_sleep(str(tmp_path))
        os.kill(guard.pid, signal.SIGTERM)
        _, stderr = guard.communicate(timeout=runs.TIMEOUT_S)
        assert guard.returncode == 128 + signal.SIGTERM
        assert "SIGTERM" in stderr
        assert_none_left(str(tmp_path))
    finally:
        runs.kill_tree(guard)
