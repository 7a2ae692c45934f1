"""Runs a test so that nothing of it outlives it: guard.py DEADLINE_S COMMAND...

CTest's TIMEOUT kills the one process that CTest knows, and mpiexec gives each rank a session of its own; so a hung test used to
leave its ranks behind, which then slow down every test after it. The guard adopts whatever its descendants leave behind
(a "child subreaper", man 2 prctl) and kills all of it
  - when the deadline has passed, which lies below CTest's TIMEOUT, because CTest's SIGKILL would leave no time for that;
  - when the guard is told to stop (SIGINT, SIGTERM, SIGHUP), or CTest itself is gone;
  - when the test has ended and processes that it started are still there a few seconds later: then the test has failed.

Exit code: the test's own (128 + n if signal n ended it); 124 at the deadline; 125 if processes were left behind.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

# man 2 prctl, <sys/prctl.h>
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

AT_DEADLINE, LEFT_BEHIND = 124, 125

# What a job's processes may take to notice that it is over.
GRACE_S = 5.0
# After SIGABRT Python prints where each thread was; then it is gone.
LAST_WORDS_S = 1.0
LOOK_S = 0.02


class Stopped(Exception):
    """A signal or the deadline asks the guard to end the test."""


def main(deadline_s: float, command: Sequence[str]) -> int:
    parent = os.getppid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 or prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        print("guard: prctl failed; Linux 3.4 or newer is needed to keep track of a test's processes", file=sys.stderr)
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, _stop)
    if os.getppid() != parent:  # CTest went before it was agreed that the kernel tells
        return 1
    # SIGABRT below shall not leave core files.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    test: subprocess.Popen[bytes] | None = None
    try:
        signal.setitimer(signal.ITIMER_REAL, deadline_s)
        test = subprocess.Popen(command)
        code = test.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        left = _left_after(GRACE_S)
    except Stopped as stopped:
        signal.setitimer(signal.ITIMER_REAL, 0)
        names = _names(descendants(os.getpid()))
        if str(stopped) == signal.SIGALRM.name:
            if test is not None:
                with contextlib.suppress(ProcessLookupError):
                    test.send_signal(signal.SIGABRT)
                _left_after(LAST_WORDS_S)
            _kill_all()
            _say(f"still running after {deadline_s:g} s; killed: {names}")
            return AT_DEADLINE
        _kill_all()
        _say(f"{stopped}; killed: {names}")
        return 128 + signal.Signals[str(stopped)]
    if left:
        _kill_all()
        _say(f"the test ended and left behind: {left}; killed")
        return LEFT_BEHIND
    return code if code >= 0 else 128 - code


def _say(what: str) -> None:
    with contextlib.suppress(OSError):  # whoever listened may be gone
        print(f"guard: {what}", file=sys.stderr, flush=True)


def _stop(number: int, _frame: FrameType | None) -> None:
    for handled in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(handled, signal.SIG_IGN)  # what follows is short and must not be cut off
    raise Stopped(signal.Signals(number).name)


def descendants(ancestor: int) -> list[int]:
    """Live processes that descend from that one. Of a child subreaper also those whose parents are gone."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # After the name in parentheses: state, parent (man 5 proc).
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    unseen = children.get(ancestor, [])
    while unseen:
        process = unseen.pop()
        found.append(process)
        unseen += children.get(process, [])
    return found


def _names(processes: Sequence[int]) -> str:
    names = []
    for process in processes:
        with contextlib.suppress(OSError):
            names.append(f"{process} {(Path('/proc') / str(process) / 'comm').read_text().strip()}")
    return ", ".join(names)


def _left_after(seconds: float) -> str:
    """Names what is still there when the time is over; empty as soon as nothing is."""
    end = time.monotonic() + seconds
    while True:
        _reap()
        processes = descendants(os.getpid())
        if not processes or time.monotonic() >= end:
            return _names(processes)
        time.sleep(LOOK_S)


def _kill_all() -> None:
    while processes := descendants(os.getpid()):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(LOOK_S)
        _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
