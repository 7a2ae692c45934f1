"""run.py: what CTest says, what was skipped and why, CTest's summary, and its exit code; what ends it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
TESTS = """
add_test(program "cmake" "-E" "echo" "skipped: no device")
set_tests_properties(program PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: ")
add_test(cases "cmake" "-E" "echo" "..s SKIPPED: 3\nSKIPPED [2] a/test_b.py:7: no pyarrow\n1 passed, 2 skipped")
add_test(sound "cmake" "-E" "true")
add_test(broken "cmake" "-E" "false")
"""


def run(folder: Path, *options: str) -> tuple[int, list[str]]:
    (folder / "CTestTestfile.cmake").write_text(TESTS)
    done = subprocess.run([sys.executable, str(RUN), str(folder), *options], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_reasons_stand_before_the_summary(tmp_path: Path) -> None:
    code, lines = run(tmp_path)
    assert code == 8
    start = lines.index("Skipped, and why:")
    assert lines[start + 1 : start + 3] == ["  program: no device", "  cases: a/test_b.py:7: no pyarrow"]
    assert "75% tests passed, 1 tests failed out of 4" in lines[start:]
    assert any("sound" in line and "Passed" in line for line in lines[:start])
    assert "Errors while running CTest" in lines[start:]


def test_nothing_skipped_nothing_said(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "-R", "sound")
    assert code == 0
    assert "Skipped, and why:" not in lines
    assert "100% tests passed, 0 tests failed out of 1" in lines


def test_no_tests_is_an_error_as_ctest_has_it(tmp_path: Path) -> None:
    run(tmp_path)  # leaves a log with reasons
    code, lines = run(tmp_path, "-R", "nobody", "--no-tests=error")
    assert code == 8
    assert "Skipped, and why:" not in lines


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SLOW = 'add_test(slow "sh" "-c" "echo $$ $PPID > started.new; mv started.new started; exec sleep 100")\n'


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """A shell's background jobs ignore SIGINT, those of nohup SIGHUP, and what they start inherits that."""
    previous = {number: signal.signal(number, signal.SIG_DFL) for number in STOPPING}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", STOPPING)
def test_a_request_to_end_ends_ctest_and_its_tests(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "CTestTestfile.cmake").write_text(SLOW)
    command = [sys.executable, str(RUN), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as runner:
        wait_until((tmp_path / "started").exists)
        test, ctest = (tmp_path / "started").read_text().split()
        runner.send_signal(number)
        _, stderr = runner.communicate(timeout=30)
    assert (runner.returncode, stderr) == (128 + number, "")
    assert is_gone(ctest)
    wait_until(lambda: is_gone(test))
