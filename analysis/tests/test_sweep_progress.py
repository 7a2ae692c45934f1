from pathlib import Path

import pytest

from shardbench.sweep.launchers import Installation, command, index_set
from shardbench.sweep.plan import Plan, of_benchmark, of_step
from shardbench.sweep.point import Machine, Point, Run
from shardbench.sweep.progress import Durations, duration, last_lines, note_end, noted_seconds

OPTIONS = {"steps": 8, "warmup": 2, "micro-batch": 1, "grad-accum": 2, "dp": 4, "trace": "events"}


def plan(**options: object) -> Plan:
    answer = {"psi": 1000, "options": {**OPTIONS, **options}, "events": [{}] * 50, "ledger": [{}] * 22}
    return of_step({**answer, "memory": {"peak_bytes": {"total_tracked": 1}}})


def point(ranks: int, machine: Machine | None = None, **options: int) -> Point:
    return Point("zero3", ranks, "tiny", options, machine)


def test_durations_follow_launches_of_the_point_then_work_of_its_class() -> None:
    small, large, longer, other = point(4), point(8), point(4, seq=64), point(4, Machine("flat", {}, {}))
    plans = {small.hash: plan(), large.hash: plan(dp=8), longer.hash: plan(), other.hash: plan()}
    durations = Durations(plans)
    assert durations.expected(small) is None
    for seconds in (3.0, 5.0, 4.0):
        durations.add(small, seconds)
    assert durations.expected(small) == 4
    assert durations.expected(large) == 8  # twice the sequences
    assert durations.expected(longer) is None  # longer sequences: another class
    assert durations.expected(other) is None
    durations.add(large, 9)
    assert durations.expected(large) == 9
    runs = [Run(each, 1, "mpiexec") for each in (small, large, longer, other)]
    assert durations.left(runs) == "about 13 s left and 2 of unknown length"
    assert durations.left(runs[:1]) == "about 4.0 s left"
    assert durations.left(runs[2:]) == "2 of unknown length"


def test_two_sizes_tell_the_start_from_the_work() -> None:
    points = [point(ranks) for ranks in (4, 8, 16)]
    durations = Durations({p.hash: plan(dp=p.ranks) for p in points})
    durations.add(points[0], 3)
    durations.add(points[1], 5)
    assert durations.expected(points[2]) == pytest.approx(9)
    # Noise that makes more work take less time is no line to follow.
    durations.add(points[1], 1)
    durations.add(points[1], 1)
    assert durations.expected(points[2]) == pytest.approx(6)  # the median per work, times 16


def test_collectives_alone_take_time_by_the_byte_and_are_a_class_of_their_own() -> None:
    small, large = Point("collectives", 4, None, {}, None), Point("collectives", 8, None, {}, None)
    step = point(4)
    answer = {"psi": 0, "options": {}, "repetitions": 20, "memory": {"peak_bytes": {"total_tracked": 1}}}
    of_small = of_benchmark({**answer, "lines": [{"size_bytes": 1000}, {"size_bytes": 3000}]})
    of_large = of_benchmark({**answer, "lines": [{"size_bytes": 16000}]})
    durations = Durations({small.hash: of_small, large.hash: of_large, step.hash: plan()})
    durations.add(small, 1.5)
    assert durations.expected(large) == pytest.approx(6.0)
    assert durations.expected(step) is None
    # Two lines of 20 repetitions on 1024 ranks, 120 bytes each.
    grown = of_small.trace_bytes(1024) - of_small.trace_bytes(1)
    assert grown == pytest.approx(1024 * 2 * 20 * 120, rel=0.05)


def test_a_size_without_a_block_for_each_rank_is_no_work() -> None:
    empty, other, full = (Point("collectives", ranks, None, {}, None) for ranks in (1, 2, 4))
    answer = {"psi": 0, "options": {}, "repetitions": 20, "memory": {"peak_bytes": {"total_tracked": 0}}}
    nothing, something = (of_benchmark({**answer, "lines": [{"size_bytes": size}]}) for size in (0, 1000))
    durations = Durations({empty.hash: nothing, other.hash: nothing, full.hash: something})
    for seconds in (1.0, 4.0, 2.0):
        durations.add(empty, seconds)
    assert durations.expected(other) == durations.expected(full) == 2
    # More work in less time: no line to follow, and only what works says how fast that is.
    durations.add(full, 0.5)
    larger = Point("collectives", 8, None, {}, None)
    durations.plans = {
        **durations.plans,
        larger.hash: of_benchmark({**answer, "lines": [{"size_bytes": 3000}]}),
    }
    assert durations.expected(larger) == pytest.approx(1.5)


def test_a_simulation_takes_time_by_the_operation() -> None:
    machine = Machine("flat", {}, {})
    small, large, longer = point(64, machine), point(256, machine), point(64, machine, seq=4096)
    durations = Durations({small.hash: plan(), large.hash: plan(steps=18), longer.hash: plan()})
    durations.add(small, 1.5)
    assert durations.expected(large) == pytest.approx(1.5 * 4 * 2)
    assert durations.expected(longer) == 1.5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (12.4, "12 s"), (99.9, "100 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_only_complete_runs_say_how_long_they_take(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert noted_seconds(log) is None
    log.write_text("said before\n\n" * 100_000 + "zero3: the end")
    assert noted_seconds(log) is None
    assert last_lines(log)[-1] == "zero3: the end"
    note_end(log, "complete", 2.25, 0)
    assert noted_seconds(log) == 2.25
    note_end(log, "failed", 7.5, 1)
    assert noted_seconds(log) is None


def test_the_trace_level_decides_on_the_size() -> None:
    sizes = [plan(trace=level).trace_bytes(1024) for level in ("none", "steps", "events")]
    assert sizes[0] < sizes[1] < sizes[2]
    # 1024 ranks, 10 steps, 50 events of 136 bytes and three times as many changes of memory of 48 bytes.
    assert sizes[2] - sizes[1] == pytest.approx(1024 * 10 * 50 * (136 + 3 * 48), rel=0.01)


def test_a_simulation_is_a_command_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = point(64, Machine("ethernet", {"node.nic_latency_s": 1e-6}, {}), prefetch=2)
    words = command(Run(simulated, 1, "simulate"), Path("out"), Installation(Path("bin"), Path("script")))
    name = f"{simulated.name}_r1.h5"
    assert words[1:] == [
        *("-m", "shardbench", "simulate", "zero3", "--ranks", "64", "--platform", "ethernet"),
        *("--set", "node.nic_latency_s=1e-06", "--", "--model=tiny", "--prefetch=2"),
        *("--overwrite", f"--output=out/{name}"),
    ]


def test_mpiexec_is_that_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation(tmp_path / "bin", tmp_path)
    monkeypatch.delenv("MPIEXEC", raising=False)
    assert installation.mpiexec == "mpiexec"
    (tmp_path / "CMakeCache.txt").write_text("A:STRING=1\nMPIEXEC_EXECUTABLE:FILEPATH=/opt/mpi/bin/mpiexec\n")
    assert installation.mpiexec == "/opt/mpi/bin/mpiexec"
    monkeypatch.setenv("MPIEXEC", "/other")
    assert installation.mpiexec == "/other"


def test_elements_as_slurm_writes_them() -> None:
    assert index_set([4, 0, 1, 2, 9]) == "0-2,4,9"
