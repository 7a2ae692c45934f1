"""Ranks that were started with different options or different programs find out at the start."""

import json
from pathlib import Path

import pytest
import runs
from jobs import RUN_TIME_FAILURE, USAGE
from recorder import Record, case

BASE = ["-n", "2", "-w", "0", "--threads", "1", "-o", "x.h5"]


def execute(folder: Path, parts: list[list[str]]) -> runs.Finished:
    """mpiexec's colon syntax gives each rank a command of its own."""
    words: list[str] = []
    for part in parts:
        words += [*([":"] if words else []), "-n", "1", *part]
    finished = runs.execute([runs.MPIEXEC, *words], folder, timeout_s=20.0)
    assert finished.seconds < 10.0, str(finished)
    return finished


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize(("option", "value"), [
    ("seed", "7"), ("steps", "3"), ("window", "3"), ("layers", "3"), ("prefetch", "0"), ("algorithm", "ring"), ("trace", "none"),
    ("param-dtype", "fp32"), ("communicators", "2"), ("stall-timeout", "9"), ("progress", "none"),
    ("check", ""),
])
@case("ranks-disagree")
def test_different_options(tmp_path: Path, option: str, value: str, victim: int, record: Record) -> None:
    parts = []
    for rank in range(3):
        changed = [f"--{option}", *([value] if value else [])] if rank == victim else []
        kept = [w for pair in zip(BASE[::2], BASE[1::2], strict=True) for w in pair
                if not (rank == victim and pair[0] == "-n" and option == "steps")]
        parts.append([str(runs.BIN / "zero3"), *kept, *changed])
    finished = execute(tmp_path, parts)
    record.seconds(finished.seconds)
    assert finished.code == USAGE, str(finished)
    assert option in finished.stderr, str(finished)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("programs", [("zero3", "ddp"), ("ddp", "zero3"), ("zero3", "collectives"), ("collectives", "zero1")])
@case("binaries-disagree")
def test_different_programs(tmp_path: Path, programs: tuple[str, str], record: Record) -> None:
    parts = [[str(runs.BIN / program), "-n", "2", "--output", "x.h5"] for program in programs]
    finished = execute(tmp_path, parts)
    record.seconds(finished.seconds)
    assert finished.code in (RUN_TIME_FAILURE, USAGE), str(finished)
    assert all(program in finished.stderr for program in programs), str(finished)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("victim", [0, 1])
@case("one-rank-refuses")
def test_refusal_by_one_rank_before_mpi_starts(tmp_path: Path, victim: int, record: Record) -> None:
    fine = [str(runs.BIN / "zero3"), "-n", "1", "-o", "x.h5"]
    finished = execute(tmp_path, [[*fine, *(["--prefech", "2"] if rank == victim else [])] for rank in range(2)])
    record.seconds(finished.seconds)
    assert finished.code == USAGE, str(finished)
    assert "--prefech" in finished.stderr, str(finished)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("victim", [0, 1])
@case("one-rank-cannot-read")
def test_file_that_one_rank_cannot_read(tmp_path: Path, victim: int, record: Record) -> None:
    """As when a calibration lies on one node's own disk."""
    times = {"forward": 1e-4, "backward": 1e-4}
    (tmp_path / "there.json").write_text(json.dumps({"embedding": times, "block": times, "head": times}))
    finished = execute(tmp_path, [[str(runs.BIN / "zero3"), "-n", "1", "-o", "x.h5", "--compute", "timed", "--calibration",
                                   "missing.json" if rank == victim else "there.json"] for rank in range(2)])
    record.seconds(finished.seconds)
    assert finished.code != 0, str(finished)
    assert "missing.json" in finished.stderr, str(finished)
    assert not (tmp_path / "x.h5").exists()
