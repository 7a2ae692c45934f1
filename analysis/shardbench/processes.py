"""Processes that this one starts, and how this one is stopped."""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PR_SET_PDEATHSIG = 1
"""man 2 prctl, <sys/prctl.h>"""


def ends_with_this_process(number: signal.Signals) -> Callable[[], None]:
    """A child's preexec_fn: when this process is killed, the child gets a signal, so that it does not go on alone."""
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)

    return arrange


class Together:
    """Processes that several threads start and that end together. One that is added after the end is ended too."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._have_ended = threading.Event()

    def add(self, process: "subprocess.Popen[str]") -> None:
        self._processes.append(process)
        if self._have_ended.is_set():
            process.terminate()

    def terminate(self) -> None:
        self._have_ended.set()
        for process in self._processes:
            process.terminate()


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Requests to end."""


PATIENCE_S = 0.5
"""The same request again, so much later, ends this process at once, as it does the executables (docs/contract.md)."""


class Stopped(BaseException):
    """Such a request has come; its text is the signal's name. Like KeyboardInterrupt no error that a program might handle."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Turns requests to end into `Stopped`, so that temporary files and processes go; for the main thread.

    What this process was started to ignore, as by nohup, stays ignored.
    """

    asked_s: list[float] = []

    def stop(number: int, _: FrameType | None) -> None:
        asked_s.append(time.monotonic())
        if len(asked_s) == 1:
            raise Stopped(signal.Signals(number).name)
        if asked_s[-1] - asked_s[0] >= PATIENCE_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    previous = {number: signal.getsignal(number) for number in STOPPING}
    heard = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, previous[number])
