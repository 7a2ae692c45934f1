"""The timeline of one run: events that viewers take, and the picture."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import pytest

import shardbench
from shardbench.cli import main
from shardbench.trace_events import KIND_COLOURS, LAYER_COLOURS
from synthetic import Synthetic, seal, synthetic, synthetic_collectives

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SHARDBENCH_BIN") or ROOT / "build/release/bin")
MPIEXEC = os.environ.get("SHARDBENCH_MPIEXEC") or "mpiexec"
MEGABYTE = 1 << 20

Event = dict[str, Any]


def trace_of(run: Synthetic, folder: Path, *options: str) -> dict[str, Any]:
    return shown(run.write(folder / "a.h5"), folder, *options)


def shown(path: Path, folder: Path, *options: str) -> dict[str, Any]:
    assert main(["timeline", str(path), "-o", str(folder / "a.json"), *options]) == 0
    return checked(folder / "a.json")


def refusal(
    arguments: Sequence[str],
    code: int,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    output: str = "a.json",
) -> str:
    """The one line that says why; the target is as it was."""
    target = folder / output
    target.write_text("old")
    try:
        assert main(["timeline", *arguments, "-o", str(target)]) == code
    except SystemExit as ended:
        assert ended.code == code
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and told.startswith("shardbench timeline: ")
    assert target.read_text() == "old"
    assert not list(folder.glob(".shardbench*"))
    return told


def checked(path: Path) -> dict[str, Any]:
    """Strict JSON, and what the format asks for: threads named, slices nested, arrows whole and within slices."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    trace = json.loads(path.read_bytes().decode(), parse_constant=refuse, object_pairs_hook=unique)
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} <= set("MXCstf")
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    slices = defaultdict(list)
    for event in of_phase(events, "X"):
        assert (event["pid"], event["tid"]) in named and event["pid"] in processes
        assert event["ts"] >= 0 and event["dur"] >= 0
        slices[event["pid"], event["tid"]].append(span(event))
    for lane in slices.values():
        assert_nested(lane)
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            at = ns(event["ts"])
            assert any(begin <= at <= end for begin, end in slices[event["pid"], event["tid"]])
            flows[event["cat"], event["name"], event["id"]].append((event["ph"], at))
    for steps in flows.values():
        assert [phase for phase, _ in steps] == ["s", "t", "f"]
        assert steps == sorted(steps, key=lambda step: step[1])
    for event in of_phase(events, "C"):
        assert event["pid"] in processes
        assert all(isinstance(value, int) for value in event["args"].values())
    return trace


def assert_nested(lane: list[tuple[int, int]]) -> None:
    open_until: list[int] = []
    for begin, end in sorted(lane, key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        assert not open_until or end <= open_until[-1]
        open_until.append(end)


def of_phase(events: Sequence[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def named(trace: dict[str, Any], name: str, rank: int = 0) -> list[Event]:
    return [event for event in trace["traceEvents"] if event["name"] == name and event["pid"] == rank]


def ns(microseconds: float) -> int:
    assert re.fullmatch(r"\d+\.\d{1,3}", repr(microseconds)), microseconds
    return round(microseconds * 1000)


def span(event: Event) -> tuple[int, int]:
    return ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])


@pytest.fixture
def short() -> Synthetic:
    """Two ranks, one warm-up step of 50 ms and one timed one of 8 ms, in quarters of 2 ms."""
    run = synthetic(step_s=[0.008], warmup=1)
    run.tables["events"] = [row for rank in range(2) for row in _quarters(rank)]
    return run


def _quarters(rank: int) -> list[dict[str, Any]]:
    """In each step a gather that is waited for, and one that hides behind compute."""
    rows = []
    for step, (begin_s, quarter_s) in enumerate([(0.0, 0.0125), (0.05, 0.002)]):
        # (layer, kind, stream, first and last quarter); a wait repeats its collective's layer.
        for layer, kind, stream, first, last in [
            (0, "all_gather", "comm", 0, 1),
            (0, "wait", "compute", 0, 1),
            (0, "compute", "compute", 1, 2),
            (1, "all_gather", "comm", 1, 2),
            (1, "compute", "compute", 2, 4),
        ]:
            start_s, end_s = begin_s + first * quarter_s, begin_s + last * quarter_s
            rows.append(
                dict(
                    rank=rank, step=step, micro=0, layer=layer, bucket=-1, phase="forward", kind=kind,
                    stream=stream, axis="dp", algorithm="ring", dtype="bf16", group_size=2, elements=1200,
                    bytes=2400, sent_bytes=1200, issue_s=start_s, start_s=start_s, end_s=end_s,
                    wait_s=end_s - start_s if layer == 0 and stream == "comm" else 0.0,
                )  # fmt: skip
            )
    return rows


def test_slices_are_where_the_events_were(short: Synthetic, tmp_path: Path) -> None:
    trace = trace_of(short, tmp_path)
    found = {
        (event["name"], event["tid"]): span(event)
        for event in of_phase(trace["traceEvents"], "X")
        if event["pid"] == 1
    }
    ms = 1_000_000
    assert found == {
        ("step 1", 1): (0, 8 * ms),
        ("wait all_gather embedding", 2): (0, 2 * ms),
        ("embedding forward", 2): (2 * ms, 4 * ms),
        ("block 1 forward", 2): (4 * ms, 8 * ms),
        ("issue all_gather embedding", 2): (0, 0),
        ("issue all_gather block 1", 2): (2 * ms - 1, 2 * ms),
        ("all_gather embedding", 3): (0, 2 * ms),
        ("all_gather block 1", 3): (2 * ms, 4 * ms),
    }
    assert trace["otherData"]["base_s"] == 0.05
    threads = {e["tid"]: e["args"]["name"] for e in named(trace, "thread_name", 1)}
    assert threads == {1: "steps", 2: "compute", 3: "comm"}
    assert named(trace, "process_name", 1)[0]["args"]["name"] == "rank 1 (dp 1, tp 0) on node1"
    (gather,) = [e for e in named(trace, "all_gather embedding") if e["ph"] == "X"]
    assert gather["args"] == {
        **{"step": 1, "micro": 0, "phase": "forward", "layer": 0, "axis": "dp", "algorithm": "ring"},
        **{"dtype": "bf16", "group_size": 2, "elements": 1200, "bytes": 2400, "sent_bytes": 1200},
        "wait_s": pytest.approx(0.002),
    }


def test_arrows_lead_from_the_request_through_the_collective_to_the_wait(
    short: Synthetic, tmp_path: Path
) -> None:
    events = trace_of(short, tmp_path)["traceEvents"]
    arrow = [(e["ph"], e["tid"], ns(e["ts"])) for e in events if e.get("id") == 1]
    assert arrow == [("s", 2, 0), ("t", 3, 0), ("f", 2, 1_999_998)]
    # Nobody waits for the second: its arrow ends in the collective.
    hidden = [(e["ph"], e["tid"], ns(e["ts"])) for e in events if e.get("id") == 2]
    assert hidden == [("s", 2, 1_999_999), ("t", 3, 2_000_000), ("f", 3, 2_000_000)]


def test_waits_that_look_alike_are_told_apart_by_their_length(short: Synthetic, tmp_path: Path) -> None:
    """Two gathers of one subject, the second waited for first."""
    first, second = dict(short.row("events", step=1)), dict(short.row("events", step=1))
    first |= {"wait_s": 0.0545 - 0.053}
    second |= {"start_s": 0.0505, "wait_s": 0.052 - 0.051}
    wait = dict(short.row("events", step=1, kind="wait"))
    waits = [wait | {"start_s": 0.051, "end_s": 0.052}, wait | {"start_s": 0.053, "end_s": 0.0545}]
    first["end_s"], first["start_s"] = 0.0545, 0.0525
    second["end_s"] = 0.052
    short.tables["events"] = [first, second, *waits]
    events = trace_of(short, tmp_path, "--ranks", "0")["traceEvents"]
    ends = {e["id"]: ns(e["ts"]) for e in events if e["ph"] == "f"}
    assert ends == {1: 4_499_998, 2: 1_999_998}


@pytest.mark.parametrize("offset_s", [0.0, -3600.0, 1e5])
def test_ranks_are_on_one_clock(short: Synthetic, tmp_path: Path, offset_s: float) -> None:
    """Rank 1's clock is off and drifts; in common time it is 3 ms late."""
    short.tables["clock"] = [
        dict(rank=rank, at_s=at_s, offset_s=rank * (offset_s + 1e-4 * at_s), uncertainty_s=2e-6 * rank)
        for at_s in (0.0, 1.0)
        for rank in (0, 1)
    ]

    def own(common_s: float) -> float:
        return common_s + offset_s + 1e-4 * common_s

    for table, times in (
        ("steps", ["start_s"]),
        ("events", ["issue_s", "start_s", "end_s"]),
        ("memory", ["at_s"]),
    ):
        for row in short.tables[table]:
            if row["rank"] == 1:
                row.update({time: own(row[time] + 0.003) for time in times})
    trace = trace_of(short, tmp_path)
    one, other = (named(trace, "embedding forward", rank)[0] for rank in (0, 1))
    assert ns(other["ts"]) - ns(one["ts"]) == pytest.approx(3_000_000, abs=1)
    assert other["dur"] == pytest.approx(one["dur"], abs=0.0015)
    facts = trace["otherData"]
    assert (facts["base_s"], facts["clock_uncertainty_s"]) == (0.05, 2e-6)


@pytest.mark.parametrize("since_s", [0.0, 1e5])
def test_100_ns_survive(short: Synthetic, tmp_path: Path, since_s: float) -> None:
    for row in short.tables["steps"]:
        row["start_s"] += since_s
    for row in short.tables["events"]:
        row.update({name: row[name] + since_s for name in ("issue_s", "start_s", "end_s")})
    row = short.row("events", rank=0, step=1, kind="compute", layer=1)
    row["start_s"] += 1e-7
    row["end_s"] += 2e-7
    trace = trace_of(short, tmp_path)
    moved, still = (span(named(trace, "block 1 forward", rank)[0]) for rank in (0, 1))
    assert (moved[0] - still[0], moved[1] - still[1]) == (100, 200)


def test_a_duration_of_zero(short: Synthetic, tmp_path: Path) -> None:
    for kind in ("compute", "wait", "all_gather"):
        row = short.row("events", rank=0, step=1, kind=kind)
        row.update(end_s=row["start_s"], wait_s=0.0)
    trace = trace_of(short, tmp_path)
    for name in ("embedding forward", "wait all_gather embedding", "all_gather embedding"):
        assert [e["dur"] for e in named(trace, name) if e["ph"] == "X"] == [0.0]


def test_text_of_every_kind(short: Synthetic, tmp_path: Path) -> None:
    host, command = 'no"de\n\\1 é 計算', 'zero3 "a\tb"\n\u2028 \x01'
    short.tables["ranks"][0]["host"] = host
    short.attributes["command_line"] = command
    path = short.write(tmp_path / 'ä "b".h5')
    trace = shown(path, tmp_path)
    assert named(trace, "process_name")[0]["args"]["name"] == f"rank 0 (dp 0, tp 0) on {host}"
    assert (trace["otherData"]["command_line"], trace["otherData"]["file"]) == (command, path.name)


def test_where_the_numbers_come_from(short: Synthetic, tmp_path: Path) -> None:
    short.attributes["timer_resolution_s"] = float("nan")
    facts = trace_of(short, tmp_path)["otherData"]
    for name in ("launch_id", "schema_version", "git_commit", "world_size"):
        assert facts[name] == short.attributes[name]
    assert "timer_resolution_s" not in facts and "incomplete" not in facts
    assert facts["clock"].startswith("rank 0's")
    short.attributes["simulated"] = 1
    assert trace_of(short, tmp_path)["otherData"]["clock"] == "one simulated clock"


def test_colours_are_ones_that_chrome_knows(tmp_path: Path) -> None:
    trace = trace_of(synthetic(), tmp_path)
    used = {event["cname"] for event in trace["traceEvents"] if "cname" in event}
    assert used <= {*LAYER_COLOURS, *KIND_COLOURS.values(), "generic_work"}
    (one,), (other,) = (
        {e["cname"] for e in named(trace, name)} for name in ("embedding forward", "block 1 forward")
    )
    assert one != other


def test_memory_begins_with_its_level(tmp_path: Path) -> None:
    run = synthetic(size=1, step_s=[0.01] * 6, warmup=0)
    levels = [(-1, 0.0, "parameters", 100), (-1, 0.0, "activations", 1), (0, 0.001, "activations", 2)]
    # The first change is in the very moment in which the step begins.
    levels += [(2, 0.02, "activations", 3), (2, 0.025, "activations", 4), (3, 0.03, "activations", 5)]
    run.tables["memory"] = [dict(rank=0, step=s, at_s=t, category=c, bytes=b) for s, t, c, b in levels]
    trace = trace_of(run, tmp_path, "--steps", "2")
    assert trace["otherData"]["base_s"] == pytest.approx(0.02)
    of = {
        category: [(ns(e["ts"]), e["args"]["bytes"]) for e in named(trace, f"memory {category}")]
        for category in ("parameters", "activations")
    }
    assert of == {"parameters": [(0, 100)], "activations": [(0, 2), (0, 3), (5_000_000, 4)]}


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ([], {2, 3, 4, 5, 6, 7, 8}),
        (["--steps", "timed"], {2, 3, 4, 5, 6, 7, 8}),
        (["--steps", "all"], set(range(9))),
        (["--steps", "last"], {8}),
        (["--steps", "0"], {0}),
        (["--steps", "1-3"], {1, 2, 3}),
    ],
)
def test_chosen_steps(run: Synthetic, tmp_path: Path, options: list[str], steps: set[int]) -> None:
    events = trace_of(run, tmp_path, *options)["traceEvents"]
    assert {event["args"]["step"] for event in of_phase(events, "X")} == steps


@pytest.mark.parametrize(("choice", "ranks"), [("all", {0, 1, 2, 3}), ("2", {2}), ("0,2-3", {0, 2, 3})])
def test_chosen_ranks(tmp_path: Path, choice: str, ranks: set[int]) -> None:
    events = trace_of(synthetic(size=4), tmp_path, "--ranks", choice)["traceEvents"]
    assert {event["pid"] for event in events} == ranks


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--steps", "9"], "has no step 9; it has 0–8"),
        (["--steps", "3-12"], "has no step 12"),
        (["--steps", "3-1"], "ends before it begins"),
        (["--steps", "first"], "'first' is neither"),
        (["--steps", "-1"], "argument --steps"),
        (["--ranks", "2"], "has no rank 2; it has 0–1"),
        (["--ranks", "0,,1"], "'' is neither"),
    ],
)
def test_what_is_not_there_cannot_be_chosen(
    run: Synthetic, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    path = run.write(tmp_path / "a.h5")
    assert told in refusal([str(path), *options], 2, tmp_path, capsys)


def test_only_warm_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = synthetic(step_s=[], warmup=2).write(tmp_path / "a.h5")
    assert "only warm-up; pass --steps all" in refusal([str(path)], 2, tmp_path, capsys)
    shown(path, tmp_path, "--steps", "all")


@pytest.mark.parametrize("level", ["none", "steps"])
@pytest.mark.parametrize("output", ["a.json", "a.png"])
def test_without_events(
    run: Synthetic, tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str, output: str
) -> None:
    run.config["options"]["trace"] = level
    run.tables |= {"events": [], "memory": [], "clock": [] if level == "none" else run.tables["clock"]}
    told = refusal([str(run.write(tmp_path / "a.h5"))], 1, tmp_path, capsys, output)
    assert f"--trace {level}; run it again with --trace events" in told


@pytest.mark.parametrize("output", ["a.json", "a.png"])
def test_events_that_were_lost(
    run: Synthetic, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    run.tables["events"] = []
    assert "has no event" in refusal([str(run.write(tmp_path / "a.h5"))], 1, tmp_path, capsys, output)


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_a_run_that_did_not_end(
    run: Synthetic, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    run.attributes["status"] = status
    for table in ("tensors", "ledger", "memory_peak"):
        run.tables[table] = []
    trace = trace_of(run, tmp_path)
    assert f"status is '{status}'" in trace["otherData"]["incomplete"]
    assert f"a.h5 is incomplete: status is '{status}'" in capsys.readouterr().err


def test_one_rank(tmp_path: Path) -> None:
    trace = trace_of(synthetic(size=1), tmp_path)
    assert {event["pid"] for event in trace["traceEvents"]} == {0}
    assert trace["otherData"]["clock_uncertainty_s"] == 1e-6


def test_communicators_work_side_by_side(tmp_path: Path) -> None:
    """Collectives of tp and of a second communicator overlap those of dp: each has its thread."""
    run = synthetic("mesh2d", size=4, tp=2, options={"communicators": 2})
    extra = [
        dict(row, kind=kind, axis=axis, layer=1, wait_s=0.0)
        for row in run.tables["events"]
        if row["stream"] == "comm" and row["layer"] == 0
        for kind, axis in (("all_reduce", "tp"), ("reduce_scatter", "dp"), ("all_reduce", "world"))
    ]
    run.tables["events"] += extra
    trace = trace_of(run, tmp_path)
    threads = [e["args"]["name"] for e in named(trace, "thread_name", 3)]
    assert sorted(threads) == ["comm", "comm reduce_scatter", "comm tp", "comm world", "compute", "steps"]
    assert named(trace, "all_reduce tp block 1", 3) and named(trace, "reduce_scatter block 1", 3)
    assert named(trace, "process_name", 3)[0]["args"]["name"].startswith("rank 3 (dp 1, tp 1)")


def test_names_of_what_has_no_layer(short: Synthetic, tmp_path: Path) -> None:
    short.config["options"]["wrap"] = "root"
    rows = [row for row in short.tables["events"] if row["step"] == 1 and row["rank"] == 0]
    gather, wait, compute, hidden, last = rows
    compute |= {"phase": "optimizer", "layer": -1}
    hidden |= {"layer": -1, "bucket": 3, "sent_bytes": 0}
    last |= {"layer": 2, "phase": "backward"}
    names = Counter(
        e["name"] for e in of_phase(trace_of(short, tmp_path, "--ranks", "0")["traceEvents"], "X")
    )
    assert set(names) == {
        *("step 1", "issue all_gather root group", "all_gather root group", "wait all_gather root group"),
        *("optimizer", "issue all_gather bucket 3", "all_gather bucket 3", "head backward"),
    }


def test_damage_leaves_the_old_file(
    run: Synthetic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        rows = file["memory"][()]
        rows["bytes"][-1] += 1
        file["memory"][...] = rows
    assert "checksum of dataset 'memory'" in refusal([str(path)], 1, tmp_path, capsys)
    path.write_bytes(path.read_bytes()[:5000])
    assert "cannot be read" in refusal([str(path)], 1, tmp_path, capsys)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_times_that_cannot_be(
    run: Synthetic, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float
) -> None:
    run.attributes["status"] = "running"  # nothing vouches for such a file
    run.row("events", step=4)["end_s"] = value
    assert "damaged; repeat the run" in refusal([str(run.write(tmp_path / "a.h5"))], 1, tmp_path, capsys)


def test_what_is_refused(run: Synthetic, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(run.write(tmp_path / "a.h5"))
    assert "does not exist" in refusal([str(tmp_path / "none.h5")], 2, tmp_path, capsys)
    assert "is a folder" in refusal([str(tmp_path)], 2, tmp_path, capsys)
    for output in ("a.html", "a", "a.JSON"):
        assert "does not end in .json, .png or .svg" in refusal([path], 2, tmp_path, capsys, output)
    assert "cannot be written" in unwritable(path, tmp_path / "none" / "a.json", capsys)
    (tmp_path / "folder.json").mkdir()
    assert "cannot be written" in unwritable(path, tmp_path / "folder.json", capsys)


def unwritable(path: str, output: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["timeline", path, "-o", str(output)]) == 1
    return capsys.readouterr().err


def test_collectives_have_no_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = synthetic_collectives().write(tmp_path / "a.h5")
    assert "pass a scenario's file" in refusal([str(path)], 2, tmp_path, capsys)


def test_an_existing_file_is_replaced_with_usual_rights(run: Synthetic, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    trace_of(run, tmp_path)
    (tmp_path / "other").write_text("")
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("output", ["a.json", "a.png", "a.svg"])
def test_the_same_bytes_everywhere(run: Synthetic, tmp_path: Path, output: str) -> None:
    """Under a decimal comma, another time zone and another hash seed."""
    path, written = run.write(tmp_path / "a.h5"), []
    source = str(Path(shardbench.__file__).parents[1])
    for index, setting in enumerate(
        ({}, {"LC_ALL": "de_DE.UTF-8", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"})
    ):
        target = tmp_path / str(index) / output
        target.parent.mkdir()
        if "LC_ALL" in setting:
            setting |= comma_locale(tmp_path)
        code = "import locale, sys; locale.setlocale(locale.LC_ALL, ''); from shardbench.cli import main; sys.exit(main())"
        subprocess.run(
            [sys.executable, "-c", code, "timeline", path, "-o", target],
            env={**os.environ, "PYTHONPATH": source, **setting},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        written.append(target.read_bytes())
    assert written[0] == written[1]


def comma_locale(folder: Path) -> dict[str, str]:
    """Where glibc finds a German locale, made here because systems seldom have it."""
    made = shutil.which("localedef") and subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")],
        capture_output=True,
        timeout=120,
    )
    if not made or not (folder / "de_DE.UTF-8/LC_NUMERIC").exists():
        pytest.skip("localedef cannot make a German locale here")
    return {"LOCPATH": str(folder)}


def picture(path: Path, folder: Path, *options: str) -> str:
    assert main(["timeline", str(path), "-o", str(folder / "a.svg"), *options]) == 0
    return (folder / "a.svg").read_text(encoding="utf-8")


def test_the_picture_shows_the_last_timed_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic(size=3)
    path = run.write(tmp_path / "a.h5")
    svg = picture(path, tmp_path)
    for text in (
        "rank 0",
        "rank 2",
        "step 8, 16.00 ms on the slowest rank",
        "waits for communication",
        "all_gather",
    ):
        assert f">{text}<" in svg or f"{text}<" in svg, text
    assert "time since the step began, ms (ranks' clocks compared to ± 1.0 µs)" in svg
    assert "layer: 0 embedding, 2 head" in svg
    assert "reduce_scatter" not in svg and "copies" not in svg
    assert capsys.readouterr().err == ""
    assert "step 3, 15.00 ms" in picture(path, tmp_path, "--steps", "3")
    assert "rank 0" not in picture(path, tmp_path, "--ranks", "1-2")


def test_a_png(run: Synthetic, tmp_path: Path) -> None:
    path = run.write(tmp_path / "a.h5")
    assert main(["timeline", str(path), "-o", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_picture_of_many_ranks_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = picture(synthetic(size=20).write(tmp_path / "a.h5"), tmp_path)
    assert "drawn are 16 of 20 ranks, 0 to 15; choose with --ranks" in svg
    assert "drawn are 16 of 20 ranks" in capsys.readouterr().err
    assert "rank 15<" in svg and "rank 16<" not in svg


def test_a_picture_has_one_step(run: Synthetic, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(run.write(tmp_path / "a.h5"))
    told = refusal([path, "--steps", "2-3"], 2, tmp_path, capsys, "a.png")
    assert "a picture shows one step, not 2" in told


def long_run(path: Path, events: int) -> Path:
    """At least as many events, and four times as many memory rows; a step has 80 events of each of two ranks."""
    run, micros, step_s = synthetic(step_s=[0.016], warmup=0), 16, 0.016
    run.tables["events"] = [
        row | {"micro": micro} | {name: (row[name] + micro * step_s) / micros for name in EVENT_TIMES}
        for row in run.tables["events"]
        for micro in range(micros)
    ]
    for row in run.tables["events"]:
        row["wait_s"] = row["end_s"] - row["start_s"] if row["wait_s"] else 0.0
    run.tables["memory"] *= 4 * len(run.tables["events"]) // len(run.tables["memory"])
    run.write(path)
    count = -(-events // len(run.tables["events"]))
    with h5py.File(path, "a") as file:
        for name, times in (("events", EVENT_TIMES), ("memory", ["at_s"]), ("steps", ["start_s"])):
            rows = file[name][()]
            del file[name]
            table = file.create_dataset(name, (count * len(rows),), rows.dtype)
            for index in range(count):
                table[index * len(rows) : (index + 1) * len(rows)] = rows
                rows["step"] += 1
                for time in times:
                    rows[time] += 1.0
    seal(path)
    return path


EVENT_TIMES = ("issue_s", "start_s", "end_s")

MEASURED = """
import resource, sys
from shardbench.cli import main
code = main(sys.argv[1:])
# Not ru_maxrss of this process, which is at least that of who started it (man 2 getrusage).
with open("/proc/self/status") as status:
    (own,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
print(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def peak_bytes(path: Path, output: Path) -> int:
    """Of the command and the process that reads for it; what they share counts twice."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "timeline", path, "-o", output],
        env={**os.environ, "PYTHONPATH": str(Path(shardbench.__file__).parents[1])},
        check=True,
        capture_output=True,
        text=True,
    )
    return 1024 * sum(map(int, done.stderr.split()))


def test_memory_does_not_grow_with_events(tmp_path: Path) -> None:
    few, many = (
        peak_bytes(long_run(tmp_path / f"{count}.h5", count), tmp_path / f"{count}.json")
        for count in (2_000, 60_000)
    )
    assert many < few + 25 * MEGABYTE
    checked(tmp_path / "2000.json")


@pytest.mark.slow
def test_a_million_events_in_200_mb(tmp_path: Path) -> None:
    path = long_run(tmp_path / "a.h5", 1_000_000)
    assert peak_bytes(path, tmp_path / "a.json") < 200e6
    # 20 MB of matplotlib are there twice in this sum, and once in memory.
    assert peak_bytes(path, tmp_path / "a.png") < 220e6


REAL = {
    "zero1": ["-n", "3", "zero1", "--clip", "1"],
    "ddp": ["-n", "2", "ddp", "--grad-accum", "2"],
    "zero3": ["-n", "2", "zero3", "--communicators", "2", "--prefetch", "2,1"],
    "zero3 root": ["-n", "1", "zero3", "--wrap", "root", "--tied"],
    "mesh2d": ["-n", "4", "mesh2d", "--tp", "2", "--sequence-parallel", "--recompute", "full"],
}


@pytest.mark.skipif(
    not ((BIN / "mesh2d").exists() and shutil.which(MPIEXEC)), reason="needs executables and mpiexec"
)
@pytest.mark.parametrize("arguments", REAL.values(), ids=REAL)
def test_real_runs(arguments: list[str], tmp_path: Path) -> None:
    path, (count, ranks, scenario, *options) = tmp_path / "a.h5", arguments
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM_", "MPI_LOCAL", "HYD"))}
    command = [MPIEXEC, count, ranks, BIN / scenario, "--threads", "1", "--steps", "2", *options, "-o", path]
    subprocess.run(
        command, env=kept, check=True, timeout=120, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    events = shown(path, tmp_path)["traceEvents"]
    with h5py.File(path) as file:
        rows = file["events"][()]
        timed = rows[rows["step"] >= 2]
    collectives = int((timed["stream"] == b"comm").sum())
    assert len(of_phase(events, "X")) == len(timed) + collectives + 2 * int(ranks)
    # Each arrow ends in a wait on the thread that computes.
    assert len(of_phase(events, "f")) == collectives
    assert {event["tid"] for event in of_phase(events, "f")} == {2}
    picture(path, tmp_path)
