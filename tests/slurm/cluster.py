"""A Slurm of its own on this machine: slurmctld, two slurmd that play the nodes n1 and n2, and nodes with GPUs on paper.

It needs root and Debian's packages slurmctld, slurmd and slurm-client, but neither systemd nor munge. Everything lies in a
temporary folder and listens on ports that were free. cmake/guard.py runs the daemons and adopts what they leave behind, so
nothing of it outlives this process, whatever ends it.

What the settings mean: man slurm.conf.
"""

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import runs

_Value = TypeVar("_Value")

TOOLS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
NODES = ("n1", "n2")
CPUS_PER_NODE = 32  # as many as no test asks for; the real ones are shared by all

# Longer than all tests together; the guard ends the daemons then.
DEADLINE_S = 3600
START_S = 30.0

# SlurmdParameters: believe what is written here and not what the machine has. sched_min_interval, batch_sched_delay: start
# jobs at once. KillWait: from SIGTERM to SIGKILL. State=CLOUD: nodes of which nobody expects that they answer.
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=10
MinJobAge=3600
GresTypes=gpu
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=3600
{nodes}
NodeName=g[1-64] CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=500000 Gres=gpu:8 State=CLOUD
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=60 State=UP
PartitionName=gpu Nodes=g[1-64] MaxTime=1440 State=UP
"""
_NODE = ("NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 SocketsPerBoard=1 "
         "CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN")

# In the foreground, all children of one shell; the first that ends, ends it.
_DAEMONS = r"""
slurmctld -D -c -f "$0/slurm.conf" &
for node; do slurmd -D -f "$0/slurm.conf" -N "$node" & done
wait -n
"""


@functools.cache
def reason_unavailable() -> str | None:
    """Why this machine cannot have such a Slurm, and what would help; None if it can."""
    if os.geteuid() != 0:
        return "Slurm's daemons are not started by others than root; run the tests as root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found; install slurmctld, slurmd and slurm-client"
    return None


class Cluster:
    """The running Slurm. A context manager; when its block is left, no process and no file of it is left."""

    def __init__(self) -> None:
        self.folder = Path()
        self._guard: subprocess.Popen[str] | None = None
        self._daemons: set[int] = set()

    def __enter__(self) -> "Cluster":
        self.folder = Path(tempfile.mkdtemp(prefix="shardbench-slurm-"))
        try:
            self._configure()
            guard = [sys.executable, str(runs.ROOT / "cmake/guard.py"), str(DEADLINE_S)]
            with (self.folder / "daemons.log").open("wb") as log:
                self._guard = subprocess.Popen([*guard, "bash", "-c", _DAEMONS, str(self.folder), *NODES], env=runs.environment(),
                                               stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
            self.wait_until(self._all_idle, "the nodes are idle", START_S)
            self._daemons = set(runs.descendants(self._guard.pid))
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _configure(self) -> None:
        host = socket.gethostname().partition(".")[0]
        controller_port, *node_ports = free_ports(1 + len(NODES))
        nodes = "\n".join(_NODE.format(name=name, host=host, port=port, cpus=CPUS_PER_NODE)
                          for name, port in zip(NODES, node_ports, strict=True))
        for folder in ("state", *(f"spool/{node}" for node in NODES)):
            (self.folder / folder).mkdir(parents=True)
        (self.folder / "slurm.conf").write_text(_CONFIGURATION.format(
            host=host, folder=self.folder, controller_port=controller_port, nodes=nodes))
        (self.folder / "gres.conf").write_text("NodeName=g[1-64] Name=gpu Count=8\n")
        # Not the plugin that the system's own configuration would choose: it needs systemd.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    def _all_idle(self) -> bool:
        shown = self.command("sinfo", "--noheader", "--partition=main", "--states=idle", "--format=%D").stdout
        return shown.strip() == str(len(NODES))

    def _remove(self) -> None:
        if self._guard is not None:
            self._guard.send_signal(signal.SIGTERM)
            self._guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, **changes: str) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), **changes}

    def command(self, *words: str, folder: Path | None = None, **changes: str) -> runs.Finished:
        """Runs one of Slurm's commands to its end."""
        return runs.execute(words, folder or self.folder, **self.environment(**changes))

    def submit(self, folder: Path, *words: str, **changes: str) -> "Job":
        """sbatch, from the checkout; the job works in `folder`."""
        command = ["sbatch", "--parsable", f"--chdir={folder}", f"--output={folder}/slurm-%j.out", *words]
        finished = self.command(*command, folder=runs.ROOT, **changes)
        assert finished.code == 0, str(finished)
        return Job(self, finished.stdout.strip(), folder)

    def wait_until(self, condition: Callable[[], _Value], what: str, timeout_s: float = runs.TIMEOUT_S) -> _Value:
        """Returns the condition's value as soon as it is true."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert self._guard is not None and self._guard.poll() is None, f"Slurm has ended\n{self.logs()}"
            assert time.monotonic() < deadline, f"not after {timeout_s} s: {what}\n{self.logs()}"
            time.sleep(0.1)
        return value

    def ranks(self, scenario: str) -> list[int]:
        """Process ids by rank, while one job runs."""
        assert self._guard is not None
        return runs.ranks_of(self._guard, scenario)

    def crash(self) -> None:
        """Kills whatever jobs have started, scripts and ranks alike, as a power failure would; only the daemons stay."""
        assert self._guard is not None
        for process in set(runs.descendants(self._guard.pid)) - self._daemons:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def clear(self) -> None:
        """Ends all jobs."""
        if self.jobs():
            self.command("scancel", "--me")
            self.crash()
            self.wait_until(lambda: not self.jobs(), "no job is left")

    def jobs(self) -> list[str]:
        """Numbers of those that wait or run, elements of arrays included."""
        return self.command("squeue", "--noheader", "--array", "--format=%i").stdout.split()

    def logs(self) -> str:
        """The end of what each daemon had to say."""
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in sorted(self.folder.glob("*.log")))


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens now."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


@dataclass(frozen=True)
class Job:
    """A job that has been submitted."""

    cluster: "Cluster"
    number: str
    folder: Path

    @property
    def log(self) -> str:
        """What it has printed so far."""
        path = self.folder / f"slurm-{self.number}.out"
        return path.read_text() if path.exists() else ""

    def facts(self) -> dict[str, str]:
        """What scontrol knows of it."""
        shown = self.cluster.command("scontrol", "--oneliner", "show", "job", self.number).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    @property
    def state(self) -> str:
        return self.facts()["JobState"]

    def exit_code(self) -> int:
        """Of the script."""
        return int(self.facts()["ExitCode"].partition(":")[0])

    def wait_for(self, *states: str, timeout_s: float = runs.TIMEOUT_S) -> str:
        what = f"job {self.number} is {' or '.join(states)}"
        return self.cluster.wait_until(lambda: state if (state := self.state) in states else "", what, timeout_s)

    def wait(self, timeout_s: float = runs.TIMEOUT_S) -> str:
        """Until it has ended; returns the state in which it did."""
        return self.wait_for("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", timeout_s=timeout_s)
