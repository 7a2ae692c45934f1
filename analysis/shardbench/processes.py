"""Processes that this one starts."""

import ctypes
import os
import signal
from collections.abc import Callable

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
