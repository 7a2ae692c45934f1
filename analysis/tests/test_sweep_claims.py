import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fake_cluster import FakeCluster
from shardbench.errors import RunError
from shardbench.sweep import claims
from shardbench.sweep.claims import Claim, Owner, claim, is_claimed, this_process


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def leave(output: Path, owner: Owner) -> Path:
    path = output / ".sweep" / "x.claim"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(owner)))
    return path


def gone() -> Owner:
    """A process of this machine that does not exist any more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return replace(this_process(), pid=process.pid, started="1")


def test_a_point_is_claimed_once_until_it_is_released(tmp_path: Path) -> None:
    mine = claim(tmp_path, "x")
    assert isinstance(mine, Claim)
    assert is_claimed(tmp_path, "x")
    other = claim(tmp_path, "x")
    assert isinstance(other, Owner)
    assert other.pid == os.getpid()
    assert isinstance(claim(tmp_path, "y"), Claim)
    mine.release()
    assert not is_claimed(tmp_path, "x")
    assert isinstance(claim(tmp_path, "x"), Claim)


def test_the_claim_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = leave(tmp_path, gone())
    assert not is_claimed(tmp_path, "x")
    assert isinstance(claim(tmp_path, "x"), Claim)
    assert json.loads(path.read_text())["pid"] == os.getpid()


def test_pids_come_again(tmp_path: Path, running: subprocess.Popen[bytes]) -> None:
    owner = replace(this_process(), pid=running.pid, started=started(running.pid))
    leave(tmp_path, owner)
    assert isinstance(claim(tmp_path, "x"), Owner)
    leave(tmp_path, replace(owner, started="1"))
    assert isinstance(claim(tmp_path, "x"), Claim)


def test_ranks_may_outlive_their_sweep(
    tmp_path: Path, running: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path, replace(gone(), launcher=running.pid, launcher_started=started(running.pid)))
    monkeypatch.setattr(claims, "LINGER_S", 0.2)
    assert is_claimed(tmp_path, "x")
    assert isinstance(claim(tmp_path, "x"), Owner)
    monkeypatch.setattr(claims, "LINGER_S", 60)
    assert running.stdin is not None
    running.stdin.write(b"\n")
    running.stdin.close()
    begin = time.monotonic()
    assert isinstance(claim(tmp_path, "x"), Claim)
    assert time.monotonic() - begin < 30


ELSEWHERE = {"host": "another", "boot": "another", "namespace": "another"}


@pytest.mark.parametrize(
    ("changes", "is_taken_over"),
    [
        (ELSEWHERE, False),  # nobody can say
        ({"boot": "another", "job": ""}, True),  # before this machine was started
        ({"namespace": "another"}, False),  # another container
        ({**ELSEWHERE, "job": "1"}, False),  # in the queue
        ({**ELSEWHERE, "job": "2"}, True),  # not any more
        ({**ELSEWHERE, "job": "3", "restart": "0"}, True),  # this job, before it was requeued
        ({**ELSEWHERE, "job": "3", "restart": "1"}, False),  # this job, another task
    ],
)
def test_other_machines_and_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], is_taken_over: bool
) -> None:
    monkeypatch.setenv("PATH", str(FakeCluster(tmp_path).folder), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    (tmp_path / "out").mkdir()
    leave(tmp_path / "out", replace(gone(), **changes))
    assert is_claimed(tmp_path / "out", "x") != is_taken_over
    assert isinstance(claim(tmp_path / "out", "x"), Claim if is_taken_over else Owner)


def test_without_squeue_a_job_may_still_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path, replace(gone(), **ELSEWHERE, job="2"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(claim(tmp_path, "x"), Owner)


def contend(output: Path, barrier: object, rounds: int, taken: object) -> None:
    for number in range(rounds):
        barrier.wait()  # type: ignore[attr-defined]
        if isinstance(claim(output, f"x{number}"), Claim):
            taken.append((number, os.getpid()))  # type: ignore[attr-defined]
    barrier.wait()  # type: ignore[attr-defined]  # nobody is dead before all have looked


@pytest.mark.parametrize("is_stale", [False, True])
def test_of_several_who_claim_at_once_one_gets_it(tmp_path: Path, is_stale: bool) -> None:
    contenders, rounds = 4, 30
    (tmp_path / ".sweep").mkdir()
    if is_stale:
        text = leave(tmp_path, gone()).read_text()
        for number in range(rounds):
            (tmp_path / f".sweep/x{number}.claim").write_text(text)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        taken, barrier = manager.list(), manager.Barrier(contenders)
        processes = [
            context.Process(target=contend, args=(tmp_path, barrier, rounds, taken))
            for _ in range(contenders)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert sorted(number for number, _ in taken) == list(range(rounds))


def test_what_is_no_claim_is_not_removed(tmp_path: Path) -> None:
    path = leave(tmp_path, gone())
    path.write_text("precious")
    with pytest.raises(RunError, match=r"x\.claim is no claim of a sweep"):
        claim(tmp_path, "x")
    assert path.read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/\.sweep.* cannot be written or locked \(Not a directory\)"):
        claim(tmp_path / "file", "x")
