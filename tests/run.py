"""Runs CTest. Before its summary stands what was skipped, with the reason, which CTest itself keeps in its log.

A request to end is passed on to it and its tests; the exit code is then 128 + the signal's number.

Usage: run.py BUILD_FOLDER [OPTION OF ctest]...
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

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


class Requests:
    """Signals heard so far, each passed on to the group of a process."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self._group: int | None = None
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._pass_on)

    def pass_on_to(self, group: int) -> None:
        """From now on; also what came just before."""
        self._group = group
        for number in self.heard:
            self._send(number)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self.heard.append(number)
        self._send(number)

    def _send(self, number: int) -> None:
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, number)


def main(build: str, *options: str) -> int:
    command = ["ctest", "--test-dir", build, *options]
    requests = Requests()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a group of its own, because ctest leaves its tests running when it is stopped
    ) as ctest:
        requests.pass_on_to(ctest.pid)
        summary = ""
        for line in ctest.stdout or ():
            if summary or SUMMARY.match(line):
                summary += line
            else:
                print(line, end="", flush=True)
    if requests.heard:
        return 128 + requests.heard[0]
    log = Path(build, "Testing/Temporary/LastTest.log")
    if summary and (skipped := reasons(log.read_text(errors="replace"))):
        print("\n".join(["Skipped, and why:", *skipped, ""]))
    print(summary, end="", flush=True)
    return ctest.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
