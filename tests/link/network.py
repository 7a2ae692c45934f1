"""Hosts on one machine: network namespaces joined by a link that lets through so many bits per second and no more.

Over shared memory communication is copying by the cores that compute, and overlap cannot be measured. Over such a link a
transfer takes time and hardly any CPU, as between real hosts. Why each setting is what it is: docs/overlap.md.

Needs Linux, root (CAP_NET_ADMIN and CAP_SYS_ADMIN), iproute2, util-linux and MPICH's launcher.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

# Debian's packages iproute2, util-linux and hostname.
TOOLS = ("ip", "tc", "unshare", "hostname", "bash", "timeout")

# A switch on which every host's cable ends. Namespaces have addresses of their own, so networks do not collide.
SWITCH_ADDRESS = "10.77.0.254"

# More than this refills while a rank computes, and lets the next transfer begin faster than the link.
BUCKET = "16kb"
# How long a packet may queue. With 20 ms packets are dropped and TCP stalls.
QUEUE = "400ms"

# Ethernet 14, IPv4 20, TCP 20, TCP's timestamps 12 (RFC 7323).
HEADER_BYTES = 66

_COMMAND_TIMEOUT_S = 20.0

# Runs until its standard input ends, which the kernel sees to whatever ends the process at the other end, SIGKILL
# included. Then it ends what runs inside the namespaces and removes them. Only this network has names that start with
# the prefix, which is its first argument.
_REMOVER = r"""
trap '' INT TERM HUP
read -r _
status=0
for namespace in $(ip netns list | sed -n "s/^\($1[a-z0-9]*\).*/\1/p"); do
  for process in $(ip netns pids "$namespace"); do kill -KILL "$process" 2>/dev/null; done
  ip netns delete "$namespace" || status=1
done
rm -rf -- "$2"
exit $status
"""

# MPICH's launcher calls it as it would rsh. Each host has its own network, host name, IPC, processes and /proc: else UCX
# would find that two "hosts" share memory and connect them through it.
_LAUNCHER = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1
shift
exec ip netns exec "{prefix}$host" unshare --uts --ipc --pid --mount-proc --fork --kill-child \\
  sh -c "hostname $host; $*" </dev/null
"""


class NetworkError(Exception):
    """The network could not be made or removed; the message says which command failed and why."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What a host has sent over its link: bytes of frames, and frames."""

    frame_bytes: int
    frames: int

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        return Traffic(self.frame_bytes - earlier.frame_bytes, self.frames - earlier.frames)

    @property
    def payload_bytes(self) -> int:
        """What TCP carried: acknowledgements without data count as nothing."""
        return self.frame_bytes - HEADER_BYTES * self.frames


class RateLimitedNetwork:
    """`hosts` namespaces h0, h1, ..., each behind a link of `rate_mbit` Mbit/s towards a switch.

    A context manager. What it makes disappears when the block is left, by an exception too, and when this process ends
    in whatever way. So does what runs inside. Names carry the process id and a number, so that several networks may
    exist at once.
    """

    def __init__(self, hosts: int = 2, rate_mbit: float = 200.0) -> None:
        if not 1 <= hosts <= 200:
            raise ValueError(f"{hosts} hosts: addresses are given out for 1 to 200; choose a number among these")
        if not rate_mbit > 0:
            raise ValueError(f"a link of {rate_mbit} Mbit/s carries nothing; choose a rate above 0")
        self.hosts = tuple(f"h{i}" for i in range(hosts))
        self.rate_mbit = rate_mbit
        self._prefix = ""
        self._folder = Path()
        self._remover: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "RateLimitedNetwork":
        if self._remover is not None:
            raise RuntimeError("this network exists already; leave its block first, or make another one")
        self._prefix = f"shardbench-{os.getpid()}-{next(_numbers())}-"
        self._folder = Path(tempfile.mkdtemp(prefix=self._prefix))
        try:
            # A session of its own: control-C must not reach it.
            self._remover = subprocess.Popen(
                ["sh", "-c", _REMOVER, "sh", self._prefix, str(self._folder)],
                stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        problem = self._remove()
        if problem:
            raise NetworkError(problem)

    def command(self, ranks_per_host: int, program: Sequence[str], mpiexec: str = "mpiexec",
                limit_s: float = 300.0) -> list[str]:  # fmt: skip
        """The command that runs `program` with so many ranks on each host, and ends it after `limit_s`.

        Run it with the variables that `environment` names.
        """
        hosts = ",".join(f"{host}:{ranks_per_host}" for host in self.hosts)
        ranks = ranks_per_host * len(self.hosts)
        launcher = ["-launcher", "rsh", "-launcher-exec", str(self._folder / "launcher")]
        inside = ["timeout", "--kill-after=5", str(limit_s), "ip", "netns", "exec", self._namespace("sw")]
        return [*inside, mpiexec, *launcher, "-hosts", hosts, "-localhost", SWITCH_ADDRESS, "-n", str(ranks),
                *map(str, program)]  # fmt: skip

    def environment(self, ranks_per_host: int) -> dict[str, str]:
        """Variables that make MPICH's UCX use the link, and in a way that can be understood."""
        return {
            "UCX_NET_DEVICES": "eth0",
            "UCX_TLS": "tcp,self" if ranks_per_host == 1 else "tcp,posix,self",
            # With a rendezvous the clear-to-send of one direction queues behind the bulk data of the other.
            "UCX_RNDV_THRESH": "inf",
            # Otherwise the kernel takes whole messages and carries them with nobody making progress.
            "UCX_TCP_SNDBUF": "16k",
            "UCX_TCP_RCVBUF": "32k",
        }

    def sent(self, host: str) -> Traffic:
        """What the host's network interface has counted since the network was made."""
        shown = _run("ip", "-n", self._namespace(host), "-json", "-statistics", "link", "show", "dev", "eth0")
        counted = json.loads(shown)[0]["stats64"]["tx"]
        return Traffic(counted["bytes"], counted["packets"])

    def _namespace(self, name: str) -> str:
        return self._prefix + name

    def _make(self) -> None:
        launcher = self._folder / "launcher"
        launcher.write_text(_LAUNCHER.format(prefix=self._prefix))
        launcher.chmod(0o755)
        switch = self._namespace("sw")
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "set", "lo", "up")
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        _run("ip", "-n", switch, "address", "add", f"{SWITCH_ADDRESS}/24", "dev", "br0")
        for i, host in enumerate(self.hosts):
            name = self._namespace(host)
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", switch, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "-n", name, "address", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            _run("ip", "-n", switch, "link", "set", f"p{i}", "master", "br0")
            _run("ip", "-n", switch, "link", "set", f"p{i}", "up")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{self.rate_mbit}mbit",
                 "burst", BUCKET, "latency", QUEUE)  # fmt: skip

    def _remove(self) -> str | None:
        """Tells the remover that it is time; returns what went wrong, or None."""
        if self._remover is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            return None
        remover, self._remover = self._remover, None
        try:
            _, stderr = remover.communicate(timeout=_COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            remover.kill()
            remover.communicate()
            return f"namespaces {self._prefix}* were not removed in {_COMMAND_TIMEOUT_S} s; use ip netns delete"
        if remover.returncode != 0:
            return f"namespaces {self._prefix}* were not removed; use ip netns delete ({stderr.decode().strip()})"
        return None


@functools.cache
def reason_unavailable(mpiexec: str = "mpiexec") -> str | None:
    """Why this machine cannot have such a network, and what would help; None if it can.

    It makes one and removes it: permissions and kernels differ in more ways than could be asked for.
    """
    if not _may_administer():
        return "no network namespaces without CAP_NET_ADMIN and CAP_SYS_ADMIN; run as root, or give the container both"
    missing = [tool for tool in (*TOOLS, mpiexec) if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found; install iproute2, util-linux and mpich"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)
        if "hydra" not in version.stdout.lower():
            return f"{mpiexec} is not MPICH's launcher (hydra), whose -launcher-exec is needed; name another one"
    try:
        with RateLimitedNetwork(hosts=1) as network:
            _run(str(network._folder / "launcher"), network.hosts[0], "true")
    except NetworkError as error:
        return f"{error}; a kernel with network namespaces, veth, bridge and tbf (sch_tbf) is needed"
    return None


def _may_administer() -> bool:
    """Whether this process has CAP_NET_ADMIN (12) and CAP_SYS_ADMIN (21), see man 7 capabilities."""
    needed = 1 << 12 | 1 << 21
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16) & needed == needed
    return False


@functools.cache
def _numbers() -> Iterator[int]:
    return itertools.count()


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
