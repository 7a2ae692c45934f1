"""Reading: what is decoded, and what is refused with the file's name and the reason."""

import contextlib
import os
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from shardbench.read import TABLES, TraceError, read_blocks, read_header, read_tables, read_trace
from synthetic import Synthetic, seal


def problems(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    return "; ".join(caught.value.problems)


def test_tables_and_attributes_come_back(run: Synthetic, tmp_path: Path) -> None:
    trace = read_trace(run.write(tmp_path / "a.h5"))
    assert trace.attributes.world_size == 2
    assert trace.attributes.scenario == "zero3"
    assert trace.config.options["warmup"] == 2
    for table, columns in TABLES.items():
        frame = getattr(trace, table)
        assert list(frame.columns) == list(columns)
        assert frame.to_dict("records") == [
            {name: pytest.approx(row[name], nan_ok=True) for name in columns} for row in run.tables[table]
        ]


def test_a_header_needs_no_tables(run: Synthetic, tmp_path: Path) -> None:
    path = run.write(tmp_path / "a.h5")
    whole = read_trace(path)
    with h5py.File(path, "a") as file:
        del file["events"]
    header = read_header(path)
    assert (header.attributes, header.config) == (whole.attributes, whole.config)
    with h5py.File(path, "a") as file:
        file.attrs["world_size"] = 3
    with pytest.raises(TraceError, match="checksum of root attributes"):
        read_header(path)


def test_odd_names_survive(run: Synthetic, tmp_path: Path) -> None:
    odd = "blök \"1\" 'x' <b>&amp; $y$ 模型"
    run.row("tensors", index=1)["name"] = odd
    run.row("ranks", rank=0)["host"] = odd
    run.attributes["command_line"] = odd
    trace = read_trace(run.write(tmp_path / odd.replace("/", "")))
    assert trace.tensors["name"][1] == odd
    assert trace.ranks["host"][0] == odd
    assert trace.attributes.command_line == odd


def test_unsigned_counts_can_be_subtracted(run: Synthetic, tmp_path: Path) -> None:
    trace = read_trace(run.write(tmp_path / "a.h5"))
    assert trace.memory["bytes"].dtype == np.int64
    assert trace.memory["bytes"].diff().min() < 0


def test_check_is_optional(run: Synthetic, tmp_path: Path) -> None:
    del run.attributes["check"]
    assert read_trace(run.write(tmp_path / "a.h5")).attributes.check == "off"


def test_unknown_schema_version(run: Synthetic, tmp_path: Path) -> None:
    run.attributes["schema_version"] = 2
    assert "schema_version is 2, this shardbench reads only 1" in problems(run.write(tmp_path / "a.h5"))


def test_unknown_schema(run: Synthetic, tmp_path: Path) -> None:
    run.attributes["schema"] = "other"
    assert "schema is 'other'" in problems(run.write(tmp_path / "a.h5"))


def test_foreign_hdf5_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = 1
    assert "not written by shardbench" in problems(tmp_path / "a.h5")


@pytest.mark.parametrize("keep", [0, 10, 1000, 0.5, 0.999])
def test_truncated_file(run: Synthetic, tmp_path: Path, keep: float) -> None:
    path = run.write(tmp_path / "a.h5")
    content = path.read_bytes()
    path.write_bytes(content[: int(keep if keep > 1 else keep * len(content))])
    assert "cannot be read" in problems(path)


def test_not_hdf5_and_absent(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("rank,step\n")
    assert "cannot be read" in problems(tmp_path / "a.h5")
    assert "cannot be read" in problems(tmp_path / "none.h5")


def test_every_deviation_is_named(run: Synthetic, tmp_path: Path) -> None:
    path = run.write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        del file["clock"]
        del file["tensors"]
        file["tensors"] = np.zeros(3)
        ranks = file["ranks"][()]
        del file["ranks"]
        file["ranks"] = ranks[[name for name in ranks.dtype.names if name != "host"]]
        steps = file["steps"][()]
        del file["steps"]
        file["steps"] = steps.astype(
            [(n, "i8" if n == "loss" else steps.dtype[n]) for n in steps.dtype.names]
        )
        del file.attrs["psi"]
        del file.attrs["steady"]
        file.attrs["steady"] = "yes"
        del file["config"]
        file["config"] = '{"options": {}, "model": 3}'
    text = problems(path)
    for expected in (
        "dataset 'clock' is missing",
        "dataset 'tensors' must be a one-dimensional compound table",
        "dataset 'ranks' has no field 'host'",
        "field 'loss' of dataset 'steps' is int64, must be a floating-point number",
        "root attribute 'psi' is missing",
        "root attribute 'steady' must be an integer",
        "'config' must have a key 'model' that holds an object",
        "'config' must have a key 'wait_policy' that holds a string",
    ):
        assert expected in text


def test_a_killed_run_is_called_incomplete_first(run: Synthetic, tmp_path: Path) -> None:
    run.attributes["status"] = "running"
    del run.attributes["steady"]
    assert problems(run.write(tmp_path / "a.h5")).startswith("incomplete: status is 'running'")


def test_config_that_is_not_json(run: Synthetic, tmp_path: Path) -> None:
    path = run.write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        del file["config"]
        file["config"] = "{'options'"
    assert "does not hold JSON" in problems(path)


def test_text_that_is_not_utf8(run: Synthetic, tmp_path: Path) -> None:
    path = run.write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        tensors = file["tensors"][()]
        tensors["name"][0] = b"\xff\xfe"
        file["tensors"][...] = tensors
    seal(path)
    assert "utf-8" in problems(path)


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", "strange"])
def test_incomplete_runs_say_so(run: Synthetic, tmp_path: Path, status: str) -> None:
    run.attributes["status"] = status
    assert f"status is '{status}'" in (read_trace(run.write(tmp_path / "a.h5")).incomplete or "")


@pytest.mark.parametrize("rows", [1, 7, 8, 1000])
def test_blocks_make_the_table(
    run: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr("shardbench.read.contents.BLOCK_ROWS", rows)
    path = run.write(tmp_path / "a.h5")
    whole = read_trace(path)
    for table in TABLES:
        blocks = list(read_blocks(path, table))
        assert all(0 < len(block) <= rows for block in blocks)
        if blocks:
            pd.testing.assert_frame_equal(pd.concat(blocks, ignore_index=True), getattr(whole, table))
    header, tables = read_tables(path, ("ranks", "calibration"))
    assert header.attributes == whole.attributes and list(tables) == ["ranks", "calibration"]
    assert tables["ranks"].equals(whole.ranks)


def test_damage_is_told_after_the_last_block(
    run: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardbench.read.contents.BLOCK_ROWS", 10)
    path = run.write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        rows = file["events"][()]
        rows["bytes"][0] += 1
        file["events"][...] = rows
    blocks = read_blocks(path, "events")
    before_the_last = (len(rows) - 1) // 10
    assert len([next(blocks) for _ in range(before_the_last)]) == before_the_last
    with pytest.raises(TraceError, match="checksum of dataset 'events'"):
        list(blocks)
    assert len(list(read_blocks(path, "memory"))) == 1


def test_who_stops_early_leaves_no_process(
    run: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardbench.read.contents.BLOCK_ROWS", 1)
    before = children()
    blocks = read_blocks(run.write(tmp_path / "a.h5"), "events")
    next(blocks)
    assert len(children() - before) == 1
    blocks.close()
    assert children() <= before


def children() -> set[str]:
    """Of this process, zombies among them."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # which has ended meanwhile
            parent = path.read_text(errors="replace").rpartition(")")[2].split()[1]  # man 5 proc
            found |= {path.parent.name} if int(parent) == os.getpid() else set()
    return found
