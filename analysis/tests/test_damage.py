"""Damaged files: a reader may refuse them or read what was written, nothing else.

The files are real ones, of zero3. Every number in them is random enough to make a wrong one visible.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from shardbench.isolate import IsolatedFailure, Limits, run_isolated
from shardbench.read import TABLES, Trace, TraceError, read_trace
from synthetic import Synthetic, seal, synthetic

ROOT = Path(__file__).resolve().parents[2]
ZERO3 = Path(os.environ.get("SHARDBENCH_BIN") or ROOT / "build/release/bin") / "zero3"
OPTIONS = ["--layers", "1", "--warmup", "0", "--window", "2"]
needs_zero3 = pytest.mark.skipif(not ZERO3.exists(), reason=f"{ZERO3} is not built")

Damage = Callable[[bytes], bytes]


def run_alone(options: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a world of one rank, which needs no launcher."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM_", "MPI_LOCAL", "HYD"))}
    return subprocess.Popen(
        [ZERO3, *OPTIONS, *options],
        env={**kept, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a run that ended."""
    path = tmp_path_factory.mktemp("finished") / "a.h5"
    assert run_alone(["--steps", "3", "-o", str(path)]).wait(timeout=60) == 0
    return path.read_bytes()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a run that was killed between two steps, or within one."""
    path = tmp_path_factory.mktemp("killed") / "a.h5"
    process = run_alone(["--steps", "30000", "-o", str(path)])
    try:
        deadline = time.monotonic() + 60
        while not path.exists() or path.stat().st_size < 3 << 20:  # several windows, and room for a flush
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return path.read_bytes()


def tables_of(trace: Trace) -> dict[str, pd.DataFrame]:
    return {name: getattr(trace, name) for name in (*TABLES, "collectives")}


def equal(one: Trace, other: Trace) -> bool:
    return (one.attributes, one.config) == (other.attributes, other.config) and all(
        table.equals(tables_of(other)[name]) for name, table in tables_of(one).items()
    )


def outcome(path: Path, original: Trace) -> str:
    try:
        trace = read_trace(path)
    except TraceError as error:
        text = str(error)
        assert "\n" not in text
        for part in ("the library crashed", "takes for ever", "ended early", "checksum"):
            if part in text:
                return f"refused: {part}"
        return "refused"
    if equal(trace, original):
        return "equal"
    return "incomplete" if trace.incomplete else "WRONG"


def outcomes_of(arguments: tuple[Path, bytes, Sequence[tuple[str, int]]]) -> Counter[str]:
    """What becomes of the file under each damage of a list; a wrong trace is told with its damage."""
    path, good, damages = arguments
    path.write_bytes(good)
    original = read_trace(path)
    written = np.flatnonzero(np.frombuffer(good, np.uint8))
    counts: Counter[str] = Counter()
    for kind, seed in damages:
        path.write_bytes(damaged(good, written, kind, random.Random(seed)))
        found = outcome(path, original)
        counts[f"WRONG: {kind} {seed}" if found == "WRONG" else found] += 1
    return counts


def damaged(good: bytes, written: np.ndarray, kind: str, dice: random.Random) -> bytes:
    """`written` are the places of bytes that are not zero."""
    if kind == "truncated":
        return good[: dice.randrange(len(good))]
    data = bytearray(good)
    # Most of a small file is room for more rows. Every second hit lands where something is written.
    place = dice.choice([dice.randrange(len(good)), int(written[dice.randrange(len(written))])])
    if kind == "bit":
        data[place] ^= 1 << dice.randrange(8)
    else:
        length = min(dice.randrange(2, 65), len(good) - place)
        data[place : place + length] = dice.randbytes(length)
    return bytes(data)


def count_outcomes(folder: Path, good: bytes, damages: Sequence[tuple[str, int]]) -> Counter[str]:
    workers = 2
    shares = [(folder / f"{i}.h5", good, damages[i::workers]) for i in range(workers)]
    # A worker that hangs or dies would be a failure of the isolation: it raises here.
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        counts = sum(pool.map(outcomes_of, shares), Counter())
    print(dict(counts))
    return counts


def damages(truncations: int, bits: int, runs: int) -> list[tuple[str, int]]:
    numbers = (("truncated", truncations), ("bit", bits), ("run", runs))
    return [(kind, seed) for kind, count in numbers for seed in range(count)]


@needs_zero3
def test_a_finished_file_is_refused_or_read_right(finished: bytes, tmp_path: Path) -> None:
    counts = count_outcomes(tmp_path, finished, damages(200, 2000, 200))
    assert {name.split(":")[0] for name in counts} == {"refused", "equal"}, counts
    assert counts["refused: checksum"] > 200  # what HDF5 does not notice
    assert counts["refused"] > 200  # what it does


@needs_zero3
def test_a_killed_file_is_refused_or_called_incomplete(killed: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(killed)
    assert "status is 'running'" in (read_trace(tmp_path / "a.h5").incomplete or "")
    counts = count_outcomes(tmp_path, killed, damages(50, 200, 50))
    assert {name.split(":")[0] for name in counts} <= {"refused", "equal", "incomplete"}, counts
    assert counts["incomplete"] > 0


@needs_zero3
@pytest.mark.slow
def test_20000_more_damages(finished: bytes, tmp_path: Path) -> None:
    counts = count_outcomes(tmp_path, finished, damages(1000, 15000, 4000))
    assert {name.split(":")[0] for name in counts} == {"refused", "equal"}, counts


@needs_zero3
def test_alignment_gaps_are_zeros_in_the_file(finished: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(finished)
    gaps = 0
    with h5py.File(tmp_path / "a.h5", "r") as file:
        for table in TABLES:
            rows = file[table][()]
            image = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
            for kind, offset in (rows.dtype.fields or {}).values():
                image[:, offset : offset + kind.itemsize] = 0
            assert not image.any(), table
            gaps += rows.dtype.itemsize - sum(kind.itemsize for kind, _ in (rows.dtype.fields or {}).values())
    assert gaps > 0


def problems(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    return "; ".join(caught.value.problems)


def change(path: Path, edit: Callable[[h5py.File], None]) -> None:
    with h5py.File(path, "a") as file:
        edit(file)


def one_more_second(file: h5py.File) -> None:
    rows = file["steps"][()]
    rows["step_s"][0] += 1
    file["steps"][...] = rows


def other_sign(file: h5py.File) -> None:
    """The same bytes, of which an unsigned type makes other numbers."""
    rows = file["events"][()]
    kinds = [(n, "u4" if n == "bucket" else rows.dtype[n]) for n in rows.dtype.names]
    del file["events"]
    file["events"] = rows.view(kinds)


def one_step_less(file: h5py.File) -> None:
    rows = file["steps"][:-1]
    del file["steps"]
    file["steps"] = rows


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (one_more_second, "checksum of dataset 'steps' is not the one"),
        (one_step_less, "checksum of dataset 'steps' is not the one"),
        (other_sign, "checksum of dataset 'events' is not the one"),
        (lambda file: file.attrs.modify("seed", 2), "checksum of root attributes is not the one"),
        (lambda file: file.attrs.modify("unknown", 2), "checksum of root attributes is not the one"),
        (lambda file: file.attrs.__delitem__("checksums"), "written by an older version"),
        (lambda file: file.attrs.modify("checksums", "[]"), "'checksums' cannot be understood"),
        (lambda file: file.attrs.modify("checksums", "{"), "'checksums' cannot be understood"),
    ],
)
def test_silent_changes_are_refused(
    run: Synthetic, tmp_path: Path, edit: Callable[[h5py.File], None], told: str
) -> None:
    path = run.write(tmp_path / "a.h5")
    change(path, edit)
    assert told in problems(path)


def test_another_configuration_is_refused(run: Synthetic, tmp_path: Path) -> None:
    path = run.write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        text = file["config"][()].decode().replace('"steps": 7', '"steps": 8')
        del file["config"]
        file.create_dataset("config", data=text, dtype=h5py.string_dtype())
    assert "checksum of dataset 'config' is not the one" in problems(path)


def test_a_table_that_vanished_is_missed(tmp_path: Path) -> None:
    """Also an optional one, which the schema does not miss."""
    run = synthetic()
    run.tables["collectives"] = []
    path = run.write(tmp_path / "a.h5")
    change(path, lambda file: file.__delitem__("collectives"))
    assert "checksum of dataset 'collectives'" in problems(path)


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_only_a_complete_file_needs_checksums(run: Synthetic, tmp_path: Path, status: str) -> None:
    """A run that died has none, whatever status others gave its file; where they are they must agree."""
    path = run.write(tmp_path / "a.h5")
    change(path, lambda file: file.attrs.modify("status", status))
    assert "checksum of root attributes" in problems(path)
    change(path, lambda file: file.attrs.__delitem__("checksums"))
    assert f"status is '{status}'" in (read_trace(path).incomplete or "")
    change(path, lambda file: file.attrs.modify("status", "complete"))
    assert "no root attribute 'checksums'" in problems(path)


def test_more_rows_than_the_file_has_room_for(run: Synthetic, tmp_path: Path) -> None:
    path = run.write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        kind = file["memory"].dtype
        del file["memory"]
        file.create_dataset("memory", (1 << 40,), kind, chunks=(1024,))  # never written
    assert "claims" in problems(path)


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.h5")
    assert "not a regular file" in problems(tmp_path / "a.h5")


LIMITS = Limits(wall_s=20, cpu_s=1, memory=64 << 20, result=1 << 20)


def crash() -> Iterator[bytes]:
    os.kill(os.getpid(), signal.SIGSEGV)
    yield b""


def spin() -> Iterator[bytes]:
    while True:
        pass
    yield b""


def devour() -> Iterator[bytes]:
    yield bytearray(1 << 30)


def stop_early() -> Iterator[bytes]:
    yield b"part"
    raise RuntimeError


def too_much() -> Iterator[bytes]:
    yield bytes(2 << 20)


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (crash, "crashed on it, SIGSEGV"),
        (spin, "takes for ever"),
        (devour, "not enough memory"),
        (stop_early, "ended early, with exit code 1"),
        (too_much, "more data"),
    ],
)
def test_isolated_work_fails_with_a_reason(work: Callable[[], Iterator[bytes]], told: str) -> None:
    begin = time.monotonic()
    with pytest.raises(IsolatedFailure) as caught:
        run_isolated(work, LIMITS)
    assert told in str(caught.value)
    assert time.monotonic() - begin < 10
    assert_no_child_is_left()


def test_isolated_work_that_sleeps_is_ended() -> None:
    def doze() -> Iterator[bytes]:
        time.sleep(100)
        yield b""

    with pytest.raises(IsolatedFailure, match="takes for ever"):
        run_isolated(doze, Limits(wall_s=0.1, cpu_s=1, memory=64 << 20, result=1 << 20))
    assert_no_child_is_left()


def test_parts_come_back_whole() -> None:
    parts = [b"", b"x", bytes(range(256)) * 3000]
    assert run_isolated(lambda: parts, LIMITS) == parts
    assert_no_child_is_left()


def test_an_interrupt_ends_reader_and_child() -> None:
    # A shell lets what it starts in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def doze() -> Iterator[bytes]:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(100)
        yield b""

    try:
        with pytest.raises(KeyboardInterrupt):
            run_isolated(doze, LIMITS)
    finally:
        signal.signal(signal.SIGINT, before)
    assert_no_child_is_left()


def assert_no_child_is_left() -> None:
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
