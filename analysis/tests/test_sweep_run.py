"""The command with programs that stand in for executables and launchers; tests/scenarios has the real ones."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import h5py
import pytest

from fake_cluster import FakeCluster
from synthetic import seal

GRID = "scenario = ['ddp', 'zero3']\nranks = [1, 2]\nrepetitions = 2\n"
SMALL = "scenario = 'ddp'\nranks = [1, 2]\nrepetitions = 2\n"
ONE = "scenario = 'ddp'\nranks = 2\n"


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    folder = tmp_path / "a folder"
    folder.mkdir()
    return FakeCluster(folder)


def statuses(output: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in output.glob("*.h5"):
        with h5py.File(path) as file:
            found[file.attrs["status"]] += 1
    return found


def test_every_run_is_done_once_and_then_none(cluster: FakeCluster) -> None:
    study = cluster.study(GRID)
    code, stdout, stderr = cluster.sweep(study)
    assert (code, stderr) == (0, "")
    runs = cluster.runs()
    assert len(runs) == len(set(runs)) == 8
    assert Counter((run["scenario"], run["ranks"]) for run in cluster.noted("runs")) == {
        (scenario, ranks): 2 for scenario in ("ddp", "zero3") for ranks in (1, 2)
    }
    assert {path.stem for path in cluster.output.glob("*.h5")} == set(runs)
    assert {path.stem for path in cluster.output.glob("*.log")} == set(runs)
    assert not list(cluster.output.glob(".sweep/*.claim*"))
    lines = stdout.splitlines()
    assert lines[0] == f"study: 8 runs, 8 to do, traces in {cluster.output}"
    assert [line.split()[1] for line in lines[1:]] == runs
    assert "8 of unknown length" in lines[1]
    assert "about" in lines[2]
    code, stdout, _ = cluster.sweep(study)
    assert code == 0
    assert stdout.splitlines() == [f"study: 8 runs, 0 to do, traces in {cluster.output}"]
    assert cluster.runs() == runs


@pytest.mark.parametrize("damage", ["gone", "interrupted", "failed", "running", "check", "cut", "empty"])
def test_what_is_not_done_is_done_again_and_nothing_else(cluster: FakeCluster, damage: str) -> None:
    study = cluster.study(SMALL)
    assert cluster.sweep(study)[0] == 0
    before = cluster.runs()
    victim = cluster.output / f"{before[3]}.h5"
    if damage == "gone":
        victim.unlink()
    elif damage in ("cut", "empty"):
        os.truncate(victim, 0 if damage == "empty" else victim.stat().st_size // 2)
    else:
        with h5py.File(victim, "a") as file:
            file.attrs["check" if damage == "check" else "status"] = "failed" if damage == "check" else damage
        seal(victim)
    assert cluster.sweep(study, "--dry-run")[1].count("1 to do") == 2
    assert cluster.sweep(study)[0] == 0
    assert cluster.runs() == [*before, before[3]]
    assert statuses(cluster.output) == {"complete": 4}


def test_more_repetitions_and_points_add_to_what_is_there(cluster: FakeCluster) -> None:
    assert cluster.sweep(cluster.study(GRID))[0] == 0
    more = "scenario = ['zero3', 'ddp']\nranks = [1, 2, 3]\nrepetitions = 3\n"
    code, stdout, _ = cluster.sweep(cluster.study(more))
    assert code == 0
    assert "18 runs, 10 to do" in stdout
    assert len(set(cluster.runs())) == len(cluster.runs()) == 18


def test_a_file_of_another_configuration_is_not_touched(cluster: FakeCluster) -> None:
    study = cluster.study(f"{ONE}options = {{prefetch = 2}}")
    assert cluster.sweep(study)[0] == 0
    (victim,) = cluster.output.glob("*.h5")
    with h5py.File(victim, "a") as file:
        config = json.loads(file["config"][()])
        config["options"]["prefetch"] = 1
        file["config"][()] = json.dumps(config)
    seal(victim)
    content = victim.read_bytes()
    for options in ([], ["--dry-run"]):
        code, _, stderr = cluster.sweep(study, *options)
        assert code == 2
        assert "prefetch is 1 there and 2 in the study; move that file away" in stderr
        assert len(stderr.splitlines()) == 1
    assert victim.read_bytes() == content
    assert len(cluster.runs()) == 1


def test_a_run_that_fails_is_reported_and_does_not_end_the_sweep(cluster: FakeCluster) -> None:
    study = cluster.study(GRID)
    cluster.behave(fail="zero3")
    code, stdout, stderr = cluster.sweep(study)
    assert code == 1
    assert len(cluster.runs()) == 8
    assert stdout.count("failed: zero3: the disk is full; make room") == 4
    lines = stderr.splitlines()
    assert len(lines) == 4
    assert all("failed: zero3: the disk is full; make room; its output is in" in line for line in lines)
    assert statuses(cluster.output) == {"complete": 4}
    cluster.behave()
    assert cluster.sweep(study)[0] == 0
    assert statuses(cluster.output) == {"complete": 8}
    assert len(cluster.runs()) == 12


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"status": "failed"}, "exit code 0, to do (failed)"),
        ({"check": "failed"}, "exit code 0, to do (failed check)"),
    ],
)
def test_the_file_counts_and_not_the_exit_code(
    cluster: FakeCluster, behaviour: dict[str, str], said: str
) -> None:
    cluster.behave(**behaviour)
    code, _, stderr = cluster.sweep(cluster.study(ONE))
    assert code == 1
    assert said in stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{GRID}options = {{prefech = 2}}", "--prefech is unknown"),
        ("scenario = ['ddp', 'zero4']\nranks = 1", "bin/zero4 is no executable"),
        (f"{ONE}output2 = 3", "key 'output2' is unknown"),
        (f"{ONE}options = {{algorithm = 'nccl'}}", "is refused: --algorithm nccl exists only in simulation"),
        (f"{ONE}options = {{algorithm = 'coarse'}}\nlauncher = 'srun'", "--algorithm coarse exists only"),
        (f"{ONE}options = {{progress = 'stream'}}\nlauncher = 'sbatch'", "--progress stream exists only"),
    ],
)
def test_what_a_scenario_refuses_is_refused_before_anything_runs(
    cluster: FakeCluster, text: str, said: str
) -> None:
    code, stdout, stderr = cluster.sweep(cluster.study(text))
    assert (code, stdout) == (2, "")
    assert said in stderr
    assert len(stderr.splitlines()) == 1
    assert not cluster.runs()
    assert not cluster.output.exists()


NASTY = [
    "a b",
    "; touch x",
    "$(touch x)",
    "`touch x`",
    'it\'s "quoted"',
    "--plan",
    "*",
    "a:b",
    "\\",
    "ü",
    "%d",
    "|cat",
]


def toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize("launcher", ["mpiexec", "srun"])
def test_values_reach_the_program_as_they_are(cluster: FakeCluster, launcher: str) -> None:
    study = cluster.study(
        f"{ONE}options = {{label = [{', '.join(map(toml, NASTY))}]}}\nlauncher = '{launcher}'"
    )
    code, _, stderr = cluster.sweep(study)
    assert (code, stderr) == (0, "")
    assert sorted(run["options"]["label"] for run in cluster.noted("runs")) == sorted(NASTY)
    assert not list(cluster.folder.rglob("x"))
    assert len(list(cluster.output.glob("*.h5"))) == len(NASTY)


def test_srun_states_the_layout(cluster: FakeCluster) -> None:
    assert cluster.sweep(cluster.study(ONE), "--launcher", "srun", SLURM_CPUS_PER_TASK="6")[0] == 0
    layout = ["--mpi=pmi2", "--ntasks=2", "--cpus-per-task=6", "--kill-on-bad-exit=1", "--export=ALL"]
    assert cluster.noted("srun") == [layout]


def test_a_run_of_another_configuration_fails(cluster: FakeCluster) -> None:
    cluster.behave(options={"steps": 3})
    code, stdout, stderr = cluster.sweep(cluster.study(f"{SMALL}options = {{steps = 4}}"))
    assert code == 1
    assert stdout.count("steps is 3 there and 4 in the study") == 4
    assert len(stderr.splitlines()) == 4


@pytest.mark.parametrize(("launcher", "number"), [("mpiexec", signal.SIGTERM), ("srun", signal.SIGUSR1)])
def test_each_launcher_gets_once_what_it_passes_on(
    cluster: FakeCluster, launcher: str, number: signal.Signals
) -> None:
    cluster.behave(seconds=60)
    sweep = cluster.start(cluster.study(ONE), "--launcher", launcher)
    cluster.wait_for("started")
    os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does
    sweep.communicate(timeout=30)
    assert sweep.returncode == 128 + signal.SIGINT
    assert (cluster.folder / "ended").read_text() == str(number.value)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_lets_the_run_close_its_file_and_ends_the_sweep(
    cluster: FakeCluster, number: signal.Signals
) -> None:
    study = cluster.study(SMALL)
    cluster.behave(seconds=60)
    sweep = cluster.start(study)
    cluster.wait_for("started")
    sweep.send_signal(number)
    stdout, stderr = sweep.communicate(timeout=30)
    assert sweep.returncode == 128 + number
    assert (cluster.folder / "ended").exists()
    assert statuses(cluster.output) == {"interrupted": 1}
    assert stderr == (
        f"shardbench sweep: stopped by {number.name} after 0 of 4 runs; the same command goes on from here\n"
    )
    assert "stopped: " in stdout
    assert len(cluster.runs()) == 1
    cluster.behave()
    assert cluster.sweep(study)[0] == 0
    assert statuses(cluster.output) == {"complete": 4}
    assert len(cluster.runs()) == 5


def test_a_killed_sweep_takes_its_run_along_and_the_next_one_waits_for_that(cluster: FakeCluster) -> None:
    study = cluster.study(SMALL)
    cluster.behave(seconds=60)
    sweep = cluster.start(study)
    cluster.wait_for("started")
    (claim,) = cluster.output.glob(".sweep/*.claim")
    while not json.loads(claim.read_text())["launcher"]:
        pass
    sweep.kill()
    sweep.communicate(timeout=30)
    assert not (cluster.folder / "ended").exists()  # it finishes its step
    cluster.behave()
    assert cluster.sweep(study)[0] == 0
    assert (cluster.folder / "ended").exists()
    assert statuses(cluster.output) == {"complete": 4}
    assert len(cluster.runs()) == 5


def test_two_sweeps_share_a_study(cluster: FakeCluster) -> None:
    study = cluster.study(GRID)
    cluster.behave(seconds=0.2)
    sweeps = [cluster.start(study) for _ in range(2)]
    ends = [(sweep.communicate(timeout=120), sweep.returncode) for sweep in sweeps]
    runs = cluster.runs()
    assert len(runs) == len(set(runs)) == 8
    assert statuses(cluster.output) == {"complete": 8}
    # Who finds the last run taken and still under way says so: it cannot vouch for it.
    for (stdout, stderr), code in ends:
        assert ("is being run by" in stderr) == (code == 1)
        assert code == 0 or "left to" in stdout, (stdout, stderr)
    assert any("done by another sweep" in stdout or "left to" in stdout for (stdout, _), _ in ends)
    assert not list(cluster.output.glob(".sweep/*.claim*"))


def test_what_was_left_to_another_sweep_counts_once_it_is_done(cluster: FakeCluster) -> None:
    study = cluster.study(SMALL)
    cluster.behave(seconds=0.5)
    other = cluster.start(study)
    cluster.wait_for("started")
    cluster.behave(seconds=2)
    code, stdout, stderr = cluster.sweep(study)
    assert "left to" in stdout
    assert (code, stderr) == (0, ""), stdout
    other.communicate(timeout=120)


def test_what_another_sweep_has_done_meanwhile_is_not_done_again(cluster: FakeCluster) -> None:
    study = cluster.study(SMALL)
    cluster.behave(seconds=60)
    slow = cluster.start(study)
    cluster.wait_for("started")
    cluster.behave()
    assert "1 running, 1 to do" in cluster.sweep(study, "--dry-run")[1]
    code, stdout, _ = cluster.sweep(study)
    assert (code, stdout.count("left to process"), stdout.count("done (")) == (1, 1, 3)
    (cluster.folder / "go").touch()
    stdout, stderr = slow.communicate(timeout=60)
    assert (slow.returncode, stderr, stdout.count("done by another sweep")) == (0, "", 3)
    assert len(cluster.runs()) == len(set(cluster.runs())) == 4


def test_elements_are_counted_as_the_elements_see_the_study(cluster: FakeCluster) -> None:
    # Started with srun, the simulated grid is one point and no longer four.
    study = cluster.study(
        """
    [[study]]
    scenario = "zero3"
    ranks = 8
    launcher = "simulate"
    platform = ["flat", "ethernet"]
    set = {"node.nic_latency_s" = [1e-6, 1e-5]}
    [[study]]
    scenario = "ddp"
    ranks = [1, 2]
    launcher = "sbatch"
    """
    )
    assert cluster.sweep(study, "--only", "ddp_*")[0] == 0
    kept = array(cluster.noted("sbatch")[0])[2]
    for element in [e for words in cluster.noted("sbatch") for e in expanded(array(words)[0])]:
        assert cluster.sweep(Path(kept), "--launcher", "srun", "--element", str(element))[0] == 0
    assert sorted(run["scenario"] for run in cluster.noted("runs")) == ["ddp", "ddp"]


def test_a_dry_run_predicts_and_writes_nothing(cluster: FakeCluster) -> None:
    study = cluster.study(GRID)
    code, stdout, stderr = cluster.sweep(study, "--dry-run")
    assert (code, stderr) == (0, "")
    assert not cluster.output.exists()
    lines = stdout.splitlines()
    assert [line.split()[1] for line in lines[2:6]] == ["1", "2", "1", "2"]
    assert all("5.000 MB" in line and "unknown" in line and line.endswith("to do") for line in lines[2:6])
    assert "8 runs of 4 points, 8 to do, 8 of unknown length" in stdout
    cluster.behave(fail=2)
    assert cluster.sweep(study)[0] == 1
    lines = cluster.sweep(study, "--dry-run")[1].splitlines()
    assert Counter(line.split("  ")[-1] for line in lines[2:6]) == {"done": 2, "to do": 2}
    assert "unknown" not in "".join(lines)  # two ranks are expected to take twice as long as one


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ("", {"algorithm": "nccl", "progress": "stream", "compute": "timed", "payload": "phantom"}),
        (
            "algorithm = 'ring'",
            {"algorithm": "ring", "progress": "stream", "compute": "timed", "payload": "phantom"},
        ),
        ("compute = 'real'", {"algorithm": "nccl", "progress": "stream", "compute": "real"}),
    ],
)
def test_a_simulated_point_is_planned_with_the_defaults_of_simulations(
    cluster: FakeCluster, options: str, asked: dict[str, str]
) -> None:
    text = f"{ONE}launcher = 'simulate'\nplatform = 'flat'\noptions = {{{options}}}"
    assert cluster.sweep(cluster.study(text), "--dry-run")[0] == 0
    (plan,) = cluster.noted("plans")
    assert {key: value for key, value in plan.items() if key not in ("model", "flops")} == asked


def test_only_some_points(cluster: FakeCluster) -> None:
    study = cluster.study(GRID)
    assert cluster.sweep(study, "--only", "zero3_*", "--only", "*_n2_*")[0] == 0
    assert {(run["scenario"], run["ranks"]) for run in cluster.noted("runs")} == {
        ("ddp", 2),
        ("zero3", 1),
        ("zero3", 2),
    }
    code, _, stderr = cluster.sweep(study, "--only", "zero9*")
    assert code == 2
    assert "--only zero9* matches no point" in stderr


def array(words: Sequence[str]) -> tuple[str, str, str]:
    """Of a noted call of sbatch: elements, ranks, study."""
    by_name = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    assert words[0] == "--parsable"
    assert words[-2].endswith("/jobs/sweep.sbatch")
    return by_name["--array"], by_name["--ntasks"], words[-1]


def test_an_array_for_each_number_of_ranks_and_resubmitted_only_what_is_left(cluster: FakeCluster) -> None:
    study = cluster.study(SMALL)
    code, stdout, _ = cluster.sweep(
        study,
        *(
            "--launcher",
            "sbatch",
            "--parallel",
            "3",
            "--sbatch=--ntasks-per-node=8",
            "--sbatch=--comment=a b",
        ),
        SHARDBENCH_SITE="x",
        SECRET="y",
    )
    assert code == 0
    assert stdout.count("submitted as job array 4711") == 2
    calls = cluster.noted("sbatch")
    assert [array(words)[1] for words in calls] == ["1", "2"]
    assert all(array(words)[0].endswith("%3") for words in calls)
    assert all(words[-4:-2] == ["--ntasks-per-node=8", "--comment=a b"] for words in calls)
    exported = next(word for words in calls for word in words if word.startswith("--export="))
    assert "SHARDBENCH_SITE" in exported
    assert "SECRET" not in exported
    assert not cluster.runs()
    kept = Path(array(calls[0])[2])
    study.write_text("edited while the jobs wait in the queue")
    elements = [e for words in calls for e in expanded(array(words)[0])]
    assert sorted(elements) == list(range(4))
    for element in elements[:3]:
        assert cluster.sweep(kept, "--launcher", "srun", "--element", str(element))[0] == 0
    assert len(set(cluster.runs())) == 3
    cluster.study(SMALL)
    assert cluster.sweep(study, "--launcher", "sbatch")[0] == 0
    again = [e for words in cluster.noted("sbatch")[2:] for e in expanded(array(words)[0])]
    assert sorted(again) == sorted(elements[3:])
    for element in again:
        assert cluster.sweep(kept, "--launcher", "srun", "--element", str(element))[0] == 0
    assert statuses(cluster.output) == {"complete": 4}
    assert len(cluster.runs()) == 4
    code, _, stderr = cluster.sweep(kept, "--launcher", "srun", "--element", "4")
    assert code == 2
    assert "runs are 0 to 3" in stderr


def expanded(ranges: str) -> list[int]:
    numbers: list[int] = []
    for part in ranges.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def test_without_a_launcher_nothing_can_run(cluster: FakeCluster) -> None:
    code, _, stderr = cluster.sweep(cluster.study(ONE), MPIEXEC="/no/mpiexec")
    assert code == 1
    assert stderr == (
        "shardbench sweep: /no/mpiexec cannot be started (No such file or directory); install it, or choose another "
        "--launcher\n"
    )
    assert not list(cluster.output.glob(".sweep/*.claim*"))


def test_a_terminal_gets_a_bar(cluster: FakeCluster) -> None:
    controller, terminal = os.openpty()
    command = [
        sys.executable,
        "-m",
        "shardbench",
        "sweep",
        str(cluster.study(ONE)),
        "--bin",
        str(cluster.binaries),
    ]
    assert (
        subprocess.run(command, env=cluster.environment, stdin=subprocess.DEVNULL, stdout=terminal).returncode
        == 0
    )
    os.close(terminal)
    shown = os.read(controller, 65536).decode()
    os.close(controller)
    assert "[........................] 1/1 ddp_tiny_n2" in shown
    assert "\x1b[K1/1 ddp_tiny_n2" in shown
    assert shown.rstrip().splitlines()[-1].endswith("s)")
