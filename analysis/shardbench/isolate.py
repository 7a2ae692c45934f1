"""Runs work that may crash, hang or ask for absurd amounts of memory in a process of its own.

The HDF5 library trusts a file's metadata. Damaged metadata can make it follow wild pointers, run in
circles or allocate without bound; no exception handler survives that, but a parent process does.
"""

import faulthandler
import gc
import os
import resource
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from shardbench.processes import STOPPING

LENGTH = struct.Struct("<Q")
END = 2**64 - 1
"""Stands in the place of a length after the last part."""
DONE, RAISED, OUT_OF_MEMORY = 0, 1, 2
"""The child's exit codes."""


@dataclass(frozen=True)
class Limits:
    """What the work may use. Memory counts what it needs beyond this process, in bytes.

    `wall_s` counts while this process waits for a part, not while it uses one.
    """

    wall_s: float
    cpu_s: int
    memory: int
    result: int


class IsolatedFailure(Exception):
    """The process did not deliver; the text says why, as a clause."""


def run_isolated(work: Callable[[], Iterable[bytes | memoryview]], limits: Limits) -> list[bytearray]:
    """Runs `work` in a forked process and returns the parts that it yields.

    The process has ended when this returns or raises, whatever the reason.

    Raises:
        IsolatedFailure: the process was killed by a signal, exceeded a limit, or raised.
    """
    return list(stream_isolated(work, limits))


def stream_isolated(
    work: Callable[[], Iterable[bytes | memoryview]], limits: Limits
) -> Generator[bytearray, None, None]:
    """As `run_isolated`, but yields each part when it arrives. Whoever stops early closes the iterator.

    The process has ended when the iterator is exhausted or closed, or raises.
    """
    receiver, sender = os.pipe()
    # An interrupt waits until there is a handler for what it must clean up.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    with warnings.catch_warnings():
        # Newer Pythons warn that other threads' locks stay locked in the child. It takes none of theirs:
        # numpy's and h5py's libraries reset their own at a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError:
            os.close(receiver)
            os.close(sender)
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            raise
    if child == 0:
        _deliver(work, limits, receiver, sender)
    reaped = False
    try:
        os.close(sender)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        try:
            yield from _receive(receiver, limits)
        except EOFError:
            reaped = True
            raise IsolatedFailure(_cause(os.waitpid(child, 0)[1])) from None
    finally:
        os.close(receiver)
        if not reaped:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _deliver(
    work: Callable[[], Iterable[bytes | memoryview]], limits: Limits, receiver: int, sender: int
) -> NoReturn:
    """The child: never returns into the parent's code, never runs the parent's clean-up."""
    code = RAISED
    try:
        gc.disable()  # else finalisers of the parent's objects might run here too
        faulthandler.disable()  # a crash is the parent's to report
        for interruption in STOPPING:
            signal.signal(interruption, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        os.close(receiver)
        # glibc reports a damaged heap on stderr.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_CPU, limits.cpu_s)
        _limit(resource.RLIMIT_AS, _address_space() + limits.memory)
        for part in work():
            _write(sender, LENGTH.pack(len(part)))
            _write(sender, part)
        _write(sender, LENGTH.pack(END))
        code = DONE
    except MemoryError:
        code = OUT_OF_MEMORY
    finally:
        os._exit(code)


def _limit(what: int, soft: int) -> None:
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _address_space() -> int:
    """Bytes that this process has mapped (man 5 proc, statm)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _write(sender: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(sender, rest) :]


def _receive(receiver: int, limits: Limits) -> Iterator[bytearray]:
    patience_s, left = limits.wall_s, limits.result
    while True:
        begin_s = time.monotonic()
        (length,) = LENGTH.unpack(_read(receiver, LENGTH.size, begin_s + patience_s))
        if length == END:
            return
        left -= length
        if left < 0:
            raise IsolatedFailure("it yields more data than it can hold")
        part = _read(receiver, length, begin_s + patience_s)
        patience_s -= time.monotonic() - begin_s
        yield part


def _read(receiver: int, size: int, deadline: float) -> bytearray:
    """Exactly `size` bytes.

    Raises:
        EOFError: the child has closed its end before.
        IsolatedFailure: the deadline has passed.
    """
    data = bytearray(size)
    rest = memoryview(data)
    poll = select.poll()
    poll.register(receiver, select.POLLIN)
    while rest:
        milliseconds = 1000 * (deadline - time.monotonic())
        if milliseconds <= 0 or not poll.poll(milliseconds):
            raise IsolatedFailure("it takes for ever")
        count = os.readv(receiver, [rest])
        if count == 0:
            raise EOFError
        rest = rest[count:]
    return data


def _cause(status: int) -> str:
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        if code == OUT_OF_MEMORY:
            return "not enough memory for what it claims to hold"
        return f"the process that read it ended early, with exit code {code}"
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return "it takes for ever"
    if number == signal.SIGKILL:
        return "the process that read it was killed, out of memory?"
    return f"the library crashed on it, {signal.Signals(number).name}"
