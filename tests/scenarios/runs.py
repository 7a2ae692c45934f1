"""Runs the executables the way users do, and reads what they leave behind.

When a command takes too long, everything that it started is killed.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "cmake"))
import guard  # noqa: E402

BIN = Path(os.environ.get("SHARDBENCH_BIN") or ROOT / "build/release/bin")
SIM_BIN = Path(os.environ.get("SHARDBENCH_SIM_BIN") or ROOT / "build/sim/bin")
MPIEXEC = os.environ.get("SHARDBENCH_MPIEXEC") or "mpiexec"

# Generous: the machine may be busy, and a hang is the only thing that this must end.
TIMEOUT_S = 120.0

# Variables by which a launcher tells a process who it is; a test that starts processes must not inherit them.
LAUNCHER_PREFIXES = ("PMI", "SLURM_", "MPI_LOCAL", "HYDI_", "HYDRA_")

# A job that does not end by itself, and writes often.
WINDOW, WARMUP = 4, 1
WINDOWED = ("-w", str(WARMUP), "--window", str(WINDOW), "--threads", "1")
ENDLESS = ("-n", "32000", *WINDOWED)

EVENT_TIMES = ("issue_s", "start_s", "end_s", "wait_s")


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    command: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def signal(self) -> signal.Signals | None:
        """What killed the command itself (not one of the processes that it started)."""
        return signal.Signals(-self.code) if self.code < 0 else None

    def __str__(self) -> str:
        ended = f"killed by {self.signal.name}" if self.signal else f"exit code {self.code}"
        return f"{' '.join(self.command)}\n{ended} after {self.seconds:.1f} s\n{self.stdout}{self.stderr}"


def environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_PREFIXES)}
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


def descendants(ancestor: int) -> list[int]:
    """Ids of the live processes that a process started, it included. (mpiexec gives each rank a session of its own.)"""
    return [ancestor, *guard.descendants(ancestor)]


def ranks_of(job: subprocess.Popen[str], scenario: str) -> list[int]:
    """Process ids by rank. (A rank may have a caretaker; it comes after it in the tree.)"""
    found: dict[int, int] = {}
    for process in descendants(job.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text().strip() != scenario:
                continue
            for variable in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                if variable.startswith(b"PMI_RANK="):
                    found.setdefault(int(variable[9:]), process)
    return [found[rank] for rank in sorted(found)]


def kill_tree(process: subprocess.Popen[str]) -> None:
    """Ends a command that `start` began and everything that it started."""
    if process.poll() is None:
        for descendant in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(descendant, signal.SIGKILL)


def start(command: Sequence[str], folder: Path, **changes: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def execute(command: Sequence[str], folder: Path, timeout_s: float = TIMEOUT_S, **changes: str) -> Finished:
    """Runs a command to its end; raises AssertionError when it takes longer than `timeout_s`."""
    begin = time.monotonic()
    process = start(command, folder, **changes)
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        stdout, stderr = process.communicate()
        raise AssertionError(f"{' '.join(map(str, command))}: still running after {timeout_s} s\n{stdout}{stderr}") from None
    return Finished(tuple(map(str, command)), process.returncode, stdout, stderr, time.monotonic() - begin)


def mpi_command(scenario: str, ranks: int, options: Sequence[str]) -> list[str]:
    return [MPIEXEC, "-n", str(ranks), str(BIN / scenario), *options]


class Trace:
    """One HDF5 file: attributes, configuration and tables, with text decoded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with h5py.File(path, "r") as file:
            self.attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in file.attrs.items()}
            self.config = json.loads(file["config"][()])
            self.tables = {k: _decoded(file[k][()]) for k in file if k != "config"}

    def __getitem__(self, table: str) -> np.ndarray:
        return self.tables[table]

    @property
    def ranks(self) -> int:
        return int(self.attributes["world_size"])

    def of_rank(self, table: str, rank: int) -> np.ndarray:
        rows = self[table]
        return rows[rows["rank"] == rank]

    def steps_agreed(self, field: str) -> np.ndarray:
        """A field of `steps` by step, which must be the same on every rank."""
        steps = [np.sort(self.of_rank("steps", rank), order="step")[field] for rank in range(self.ranks)]
        for other in steps[1:]:
            np.testing.assert_array_equal(other, steps[0], err_msg=f"{field} differs between ranks")
        return steps[0]

    def events(self, rank: int, step: int) -> list[dict]:
        """One rank's operations of a step in the order of issue, without times."""
        rows = self.of_rank("events", rank)
        rows = rows[rows["step"] == step]
        names = [n for n in rows.dtype.names if n not in (*EVENT_TIMES, "rank")]
        return [dict(zip(names, values, strict=True)) for values in zip(*(rows[n].tolist() for n in names), strict=True)]

    def ledger(self, rank: int) -> dict[tuple[str, str], tuple[float, float, float, str]]:
        rows = self.of_rank("ledger", rank).tolist()
        result = {(axis, quantity): (expected, measured, padding, unit) for _, axis, quantity, expected, measured, padding, unit in rows}
        assert len(result) == len(rows), "a ledger quantity occurs twice"
        return result

    def peaks(self, rank: int) -> dict[str, int]:
        return {category: peak for _, category, peak in self.of_rank("memory_peak", rank).tolist()}


def _decoded(rows: np.ndarray) -> np.ndarray:
    if rows.dtype.names is None:
        return rows
    kinds = []
    for name in rows.dtype.names:
        kind = rows.dtype[name]
        text = kind.kind in "SO"
        kinds.append((name, object if text else kind))
    result = np.empty(rows.shape, dtype=kinds)
    for name, kind in kinds:
        column = rows[name]
        result[name] = [v.decode() if isinstance(v, bytes) else v for v in column] if kind is object else column
    return result


@functools.cache
def scratch_folder() -> Path:
    """One folder a test session; conftest.py removes it."""
    return Path(tempfile.mkdtemp(prefix="shardbench-test-"))


def remove_scratch_folder() -> None:
    shutil.rmtree(scratch_folder(), ignore_errors=True)


@functools.cache
def _file_names() -> Iterator[int]:
    return iter(range(1 << 30))


def new_file() -> Path:
    return scratch_folder() / f"{next(_file_names())}.h5"


@functools.cache
def trace(scenario: str, ranks: int, *options: str, timeout_s: float = TIMEOUT_S) -> Trace:
    """The trace of a run under mpiexec that must succeed. The same run serves every test that asks for it."""
    path = new_file()
    finished = execute(mpi_command(scenario, ranks, [*options, "-o", str(path)]), scratch_folder(), timeout_s)
    assert finished.code == 0, str(finished)
    result = Trace(path)
    assert result.attributes["status"] == "complete", str(finished)
    assert result.ranks == ranks, str(finished)
    return result


@functools.cache
def plan(scenario: str, ranks: int, rank: int, *options: str) -> dict:
    """What --plan prints, without MPI."""
    command = [str(BIN / scenario), "--plan", "--ranks", str(ranks), "--rank", str(rank), *options]
    finished = execute(command, scratch_folder())
    assert finished.code == 0, str(finished)
    return json.loads(finished.stdout)


def model_options(model: dict) -> list[str]:
    """Command line options of a model given by its dimensions."""
    names = {"layers": "--layers", "hidden": "--hidden", "heads": "--heads", "kv_heads": "--kv-heads", "ffn": "--ffn",
             "vocab": "--vocab", "seq": "--seq"}
    sizes = [word for key, option in names.items() for word in (option, str(model[key]))]
    return [*sizes, "--tied" if model["tied"] else "--untied"]
