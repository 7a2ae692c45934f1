"""What only several hosts show: bytes on the wire, overlap, and ends of jobs across hosts.

No test asks how fast anything is, but for what no link can do: be faster than its rate.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import runs
from network import NetworkError, RateLimitedNetwork, Traffic

RATE_MBIT = 200.0

# Blocks of 852 kB, of which each of two ranks sends half: 17 ms at 200 Mbit/s, ten times what sockets can hold.
MODEL = ["--layers", "8", "--hidden", "128", "--heads", "4", "--kv-heads", "4", "--ffn", "384", "--vocab", "64",
         "--seq", "32", "--param-dtype", "fp32"]
# One thread a rank: two "hosts" here would each take all cores.
ONE_THREAD = ["--threads", "1"]
# Compute takes about twice as long as communication at the rate above.
TIMED = [*MODEL, "--compute", "timed", "--flops", "4e8", *ONE_THREAD]


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[RateLimitedNetwork]:
    with RateLimitedNetwork(hosts=2, rate_mbit=RATE_MBIT) as network:
        yield network


@dataclass(frozen=True)
class Run:
    trace: runs.Trace
    sent: dict[str, Traffic]


def run(network: RateLimitedNetwork, ranks_per_host: int, scenario: str, *options: str) -> Run:
    path = runs.new_file()
    before = {host: network.sent(host) for host in network.hosts}
    program = [str(runs.BIN / scenario), *options, "-o", str(path)]
    command = network.command(ranks_per_host, program, runs.MPIEXEC)
    finished = runs.execute(command, runs.scratch_folder(), **network.environment(ranks_per_host))
    assert finished.code == 0, str(finished)
    trace = runs.Trace(path)
    assert trace.attributes["status"] == "complete", str(finished)
    assert trace.ranks == ranks_per_host * len(network.hosts), str(finished)
    return Run(trace, {host: network.sent(host) - before[host] for host in network.hosts})


@pytest.mark.parametrize("ranks_per_host", [1, 2])
@pytest.mark.parametrize(("scenario", "options"), [
    ("zero3", []), ("ddp", []), ("mesh2d", ["--tp", "2"]), ("zero3", ["--algorithm", "hierarchical"]),
    ("zero3", ["--progress", "thread"]),
])  # fmt: skip
def test_training_is_right_across_hosts(
    two_hosts: RateLimitedNetwork, scenario: str, options: Sequence[str], ranks_per_host: int
) -> None:
    trace = run(two_hosts, ranks_per_host, scenario, "-c", "-n", "2", "-w", "1", *ONE_THREAD, *options).trace
    assert trace.attributes["check"] == "passed"
    placement = [(str(host), int(local)) for host, local in trace["ranks"][["host", "local_rank"]].tolist()]
    assert placement == [(host, local) for host in two_hosts.hosts for local in range(ranks_per_host)]


def prefetched_gathers(trace: runs.Trace) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """End, bytes sent and the stretches of compute, of each all-gather of a timed step."""
    found = []
    for rank in range(trace.ranks):
        events = trace.of_rank("events", rank)
        events = events[events["step"] >= 1]
        compute = events[events["kind"] == "compute"]
        spans = np.stack([compute["start_s"], compute["end_s"]], axis=1)
        gathers = events[(events["kind"] == "all_gather") & (events["stream"] == "comm")]
        found += [(float(g["end_s"]), g["sent_bytes"], spans) for g in gathers]
    assert found
    return found


def share_hidden(trace: runs.Trace) -> float:
    """Of the bytes that all-gathers sent, the share of those whose completion was seen while a layer computed."""
    gathers = prefetched_gathers(trace)
    hidden = sum(sent for end, sent, spans in gathers if np.any((spans[:, 0] < end) & (end < spans[:, 1])))
    return hidden / sum(sent for _, sent, _ in gathers)


def waited_for_gathers(trace: runs.Trace) -> float:
    steps = trace["steps"]
    timed = steps[steps["warmup"] == 0]
    return float(np.median(timed["exposed_ag_forward_s"] + timed["exposed_ag_backward_s"]))


@pytest.fixture(scope="module")
def overlapped(two_hosts: RateLimitedNetwork) -> dict[str, runs.Trace]:
    """Traces with the next group gathered ahead, by who makes progress."""
    options = [*TIMED, "--prefetch", "1", "-n", "1", "-w", "1"]
    return {p: run(two_hosts, 1, "zero3", *options, "--progress", p).trace for p in ("none", "poll", "thread")}


@pytest.mark.parametrize("progress", ["poll", "thread"])
def test_with_progress_gathers_complete_under_compute(overlapped: dict[str, runs.Trace], progress: str) -> None:
    # All but the gathers that begin a pass: of 2 x 8 blocks, 14.
    assert share_hidden(overlapped[progress]) > 0.4
    assert waited_for_gathers(overlapped[progress]) < waited_for_gathers(overlapped["none"]) / 2


def test_without_progress_nothing_completes_under_compute(overlapped: dict[str, runs.Trace]) -> None:
    assert share_hidden(overlapped["none"]) == 0.0


def test_no_transfer_is_faster_than_the_link(overlapped: dict[str, runs.Trace]) -> None:
    """That would be a token bucket too large, or a way around the link. Noise can only make transfers slower."""
    for trace in overlapped.values():
        block = trace["calibration"][trace["calibration"]["kind"] == "block"]
        gathers = [e for e in trace.events(0, 1) if e["kind"] == "all_gather" and e["stream"] == "comm"]
        seconds = max(e["sent_bytes"] for e in gathers) * 8 / (RATE_MBIT * 1e6)
        # In backward a gather and a reduce-scatter of the same size.
        times = dict(zip(block["direction"], block["communication_alone_s"], strict=True))
        assert times["forward"] > 0.9 * seconds
        assert times["backward"] > 0.9 * 2 * seconds


def bytes_a_step(network: RateLimitedNetwork, ranks_per_host: int, *options: str) -> tuple[float, runs.Trace]:
    """What h0 sends over its link in one step: the difference of two runs, in which all else cancels.

    Rank 0's host, because the others also send rank 0 their records.
    """
    more_steps = 2
    few, many = (run(network, ranks_per_host, "zero3", *MODEL, *ONE_THREAD, "--trace", "steps", "-w", "0", "-n", str(n),
                     *options) for n in (1, 1 + more_steps))  # fmt: skip
    return (many.sent["h0"] - few.sent["h0"]).payload_bytes / more_steps, many.trace


def test_wire_carries_what_ledger_and_events_say(two_hosts: RateLimitedNetwork) -> None:
    counted, trace = bytes_a_step(two_hosts, 1)
    assert trace.ledger(0)["dp", "volume_bytes"][1] == pytest.approx(counted, rel=0.03)
    events = run(two_hosts, 1, "zero3", *MODEL, *ONE_THREAD, "-w", "0", "-n", "1").trace.events(0, 0)
    assert sum(e["sent_bytes"] for e in events) == pytest.approx(counted, rel=0.03)


def test_hierarchical_crosses_the_link_once(two_hosts: RateLimitedNetwork) -> None:
    """Of the three blocks that a rank of four sends in a collective, two cross under `direct` and one here."""
    direct, trace = bytes_a_step(two_hosts, 2, "--algorithm", "direct")
    hierarchical, _ = bytes_a_step(two_hosts, 2, "--algorithm", "hierarchical")
    volume = sum(trace.ledger(rank)["dp", "volume_bytes"][1] for rank in (0, 1))
    assert direct == pytest.approx(volume * 2 / 3, rel=0.03)
    assert hierarchical == pytest.approx(volume / 3, rel=0.03)


@pytest.mark.parametrize("scenario", ["zero3", "ddp", "mesh2d"])
def test_executables_keep_mpich_from_closing_connections(tmp_path: Path, scenario: str) -> None:
    """A linker that left src/comm/mpi/ucx_disconnect.cpp out would bring back a hang that only some runs show."""
    if "libucp" not in runs.execute(["ldd", str(runs.BIN / scenario)], tmp_path).stdout:
        pytest.skip("this MPI library does not use UCX, so nobody would call it")
    symbols = runs.execute(["nm", "--dynamic", "--defined-only", str(runs.BIN / scenario)], tmp_path).stdout
    assert " ucp_disconnect_nb\n" in symbols


@pytest.mark.parametrize("hosts", [2, 3])
def test_jobs_of_two_ranks_a_host_end(hosts: int) -> None:
    """MPI_Finalize may hang over UCX's TCP with four ranks and more (docs/overlap.md)."""
    with RateLimitedNetwork(hosts) as network:
        for repetition in range(5):
            begin = time.monotonic()
            run(network, 2, "zero3", "-n", "1", "-w", "0", "--seed", str(1 + repetition), *ONE_THREAD)
            assert time.monotonic() - begin < 30.0


@pytest.mark.parametrize("victim", [0, 3])
def test_rank_killed_on_one_host_ends_the_job(two_hosts: RateLimitedNetwork, tmp_path: Path, victim: int) -> None:
    output = tmp_path / "endless.h5"
    program = [str(runs.BIN / "zero3"), *runs.ENDLESS, "-o", str(output)]
    job = runs.start(two_hosts.command(2, program, runs.MPIEXEC), tmp_path, **two_hosts.environment(2))
    try:
        wait_for_a_window(job, output)
        processes = runs.ranks_of(job, "zero3")
        assert len(processes) == 4
        begin = time.monotonic()
        os.kill(processes[victim], signal.SIGKILL)
        job.communicate(timeout=runs.TIMEOUT_S)
        # mpiexec need not wait for the other host's processes.
        while any(Path(f"/proc/{process}").exists() for process in processes):
            assert time.monotonic() - begin < 10.0
            time.sleep(0.01)
        assert time.monotonic() - begin < 10.0
        assert job.returncode != 0
        assert runs.Trace(output).attributes["status"] != "complete"
    finally:
        runs.kill_tree(job)


def namespaces(prefix: str) -> list[str]:
    shown = runs.execute(["ip", "netns", "list"], Path("/")).stdout
    return [line.split()[0] for line in shown.splitlines() if line.startswith(prefix)]


def test_network_disappears_with_an_exception() -> None:
    prefix = f"shardbench-{os.getpid()}-"
    others = namespaces(prefix)
    with pytest.raises(KeyboardInterrupt), RateLimitedNetwork(hosts=2):
        assert len(namespaces(prefix)) == len(others) + 3
        raise KeyboardInterrupt
    assert namespaces(prefix) == others


def test_network_that_cannot_be_made_leaves_nothing() -> None:
    prefix = f"shardbench-{os.getpid()}-"
    others = namespaces(prefix)
    # tc refuses the rate after everything else was made.
    with pytest.raises(NetworkError, match="rate"), RateLimitedNetwork(hosts=1, rate_mbit=float("inf")):
        pass
    assert namespaces(prefix) == others


def wait_for_a_window(job: subprocess.Popen[str], output: Path) -> None:
    """A file larger than one that ended after a window has something of the next; the one before is flushed."""
    enough = runs.trace("zero3", 4, "-n", str(runs.WINDOW), *runs.WINDOWED).path.stat().st_size
    deadline = time.monotonic() + runs.TIMEOUT_S
    while not output.exists() or output.stat().st_size <= enough:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_alive(process: int) -> bool:
    """An orphan that has died may stay in the table as a zombie until whoever adopted it looks."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_network_disappears_with_its_process(tmp_path: Path, number: int) -> None:
    """And so does what ran inside."""
    script = ("import subprocess, sys, time; from network import RateLimitedNetwork\n"
              "with RateLimitedNetwork(hosts=1) as n:\n"
              "  inside = subprocess.Popen(n.command(1, ['sleep', '1000'], sys.argv[1]), stdin=subprocess.DEVNULL)\n"
              "  print(inside.pid, flush=True); time.sleep(1000)")  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", script, runs.MPIEXEC], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
                          env=runs.environment(PYTHONPATH=str(Path(__file__).parent))) as owner:  # fmt: skip
        assert owner.stdout is not None
        inside = int(owner.stdout.readline())
        assert len(namespaces(f"shardbench-{owner.pid}-")) == 2
        owner.send_signal(number)
        owner.wait(10.0)
    deadline = time.monotonic() + 10.0
    while namespaces(f"shardbench-{owner.pid}-") or is_alive(inside):
        assert time.monotonic() < deadline, namespaces(f"shardbench-{owner.pid}-")
        time.sleep(0.05)
