"""Who runs a point. Several sweeps, on several machines, may work on one folder.

Whoever runs a point first puts a claim file beside the traces. It appears with its contents in one step
(a hard link, which fails where a file is; that holds on NFS too), so no two sweeps get the same point.
A lock of the whole folder would let only one worker of a Slurm array work at a time, and a lock that
the kernel holds (flock) is not passed on between machines by every file system. What a file cannot do is
vanish with its owner. So it says who that is, and a claim is taken over when its owner is certainly gone:
a process of this machine that does not exist, or a Slurm job that has left the queue. Only taking
over needs a lock, against two who find the same dead owner.
"""

import contextlib
import fcntl
import json
import os
import platform
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from shardbench.errors import RunError

FOLDER = ".sweep"
"""Below a study's output: claims, the lock, studies as submitted."""

LINGER_S = 60.0
"""How long a launcher may outlive its sweep, by which it was told to stop: until its ranks end their step."""


@dataclass(frozen=True)
class Owner:
    """A process: where it runs, when it was started (pids come again), the launcher that it has started."""

    id: str
    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    job: str
    restart: str
    launcher: int = 0
    launcher_started: str = ""

    def __str__(self) -> str:
        return (f"Slurm job {self.job}, " if self.job else "") + f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    """Says who is asking."""
    pid = os.getpid()
    return Owner(
        id=uuid.uuid4().hex,
        host=platform.node(),
        boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        namespace=os.readlink("/proc/self/ns/pid"),
        pid=pid,
        started=_started(pid),
        job=os.environ.get("SLURM_JOB_ID", ""),
        restart=os.environ.get("SLURM_RESTART_COUNT", ""),
    )


class Claim:
    """A point that this process runs."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self._path = path
        self._owner = owner

    def add_launcher(self, pid: int) -> None:
        """So that whoever takes over knows that ranks may still be writing."""
        self._owner = replace(self._owner, launcher=pid, launcher_started=_started(pid))
        _written(self._path, self._owner).replace(self._path)

    def release(self) -> None:
        """Lets others have the point."""
        self._path.unlink(missing_ok=True)


def claim(output: Path, name: str) -> Claim | Owner:
    """Claims a run; or says who has it.

    Raises:
        RunError: the folder cannot be written, or not be locked.
    """
    me, path = this_process(), output / FOLDER / f"{name}.claim"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not _linked(path, me):
            other = owner_of(path)
            if other and not _is_gone(other, me, LINGER_S):
                return other
            with _locked(path.parent / "lock"):
                # Another may have taken it over in the meantime.
                if other and owner_of(path) == other:
                    path.unlink()
        return Claim(path, me)
    except OSError as error:
        reason = f"{error.filename or path} cannot be written or locked ({error.strerror})"
        raise RunError(f"{reason}; put the study's output where files can be created and locked") from error


def owner_of(path: Path) -> Owner | None:
    """Who has made a claim; None if it is not there (any more)."""
    try:
        return Owner(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise RunError(
            f"{path} is no claim of a sweep ({error}); remove it if no sweep runs in this folder"
        ) from error


def is_claimed(output: Path, name: str) -> bool:
    """Whether somebody who may still be there runs this."""
    owner = owner_of(output / FOLDER / f"{name}.claim")
    return owner is not None and not _is_gone(owner, this_process(), linger_s=0)


def _linked(path: Path, owner: Owner) -> bool:
    own = _written(path, owner)
    try:
        os.link(own, path)
        return True
    except FileExistsError:
        return False
    finally:
        own.unlink()


def _written(path: Path, owner: Owner) -> Path:
    own = path.with_suffix(f".{owner.id}")
    own.write_text(json.dumps(asdict(owner)))
    return own


def _is_gone(owner: Owner, me: Owner, linger_s: float) -> bool:
    """Whether neither the sweep nor its launcher exists any more. In doubt they do."""
    if (owner.host, owner.boot, owner.namespace) == (me.host, me.boot, me.namespace):
        if _exists(owner.pid, owner.started):
            return False
        deadline = time.monotonic() + linger_s
        while _exists(owner.launcher, owner.launcher_started):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True
    if not owner.job:
        return owner.host == me.host and owner.boot != me.boot
    if owner.job == me.job:
        return owner.restart != me.restart
    return _has_left_queue(owner.job)


def _exists(pid: int, started: str) -> bool:
    return pid > 0 and _started(pid) == started


def _started(pid: int) -> str:
    """When a process was started, in ticks since boot; empty if it does not exist (man 5 proc, stat)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _has_left_queue(job: str) -> bool:
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    try:
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Invalid job id" in answer.stderr or (answer.returncode == 0 and not answer.stdout.strip())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
