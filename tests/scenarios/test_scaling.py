"""jobs/scaling.py on a few points: it resumes, fails in one line, and simulation stands beside the closed form."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import runs

sys.path.insert(0, str(runs.ROOT / "jobs"))
import scaling_study as study  # noqa: E402

pytestmark = [
    pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed"),
    pytest.mark.skipif(not (runs.SIM_BIN / "zero3").exists(), reason=f"{runs.SIM_BIN}/zero3 is not built (preset sim)"),
]

LIMIT_S = 280.0  # 25 s on an idle machine


def script(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(runs.ROOT / "jobs/scaling.py"), "--quick", "-o", str(folder / "docs"),
               "--results", str(folder / "results"), "--sim-bin", str(runs.SIM_BIN), *options]  # fmt: skip
    environment = {**os.environ, "MPLCONFIGDIR": str(folder / "matplotlib")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scaling")
    done = script(folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"scaling: +\d+ %, about [\d.]+ min left", done.stderr)
    return folder


def cells(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table after a heading."""
    table = re.search(r"^\|.*\n\| ---.*\n((?:\|.*\n)+)", page[page.index(heading) :], re.MULTILINE)
    assert table, heading
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[1].splitlines()]


def test_closed_form_and_simulation_agree(folder: Path) -> None:
    page = (folder / "docs/scaling.md").read_text()
    ((*_, line),) = cells(page, "### Beside simulation")
    closed, simulated = (int(n) for n in line.split("/"))
    assert abs(simulated - closed) <= 8  # a node
    (row,) = cells(page, "## 3.")
    assert float(row[1]) == pytest.approx(float(row[-1]), rel=0.01)  # nccl: ms, to two decimals


def test_the_page_has_all_its_parts(folder: Path) -> None:
    page = (folder / "docs/scaling.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## 1. From 8 to 16 GPUs", "## 2. The red line", "## 3. Which algorithm", "## 4. With tensor parallelism",
        "## 5. Other networks", "## Limits",
    ]  # fmt: skip
    for figure in re.findall(r"\]\((\S+\.svg)\)", page):
        assert 1000 < (folder / "docs" / figure).stat().st_size < 60_000


def test_a_second_call_simulates_only_what_is_missing(folder: Path) -> None:
    page = (folder / "docs/scaling.md").read_text()
    kept = sorted((folder / "results").glob("*.json"))
    gone, cut = kept[0], kept[-1]
    gone.unlink()
    cut.write_text(cut.read_text()[:20])
    others = {path: path.stat().st_mtime_ns for path in kept[1:-1]}
    done = script(folder)
    assert done.returncode == 0, done.stderr
    assert gone.exists()
    assert {path: path.stat().st_mtime_ns for path in others} == others
    assert (folder / "docs/scaling.md").read_text() == page


def test_results_belong_to_one_platform_and_command() -> None:
    simulations = study.Simulations(runs.scratch_folder(), runs.SIM_BIN)
    run = study.zero3(study.QUICK, 8, 512)
    others = [
        study.zero3(study.QUICK, 16, 512),
        study.zero3(study.QUICK, 8, 1024),
        study.zero3(study.QUICK, 8, 512, 2),
        study.zero3(study.QUICK, 8, 512, 1, "ethernet"),
        study.Run(run.scenario, run.ranks, run.options, run.platform, ("node.nic_bandwidth=1e9",)),
    ]
    files = {simulations.file(each) for each in (run, *others)}
    assert len(files) == 1 + len(others)


def test_what_cannot_be_simulated_is_said_in_one_line(tmp_path: Path) -> None:
    done = script(tmp_path, "--sim-bin", str(tmp_path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling: ")
    assert "no simulated scenarios in" in line
    assert not (tmp_path / "docs/scaling.md").exists()
