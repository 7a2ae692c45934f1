"""Predictions against simulations: at N that the fit has not seen."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from shardbench.read import read_trace
from shardbench.stats import maximum_over_ranks

pytestmark = [
    pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed"),
    pytest.mark.skipif(not (runs.SIM_BIN / "zero3").exists(), reason=f"{runs.SIM_BIN}/zero3 is not built (preset sim)"),
]

LIMIT_S = 280.0
SMALL = (8, 16, 24, 32)
STEPS = ("-n", "1", "-w", "1")
SIZES = ("-b", "256", "-e", "4G", "-f", "4", "-n", "1", "-w", "0", "-c", "0",
         "--collective", "all_gather,reduce_scatter,all_reduce")  # fmt: skip
# What is promised is 5 %; a change that costs more than this has to be looked at.
CLOSE = 0.01


def shardbench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shardbench", *map(str, arguments)]
    return subprocess.run(command, env=runs.environment(), capture_output=True, text=True, timeout=LIMIT_S)


def simulate(scenario: str, ranks: int, platform: str, output: Path, *options: str) -> None:
    done = shardbench("simulate", scenario, "--ranks", ranks, "--platform", platform, "--sim-bin", runs.SIM_BIN,
                      "--", *options, "--output", output)  # fmt: skip
    assert done.returncode == 0, done.stderr


PREDICT = ("--bin", runs.BIN, "--sim-bin", runs.SIM_BIN)


def predict(folder: Path, *options: object) -> Any:
    done = shardbench("predict", folder, *PREDICT, "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=pytest.fail)


def zero3(folder: Path, platform: str, sizes: Sequence[int]) -> None:
    for prefetch in ("0", "1"):
        for ranks in sizes:
            output = folder / f"zero3_p{prefetch}_n{ranks}.h5"
            simulate("zero3", ranks, platform, output, "--model", "8b", "--prefetch", prefetch, *STEPS)


def small(folder: Path, platform: str) -> Path:
    zero3(folder, platform, SMALL)
    for ranks in SMALL:
        simulate("collectives", ranks, platform, folder / f"collectives_n{ranks}.h5", *SIZES)
    return folder


@pytest.fixture(scope="module")
def fat_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("fat-tree"), "h100-fat-tree")


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("flat"), "flat")


def check(folder: Path, platform: str, ranks: int, tmp_path: Path) -> None:
    outlooks = predict(folder, "--to", ranks)
    assert len(outlooks) == 2
    for outlook in outlooks:
        prefetch = "0" if "--prefetch=0,0" in outlook["arguments"] else "1"
        output = tmp_path / f"p{prefetch}.h5"
        simulate("zero3", ranks, platform, output, "--model", "8b", "--prefetch", prefetch, "--trace", "steps", *STEPS)
        trace = read_trace(output)
        step_s, exposed_s = (float(np.median(maximum_over_ranks(trace.steps, c))) for c in ("step_s", "exposed_s"))
        found = outlook["predictions"][-1]
        assert found["ranks"] == ranks and not found["outside"]
        assert found["step_s"] == pytest.approx(step_s, rel=CLOSE)
        assert found["exposed_s"] == pytest.approx(exposed_s, abs=CLOSE * step_s)
        assert found["peak_bytes"] == trace.memory_peak.query("category == 'total_tracked'")["peak_bytes"].max()
        assert outlook["skill"]["held_out"] and outlook["skill"]["value"] > 0.9


@pytest.mark.parametrize("ranks", [128, 512, pytest.param(2048, marks=pytest.mark.slow)])
@pytest.mark.parametrize("platform", ["h100-fat-tree", "flat"])
def test_step_time_exposed_time_and_memory(
    platform: str, ranks: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    check(request.getfixturevalue(platform.removeprefix("h100-").replace("-", "_")), platform, ranks, tmp_path)


def test_a_small_model_where_each_node_has_one_gpu(tmp_path: Path) -> None:
    """All latency, and of a way (PAT) that NCCL takes from eight such nodes on; memory is that of the simulated algorithm."""
    shape = "--layers 2 --hidden 512 --heads 8 --kv-heads 8 --ffn 1024 --vocab 2048 --seq 64".split()
    for ranks in (8, 16, 24):
        simulate("zero3", ranks, "flat", tmp_path / f"n{ranks}.h5", *shape, *STEPS)
    simulate("zero3", 512, "flat", tmp_path / "large.hdf5", *shape, *STEPS, "--trace", "steps")
    truth = read_trace(tmp_path / "large.hdf5")
    (outlook,) = predict(tmp_path, "--to", 512)
    found = outlook["predictions"][-1]
    assert found["step_s"] == pytest.approx(float(np.median(maximum_over_ranks(truth.steps, "step_s"))), rel=CLOSE)
    assert found["peak_bytes"] == truth.memory_peak.query("category == 'total_tracked'")["peak_bytes"].max()


def test_where_exposed_communication_passes_ten_percent(fat_tree: Path, tmp_path: Path) -> None:
    """The step at that N and one node before it, by the model itself; and the sentence."""
    def prefetching(largest: int) -> Any:
        return next(o for o in predict(fat_tree, "--to", largest) if "--prefetch=0,0" not in o["arguments"])

    ranks = prefetching(32768)["exposed_from_ranks"]
    assert ranks % 8 == 0
    at, before = (prefetching(n)["predictions"][-1]["exposed_share"] for n in (ranks, ranks - 8))
    assert before <= 0.10 < at
    said = shardbench("predict", fat_tree, *PREDICT, "--to", 32768).stdout
    assert f"exposed communication is more than 10.0 % of the step from N = {ranks} on" in said


def test_points_from_one_node_are_refused(fat_tree: Path, tmp_path: Path) -> None:
    for name in ("zero3_p1_n8.h5", "collectives_n8.h5"):
        shutil.copy(fat_tree / name, tmp_path)
    done = shardbench("predict", tmp_path, "--to", 128, "--bin", runs.BIN)
    assert done.returncode == 1 and done.stdout == ""
    assert "inter-node alpha and beta are not identifiable" in done.stderr
    assert "add runs on two nodes or more" in done.stderr
    assert shardbench("predict", tmp_path, "--to", 8, "--bin", runs.BIN).returncode == 0


def test_an_n_that_does_not_divide_the_batch_is_left_out_alone(tmp_path: Path) -> None:
    for ranks in (8, 16, 24):
        for batch in (("--global-batch", "96"), ()):
            output = tmp_path / f"n{ranks}{'_strong' if batch else ''}.h5"
            simulate("zero3", ranks, "flat", output, "--model", "25m", "--seq", "64", *batch, *STEPS)
    done = shardbench("predict", tmp_path, "--to", 96, "--bin", runs.BIN, "--files-only", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = {"--global-batch=96" in o["arguments"]: [p["ranks"] for p in o["predictions"]] for o in json.loads(done.stdout)}
    assert found == {True: [8, 16, 32, 96], False: [8, 16, 32, 64, 96]}
    (said,) = done.stderr.splitlines()
    assert said.startswith("zero3 (global-batch 96) at N = 64: no schedule: ") and "--global-batch 96 is not a multiple" in said
    refused = shardbench("predict", tmp_path, "--to", 96, "--bin", runs.BIN, "--ranks-per-node", "0")
    assert refused.returncode == 2 and "--ranks-per-node 0 is no number of ranks" in refused.stderr


@pytest.fixture(scope="module")
def unaided(fat_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without runs of collectives. NCCL takes another protocol at large N, which nothing in traces of large models shows."""
    folder = tmp_path_factory.mktemp("unaided")
    for path in fat_tree.glob("zero3_p0_*.h5"):
        shutil.copy(path, folder)
    return folder


def at_2048(folder: Path, *options: object) -> Any:
    (found,) = [o for o in predict(folder, "--to", 2048, *options) if "--prefetch=0,0" in o["arguments"]]
    return found["predictions"][-1]


def test_small_sizes_that_no_file_has_are_simulated(fat_tree: Path, unaided: Path) -> None:
    assert at_2048(unaided)["step_s"] == pytest.approx(at_2048(fat_tree)["step_s"], rel=1e-4)
    said = shardbench("predict", unaided, *PREDICT, "--to", 2048)
    assert said.stderr == (
        "shardbench predict: small collectives, which no file has, were simulated on 16, 24 and 32 ranks of h100-fat-tree\n"
    )
    assert "marked ?" not in said.stdout


def test_without_small_sizes_the_interval_says_what_is_not_known(fat_tree: Path, unaided: Path) -> None:
    doubtful, known = at_2048(unaided, "--files-only"), at_2048(fat_tree)
    assert doubtful["outside"]
    assert doubtful["low_s"] < known["step_s"] < doubtful["step_s"]
    said = shardbench("predict", unaided, *PREDICT, "--to", 2048, "--files-only")
    assert "marked ?" in said.stdout and said.stderr == ""


def test_what_cannot_be_simulated_is_said(unaided: Path, tmp_path: Path) -> None:
    said = shardbench("predict", unaided, "--bin", runs.BIN, "--sim-bin", tmp_path, "--to", 2048)
    assert said.returncode == 0 and "marked ?" in said.stdout
    (line,) = said.stderr.splitlines()
    assert line.startswith("shardbench predict: small collectives on h100-fat-tree could not be simulated: ")
    assert "no simulated scenarios in" in line


def test_the_machine_is_the_one_of_the_files(tmp_path: Path) -> None:
    """Whatever has become of the description that they were simulated with."""
    machine = tmp_path / "own machine.toml"
    machine.write_text('based_on = "h100-fat-tree"\n[node]\nnic_latency_s = 2e-6\n')
    for ranks in (8, 16):
        simulate("zero3", ranks, str(machine), tmp_path / f"n{ranks}.h5", "--model", "1b", "--prefetch", "0", *STEPS)
    doubtful = predict(tmp_path, "--to", 256, "--files-only")[0]["predictions"][-1]
    machine.unlink()
    known = predict(tmp_path, "--to", 256)[0]["predictions"][-1]
    assert doubtful["outside"] or doubtful["undecided"]
    assert known["outside"] == known["undecided"] == []
    assert doubtful["low_s"] < known["step_s"] < doubtful["step_s"]


def test_configurations_are_called_as_in_a_report(fat_tree: Path, tmp_path: Path) -> None:
    report = shardbench("report", fat_tree, "-o", tmp_path / "report.html").stdout
    names = [outlook["configuration"] for outlook in predict(fat_tree, "--to", 32)]
    assert names == ["zero3 (prefetch 0)", "zero3 (prefetch 1)"]
    assert all(f"\n{name} " in report for name in names)


def test_fit_reports_every_collective_with_intervals(fat_tree: Path) -> None:
    done = shardbench("fit", fat_tree, "--format", "json")
    entries = json.loads(done.stdout, parse_constant=pytest.fail)
    assert {entry["collective"] for entry in entries} == {"all_gather", "reduce_scatter", "all_reduce"}
    assert all(entry["algorithm"] == "nccl" and entry["place"] == "simulated h100-fat-tree" for entry in entries)
    for entry in entries:
        for name in ("alpha_s", "beta_s_per_byte"):
            assert entry[name] is None or entry[name]["low"] <= entry[name]["value"] <= entry[name]["high"]


def test_advice_names_what_fits_and_what_is_fastest_of_that() -> None:
    request = ["advise", "--model", "25m", "--gpu-memory", "400MB", "--ranks", 64, "--bin", runs.BIN, "--sim-bin", runs.SIM_BIN]
    done = shardbench(*request, "--format", "json", "--", "--seq", "64")
    assert done.returncode == 0, done.stderr
    advices = json.loads(done.stdout, parse_constant=pytest.fail)
    assert {advice["scenario"] for advice in advices} == {"ddp", "zero1", "zero2", "zero3", "mesh2d"}
    for advice in advices:
        assert advice["fits"] == (advice["peak_bytes"] <= 400_000_000) == (advice["prediction"] is not None)
    speeds = [advice["prediction"]["tokens_per_s"] for advice in advices if advice["fits"]]
    assert 0 < len(speeds) < len(advices)
    assert all(later <= 1.002 * earlier for earlier, later in zip(speeds, speeds[1:]))


def test_advice_where_nothing_fits() -> None:
    done = shardbench("advise", "--model", "70b", "--gpu-memory", "1GB", "--ranks", 8, "--bin", runs.BIN, "--sim-bin", runs.SIM_BIN)
    assert done.returncode == 0
    assert "Nothing fits on 8 ranks of h100-fat-tree with 1.000 GB" in done.stdout


@pytest.mark.parametrize(("arguments", "said"), [
    (["predict", "nowhere", "--to", "8"], "does not exist"),
    (["predict", ".", "--to", "8"], "no *.h5 file"),
    (["fit", "."], "no *.h5 file"),
    (["advise", "--model", "70b", "--gpu-memory", "80XB", "--ranks", "8"], "is no size"),
    (["advise", "--model", "80b", "--gpu-memory", "80GB", "--ranks", "8"], "80b"),
    (["advise", "--model", "8b", "--gpu-memory", "80GB", "--ranks", "0"], "no number of ranks"),
])  # fmt: skip
def test_bad_input_is_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shardbench", *arguments]
    done = subprocess.run(command, env=runs.environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "" and said in done.stderr
    assert len(done.stderr.splitlines()) == 1
