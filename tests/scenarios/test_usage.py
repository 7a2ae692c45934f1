"""Bad input ends every rank in seconds with one exit code and one line that says the problem and what to do.

Exit codes: 1 a run-time failure, 2 usage.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import runs

RUN_TIME_FAILURE, USAGE = 1, 2
LIMIT_S = 5.0  # the contract's bound for a refusal

LAUNCHES = {"alone": [], "mpiexec -n 1": [runs.MPIEXEC, "-n", "1"], "mpiexec -n 3": [runs.MPIEXEC, "-n", "3"],
            "mpiexec -n 4": [runs.MPIEXEC, "-n", "4"]}
everywhere = pytest.mark.parametrize("launch", ["alone", "mpiexec -n 1", "mpiexec -n 3"])


def refused(folder: Path, code: int, launch: str, scenario: str, options: Sequence[str], **environment: str) -> str:
    """Runs what must be refused and returns the line that says why; the folder must stay as it is."""
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    finished = runs.execute([*LAUNCHES[launch], str(runs.BIN / scenario), *options], folder, **environment)
    assert finished.code == code, str(finished)
    assert finished.stdout == "", str(finished)
    lines = finished.stderr.splitlines()
    assert len(lines) == 1, str(finished)
    assert lines[0].startswith(f"{scenario}: "), str(finished)
    assert finished.seconds < LIMIT_S, str(finished)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    return lines[0]


@everywhere
@pytest.mark.parametrize(("scenario", "options", "said"), [
    ("zero3", "--prefech 2", ["--prefech", "--prefetch"]),
    ("ddp", "--algoritm ring", ["--algoritm", "--algorithm"]),
    ("zero3", "--bucket-mb 2", ["--bucket-mb", "ddp"]),
    ("ddp", "--prefetch 2", ["--prefetch", "zero3"]),
    ("ddp", "--wrap root", ["--wrap", "zero3"]),
    ("zero3", "--dp 2", ["--dp", "mesh2d"]),
    ("zero1", "--tp 2", ["--tp", "mesh2d"]),
    ("zero2", "--sequence-parallel", ["--sequence-parallel", "mesh2d"]),
    ("zero3", "--param-gather overlap", ["--param-gather", "zero1"]),
    ("mesh2d", "--param-gather end", ["--param-gather", "zero1"]),
    ("mesh2d", "--bucket-mb 1", ["--bucket-mb", "ddp"]),
    ("zero2", "--prefetch 1", ["--prefetch", "zero3"]),
    ("zero1", "--layout flat", ["--layout", "zero3"]),
    ("zero1", "--reshard-after-forward none", ["--reshard-after-forward", "zero3"]),
    ("ddp", "--communicators 2", ["--communicators", "zero1"]),
    ("ddp", "--rs-wait end", ["--rs-wait", "zero1"]),
    ("zero1", "--param-gather never", ["never", "overlap"]),
    ("zero2", "--bucket-mb 0", ["--bucket-mb", "0"]),
    ("zero1", "--recompute some", ["some", "full"]),
    ("mesh2d", "--tied --wrap blocks", ["--wrap", "root"]),
    ("mesh2d", "--tp -2", ["--tp", "-2"]),
    ("mesh2d", "--dp x", ["--dp", "x"]),
    ("zero3", "--algorithm rings", ["rings", "ring"]),
    ("zero3", "--algorithm nccl", ["--algorithm nccl", "simulation"]),
    ("zero1", "--algorithm coarse", ["--algorithm coarse", "simulation"]),
    ("zero3", "--progress stream", ["--progress stream", "simulation"]),
    ("zero3", "--jitter rank=x --compute timed --flops 1e9", ["--jitter", "x"]),
    ("ddp", "--contention 1", ["--contention", "--compute timed"]),
    ("zero3", "--prefetch 1,x", ["1,x"]),
    ("zero3", "--prefetch=-1", ["-1"]),
    ("zero3", "--model huge", ["huge", "tiny"]),
    ("zero3", "--steps 0", ["--steps", "0"]),
    ("zero3", "--steps", ["--steps"]),
    ("zero3", "--seed 65536", ["65536"]),
    ("zero3", "--tied --wrap blocks", ["--wrap", "root"]),
    ("zero3", "--tied --untied", ["--tied", "--untied"]),
    ("zero3", "--hidden 65", ["65", "--heads"]),
    ("zero3", "--kv-heads 3", ["--kv-heads"]),
    ("zero3", "--compute timed", ["--flops", "--calibration"]),
    ("zero3", "--payload phantom", ["phantom", "timed"]),
    ("zero3", "--compute timed --flops 1e9 -c", ["check"]),
    ("ddp", "--param-dtype fp32 --fp32-grad-accum", ["--fp32-grad-accum"]),
    ("zero3", "--global-batch 4 --grad-accum 2", ["--global-batch", "--grad-accum"]),
    ("zero3", "--backend nccl", ["nccl", "mpi"]),
    ("zero3", "--ranks 4", ["4"]),
    ("zero3", "--rank 1", ["--rank", "--plan"]),
    ("zero3", "--ranks-per-node 0", ["--ranks-per-node"]),
    ("zero3", "surplus", ["surplus"]),
    ("zero3", "--steps 010", ["--steps", "010"]),
    ("zero3", "-n 1 --steps 1", ["--steps", "2 times"]),
    ("zero3", "--output --overwrite", ["--output", "--overwrite"]),
    ("zero3", "-output x.h5", ["-output", "--output"]),
    ("zero3", "-o=x.h5", ["-o=x.h5", "--output=x.h5"]),
    ("zero3", "--check=false", ["--check=false"]),
    ("zero3", "--clip 1,5", ["--clip", "1,5"]),
])
def test_usage(tmp_path: Path, launch: str, scenario: str, options: str, said: list[str]) -> None:
    line = refused(tmp_path, USAGE, launch, scenario, options.split())
    assert all(word in line for word in said), line


@pytest.mark.parametrize("launch", ["mpiexec -n 3"])
@pytest.mark.parametrize(("options", "said"), [
    ("--global-batch 4", ["4", "3"]),
    ("--global-batch 6 --micro-batch 4", ["6", "12"]),
    ("--micro-batch 30000", ["90000"]),
    ("--algorithm hierarchical --ranks-per-node 2", ["hierarchical", "3 ranks", "0,0,1", "--ranks-per-node"]),
    ("--ranks 4", ["4", "3"]),
])
def test_usage_that_only_the_world_size_shows(tmp_path: Path, launch: str, options: str, said: list[str]) -> None:
    line = refused(tmp_path, USAGE, launch, "zero3", options.split())
    assert all(word in line for word in said), line


@pytest.mark.parametrize("output", [[], ["-o", "precious.h5", "--overwrite"]])
@pytest.mark.parametrize(("options", "said"), [
    ("--dp 3 --tp 1", ["3", "1", "4"]),
    ("--dp 2 --tp 3", ["2", "3", "4"]),
    ("--tp 3", ["3", "4"]),
    ("--dp 3", ["3", "4"]),
    ("--dp 0 --tp 4", ["--dp", "0"]),
    ("--dp 4 --tp 0", ["--tp", "0"]),
    ("--dp 1 --tp 1", ["1", "4"]),
    ("--dp 8 --tp -1", ["8", "4"]),
    ("--dp -1 --tp -1", ["--dp", "--tp"]),
    ("--tp 4", ["--tp 4", "4 heads", "2 kv heads"]),
    ("--tp 2 --heads 1 --kv-heads 1", ["--tp 2", "1 heads"]),
    ("--tp 2 --seq 33 --sequence-parallel", ["--sequence-parallel", "33", "2"]),
    ("--tp 2 --global-batch 3", ["3", "2"]),
])
def test_meshes_that_do_not_fit(tmp_path: Path, options: str, said: list[str], output: list[str]) -> None:
    (tmp_path / "precious.h5").write_text("precious")
    line = refused(tmp_path, USAGE, "mpiexec -n 4", "mesh2d", [*options.split(), *output])
    assert all(word in line for word in said), line
    assert refused(tmp_path, USAGE, "alone", "mesh2d", [*options.split(), "--plan", "--ranks", "4"]) == line


@pytest.mark.parametrize("options", ["--tp 3 --heads 4 --kv-heads 4", "--tp 3 --heads 6 --kv-heads 2 --hidden 36"])
def test_heads_that_tp_does_not_divide(tmp_path: Path, options: str) -> None:
    line = refused(tmp_path, USAGE, "mpiexec -n 3", "mesh2d", options.split())
    assert "--tp 3" in line
    assert "heads" in line


def test_without_sequence_parallelism_any_length_is_cut_nowhere(tmp_path: Path) -> None:
    options = ["--tp", "2", "--seq", "33", "-n", "1", "-w", "0", "-o", "x.h5"]
    finished = runs.execute(runs.mpi_command("mesh2d", 2, options), tmp_path)
    assert finished.code == 0, str(finished)


@pytest.mark.parametrize(("options", "said"), [
    ("--ranks 2 --rank 2", ["--rank 2", "--ranks 2"]),
    ("--rank 1", ["--rank 1"]),
    ("--ranks 2 --rank -1", ["-1"]),
    ("--ranks 3 --global-batch 4", ["4", "3"]),
    ("--ranks 6 --ranks-per-node 4 --algorithm hierarchical", ["hierarchical", "0,0,0,0,1,1"]),
    ("--ranks 0", ["0"]),
])
def test_bad_plans(tmp_path: Path, options: str, said: list[str]) -> None:
    line = refused(tmp_path, USAGE, "alone", "zero3", ["--plan", *options.split()])
    assert all(word in line for word in said), line


@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
def test_slurm_task_that_is_alone(tmp_path: Path, scenario: str) -> None:
    line = refused(tmp_path, USAGE, "alone", scenario, [], SLURM_NTASKS="2")
    assert "SLURM_NTASKS" in line
    assert "2" in line
    # Whoever means it says so; and mpiexec inside an allocation is no singleton.
    for launch, options in [("alone", ["--ranks", "1"]), ("mpiexec -n 1", [])]:
        command = [*LAUNCHES[launch], str(runs.BIN / scenario), *options, "-n", "1", "-w", "0", "-o", f"{len(launch)}.h5"]
        finished = runs.execute(command, tmp_path, SLURM_NTASKS="2")
        assert finished.code == 0, str(finished)


def test_copies_that_no_launcher_connects(tmp_path: Path) -> None:
    copies = [runs.start([str(runs.BIN / "zero3"), "--ranks", "4"], tmp_path) for _ in range(2)]
    for copy in copies:
        stdout, stderr = copy.communicate(timeout=runs.TIMEOUT_S)
        assert (copy.returncode, stdout) == (USAGE, "")
        assert "--ranks 4" in stderr
        assert "1 rank" in stderr
        assert len(stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@everywhere
@pytest.mark.parametrize("content", [None, "no json", "{}"])
def test_bad_calibration_touches_no_output(tmp_path: Path, launch: str, content: str | None) -> None:
    (tmp_path / "old.h5").write_text("old")
    if content is not None:
        (tmp_path / "times.json").write_text(content)
    for output in (["-o", "new.h5"], ["-o", "old.h5", "--overwrite"]):
        options = ["--compute", "timed", "--calibration", "times.json", *output]
        assert "times.json" in refused(tmp_path, USAGE, launch, "zero3", options)


@everywhere
def test_existing_output_is_kept(tmp_path: Path, launch: str) -> None:
    (tmp_path / "precious.h5").write_text("precious")
    line = refused(tmp_path, USAGE, launch, "zero3", ["-o", "precious.h5"])
    assert "precious.h5" in line
    assert "--overwrite" in line


def test_overwrite_replaces_an_existing_output(tmp_path: Path) -> None:
    output = tmp_path / "old.h5"
    output.write_text("old")
    finished = runs.execute(runs.mpi_command("zero3", 2, ["-n", "1", "-w", "0", "-o", "old.h5", "--overwrite"]), tmp_path)
    assert finished.code == 0, str(finished)
    assert runs.Trace(output).attributes["status"] == "complete"


@everywhere
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("output", ["missing/x.h5", "file/x.h5", ".", "/dev/full", "/proc/x.h5"])
def test_outputs_that_cannot_be_written(tmp_path: Path, launch: str, output: str, overwrite: bool) -> None:
    (tmp_path / "file").write_text("no folder")
    line = refused(tmp_path, RUN_TIME_FAILURE, launch, "zero3", ["-o", output, *(["--overwrite"] if overwrite else [])])
    assert output in line


@pytest.mark.parametrize("scenario", ["ddp", "zero1", "zero2", "zero3", "mesh2d"])
def test_help_and_version_need_no_mpi(tmp_path: Path, scenario: str) -> None:
    # Without a usable launcher environment, and with one that MPI_Init would fail on.
    for changes in ({}, {"PMI_FD": "99", "PMI_RANK": "0", "PMI_SIZE": "2"}):
        text = runs.execute([str(runs.BIN / scenario), "--help"], tmp_path, **changes)
        assert (text.code, text.stderr) == (0, ""), str(text)
        assert all(option in text.stdout for option in ["--model", "--steps", "--plan", "--output", "--ranks"])
        for option, owners in {"--prefetch": {"zero3", "mesh2d"}, "--bucket-mb": {"ddp", "zero1", "zero2"},
                               "--param-gather": {"zero1", "zero2"}, "--tp": {"mesh2d"},
                               "--recompute": {"ddp", "zero1", "zero2", "zero3", "mesh2d"}}.items():
            assert (option in text.stdout) == (scenario in owners), option
        versions = runs.execute([str(runs.BIN / scenario), "--version"], tmp_path, **changes)
        assert (versions.code, versions.stderr) == (0, ""), str(versions)
        assert all(library in versions.stdout for library in ["shardbench", "MPI", "HDF5"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--help", "--version", "--plan"])
def test_what_is_printed_under_mpiexec_is_printed_once(tmp_path: Path, option: str) -> None:
    alone = runs.execute([str(runs.BIN / "zero3"), option], tmp_path)
    together = runs.execute([runs.MPIEXEC, "-n", "3", str(runs.BIN / "zero3"), option], tmp_path)
    assert (together.code, together.stderr) == (0, "")
    assert together.stdout == alone.stdout
