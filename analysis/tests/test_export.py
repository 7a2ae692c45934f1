"""Exported tables: every number comes back, and what is left out is said."""

import csv
import sys
from pathlib import Path

import pandas as pd
import pytest

from shardbench.cli import main
from shardbench.export.command import TABLES
from shardbench.read import ALL_TABLES, read_trace
from synthetic import Synthetic, synthetic, synthetic_collectives


def write(folder: Path, *runs: Synthetic) -> Path:
    folder.mkdir(exist_ok=True)
    for index, run in enumerate(runs):
        run.write(folder / f"{index}.h5")
    return folder


def exported(folder: Path, table: str, ending: str = "csv") -> Path:
    output = folder.parent / f"{table}.{ending}"
    assert main(["export", str(folder), "-o", str(output), "--table", table]) == 0
    return output


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def test_one_row_for_each_file_rank_and_step(tmp_path: Path) -> None:
    """With numbers that have no short decimal form: they are read back to the last bit."""
    runs = [synthetic(size=size, step_s=[0.1 + 0.01 / 3, 0.01 / 3]) for size in (1, 2, 4)]
    folder = write(tmp_path / "runs", *runs)
    rows = rows_of(exported(folder, "steps"))
    assert len(rows) == (1 + 2 + 4) * (2 + 2)
    assert len({(row["file"], row["rank"], row["step"]) for row in rows}) == len(rows)
    for row in rows:
        trace = read_trace(folder / row["file"]).steps
        (stored,) = trace[(trace["rank"] == int(row["rank"])) & (trace["step"] == int(row["step"]))].to_dict(
            "records"
        )
        assert {name: float(row[name]) for name in stored} == stored
        assert row["tokens"].isdecimal()


def test_a_row_says_how_its_run_was_configured(tmp_path: Path) -> None:
    first = synthetic(options={"prefetch": "2,1", "check": True, "jitter": {"rank": 0.5, "step": 0}})
    second = synthetic(size=4, options={"clip": 0.5, "bucket-mb": None}, simulated=1)
    second.config["simulation"] = {"platform": "flat", "changed": {"node.gpus": 4}}
    rows = rows_of(exported(write(tmp_path / "runs", first, second), "runs"))
    expected = [
        {
            **{"file": "0.h5", "world_size": "2", "option_prefetch": "2,1", "option_check": "1"},
            **{
                "option_jitter": "rank=0.5,step=0",
                "option_clip": "",
                "option_bucket_mb": "",
                "simulated": "0",
            },
            **{"platform": "", "model": "tiny", "model_hidden": "8", "git_commit": "0123456789abcdef"},
        },
        {
            **{"file": "1.h5", "world_size": "4", "option_prefetch": "1", "option_check": ""},
            **{"option_jitter": "", "option_clip": "0.5", "simulated": "1"},
            **{"platform": "flat", "platform_changed": "node.gpus=4"},
        },
    ]
    assert [
        {name: row[name] for name in wanted} for row, wanted in zip(rows, expected, strict=True)
    ] == expected


@pytest.mark.parametrize("table", [table for table in ALL_TABLES if table not in ("steps", "calibration")])
def test_every_table_comes_with_its_keys(tmp_path: Path, table: str) -> None:
    folder = write(tmp_path / "runs", synthetic_collectives() if table == "collectives" else synthetic())
    frame = getattr(read_trace(folder / "0.h5"), table)
    rows = rows_of(exported(folder, table))
    assert len(rows) == len(frame)
    assert list(rows[0]) == [
        *("file", "scenario", "model", "world_size", "dp", "tp", "simulated"),
        *frame.columns,
    ]
    for row, stored in zip(rows, frame.to_dict("records")):
        assert {name: type(value)(row[name]) for name, value in stored.items()} == stored


def test_points_are_those_of_the_report(tmp_path: Path) -> None:
    runs = [synthetic(size=size, step_s=[0.25] * 6) for size in (128, 16, 2, 1)]
    rows = rows_of(exported(write(tmp_path / "runs", *runs), "points"))
    assert [row["world_size"] for row in rows] == ["1", "2", "16", "128"]
    assert [float(row["efficiency"]) for row in rows] == [1.0] * 4
    assert {(row["step_s"], row["step_low_s"], row["step_high_s"]) for row in rows} == {("0.25",) * 3}
    assert rows[2]["tokens_per_s"] == repr(16 * 32 / 0.25)
    assert rows[2]["peak_memory_is_bound"] == "1"


def test_a_missing_interval_is_empty(tmp_path: Path) -> None:
    (row,) = rows_of(exported(write(tmp_path / "runs", synthetic(step_s=[0.25] * 3)), "points"))
    assert (row["step_s"], row["step_low_s"], row["intervals_from"]) == ("0.25", "", "none: 3 steps < 6")


ODD = 'a "b", c\r\nd;é 模型\'\x01'


def test_odd_text_is_quoted(tmp_path: Path) -> None:
    run = synthetic(command_line=ODD, options={"model": ODD})
    run.row("ranks", rank=0)["host"] = ODD
    folder = write(tmp_path / "runs", run)
    assert rows_of(exported(folder, "runs"))[0]["command_line"] == ODD
    assert rows_of(exported(folder, "ranks"))[0]["host"] == ODD
    content = exported(folder, "ranks").read_bytes()
    assert content.count(b"\r\n") == 1 + 2 + 3 * 1  # the heading, two rows, and what is quoted
    assert content.count(b"\n") == content.count(b"\r\n")


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = b"\xff.h5".decode("utf-8", "surrogateescape")
    folder = write(tmp_path / "runs")
    synthetic().write(folder / "x.h5").rename(folder / name)
    assert rows_of(exported(folder, "runs"))[0]["file"] == "\ufffd.h5"


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "runs", synthetic(), synthetic(status="failed", launch=1))
    (folder / "damaged.h5").write_bytes((folder / "0.h5").read_bytes()[:5000])
    assert {row["file"] for row in rows_of(exported(folder, "steps"))} == {"0.h5"}
    error = capsys.readouterr().err.splitlines()
    assert error[0] == "left out: 1.h5: incomplete: status is 'failed' (the run failed)"
    assert error[1].startswith("left out: damaged.h5: cannot be read, truncated or damaged?")
    assert len(error) == 2


def test_training_and_collectives_side_by_side(tmp_path: Path) -> None:
    folder = write(tmp_path / "runs", synthetic_collectives(), synthetic())
    assert {row["file"] for row in rows_of(exported(folder, "steps"))} == {"1.h5"}
    assert {row["file"] for row in rows_of(exported(folder, "collectives"))} == {"0.h5"}
    assert [row["file"] for row in rows_of(exported(folder, "runs"))] == ["0.h5", "1.h5"]


def test_one_file(tmp_path: Path) -> None:
    path = synthetic().write(tmp_path / "a.h5")
    assert {row["file"] for row in rows_of(exported(path, "steps"))} == {"a.h5"}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["-o", "{}/x.txt"], 2, "x.txt ends neither in .csv nor in .parquet"),
        (["-o", "{}/x.csv", "--table", "stps"], 2, "did you mean steps?"),
        ([], 2, "required: -o/--output"),
        (["-o", "{}/none/x.csv"], 1, "x.csv cannot be written (No such file or directory)"),
        (["-o", "{}/x.csv", "--table", "collectives"], 1, "has rows for a table 'collectives'"),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str
) -> None:
    folder = write(tmp_path / "runs", synthetic())
    (tmp_path / "x.csv").write_text("old")
    try:
        found = main(["export", str(folder), *(argument.format(tmp_path) for argument in arguments)])
    except SystemExit as exit_:
        found = exit_.code  # type: ignore[assignment]
    error = capsys.readouterr().err
    assert (found, error.count("\n")) == (code, 1)
    assert told in error
    assert (tmp_path / "x.csv").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs", "x.csv"]


def test_nothing_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "x.csv")]) == 2
    assert "no *.h5 file below" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_parquet_names_its_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    folder = write(tmp_path / "runs", synthetic())
    assert main(["export", str(folder), "-o", str(tmp_path / "x.parquet")]) == 2
    assert "needs the Python library pyarrow, which is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("table", [table for table in TABLES if table not in ("calibration", "collectives")])
def test_parquet_holds_what_csv_holds(tmp_path: Path, table: str) -> None:
    pytest.importorskip("pyarrow", reason="Parquet is optional: Debian 12 has no pyarrow")
    options = {"prefetch": 2, "clip": None}
    folder = write(tmp_path / "runs", synthetic(options={"clip": 0.5}), synthetic(size=4, options=options))
    parquet = pd.read_parquet(exported(folder, table, "parquet"))
    rows = rows_of(exported(folder, table))
    assert list(parquet.columns) == list(rows[0])
    assert len(parquet) == len(rows)
    for name in parquet.columns:
        for value, text in zip(parquet[name], (row[name] for row in rows)):
            assert (text == "") if pd.isna(value) else type(value)(text) == value
