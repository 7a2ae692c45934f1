"""Runs CTest. Before its summary stands what was skipped, with the reason, which CTest itself keeps in its log.

Usage: run.py BUILD_FOLDER [OPTION OF ctest]...
"""

import re
import subprocess
import sys
from pathlib import Path

SUMMARY = re.compile(r"\d+% tests passed, ")
REASON = re.compile(r"skipped: |SKIPPED \[\d+\] ")
"""How our tests say it: programs of their own; pytest for single cases of a file (-rs)."""


def reasons(log: str) -> list[str]:
    """Test and reason, a line each, from what CTest noted of a run."""
    found, name = [], ""
    for line in log.splitlines():
        if test := re.fullmatch(r"\d+/\d+ Test: (.+)", line):
            name = test[1]
        elif REASON.match(line):
            found.append(f"  {name}: {REASON.sub('', line, count=1)}")
    return found


def main(build: str, *options: str) -> int:
    command = ["ctest", "--test-dir", build, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ctest:
        summary = ""
        for line in ctest.stdout or ():
            if summary or SUMMARY.match(line):
                summary += line
            else:
                print(line, end="", flush=True)
    log = Path(build, "Testing/Temporary/LastTest.log")
    if summary and (skipped := reasons(log.read_text(errors="replace"))):
        print("\n".join(["Skipped, and why:", *skipped, ""]))
    print(summary, end="", flush=True)
    return ctest.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
