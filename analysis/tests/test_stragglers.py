"""Waits split into waiting for a late rank and transfer, on traces whose truth is known."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from shardbench.read import read_trace
from shardbench.stragglers import Unknown, Waits, split_waits
from shardbench.summary.launch import reduce_trace
from shardbench.summary.warnings import warnings
from synthetic import synthetic

ROOT = Path(__file__).resolve().parents[2]
ZERO3 = Path(os.environ.get("SHARDBENCH_BIN") or ROOT / "build/release/bin") / "zero3"
MPIEXEC = os.environ.get("SHARDBENCH_MPIEXEC") or "mpiexec"
MS = 1e-3


@dataclass
class Ranks:
    """A run in common time; each rank's rows are written in its own."""

    tp: int = 1
    offsets_s: Sequence[float] = (0.0, 0.0)
    drift: float = 0.0
    uncertainty_s: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    exposed_s: dict[tuple[int, int], float] = field(default_factory=dict)

    def own(self, rank: int, common_s: float) -> float:
        return common_s + self.offsets_s[rank] + (self.drift * common_s if rank else 0.0)

    def collective(
        self, rank: int, step: int, issue: float, wait: tuple[float, float], axis: str = "dp", **facts: Any
    ) -> None:
        """Asked for at `issue` and waited for from `wait[0]` to `wait[1]`, common time in ms."""
        size = {"dp": len(self.offsets_s) // self.tp, "tp": self.tp, "world": len(self.offsets_s)}[axis]
        issue_s, begin_s, end_s = (self.own(rank, t * MS) for t in (issue, *wait))
        common = dict(
            rank=rank, step=step, micro=0, layer=1, bucket=-1, axis=axis, elements=64, group_size=size
        )
        collective = dict(
            kind="all_gather",
            stream="comm",
            issue_s=issue_s,
            start_s=issue_s,
            end_s=end_s,
            wait_s=end_s - begin_s,
        )
        wait_row = dict(
            kind="wait", stream="compute", issue_s=begin_s, start_s=begin_s, end_s=end_s, wait_s=0.0
        )
        self.events += [{**common, **collective, **facts}, {**common, **wait_row, **facts, "kind": "wait"}]
        key = (rank, step)
        self.exposed_s[key] = self.exposed_s.get(key, 0.0) + (wait[1] - wait[0]) * MS

    def split(self, **changes: pd.DataFrame) -> Waits | Unknown:
        count = len(self.offsets_s)
        tables = {
            "ranks": pd.DataFrame(
                [dict(rank=r, dp_index=r // self.tp, tp_index=r % self.tp) for r in range(count)]
            ),
            "clock": pd.DataFrame(
                [
                    dict(
                        rank=r,
                        at_s=at_s,
                        offset_s=self.own(r, at_s) - at_s,
                        uncertainty_s=self.uncertainty_s if r else 0.0,
                    )  # fmt: skip
                    for at_s in (-1.0, 3.0)
                    for r in range(count)
                ]
            ),
            "steps": pd.DataFrame(
                [
                    dict(rank=rank, step=step, warmup=0, step_s=0.1, exposed_s=exposed_s)
                    for (rank, step), exposed_s in sorted(self.exposed_s.items())
                ]
            ),
            "events": pd.DataFrame(self.events),
        }
        return split_waits(**(tables | changes))


def waits(found: Waits | Unknown) -> Waits:
    assert isinstance(found, Waits), found
    return found


def late_second_rank(run: Ranks) -> Ranks:
    """Rank 1 asks 49 ms after rank 0, which waits 50; 1 ms of transfer."""
    for step in range(3):
        begin = 100.0 * step
        run.collective(0, step, begin, (begin, begin + 50))
        run.collective(1, step, begin + 49, (begin + 49, begin + 50))
    return run


@pytest.mark.parametrize("offset_s", [0.0, 7.5, -3600.0])
@pytest.mark.parametrize("drift", [0.0, 1e-3])
def test_the_late_rank_is_named_whatever_the_clocks_say(offset_s: float, drift: float) -> None:
    found = waits(late_second_rank(Ranks(offsets_s=(0.0, offset_s), drift=drift)).split())
    assert found.straggler.seconds == pytest.approx(49 * MS, rel=1e-6)
    assert found.transfer.seconds == pytest.approx(1 * MS, rel=1e-4)
    assert found.late_rank == 1
    assert found.late.seconds == pytest.approx(49 * MS, rel=1e-6)
    assert found.late.is_resolved


def test_uncertain_clocks_bound_the_split() -> None:
    """With ± 0.25 ms the 49 ms are known, and so is the transfer of 1 ms; with ± 2 ms the transfer is not."""
    found = waits(late_second_rank(Ranks(offsets_s=(0.0, 5.0), uncertainty_s=0.25 * MS)).split())
    assert found.straggler.uncertainty_s == pytest.approx(0.25 * MS)
    assert found.transfer.is_resolved
    found = waits(late_second_rank(Ranks(offsets_s=(0.0, 5.0), uncertainty_s=2 * MS)).split())
    assert found.straggler.is_resolved
    assert not found.transfer.is_resolved
    found = waits(late_second_rank(Ranks(offsets_s=(0.0, 5.0), uncertainty_s=100 * MS)).split())
    assert not found.straggler.is_resolved
    assert not found.late.is_resolved


def test_nobody_is_late_where_a_transfer_only_lasts() -> None:
    run = Ranks()
    for rank in (0, 1):
        run.collective(rank, 0, 0, (1 + rank, 50))
    found = waits(run.split())
    assert (found.straggler.seconds, found.late_rank, found.late.seconds) == (0.0, None, 0.0)
    assert found.transfer.seconds == pytest.approx(49 * MS)


def test_the_wait_begins_later_than_the_late_rank_asks() -> None:
    run = Ranks()
    run.collective(0, 0, 0, (30, 50))
    run.collective(1, 0, 20, (49, 50))
    assert waits(run.split()).straggler.seconds == 0.0


def test_collectives_are_matched_in_issue_order_and_waited_for_in_another() -> None:
    """Both of one subject; the second is waited for first."""
    run = Ranks()
    for rank, shift in ((0, 0.0), (1, 10.0)):
        run.collective(rank, 0, shift, (40 + shift, 52), elements=8)
        run.collective(rank, 0, shift + 1, (2 + shift, 20 + shift), elements=8)
    run.events = [run.events[i] for i in (0, 2, 3, 1, 4, 6, 7, 5)]
    found = waits(run.split())
    # Rank 0 waits from 2 on for what rank 1 asks for at 11; what it waits for from 40 on was asked for at 10.
    assert found.late.seconds == pytest.approx(9 * MS)


def test_who_waits_itself_is_not_blamed() -> None:
    """Rank 3 is late in its tp group; rank 2 then comes late to dp, where rank 0 waits."""
    run = Ranks(tp=2, offsets_s=(0.0,) * 4)
    for rank, asks in ((0, 0), (1, 0), (2, 0), (3, 40)):
        run.collective(rank, 0, asks, (asks, 1 if rank < 2 else 41), axis="tp")
    for rank in (0, 2):
        run.collective(rank, 0, 1 if rank == 0 else 41, (1 if rank == 0 else 41, 42))
    for rank in (1, 3):
        run.collective(rank, 0, 41, (41, 42))
    found = waits(run.split())
    assert found.late_rank == 3
    assert found.late.seconds == pytest.approx(40 * MS)


def test_groups_do_not_mix() -> None:
    """Ranks 0 and 2 share a dp group, 1 and 3 the other, which is late as a whole: nobody waits for it."""
    run = Ranks(tp=2, offsets_s=(0.0,) * 4)
    for rank in range(4):
        begin = 50.0 * (rank % 2)
        run.collective(rank, 0, begin, (begin, begin + 5))
    assert waits(run.split()).late_rank is None


def test_what_cannot_be_attributed_says_why() -> None:
    run = late_second_rank(Ranks())
    assert run.split(events=pd.DataFrame()) == Unknown("not recorded")
    one_clock = pd.DataFrame([dict(rank=0, at_s=0.0, offset_s=0.0, uncertainty_s=0.0)])
    assert run.split(clock=one_clock) == Unknown("clocks not compared")
    assert run.split(events=pd.DataFrame(run.events[:-2])) == Unknown("ranks' collectives do not match")
    no_wait = pd.DataFrame([e for e in run.events if e["kind"] != "wait"])
    assert run.split(events=no_wait) == Unknown("waits without their collectives")


def test_batches_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    run = late_second_rank(Ranks(offsets_s=(0.0, 2.0)))
    whole = run.split()
    monkeypatch.setattr("shardbench.stragglers.ROWS_AT_ONCE", 2)
    assert run.split() == whole


def test_the_summary_names_the_straggler(tmp_path: Path) -> None:
    run = synthetic(step_s=[0.1] * 6)
    for row in run.tables["events"]:
        # Rank 1 asks for its first gather 10 ms after rank 0.
        if row["rank"] == 1 and row["layer"] == 0 and row["kind"] != "compute":
            row["issue_s"] += 0.010
            row["start_s"] += 0.010
            if row["kind"] == "all_gather":
                row["wait_s"] = row["end_s"] - row["start_s"]
    launch = reduce_trace(read_trace(run.write(tmp_path / "a.h5")), "a.h5")
    assert isinstance(launch.waits, Waits)
    assert launch.waits.late.seconds == pytest.approx(0.010)
    told = [text for text in warnings([launch]) if "straggler" in text]
    assert told == [
        "Ranks wait for a straggler for more than 5.0 % of the step in 1 run. "
        "a.h5: rank 1 is waited for: 10.0 ms a step (10.0 %)."
    ]


SLOW_RANK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
void sgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* la, const float* b, const int* lb, const float* beta, float* c, const int* lc) {
  const char* rank = getenv("PMI_RANK");
  if (rank != NULL && strcmp(rank, "1") == 0) usleep(500);
  void (*next)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
               const int*, const float*, const int*, const float*, float*, const int*) =
      dlsym(RTLD_NEXT, "sgemm_");
  next(ta, tb, m, n, k, alpha, a, la, b, lb, beta, c, lc);
}
"""


@pytest.mark.skipif(
    not (ZERO3.exists() and shutil.which(MPIEXEC) and shutil.which("cc")),
    reason="needs zero3, mpiexec and cc",
)
def test_a_slow_rank_of_a_real_run_is_named(tmp_path: Path) -> None:
    """Rank 1 sleeps half a millisecond in each of its many matrix products, far above noise."""
    (tmp_path / "slow.c").write_text(SLOW_RANK)
    library = tmp_path / "slow.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "slow.c", "-ldl"], check=True)
    linked = subprocess.run(["ldd", ZERO3], check=True, capture_output=True, text=True).stdout
    # A sanitizer's library insists on being the first.
    first = [line.split()[2] for line in linked.splitlines() if "libasan" in line]
    command = [
        MPIEXEC,
        "-n",
        "2",
        "-genv",
        "LD_PRELOAD",
        ":".join([*first, str(library)]),
        ZERO3,
        "--threads",
        "1",
        "--steps",
        "7",
    ]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM_", "MPI_LOCAL", "HYD"))}
    path = tmp_path / "a.h5"
    subprocess.run([*command, "-o", path], env=kept, check=True, timeout=120, stdin=subprocess.DEVNULL)
    trace = read_trace(path)
    found = waits(split_waits(trace.ranks, trace.clock, trace.steps, trace.events))
    assert found.late_rank == 1
    assert found.late.is_resolved
    (told,) = (text for text in warnings([reduce_trace(trace, "a.h5")]) if "straggler" in text)
    assert "rank 1 is waited for" in told
