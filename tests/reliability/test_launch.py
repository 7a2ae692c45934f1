"""How jobs start, where ranks are placed, and that a file says it all."""

import json
import os
import re
from pathlib import Path

import jobs
import numpy as np
import pytest
import runs
from recorder import Record, case

SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")
SHORT = ("-n", "3", "-w", "1", "--threads", "1")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@case("world-size")
def test_the_world_has_the_size_that_was_asked_for(ranks: int) -> None:
    for scenario in SCENARIOS:
        trace = runs.trace(scenario, ranks, *SHORT)
        assert trace.attributes["world_size"] == ranks
        assert sorted(trace["ranks"]["rank"]) == list(range(ranks))
        assert len(set(trace["ranks"]["pid"])) == ranks


@pytest.mark.parametrize("scenario", SCENARIOS)
@case("one-rank")
def test_one_rank_alone_is_one_rank_under_mpiexec(tmp_path: Path, scenario: str) -> None:
    together = runs.trace(scenario, 1, *SHORT)
    finished = runs.execute([str(runs.BIN / scenario), *SHORT, "-o", "x.h5"], tmp_path)
    assert finished.code == 0, str(finished)
    alone = runs.Trace(tmp_path / "x.h5")
    for trace in (alone, together):
        assert trace.attributes["status"] == "complete"
        for table in trace.tables.values():
            for name in table.dtype.names:
                if table[name].dtype.kind == "f":
                    assert np.isfinite(table[name]).all(), name
        assert set(trace["events"]["sent_bytes"]) == {0}
        assert set(trace["events"]["group_size"]) <= {0, 1}
        assert trace.ledger(0)["dp", "volume_elements"][:2] == (0.0, 0.0)
    np.testing.assert_array_equal(alone["steps"]["loss"], together["steps"]["loss"])


@pytest.mark.parametrize("launch", ["alone", "mpiexec"])
@case("one-rank")
def test_bandwidth_of_one_rank_is_zero_and_not_nonsense(tmp_path: Path, launch: str) -> None:
    command = [*([] if launch == "alone" else [runs.MPIEXEC, "-n", "1"]), str(runs.BIN / "collectives"), "-b", "1K", "-e", "4K", "-f", "2",
               "-n", "2", "--output", "x.h5", "-J", "x.json"]
    finished = runs.execute(command, tmp_path)
    assert finished.code == 0, str(finished)
    assert not re.search(r"\b(nan|inf)\b", finished.stdout, re.IGNORECASE), finished.stdout
    assert set(runs.Trace(tmp_path / "x.h5")["collectives"]["sent_bytes"]) == {0}
    json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda text: pytest.fail(f"{text} in the JSON file"))


@case("mesh-order")
def test_ranks_of_a_mesh_of_4_by_2(tmp_path: Path) -> None:
    trace = runs.trace("mesh2d", 8, "--dp", "4", "--tp", "2", "-n", "1", "-w", "0", "--threads", "1")
    ranks = np.sort(trace["ranks"], order="rank")
    tp_groups = {tuple(ranks[ranks["dp_index"] == i]["rank"].tolist()) for i in range(4)}
    dp_groups = {tuple(ranks[ranks["tp_index"] == i]["rank"].tolist()) for i in range(2)}
    assert tp_groups == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert dp_groups == {(0, 2, 4, 6), (1, 3, 5, 7)}
    # What is stored is what was done: both ranks of a tensor-parallel group trained the same tokens, which count once.
    tokens = {rank: trace.of_rank("steps", rank)["tokens"].sum() for rank in range(8)}
    assert [rank for rank in range(8) if tokens[rank] > 0] == [0, 2, 4, 6]


@pytest.mark.parametrize(("progress", "level"), [("poll", 0), ("none", 0), ("thread", 1)])
@case("thread-level")
def test_an_mpi_library_with_too_few_threads_is_refused(tmp_path: Path, progress: str, level: int, record: Record) -> None:
    with jobs.Job(tmp_path, ranks=2, options=[*SHORT, "--progress", progress], thread_level=level) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        record.seconds(finished.seconds)
        assert finished.code != 0, str(finished)
        assert any("thread level" in line and "--progress" in line for line in jobs.own_lines(finished, "zero3")), str(finished)
        assert not job.output.exists()


@case("provenance")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_file_says_where_it_comes_from(scenario: str) -> None:
    trace = runs.trace(scenario, 2, *SHORT)
    attributes = trace.attributes
    assert (attributes["schema"], attributes["schema_version"], attributes["scenario"]) == ("shardbench", 1, scenario)
    versions = runs.execute([str(runs.BIN / scenario), "--version"], runs.scratch_folder()).stdout
    assert str(attributes["git_commit"]) in versions
    assert str(attributes["build_type"]) in versions
    assert str(attributes["mpi_library"]).splitlines()[0].split(",")[0] in versions
    assert str(attributes["hdf5_version"]) in versions
    assert attributes["nccl_version"] == "none"
    assert attributes["backend"] == "mpi"
    assert attributes["git_dirty"] in (0, 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", str(attributes["created_utc"]))
    assert f"{scenario} -n 3 -w 1" in str(attributes["command_line"])
    assert attributes["seed"] == 1
    assert trace.config["options"]["steps"] == 3
    assert trace.config["environment"]["OMP_NUM_THREADS"] == "1"
    assert set(trace["ranks"]["host"]) == {os.uname().nodename}
    assert attributes["status"] == "complete"


@pytest.mark.parametrize(("cpus", "threads", "oversubscribed"), [("0", 1, 1), ("0", 2, 1), ("0,1", 1, 0), ("0,1", 2, 1)])
@case("placement")
def test_where_ranks_run_is_recorded(tmp_path: Path, cpus: str, threads: int, oversubscribed: int) -> None:
    if len(os.sched_getaffinity(0) & {0, 1}) < 2:
        pytest.skip("CPUs 0 and 1 are not both allowed here")
    command = ["taskset", "-c", cpus, *runs.mpi_command("zero3", 2, ["-n", "2", "-w", "0", "--threads", str(threads), "-o", "x.h5"])]
    finished = runs.execute(command, tmp_path)
    assert finished.code == 0, str(finished)
    trace = runs.Trace(tmp_path / "x.h5")
    count = len(cpus.split(","))
    assert set(trace["ranks"]["affinity"]) == {"0" if count == 1 else "0-1"}
    assert set(trace["ranks"]["allowed_cpus"]) == {count}
    assert set(trace["ranks"]["threads"]) == {threads}
    assert sorted(trace["ranks"]["local_rank"]) == [0, 1]
    assert trace.attributes["oversubscribed"] == oversubscribed


@case("straggler")
def test_a_slow_rank_sets_the_pace_and_shows(tmp_path: Path) -> None:
    options = ["-n", "4", "-w", "1", "--threads", "1"]
    with jobs.Job(tmp_path, "ddp", ranks=3, options=options, rank=1, slow_us=3000) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        assert finished.code == 0, str(finished)
        trace = jobs.trace_of_ended(job.output)
    timed = trace["steps"][trace["steps"]["warmup"] == 0]
    assert set(timed["step"]) == {1, 2, 3, 4}
    compute = {rank: np.median(timed[timed["rank"] == rank]["compute_s"]) for rank in range(3)}
    exposed = {rank: np.median(timed[timed["rank"] == rank]["exposed_s"]) for rank in range(3)}
    assert max(compute, key=compute.__getitem__) == 1
    assert compute[1] > 2 * max(compute[0], compute[2])
    assert min(exposed, key=exposed.__getitem__) == 1, "the others wait for it"
    slowest = np.median([timed[timed["step"] == step]["step_s"].max() for step in range(1, 5)])
    (headline,) = re.findall(r"step ([\d.]+) ms \(median over 4 steps of the maximum over ranks\)", finished.stdout)
    assert float(headline) == pytest.approx(1e3 * slowest, abs=1e-3)


@pytest.mark.parametrize("ranks", [1, 3])
@case("clocks")
def test_clock_offsets_are_measured_before_and_after(ranks: int) -> None:
    clock = runs.trace("zero3", ranks, *SHORT)["clock"]
    assert sorted(clock["rank"]) == sorted([*range(ranks)] * 2)
    assert (clock["uncertainty_s"] >= 0).all()
    assert (clock[clock["rank"] == 0]["offset_s"] == 0).all()
    for rank in range(1, ranks):
        before, after = np.sort(clock[clock["rank"] == rank], order="at_s")
        # Ranks start their clocks at different times, but on one host these tick alike.
        assert abs(after["offset_s"] - before["offset_s"]) <= before["uncertainty_s"] + after["uncertainty_s"] + 1e-9


@pytest.mark.parametrize("progress", ["none", "poll", "thread"])
@case("progress-mode")
def test_the_progress_mode_and_the_parts_of_a_step_are_recorded(progress: str) -> None:
    trace = runs.trace("zero3", 2, *SHORT, "--progress", progress)
    assert trace.config["options"]["progress"] == progress
    steps = trace["steps"]
    np.testing.assert_allclose(steps["step_s"], steps["compute_s"] + steps["exposed_s"] + steps["optimizer_s"] + steps["other_s"],
                               rtol=1e-9)
    events = trace["events"]
    collectives = events[events["stream"] == "comm"]
    assert len(collectives) > 0
    assert (collectives["issue_s"] <= collectives["start_s"]).all()
    assert (collectives["start_s"] <= collectives["end_s"]).all()


@case("memory-kinds")
def test_kinds_of_memory_are_told_apart(tmp_path: Path) -> None:
    trace = runs.trace("zero3", 2, *SHORT)
    for rank in range(2):
        peaks = trace.peaks(rank)
        assert {"process_rss", "process_hwm", "process_pss", "total_tracked", "parameters", "activations"} <= set(peaks)
        assert peaks["process_pss"] <= peaks["process_rss"] <= peaks["process_hwm"]
        assert 0 < peaks["total_tracked"] < peaks["process_hwm"]


@case("empty-ranks")
@pytest.mark.parametrize("ranks", [3, 5, 8])
def test_ranks_without_rows_take_part_in_everything(ranks: int) -> None:
    """A vocabulary of 2, a hidden size of 2: most tensors have fewer rows than there are ranks."""
    model = ["--layers", "1", "--hidden", "2", "--heads", "1", "--kv-heads", "1", "--ffn", "1", "--vocab", "2", "--seq", "2"]
    trace = runs.trace("zero3", ranks, *model, *SHORT, "-c", "--global-batch", str(ranks))
    assert trace.attributes["check"] == "passed"
    counts = [len(trace.events(rank, 1)) for rank in range(ranks)]
    assert len(set(counts)) == 1, counts
    for table in ("steps", "ledger", "memory_peak", "clock", "ranks"):
        assert {int(rank) for rank in trace[table]["rank"]} == set(range(ranks)), table


@case("exit-code-lost")
def test_job_scripts_do_not_lose_exit_codes() -> None:
    scripts = [path for path in (runs.ROOT / "jobs").rglob("*") if path.suffix in (".sh", ".sbatch")]
    assert scripts
    for script in scripts:
        assert "set -euo pipefail" in script.read_text(), script
    assert ".SHELLFLAGS := -euo pipefail" in (runs.ROOT / "Makefile").read_text()
