"""What every command that reads a directory makes of it: the order of N, and what is left out with which reason."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest

from shardbench.cli import main
from shardbench.read import read_trace
from shardbench.summary.directory import read_directory
from shardbench.summary.usable import Excluded, usable_traces
from shardbench.summary.warnings import warnings
from synthetic import Synthetic, synthetic, synthetic_collectives

SIZES = (1, 2, 4, 8, 16, 128, 512, 1024)


def short(size: int, step_s: float, launch: int = 0, **facts: object) -> Synthetic:
    """Six equal steps and nothing but them, so that a thousand ranks are written quickly."""
    run = synthetic(
        size=size, step_s=[step_s] * 6, warmup=0, launch=launch, options={"trace": "none"}, **facts
    )
    run.tables |= {table: [] for table in run.tables if table not in ("ranks", "steps")}
    return run


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weak scaling: N times the tokens in 1/4 s up to N = 16, in 1/2 s beyond; in no order of names."""
    folder = tmp_path_factory.mktemp("scaling")
    for size in SIZES:
        short(size, 0.25 if size <= 16 else 0.5).write(folder / f"{size}.h5")
    return folder


def test_speed_ups_are_exact_and_sizes_in_numeric_order(scaling: Path) -> None:
    (study,) = read_directory(scaling).studies
    (series,) = study.series
    assert [point.size for point in series.points] == list(SIZES)
    speed_up = [point.tokens_per_s / series.base.tokens_per_s for point in series.points]
    assert speed_up == [1, 2, 4, 8, 16, 64, 256, 512]
    assert [series.efficiency(point) for point in series.points] == [1] * 5 + [0.5] * 3
    for point in series.points:
        assert point.step_s.low == point.step_s.median == point.step_s.high


def test_commands_list_sizes_in_numeric_order(
    scaling: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(scaling), "-o", str(tmp_path / "page.html")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "within launch" in line]
    assert [int(row[1]) for row in rows] == list(SIZES)
    assert main(["export", str(scaling), "-o", str(tmp_path / "x.csv"), "--table", "points"]) == 0
    with (tmp_path / "x.csv").open(newline="") as file:
        assert [int(row["world_size"]) for row in csv.DictReader(file)] == list(SIZES)
    capsys.readouterr()
    assert main(["compare", str(scaling), str(scaling), "--format", "json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["n"] for point in points] == list(SIZES)
    assert {point["step_s"]["ratio"]["value"] for point in points} == {1.0}


def three_of_ten() -> Synthetic:
    """A file that says it is complete and has lost rows."""
    run = synthetic(step_s=[0.010] * 10, launch=3)
    run.tables["steps"] = [row for row in run.tables["steps"] if row["step"] < 2 + 3]
    return run


def zero_time() -> Synthetic:
    run = synthetic(launch=1)
    run.row("steps", rank=1, step=5)["step_s"] = 0.0
    return run


REASONS = {
    "zero.h5": "a step time of 0.0 s",
    "failed.h5": "incomplete: status is 'failed' (the run failed)",
    "killed.h5": "incomplete: status is 'running' (still running, or killed)",
    "three.h5": "5 of 12 steps on rank 0, although the status is 'complete'",
    "version.h5": "schema_version is 2, this shardbench reads only 1; use the shardbench that belongs to the file's commit",
    "copy.h5": "a copy of 2.h5",
}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """N = 2 and 4 of two commits can be used, N = 1 is not there, and each of the others has its fault."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    runs = {
        "2.h5": synthetic(step_s=[0.02] * 6),
        "4.h5": synthetic(size=4, step_s=[0.04] * 6, git_commit="fedcba9876543210"),
        "zero.h5": zero_time(),
        "failed.h5": synthetic(status="failed", check="failed", launch=2),
        "killed.h5": synthetic(status="running", launch=4),
        "three.h5": three_of_ten(),
        "version.h5": synthetic(schema_version=2, launch=5),
    }
    for name, run in runs.items():
        run.write(folder / name)
    shutil.copy(folder / "2.h5", folder / "copy.h5")
    return folder


def test_each_fault_is_named_and_left_out(mixed: Path) -> None:
    found = read_directory(mixed)
    assert {excluded.name: excluded.reason for excluded in found.excluded} == REASONS
    assert [launch.name for launch in found.launches] == ["2.h5", "4.h5"]
    assert [e.name for e in found.excluded if e.has_failed] == ["failed.h5"]
    (told,) = (text for text in warnings(found.launches) if "commits" in text)
    assert "2 commits (0123456789ab, fedcba987654)" in told
    ((series,),) = (study.series for study in found.studies)
    assert series.base.size == 2
    assert series.efficiency(series.points[1]) == 0.5


def test_every_command_says_what_it_leaves_out(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = (
        ["report", str(mixed), "-o", str(tmp_path / "page.html")],
        ["export", str(mixed), "-o", str(tmp_path / "x.csv")],
        ["export", str(mixed), "-o", str(tmp_path / "y.csv"), "--table", "points"],
        ["compare", str(mixed), str(mixed)],
    )
    for command in commands:
        # The failed run is B's, too.
        assert main(command) == (1 if command[0] == "compare" else 0)
        told = "".join(capsys.readouterr())
        for name, reason in REASONS.items():
            assert f"{name}: {reason}" in told
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "base N\u00a0=\u00a02" in page


def test_what_fits_may_use(tmp_path: Path) -> None:
    (tmp_path / "nothing.txt").touch()
    runs = {
        "a.h5": synthetic(),
        "b.h5": synthetic(oversubscribed=1, launch=1),
        "c.h5": synthetic_collectives(),
        "d.h5": synthetic(check="failed", launch=2),
        "e.h5": synthetic(status="interrupted", launch=3),
    }
    for name, run in runs.items():
        run.write(tmp_path / name)
    excluded: list[Excluded] = []
    names = [name for name, _ in usable_traces(tmp_path, excluded, for_fits=True)]
    assert names == ["a.h5", "c.h5"]
    reasons = {left.name: left.reason for left in excluded}
    assert reasons["b.h5"].startswith("oversubscribed: more threads than CPUs")
    assert reasons["d.h5"].startswith("its check failed")
    assert reasons["e.h5"].startswith("incomplete")
    excluded.clear()
    assert [name for name, _ in usable_traces(tmp_path, excluded)] == ["a.h5", "b.h5", "c.h5", "d.h5"]


def test_a_file_is_read_once_however_many_links_lead_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(
        "shardbench.summary.usable.read_trace", lambda path: (read.append(path), read_trace(path))[1]
    )
    sources = tmp_path / "sources"
    sources.mkdir()
    runs = {
        "a": synthetic(),
        "b": synthetic(oversubscribed=1, launch=1),
        "c": synthetic(status="failed", launch=2),
        "d": synthetic(schema_version=2, launch=3),
    }
    links = tmp_path / "links"
    links.mkdir()
    for name, run in runs.items():
        run.write(sources / name)
        (links / f"{name}1.h5").symlink_to(sources / name)
        os.link(sources / name, links / f"{name}2.h5")
    shutil.copy(sources / "a", links / "a3.h5")
    excluded: list[Excluded] = []
    assert [name for name, _ in usable_traces(links, excluded, for_fits=True)] == ["a1.h5"]
    assert [path.name for path in read] == ["a1.h5", "a3.h5", "b1.h5", "c1.h5", "d1.h5"]
    reasons = {left.name: left.reason for left in excluded}
    assert reasons["a2.h5"] == reasons["a3.h5"] == "a copy of a1.h5"
    assert reasons["b1.h5"].startswith("oversubscribed") and reasons["b2.h5"] == "a copy of b1.h5"
    assert reasons["c1.h5"] == reasons["c2.h5"] == "incomplete: status is 'failed' (the run failed)"
    assert reasons["d1.h5"] == reasons["d2.h5"] and reasons["d1.h5"].startswith("schema_version is 2")
    assert [left.name for left in excluded if left.has_failed] == ["c1.h5", "c2.h5"]


def test_a_whole_file_is_no_copy_of_a_broken_one(tmp_path: Path) -> None:
    three_of_ten().write(tmp_path / "a.h5")
    synthetic(step_s=[0.010] * 10, launch=3).write(tmp_path / "b.h5")
    found = read_directory(tmp_path)
    assert [launch.name for launch in found.launches] == ["b.h5"]
    assert [left.name for left in found.excluded] == ["a.h5"]


def test_machines_are_configurations(tmp_path: Path) -> None:
    for index, (platform, changed) in enumerate((("flat", {}), ("ethernet", {}), ("flat", {"node.gpus": 4}))):
        run = synthetic(simulated=1, launch=index)
        run.config["simulation"] = {"platform": platform, "changed": changed, "machine": {}}
        run.write(tmp_path / f"{index}.h5")
    (study,) = read_directory(tmp_path).studies
    assert len(study.series) == 3
    assert any("platform ethernet" in series.label for series in study.series)
    assert any("node.gpus 4" in series.label for series in study.series)


def test_a_name_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'new\nline \x1b[2J "quoted" $x ü.h5').touch()
    short(1, 0.25).write(tmp_path / "1.h5")
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "x.csv")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('left out: new\\nline \\x1b[2J "quoted" $x ü.h5: cannot be read')


@pytest.mark.parametrize("command", ["validate", "timeline", "export", "compare", "fit"])
def test_a_pipe_is_not_waited_for(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe.h5"
    os.mkfifo(pipe)
    more = {"export": ["-o", str(tmp_path / "x.csv")], "compare": [str(pipe)]}
    assert main([command, str(pipe), *more.get(command, [])]) == 2
    assert f"{pipe} is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["compare"], ["predict", "--to", "8"]])
def test_a_folder_of_collectives_has_no_steps(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic_collectives().write(tmp_path / "collectives.h5")
    more = [str(tmp_path)] if command == ["compare"] else ["--bin", str(tmp_path)]
    assert main([*command, str(tmp_path), *more]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
