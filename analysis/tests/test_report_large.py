"""A file of a million events: what the report may take."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

import shardbench
from synthetic import seal, synthetic

EVENTS = 1_000_000
SECONDS, BYTES = 30, 1e9


def large_file(path: Path) -> Path:
    """Eight ranks' steps, repeated."""
    synthetic(size=8, step_s=[0.125] * 8, warmup=0, simulated=1).write(path)
    with h5py.File(path, "a") as file:
        repetitions = -(-EVENTS // len(file["events"]))
        for table in ("events", "steps"):
            rows = file[table][()]
            del file[table]
            tiled = np.tile(rows, repetitions)
            number = np.repeat(np.arange(repetitions), len(rows))
            tiled["step"] += 8 * number
            for field in {"issue_s", "start_s", "end_s"} & set(rows.dtype.names):
                tiled[field] += number
            if (
                table == "events"
            ):  # rounded anew at later times; a wait is as long as its collective says, to the last bit
                tiled["wait_s"] = np.where(tiled["wait_s"] > 0, tiled["end_s"] - tiled["start_s"], 0.0)
            file.create_dataset(table, data=tiled)
        assert len(file["events"]) >= EVENTS
    seal(path)
    return path


def proportional_set_size(process: int) -> int:
    """Bytes of a process and its descendants, shared pages divided among their users (man 5 proc)."""
    try:
        with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as file:
            own = next(int(line.split()[1]) for line in file if line.startswith("Pss:")) << 10
        with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
            return own + sum(proportional_set_size(int(child)) for child in file.read().split())
    except (OSError, StopIteration):  # it has ended
        return 0


@pytest.mark.slow
def test_a_million_events_take_half_a_minute_and_a_gigabyte(tmp_path: Path) -> None:
    large_file(tmp_path / "large.h5")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(Path(shardbench.__file__).parents[1])}
    command = [sys.executable, "-m", "shardbench", "report", str(tmp_path), "-o", str(tmp_path / "r.html")]
    peak = 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, proportional_set_size(process.pid))
            time.sleep(0.02)
        assert process.stdout
        told = process.stdout.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == 0
    assert "waits without their collectives" not in told
    # Of the CPU, so that others on the machine do not count.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS
    assert 100e6 < peak < BYTES
