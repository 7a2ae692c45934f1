"""What `report --predict-to` draws, and what it says where it cannot."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardbench.cli import main
from shardbench.predict.model import Measured
from shardbench.report import predictions
from shardbench.report.predictions import Request, predicted_points
from shardbench.report.unpredicted import LONGEST, nothing_predicted, unpredicted
from shardbench.summary.directory import read_directory
from synthetic import Synthetic, synthetic, synthetic_collectives

DIMENSIONS = {"heads": 2, "kv_heads": 2, "ffn": 16, "vocab": 32, "tied": False}
BETWEEN = "inter-node alpha and beta are not identifiable: all points lie within one node of"
MEND = "add runs on two nodes or more, better on several numbers of them"


@pytest.fixture
def binaries(tmp_path: Path) -> Path:
    """An executable that plans nothing to do."""
    folder = tmp_path / "bin"
    folder.mkdir()
    plan = json.dumps({"psi": 1, "options": {}, "events": [], "ledger": [], "memory": {}})
    (folder / "zero3").write_text(f"#!/bin/sh\necho '{plan}'\n")
    (folder / "zero3").chmod(0o755)
    return folder


def write(folder: Path, *runs: Synthetic) -> Path:
    folder.mkdir()
    for index, run in enumerate(runs):
        run.write(folder / f"{index}.h5")
    return folder


def trained(size: int, **more: Any) -> Synthetic:
    run = synthetic(size=size, **more)
    run.config["model"] |= DIMENSIONS
    return run


def without_events(size: int) -> Synthetic:
    run = trained(size, options={"trace": "steps"})
    run.tables["events"] = []
    return run


@pytest.mark.parametrize(
    ("runs", "to", "reason"),
    [
        ([without_events(1)], 8, "zero3: no file with events: "),
        ([synthetic_collectives()], 8, "no file is a scenario's, so there is no step to predict"),
        ([trained(4), trained(8)], 2, "N = 2 is less than N = 4, which was measured"),
        ([trained(4, oversubscribed=1)], 8, "nothing to fit below "),
    ],
)
def test_a_page_is_written_where_nothing_can_be_predicted(
    runs: list[Synthetic],
    to: int,
    reason: str,
    binaries: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "x.html"
    command = ["report", str(write(tmp_path / "runs", *runs)), "-o", str(page)]
    assert main([*command, "--predict-to", str(to), "--bin", str(binaries)]) == 0
    assert page.read_text(encoding="utf-8").endswith("</html>")
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"shardbench report: not predicted: {reason}")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--predict-to", "0"], "--predict-to 0 is no number of ranks; pass 1 or more"),
        (["--predict-to", "8", "--bin", "none"], "none is no folder of executables; "),
        (
            ["--files-only"],
            "--files-only is about predictions, and none is asked for; pass --predict-to N, too",
        ),
        (["--sim-bin", "."], "--sim-bin is about predictions"),
        (["--bin", "."], "--bin is about predictions"),
    ],
)
def test_what_no_file_can_mend_is_refused_at_once(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "runs", trained(1))
    assert main(["report", str(folder), "-o", str(tmp_path / "x.html"), *options]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"shardbench report: {told}")
    assert said.err.count("\n") == 1
    assert not (tmp_path / "x.html").exists()


def outlook(label: str, files: list[Measured], *sizes: int) -> Any:
    """Whose steps take as many tenths of a second as its configuration has threads, times N."""
    measured = {file.ranks: file for file in files}
    threads = files[0].threads
    guesses = [
        SimpleNamespace(ranks=n, step_s=0.1 * threads * n, low_s=0.05 * n, high_s=0.9 * n, exposed_share=0.25)
        for n in sizes
    ]
    configuration = SimpleNamespace(label=label, files=tuple(files), measured=measured)
    return SimpleNamespace(configuration=configuration, predictions=guesses)


def threaded(size: int, threads: int, launch: int = 0) -> Synthetic:
    run = trained(size, launch=10 * threads + launch)
    for row in run.tables["ranks"]:
        row["threads"] = threads
    return run


def outlooks_by_threads(files: list[Measured], *_: Any, **__: Any) -> tuple[list[Any], list[str]]:
    found = []
    for threads in sorted({file.threads for file in files}):
        own = [file for file in files if file.threads == threads]
        found.append(outlook(f"zero3 (threads {threads})", own, 1, 2, 4, 8, 16))
    return found, ["mesh2d: no events"]


@pytest.mark.parametrize(
    ("runs", "chosen", "sizes"),
    [
        ([(1, 2), (2, 2), (4, 1)], 1, [8, 16]),  # the larger N, though fewer files
        ([(4, 2), (1, 1), (4, 1)], 1, [2, 8, 16]),  # else more files
        ([(1, 1), (8, 2)], 2, [2, 4, 16]),  # none where another configuration of the series was run
    ],
)
def test_a_series_has_one_prediction_at_each_n(
    runs: list[tuple[int, int]],
    chosen: int,
    sizes: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write(
        tmp_path / "runs",
        *(threaded(size, threads, launch) for launch, (size, threads) in enumerate(runs)),
    )
    studies = read_directory(folder).studies
    assert [len(study.series) for study in studies] == [1]
    monkeypatch.setattr(predictions, "outlooks_of", outlooks_by_threads)
    points, notes = predicted_points(folder, studies, Request(16, tmp_path))
    assert [point.size for point in points] == sizes
    assert [point.step_s for point in points] == [pytest.approx(0.1 * chosen * n) for n in sizes]
    assert {point.file for point in points} == {studies[0].series[0].base.typical.name}
    assert notes == [
        "not predicted: mesh2d: no events",
        f"not drawn: zero3 (threads {3 - chosen}): zero3 (threads {chosen}) stands for the series "
        "(largest N, then most files)",
    ]


@pytest.mark.parametrize("files_only", [False, True])
def test_what_is_missing_is_simulated_unless_only_files_count(
    files_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def outlooks(files: Any, largest: int, binaries: Path, supplement: Any) -> tuple[list[Any], list[str]]:
        assert supplement(["doubtful"]) == []
        return [], []

    def simulate(doubtful: Any, sim_bin: Path | None, say: Any) -> list[Measured]:
        asked.append((doubtful, sim_bin))
        return []

    monkeypatch.setattr(predictions, "outlooks_of", outlooks)
    monkeypatch.setattr(predictions, "supplement", simulate)
    folder = write(tmp_path / "runs", trained(1))
    predicted_points(folder, (), Request(8, tmp_path, files_only, Path("sim")))
    assert asked == ([] if files_only else [(["doubtful"], Path("sim"))])


def test_four_configurations_with_one_reason_are_counted() -> None:
    assert unpredicted(["a; b; c: no events", "d; e; f; g: no ledger"]) == [
        "not predicted: a; b; c: no events",
        "not predicted: 4 configurations: no ledger",
    ]


def test_nodes_of_different_size_share_a_line() -> None:
    labels = [f"{name} (threads {threads}), 25m, measured" for threads in (1, 2) for name in "abc"]
    lines = unpredicted(
        [
            f"{'; '.join(labels[:3])}: {BETWEEN} 2 ranks; {MEND}",
            f"{'; '.join(labels[3:])}: {BETWEEN} 1 rank; {MEND}",
        ]
    )
    assert lines == [
        f"not predicted: 6 measured configurations: {BETWEEN} 1 or 2 ranks; shardbench predict says more"
    ]
    assert len(lines[0]) <= LONGEST
    assert unpredicted([f"a: {BETWEEN} 1 rank; {MEND}"]) == [f"not predicted: a: {BETWEEN} 1 rank; {MEND}"]


def test_refused_sizes_of_a_configuration_are_named_together() -> None:
    refused = [f"{name} at N = {size}" for name in "abcd" for size in (64, 128)]
    few, many = unpredicted(
        [f"{'; '.join(refused[:2])}: it does not divide", f"{'; '.join(refused)}: too many"]
    )
    assert few == "not predicted: a at N = 64, 128: it does not divide"
    assert many == "not predicted: 4 configurations at some N: too many"


def test_the_first_clause_of_a_reason_is_never_cut() -> None:
    long = 20 * "ten letters "
    assert unpredicted([f"a: {long}"]) == [f"not predicted: a: {long}"]
    assert unpredicted([f"a: {long}; mend it"]) == [f"not predicted: a: {long}; shardbench predict says more"]


def test_measured_and_simulated_are_told_apart_only_where_all_are_alike() -> None:
    labels = ["a, measured", "b, measured", "c, measured", "d, simulated"]
    (mixed,) = unpredicted([f"{'; '.join(labels)}: no events"])
    assert mixed == "not predicted: 4 configurations: no events"


def test_a_reason_that_names_every_file_is_cut() -> None:
    line = nothing_predicted(f"nothing to fit: left out {', '.join(f'{n}.h5' for n in range(99))}: crowded")
    assert len(line) <= LONGEST
    assert line.startswith("not predicted: nothing to fit: left out 0.h5, 1.h5, ")
    assert line.endswith(" …; shardbench predict says more")
