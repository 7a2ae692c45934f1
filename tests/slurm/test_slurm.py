"""The batch scripts of jobs/, submitted for real: how ranks start, what is refused, and how jobs end."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import runs
from cluster import Cluster, Job

SCENARIO, GPU_NODES, SWEEP = "jobs/scenario.sbatch", "jobs/gpu-nodes.sbatch", "jobs/sweep.sbatch"
FOUR_RANKS = ("--nodes=2", "--ntasks-per-node=2")
SHORT = ("-n", "3", "-w", "1")
# Ends only when told; steps of some 25 ms that sleep, so that a busy machine is no matter.
ENDLESS = ("-n", "32000", "-w", "1", "--window", "4", "--compute", "timed", "--flops", "1e9")

USAGE = 2


def submit(slurm: Cluster, folder: Path, *words: str, **changes: str) -> Job:
    # Both nodes share this machine's few cores, on which threads shall not spin.
    environment = {"SHARDBENCH_BIN": str(runs.BIN), "MPIEXEC": runs.MPIEXEC, "OMP_WAIT_POLICY": "passive"}
    return slurm.submit(folder, *words, **environment | changes)


def result_of(job: Job) -> runs.Trace:
    """The one file that the job has left, which carries its number."""
    (path,) = job.folder.glob("*.h5")
    assert path.stem.endswith(f"_{job.number}"), path
    return runs.Trace(path)


def wait_for_windows(job: Job) -> None:
    """Until the job runs, and has written to its file more than once."""
    job.wait_for("RUNNING")
    sizes: set[int] = set()

    def has_grown() -> bool:
        assert job.state == "RUNNING", job.log
        sizes.update(path.stat().st_size for path in job.folder.glob("*.h5"))
        return len(sizes) > 2

    job.cluster.wait_until(has_grown, "the file grows")


def assert_interrupted(job: Job) -> None:
    """All steps until the signal are in the file, and nothing is wrong with it but that the rest is missing."""
    trace = result_of(job)
    assert trace.attributes["status"] == "interrupted", job.log
    steps = trace.steps_agreed("step")
    assert len(steps) > 0
    assert steps.tolist() == list(range(len(steps)))
    validated = runs.execute([sys.executable, "-m", "shardbench", "validate", str(trace.path)], job.folder)
    first, *others = validated.stdout.splitlines()
    assert "incomplete: status is 'interrupted'" in first, validated
    assert all(": no rows, " in line or ": steps: " in line for line in others), validated


@pytest.mark.parametrize(("site", "tasks_of_a_step"), [("generic", "2(x2)"), ("hydra", "1(x2)")])
def test_ranks_start_on_all_nodes(slurm: Cluster, tmp_path: Path, site: str, tasks_of_a_step: str) -> None:
    """As tasks, or below one of mpiexec's proxies on each node."""
    folder = tmp_path / "a folder; $(touch x)"
    folder.mkdir()
    job = submit(slurm, folder, *FOUR_RANKS, "--cpus-per-task=2", SCENARIO, "zero3", *SHORT, "-c",
                 SHARDBENCH_SITE=str(runs.ROOT / f"jobs/sites/{site}.env"))
    assert job.wait() == "COMPLETED", job.log
    trace = result_of(job)
    assert trace.attributes["status"] == "complete"
    assert trace.attributes["check"] == "passed"
    assert trace.ranks == 4
    assert set(trace["ranks"]["threads"]) == {2}
    recorded = trace.config["environment"]
    assert (recorded["SLURM_JOB_NUM_NODES"], recorded["SLURM_TASKS_PER_NODE"]) == ("2", tasks_of_a_step)
    assert recorded["OMP_NUM_THREADS"] == "2"


def test_each_task_has_the_cpus_that_were_asked_for(slurm: Cluster, tmp_path: Path) -> None:
    """By itself srun would give each one."""
    job = submit(slurm, tmp_path, *FOUR_RANKS, "--cpus-per-task=3", SCENARIO, "zero3", *ENDLESS)
    wait_for_windows(job)
    step = slurm.command("scontrol", "--oneliner", "show", "step", f"{job.number}.0").stdout
    assert "CPUs=12 Tasks=4" in step, step


def test_collectives_run_too(slurm: Cluster, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, "--nodes=2", SCENARIO, "collectives", "-b", "1K", "-e", "4K", "-f", "2", "-n", "2")
    assert job.wait() == "COMPLETED", job.log
    trace = result_of(job)
    assert (trace.attributes["status"], trace.ranks) == ("complete", 2)


def test_tasks_that_no_plugin_connects_are_refused(slurm: Cluster, tmp_path: Path) -> None:
    """srun would start four worlds of one rank."""
    job = submit(slurm, tmp_path, *FOUR_RANKS, SCENARIO, "zero3", *SHORT, SLURM_MPI_TYPE="none")
    assert (job.wait(), job.exit_code()) == ("FAILED", USAGE), job.log
    own = [line for line in job.log.splitlines() if line.startswith("zero3: ")]
    assert "--ranks 4 was expected, but the world has 1 rank" in own[0], job.log
    assert not list(tmp_path.glob("*.h5"))


@pytest.mark.parametrize(("words", "changes", "said"), [
    ((SCENARIO,), {}, "which scenario?"),
    ((SCENARIO, "--model", "tiny"), {}, "which scenario?"),
    ((SCENARIO, "zero4"), {}, "there is no executable 'zero4'"),
    ((SCENARIO, "../bin/zero3"), {}, "there is no executable '../bin/zero3'"),
    ((SCENARIO, "zero3"), {"SHARDBENCH_SITE": "no.env"}, "the site file no.env cannot be read"),
    ((SCENARIO, "zero3"), {"SHARDBENCH_LAUNCHER": "aprun"}, "SHARDBENCH_LAUNCHER is 'aprun'"),
    ((SCENARIO, "zero3"), {"SHARDBENCH_ROOT": "/nowhere"}, "/nowhere is no checkout of shardbench"),
    ((GPU_NODES, "zero4"), {}, "there is no executable 'zero4'"),
    ((SCENARIO, "zero3", "--calibration", "a; touch x; $(touch x) 'y", "--compute", "timed"), {}, "a; touch x; $(touch x) 'y"),
    ((SCENARIO, "zero3", "--threads", "2"), {}, "--threads"),
    ((SCENARIO, "zero3", "--ranks", "7"), {}, "--ranks"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_a_line(slurm: Cluster, tmp_path: Path, words: tuple[str, ...], changes: dict[str, str],
                                                  said: str) -> None:
    job = submit(slurm, tmp_path, "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=0", *words, **changes)
    assert (job.wait(), job.exit_code()) == ("FAILED", USAGE), job.log
    complaints = [line for line in job.log.splitlines() if not line.startswith("srun: ")]
    assert len(complaints) == 1, job.log
    assert said in complaints[0]
    assert [path.name for path in tmp_path.iterdir()] == [f"slurm-{job.number}.out"]


def ask_with_batch_signal(slurm: Cluster, job: Job) -> None:
    """What --signal=B:USR1@60 sends, when it comes."""
    assert slurm.command("scancel", "--batch", "--signal=USR1", job.number).code == 0


def cancel(slurm: Cluster, job: Job) -> None:
    assert slurm.command("scancel", job.number).code == 0


@pytest.mark.parametrize(("site", "ask", "ended"), [
    ("generic", ask_with_batch_signal, ["FAILED"]),
    # mpiexec may answer 0 when it was sent the signal (docs/contract.md).
    ("hydra", ask_with_batch_signal, ["FAILED", "COMPLETED"]),
    ("generic", cancel, ["CANCELLED"]),
    ("hydra", cancel, ["CANCELLED"]),
])  # fmt: skip
def test_a_job_that_is_told_to_end_closes_its_file(slurm: Cluster, tmp_path: Path, site: str, ask: Callable[[Cluster, Job], None],
                                                   ended: list[str]) -> None:
    job = submit(slurm, tmp_path, *FOUR_RANKS, SCENARIO, "zero3", *ENDLESS, SHARDBENCH_SITE=str(runs.ROOT / f"jobs/sites/{site}.env"))
    wait_for_windows(job)
    ask(slurm, job)
    assert job.wait() in ended, job.log
    assert_interrupted(job)


def test_a_job_at_its_time_limit_closes_its_file(slurm: Cluster, tmp_path: Path) -> None:
    """Slurm looks every 30 s and may signal that much too early (man sbatch), so that the limit of a minute is not waited for."""
    job = submit(slurm, tmp_path, *FOUR_RANKS, "--time=1", "--signal=B:USR1@40", SCENARIO, "zero3", *ENDLESS)
    wait_for_windows(job)
    assert job.wait() == "FAILED", job.log
    assert_interrupted(job)


def test_a_requeued_job_replaces_its_file(slurm: Cluster, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, *FOUR_RANKS, SCENARIO, "zero3", "-n", "80", *ENDLESS[2:])
    wait_for_windows(job)
    assert slurm.command("scontrol", "requeue", job.number).code == 0
    # Slurm holds a requeued job back for two minutes, until the credentials of the first launch have expired.
    job.wait_for("PENDING")
    assert slurm.command("scontrol", "update", f"JobId={job.number}", "StartTime=now").code == 0
    assert job.wait() == "COMPLETED", job.log
    trace = result_of(job)
    assert trace.attributes["status"] == "complete"
    assert job.facts()["Restarts"] == "1"
    assert len(trace.steps_agreed("step")) == 81
    assert job.log.count("interrupted") == 1, "the log of the first launch is kept"


def test_a_rank_that_dies_ends_the_job(slurm: Cluster, tmp_path: Path) -> None:
    """Without --kill-on-bad-exit srun would wait for the others, which wait for the dead one."""
    job = submit(slurm, tmp_path, *FOUR_RANKS, SCENARIO, "zero3", *ENDLESS)
    wait_for_windows(job)
    os.kill(slurm.ranks("zero3")[3], signal.SIGKILL)
    assert job.wait() == "FAILED", job.log
    # Slurm may have killed the caretaker together with the ranks.
    assert result_of(job).attributes["status"] in ("failed", "running")


@pytest.mark.parametrize("script", [SCENARIO, GPU_NODES, SWEEP])
def test_every_script_asks_slurm_for_what_it_relies_on(script: str) -> None:
    lines = (runs.ROOT / script).read_text().splitlines()
    asked = [line.split()[1].partition("=")[::2] for line in lines if line.startswith("#SBATCH ")]
    assert {"--cpus-per-task", "--time", "--exclusive", "--requeue"} <= {name for name, _ in asked}
    assert {("--signal", "B:USR1@60"), ("--open-mode", "append")} <= set(asked)


@pytest.mark.parametrize(("options", "fits"), [
    ((), True), (("--nodes=8",), True),
    (("--nodes=65",), False), (("--gpus-per-node=9",), False), (("--ntasks-per-node=9",), False),
])  # fmt: skip
def test_whole_nodes_of_eight_gpus_are_found(slurm: Cluster, options: tuple[str, ...], fits: bool) -> None:
    """On paper: 64 nodes of 64 CPUs and 8 GPUs."""
    finished = slurm.command("sbatch", "--test-only", "--partition=gpu", *options, GPU_NODES, "zero3", folder=runs.ROOT)
    assert (finished.code == 0) == fits, finished
    if not options:
        assert "4096 processors on nodes g[1-64]" in finished.stderr, finished


STUDY = """
output = "results"
scenario = "zero3"
ranks = [2, 4]
options = {steps = 60, warmup = 1, window = 4, compute = "timed", flops = 1e9, prefetch = ["0", "1", "2"]}
"""
POINTS = 6


@dataclass
class Sweep:
    """A study in a folder of its own, below which nothing has a name that a shell would leave alone."""

    slurm: Cluster
    folder: Path
    environment: dict[str, str]

    @property
    def study(self) -> Path:
        return self.folder / "a study; $(touch x).toml"

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("results/*.h5"))

    def launches(self) -> dict[str, str]:
        """By file, which launch wrote it, of those that are complete; while none is being written, for a reader would lock it."""
        found = {}
        for path in self.files():
            with contextlib.suppress(OSError):  # killed before there was a whole file
                attributes = runs.Trace(path).attributes
                if attributes["status"] == "complete":
                    found[path.name] = str(attributes["launch_id"])
        return found

    def submit(self) -> str:
        """What `shardbench sweep --launcher sbatch` says, from a folder that is no checkout."""
        finished = self.slurm.command(self.environment["SHARDBENCH_COMMAND"], "sweep", str(self.study), "--launcher", "sbatch",
                                      folder=self.folder, **self.environment)
        assert finished.code == 0, finished
        return finished.stdout


@pytest.fixture
def sweep(slurm: Cluster, tmp_path: Path) -> Sweep:
    command = tmp_path / "shardbench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m shardbench "$@"\n')
    command.chmod(0o755)
    result = Sweep(slurm, tmp_path, {"SHARDBENCH_COMMAND": str(command), "SHARDBENCH_BIN": str(runs.BIN), "MPIEXEC": runs.MPIEXEC})
    result.study.write_text(STUDY)
    return result


def test_a_study_that_was_cut_short_is_finished_by_submitting_it_again(slurm: Cluster, sweep: Sweep) -> None:
    assert f"{POINTS} to do" in sweep.submit()
    # Two nodes, and each job has one to itself: a third file is begun when a point is done.
    slurm.wait_until(lambda: len(sweep.files()) == 4, "some points are done, and some are running")
    slurm.crash()
    assert slurm.command("scancel", "--me").code == 0
    slurm.wait_until(lambda: not slurm.jobs(), "no job is left")
    before = sweep.launches()
    assert 0 < len(before) < len(sweep.files()), "some points are done, and some were killed"

    assert f"{POINTS - len(before)} to do" in sweep.submit()
    slurm.wait_until(lambda: not slurm.jobs(), "no job is left")
    after = sweep.launches()
    assert len(after) == len(sweep.files()) == POINTS
    assert {name: after[name] for name in before} == before, "what was done is not done again"
    assert all(": 1 run, " in log.read_text() for log in sweep.folder.glob("slurm-*.out"))
    assert " 0 to do" in sweep.submit()
    assert not slurm.jobs()
    assert not (sweep.folder / "x").exists()


@pytest.mark.parametrize(("ask", "ended", "heard"), [
    (ask_with_batch_signal, "FAILED", "SIGUSR1"), (cancel, "CANCELLED", "SIGTERM"),
])  # fmt: skip
def test_a_study_as_one_job_closes_its_file_and_goes_on_where_it_stopped(slurm: Cluster, sweep: Sweep, ended: str, heard: str,
                                                                         ask: Callable[[Cluster, Job], None]) -> None:
    words = ("--nodes=2", "--ntasks-per-node=2", SWEEP, str(sweep.study), "--only", "zero3_*_prefetch[01]_n4_*")
    job = slurm.submit(sweep.folder, *words, **sweep.environment)
    slurm.wait_until(lambda: len(sweep.files()) == 2, "the second point is running")
    ask(slurm, job)
    assert job.wait() == ended, job.log
    assert f"stopped by {heard} after 1 of 2 runs" in job.log
    assert {runs.Trace(path).attributes["status"] for path in sweep.files()} == {"complete", "interrupted"}
    again = slurm.submit(sweep.folder, *words, **sweep.environment)
    assert again.wait() == "COMPLETED", again.log
    assert len(sweep.launches()) == len(sweep.files()) == 2


LEFT_ALONE = """
import sys, time
from cluster import Cluster

with Cluster() as slurm:
    slurm.submit(slurm.folder, "--wrap", "srun --mpi=none sleep 1000").wait_for("RUNNING")
    slurm.wait_until(lambda: ".0" in slurm.command("squeue", "--steps").stdout, "its step runs")
    print(slurm.folder, flush=True)
    time.sleep(1000)
"""


def is_alive(process: int) -> bool:
    """A zombie is not; whoever has adopted it may take its time."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_nothing_of_it_outlives_a_test_that_is_killed(slurm: Cluster, tmp_path: Path) -> None:
    path = os.pathsep.join(str(runs.ROOT / folder) for folder in ("tests/slurm", "tests/scenarios"))
    test = runs.start([sys.executable, "-c", LEFT_ALONE], tmp_path, PYTHONPATH=path)
    try:
        assert test.stdout is not None
        folder = test.stdout.readline().strip()
        started = set(runs.descendants(test.pid)) - {test.pid}
        assert len(started) > 5, "guard, shell, controller, two nodes, the job"
        os.kill(test.pid, signal.SIGKILL)
        test.communicate()
        slurm.wait_until(lambda: not any(map(is_alive, started)), "all of it has ended", 10)
    finally:
        runs.kill_tree(test)
        shutil.rmtree(folder)
