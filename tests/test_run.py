"""run.py: what CTest says, what was skipped and why, CTest's summary, and its exit code."""

import subprocess
import sys
from pathlib import Path

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
