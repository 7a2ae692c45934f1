"""Each invariant is broken alone: validate must name that one, with its numbers, and no other."""

from collections.abc import Callable
from math import nan
from pathlib import Path

import h5py
import pytest

from shardbench.validate import file_violations
from synthetic import Synthetic, synthetic, synthetic_collectives


def violations(run: Synthetic, folder: Path) -> list[str]:
    return file_violations(run.write(folder / "a.h5"))


def only(run: Synthetic, folder: Path) -> str:
    found = violations(run, folder)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
def test_valid_run(tmp_path: Path, scenario: str, size: int) -> None:
    assert violations(synthetic(scenario, size), tmp_path) == []


def test_valid_mesh(tmp_path: Path) -> None:
    assert violations(synthetic("mesh2d", 8, tp=2), tmp_path) == []


def test_status(run: Synthetic, tmp_path: Path) -> None:
    run.attributes["status"] = "interrupted"
    assert "status is 'interrupted'" in only(run, tmp_path)


def test_schema_version(run: Synthetic, tmp_path: Path) -> None:
    run.attributes["schema_version"] = 3
    assert "schema_version is 3" in only(run, tmp_path)


def test_mesh_product(run: Synthetic, tmp_path: Path) -> None:
    run.attributes["dp"] = 3
    assert "dp·tp = 3·1 = 3, but world_size is 2" in only(run, tmp_path)


def test_mesh_order(run: Synthetic, tmp_path: Path) -> None:
    run.row("ranks", rank=1)["dp_index"] = 0
    assert "rank 1 has dp_index 0 and tp_index 0" in only(run, tmp_path)


def test_rank_missing(run: Synthetic, tmp_path: Path) -> None:
    run.tables["ranks"].pop()
    assert "ranks: rank 1 is missing" in violations(run, tmp_path)


def test_step_missing(run: Synthetic, tmp_path: Path) -> None:
    run.tables["steps"].remove(run.row("steps", rank=1, step=3))
    text = "; ".join(violations(run, tmp_path))
    assert "17 rows, expected 2 ranks x (2 warm-up + 7 timed) steps = 18" in text
    assert "(rank, step) (1, 3) is missing" in text


def test_step_repeated(run: Synthetic, tmp_path: Path) -> None:
    run.tables["steps"].append(dict(run.row("steps", rank=0, step=0)))
    assert "(rank, step) (0, 0) is repeated" in "; ".join(violations(run, tmp_path))


def test_step_count_is_the_configured_one(run: Synthetic, tmp_path: Path) -> None:
    run.config["options"]["steps"] = 8
    assert "(0, 9) is missing (and 1 more row)" in "; ".join(violations(run, tmp_path))


def test_step_option_missing(run: Synthetic, tmp_path: Path) -> None:
    del run.config["options"]["warmup"]
    assert "options 'warmup' and 'steps'" in only(run, tmp_path)


@pytest.mark.parametrize("error_s", [2e-6, -2e-6, nan])
def test_step_sum(run: Synthetic, tmp_path: Path, error_s: float) -> None:
    run.row("steps", rank=1, step=4)["other_s"] += error_s
    assert "rank 1, step 4: step_s = 0.011 s, but" in only(run, tmp_path)


def test_step_sum_tolerates_rounding(run: Synthetic, tmp_path: Path) -> None:
    run.row("steps", rank=1, step=4)["other_s"] += 0.9e-6
    assert violations(run, tmp_path) == []


@pytest.mark.parametrize("column", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [1.25, nan])
def test_same_on_every_rank(run: Synthetic, tmp_path: Path, column: str, value: float) -> None:
    run.attributes["compute"] = "timed"  # where NaN is a value like others
    run.row("steps", rank=1, step=2)[column] = value
    text = only(run, tmp_path)
    assert f"{column} of step 2 differs between ranks" in text
    assert f"rank 1: {value}" in text


@pytest.mark.parametrize("column", ["loss", "grad_norm"])
def test_real_compute_has_numbers(run: Synthetic, tmp_path: Path, column: str) -> None:
    for row in run.tables["steps"]:
        row[column] = nan
    assert "though compute was real" in only(run, tmp_path)


def test_nan_losses_are_the_same(run: Synthetic, tmp_path: Path) -> None:
    run.attributes["compute"] = "timed"
    for row in run.tables["steps"]:
        row["loss"] = row["grad_norm"] = nan
    assert violations(run, tmp_path) == []


def test_tokens_beside_tp_index_0(tmp_path: Path) -> None:
    run = synthetic("mesh2d", 4, tp=2)
    run.row("steps", rank=3, step=1)["tokens"] = 32
    assert "rank 3, step 1: tokens = 32" in only(run, tmp_path)


def test_tokens_absent_on_tp_index_0(run: Synthetic, tmp_path: Path) -> None:
    run.row("steps", rank=0, step=1)["tokens"] = 0
    assert "rank 0, step 1: tokens = 0" in only(run, tmp_path)


def _end_before_start(event: dict) -> None:
    event["end_s"] = event["start_s"] / 2


def _start_before_issue(event: dict) -> None:
    event["issue_s"] = 0.0625


def _negative_wait(event: dict) -> None:
    event["wait_s"] = -1e-9


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (_end_before_start, "start_s = 0.05 s must not be later than end_s = 0.025 s"),
        (_start_before_issue, "issue_s = 0.0625 s must not be later than start_s = 0.05 s"),
        (_negative_wait, "wait_s = -1e-09 s is not a time >= 0"),
    ],
)
def test_event_times(run: Synthetic, tmp_path: Path, break_it: Callable[[dict], None], sentence: str) -> None:
    break_it(run.row("events", rank=1, step=1, kind="all_gather"))
    assert f"all_gather of rank 1, step 1, layer 0: {sentence}" in only(run, tmp_path)


def test_negative_event_time(run: Synthetic, tmp_path: Path) -> None:
    run.row("events", rank=0, step=0, kind="wait")["issue_s"] = -0.5
    assert "wait of rank 0, step 0, layer 0: issue_s = -0.5 s" in only(run, tmp_path)


@pytest.mark.parametrize("kind", ["wait", "compute"])
def test_overlap_on_compute(run: Synthetic, tmp_path: Path, kind: str) -> None:
    run.row("events", rank=1, step=0, kind=kind)["end_s"] += 1e-6
    text = only(run, tmp_path)
    assert "stream compute: compute of rank 1, step 0" in text
    assert "before an earlier event ends" in text


def test_overlap_with_an_event_before_the_previous_one(run: Synthetic, tmp_path: Path) -> None:
    """A long event that covers several later ones is found at each of them."""
    run.row("events", rank=1, step=0, kind="wait")["end_s"] = 0.049
    assert "(and 1 more row)" in only(run, tmp_path)


def test_overlap_on_comm_with_one_communicator(run: Synthetic, tmp_path: Path) -> None:
    run.row("events", rank=0, step=0, kind="all_gather", layer=0)["end_s"] += 1e-6
    assert "stream comm with 1 communicator: all_gather of rank 0, step 0, layer 1" in only(run, tmp_path)
    run.config["options"]["communicators"] = 2
    assert "stream comm with 2 communicators" in only(run, tmp_path)
    run.row("events", rank=0, step=0, kind="all_gather", layer=0)["kind"] = "reduce_scatter"
    assert "stream comm" not in "".join(violations(run, tmp_path))


def test_axes_have_communicators_of_their_own(run: Synthetic, tmp_path: Path) -> None:
    first = run.row("events", rank=0, step=0, kind="all_gather", layer=0)
    first["end_s"] += 1e-6
    first["axis"] = "tp"
    assert "stream comm" not in "".join(violations(run, tmp_path))


def test_events_of_other_ranks_may_overlap(run: Synthetic, tmp_path: Path) -> None:
    for row in run.tables["events"]:
        if row["rank"] == 1:
            for column in ("issue_s", "start_s", "end_s"):
                row[column] += 0.001
    assert violations(run, tmp_path) == []


@pytest.mark.parametrize("column", ["phase", "kind", "stream"])
def test_unknown_word(run: Synthetic, tmp_path: Path, column: str) -> None:
    run.row("events", kind="compute")[column] = "nonsense"
    assert f"events: {column} is 'nonsense', must be one of" in only(run, tmp_path)


def test_unknown_axis(run: Synthetic, tmp_path: Path) -> None:
    run.row("events", kind="compute")["axis"] = ""
    assert violations(run, tmp_path) == []
    run.row("events", kind="all_gather")["axis"] = "pp"
    assert "axis of a collective is 'pp'" in only(run, tmp_path)


def test_peak_below_a_sample(run: Synthetic, tmp_path: Path) -> None:
    run.row("memory_peak", rank=1, category="activations")["peak_bytes"] = 4999
    text = only(run, tmp_path)
    assert "rank 1, category activations has a sample of 5000 bytes, above its peak_bytes (4999)" in text


def test_peak_missing(run: Synthetic, tmp_path: Path) -> None:
    run.tables["memory_peak"].remove(run.row("memory_peak", rank=0, category="process_rss"))
    assert "rank 0, category process_rss has a sample of 9000000 bytes" in only(run, tmp_path)


def test_samples_of_a_device_are_not_tracked_bytes(run: Synthetic, tmp_path: Path) -> None:
    for table, field in (("memory", "bytes"), ("memory_peak", "peak_bytes")):
        template = run.row(table, rank=0, category="process_rss")
        run.tables[table].append(dict(template) | {"category": "device_used", field: 80_000_000_000})
    assert violations(run, tmp_path) == []


def test_peak_repeated(run: Synthetic, tmp_path: Path) -> None:
    run.tables["memory_peak"].append(dict(run.row("memory_peak", rank=0, category="optimizer")))
    assert "category optimizer has more than one row" in only(run, tmp_path)


@pytest.mark.parametrize(
    ("quantity", "error"),
    [
        ("all_gather_forward_count", 1),
        ("all_gather_forward_count", 1e-12),
        ("all_gather_forward_size", 1e-9),
        ("static_bytes", 1e-9),
        ("volume_elements", 1e-8),
        ("volume_bytes", float("nan")),
    ],
)
def test_ledger(run: Synthetic, tmp_path: Path, quantity: str, error: float) -> None:
    run.row("ledger", rank=1, quantity=quantity)["measured"] += error
    assert f"{quantity}: measured" in only(run, tmp_path)


def test_ledger_tolerates_rounding_of_volumes_only(run: Synthetic, tmp_path: Path) -> None:
    run.row("ledger", rank=1, quantity="volume_elements")["measured"] *= 1 + 5e-13
    assert violations(run, tmp_path) == []
    run.row("ledger", rank=1, quantity="static_bytes")["measured"] *= 1 + 5e-13
    assert "static_bytes" in only(run, tmp_path)


def test_tensor_indices(run: Synthetic, tmp_path: Path) -> None:
    run.row("tensors", index=2)["index"] = 1
    assert violations(run, tmp_path) == [
        "tensors: index 2 is missing",
        "tensors: index 1 is repeated",
    ]


@pytest.mark.parametrize(
    ("level", "may_be_empty"),
    [
        ("events", ("calibration", "clock")),
        ("steps", ("events", "memory")),
        ("none", ("events", "memory", "memory_peak", "ledger", "tensors", "clock")),
    ],
)
def test_trace_level_allows_empty_datasets(
    run: Synthetic, tmp_path: Path, level: str, may_be_empty: tuple[str, ...]
) -> None:
    run.config["options"]["trace"] = level
    for table in may_be_empty:
        run.tables[table] = []
    assert violations(run, tmp_path) == []


@pytest.mark.parametrize("table", ["events", "memory", "ledger", "tensors"])
def test_full_trace_needs_its_datasets(run: Synthetic, tmp_path: Path, table: str) -> None:
    run.tables[table] = []
    assert f"{table}: no rows, although the option trace is 'events'" in only(run, tmp_path)


# --- what tables say of each other


def change(table: str, column: str, value: object, **where: object) -> Callable[[Synthetic], None]:
    """A fault: another value in the first row with the given ones; a function makes it from the old value."""

    def apply(run: Synthetic) -> None:
        row = run.row(table, **where)
        row[column] = value(row[column]) if callable(value) else value

    return apply


def add(seconds: float) -> Callable[[float], float]:
    return lambda old: old + seconds


def remove(table: str, **where: object) -> Callable[[Synthetic], None]:
    return lambda run: run.tables[table].remove(run.row(table, **where))


def move_events(run: Synthetic) -> None:
    """Of one step, 1 us to the front: out of their step, and apart from each other as before."""
    for row in run.tables["events"]:
        if (row["rank"], row["step"]) == (1, 3):
            for column in ("issue_s", "start_s", "end_s"):
                row[column] -= 1e-6


def negative_part(run: Synthetic) -> None:
    row = run.row("steps", rank=0, step=4)
    row["other_s"] -= 0.002
    row["optimizer_s"] += 0.002


def total(run: Synthetic, bytes_: int) -> None:
    for rank in range(2):
        run.tables["memory_peak"].append(dict(rank=rank, category="total_tracked", peak_bytes=bytes_))


def stated_peak(run: Synthetic) -> None:
    total(run, 20000)
    row = dict(axis="world", quantity="textbook_peak_bytes", expected=1.0, padding=0.0, unit="bytes")
    run.tables["ledger"].append(dict(rank=1, measured=20001.0, **row))


GATHER = dict(kind="all_gather", layer=0)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (negative_part, "rank 0, step 4: other_s = -0.0015 s is negative"),
        (
            change("steps", "exposed_rs_s", 2e-6, rank=1, step=3),
            "rank 1, step 3: exposed_s = 0.00375 s, but its four parts",
        ),
        (
            change("steps", "start_s", add(-1e-6), rank=1, step=3),
            "rank 1, step 3 starts at 0.109999 s, before the one",
        ),
        (
            change("steps", "warmup", 1, rank=0, step=5),
            "rank 0, step 5: warmup = 1, but with 2 warm-up steps",
        ),
        (
            change("steps", "warmup", 0, rank=0, step=1),
            "warmup = 0, but with 2 warm-up steps and windows of 10 it must be 1",
        ),
        (
            change("events", "rank", 2, rank=1, step=4, **GATHER),
            "events: rank 2 does not exist: world_size is 2",
        ),
        (change("clock", "rank", -1, rank=1), "clock: rank -1 does not exist"),
        (move_events, "layer 0 lasts from 0.109999 s to 0.113749 s, beyond its step, from 0.11 s"),
        (
            change("events", "step", 9, rank=1, step=8, **GATHER),
            "all_gather of rank 1, step 9, layer 0 belongs to no row of steps",
        ),
        (
            remove("events", rank=1, step=3, kind="wait"),
            "rank 1, step 3: exposed_s = 0.00375 s, but the waits among events add up",
        ),
        (
            remove("events", rank=1, step=3, kind="compute"),
            "step 3: compute_s = 0.009749999999999998 s, but the layers' compute among events",
        ),
        (
            change("events", "wait_s", 0.0, rank=1, step=3, **GATHER),
            "wait of rank 1, step 3, layer 0 lasts 0.0037",
        ),
        (
            change("events", "elements", 7, rank=1, step=3, kind="wait"),
            "wait of rank 1, step 3, layer 0 lasts 0.0037",
        ),
        (
            change("events", "wait_s", 1e-6, rank=1, step=3, kind="all_gather", layer=1),
            "has wait_s = 1e-06 s, but there is no such wait",
        ),
        (
            change("events", "group_size", 4, rank=0, step=3, **GATHER),
            "group_size = 4, but axis dp has 2 ranks",
        ),
        (
            change("events", "bytes", 2399, rank=0, step=3, **GATHER),
            "layer 0: bytes = 2399, but elements = 1200 of bf16",
        ),
        (
            change("events", "phase", "backward", rank=0, step=8, **GATHER),
            "all_gather_forward_count: expected + padding is 3.0 count, but the events of the last step make 2.0",
        ),
        (
            remove("events", rank=0, step=8, kind="all_gather", layer=1),
            "rank 0, axis dp, all_gather_forward_count: expected + padding is 3.0",
        ),
        (
            lambda run: total(run, 30000),
            "total_tracked = 30000 bytes exceeds the sum of the categories' peaks, 24200 (and 1 more rank)",
        ),
        (
            lambda run: total(run, 7399),
            "rank 0 at 0.1 s: the categories add up to 7400 bytes, above total_tracked = 7399",
        ),
        (
            stated_peak,
            "ledger: rank 1: textbook_peak_bytes: measured 20001.0 bytes is not total_tracked = 20000",
        ),
        (
            change("tensors", "elements", 401, index=2),
            "tensors: their elements add up to 1201, but psi is 1200",
        ),
        (change("clock", "offset_s", 1e-9, rank=0), "clock: rank 0 at 0.0 s: offset_s = 1e-09 s"),
        (change("clock", "uncertainty_s", -1e-9, rank=1), "clock: rank 1 at 0.0 s"),
        (change("clock", "offset_s", nan, rank=1), "clock: rank 1 at 0.0 s: offset_s = nan s"),
    ],
)
def test_tables_that_disagree(
    run: Synthetic, tmp_path: Path, fault: Callable[[Synthetic], None], sentence: str
) -> None:
    run.config["options"]["window"] = 10
    fault(run)
    assert any(sentence in found for found in violations(run, tmp_path)), violations(run, tmp_path)


def test_steady_is_what_the_steps_say(tmp_path: Path) -> None:
    for late_s, steady in ((0.0109, 1), (0.0111, 0), (0.0091, 1), (0.0089, 0)):
        step_s = [0.010] * 5 + [late_s] * 4
        assert violations(synthetic(step_s=step_s, steady=steady), tmp_path) == []
        assert f"steady is {1 - steady}, but" in only(synthetic(step_s=step_s, steady=1 - steady), tmp_path)


def test_windows_begin_with_a_warm_up_step(tmp_path: Path) -> None:
    run = synthetic(step_s=[0.010] * 7, options={"window": 3})
    assert "rank 0, step 5: warmup = 0" in "".join(violations(run, tmp_path))
    for row in run.tables["steps"]:
        row["warmup"] |= int(row["step"] in (5, 8))
    assert violations(run, tmp_path) == []


def test_negative_calibration(run: Synthetic, tmp_path: Path) -> None:
    row = dict(kind="block", layer=1, direction="forward", compute_alone_s=0.1, communication_alone_s=-0.1)
    run.tables["calibration"] = [row]
    assert "calibration: block forward: compute_alone_s = 0.1 s, communication_alone_s = -0.1 s" in only(
        run, tmp_path
    )


def test_unsound_tables_are_not_compared(run: Synthetic, tmp_path: Path) -> None:
    """A missing step leaves events without one, which need not be said as well."""
    run.tables["steps"].remove(run.row("steps", rank=1, step=3))
    assert not any(sentence.startswith("events") for sentence in violations(run, tmp_path))


def test_damaged_file_is_a_violation(run: Synthetic, tmp_path: Path) -> None:
    path = run.write(tmp_path / "a.h5")
    path.write_bytes(path.read_bytes()[:2000])
    assert "truncated or damaged" in file_violations(path)[0]


# --- files of the program collectives


@pytest.mark.parametrize("size", [1, 2, 5])
def test_valid_collectives(tmp_path: Path, size: int) -> None:
    assert violations(synthetic_collectives(size), tmp_path) == []


def test_the_table_of_collectives_is_optional_and_its_shape_is_checked(
    run: Synthetic, tmp_path: Path
) -> None:
    assert "collectives" not in run.tables
    assert violations(run, tmp_path) == []
    run.tables["collectives"] = synthetic_collectives().tables["collectives"]
    path = run.write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        rows = file["collectives"][()]
        del file["collectives"]
        file["collectives"] = rows[["rank", "line"]]
    assert "dataset 'collectives' has no field 'count'" in "; ".join(file_violations(path))


def test_collectives_need_rows(tmp_path: Path) -> None:
    run = synthetic_collectives()
    run.tables["collectives"] = []
    assert only(run, tmp_path) == "collectives: no rows"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"collective": "broadcast"}, "collective is 'broadcast'"),
        ({"algorithm": "tree"}, "algorithm is 'tree'"),
        ({"reduction": "none"}, "reduction is 'none' of reduce_scatter"),
        ({"count": 33}, "count 33 of bf16 on 2 ranks makes 132"),
        ({"sent_bytes": 63}, "all ranks together sent 127 bytes, the volume is 128"),
        ({"warmup": 1}, "warmup = 1, but repetitions 1 to 2 are the timed ones"),
        ({"wrong": 0}, "wrong = 0, but repetitions from 3 on are the checked ones"),
        ({"end_s": 4.0}, "start_s = 5.0 s, end_s = 4.0 s"),
        ({"end_s": 6.5}, "starts at 6.0 s, before the one before it ends at 6.5 s"),
        ({"start_s": nan}, "start_s = nan s"),
        ({"repetition": 2}, "is repeated"),
        ({"window": -1}, "window = -1, must be 0 with 2 timed repetitions a window"),
        ({"stop": "precision"}, "line 1: its rows name several reasons to stop: iterations, precision"),
        ({"stop": "boredom"}, "stop is 'boredom'"),
    ],
)
def test_a_row_of_collectives(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    run = synthetic_collectives()
    run.row("collectives", collective="reduce_scatter", rank=1, repetition=1).update(changes)
    found = violations(run, tmp_path)
    assert said in "; ".join(found)
    assert all(sentence.startswith("collectives: ") for sentence in found)


# --- windows until a precision is reached


@pytest.mark.parametrize("size", [1, 3])
def test_valid_windows(tmp_path: Path, size: int) -> None:
    assert violations(synthetic_collectives(size, windows=6, precision=0.05), tmp_path) == []


def of_line(run: Synthetic, line: int, **changes: object) -> None:
    for row in run.tables["collectives"]:
        if row["line"] == line:
            row.update(changes)


def test_precision_needs_six_windows(tmp_path: Path) -> None:
    run = synthetic_collectives(windows=5, precision=0.05)
    for sentence in violations(run, tmp_path):
        assert "stop is 'precision', but its 5 windows have no interval" in sentence
    for line in range(3):
        of_line(run, line, stop="budget")
    assert violations(run, tmp_path) == []


def test_the_slowest_rank_sets_the_width(tmp_path: Path) -> None:
    run = synthetic_collectives(windows=6, precision=0.05)
    for window in (0, 5):  # 1.5 s and 1.4 s for two iterations: 0.1 / 1.5 is wider than 5 %
        run.row("collectives", line=1, rank=1, repetition=2 * window + 2)["end_s"] -= 0.1
    assert violations(run, tmp_path) == []  # the other rank hides it
    for window in range(6):
        run.row("collectives", line=1, rank=0, repetition=2 * window + 2)["end_s"] -= 0.2
    assert "line 1: stop is 'precision', but its 6 windows have an interval 0.0666667" in only(run, tmp_path)
    of_line(run, 1, stop="budget")
    assert violations(run, tmp_path) == []


def test_a_narrow_interval_has_reached_the_precision(tmp_path: Path) -> None:
    run = synthetic_collectives(windows=6, precision=0.05)
    of_line(run, 2, stop="budget")
    assert "line 2: stop is 'budget', but its 6 windows have an interval 0 of" in only(run, tmp_path)


def test_the_reason_to_stop_fits_the_options(tmp_path: Path) -> None:
    run = synthetic_collectives(windows=6, precision=0.05)
    of_line(run, 0, stop="iterations")
    assert "line 0: stop is 'iterations' after 6 windows, with --precision 0.05" in only(run, tmp_path)
    run = synthetic_collectives(windows=2)
    assert all("after 2 windows, with no --precision" in sentence for sentence in violations(run, tmp_path))
    run = synthetic_collectives(windows=5, precision=0.05)
    for line in range(3):
        of_line(run, line, stop="rows")
    assert all(
        "stop is 'rows' with room for another window" in sentence for sentence in violations(run, tmp_path)
    )
    assert len(violations(run, tmp_path)) == 3


def test_lines_may_have_different_numbers_of_windows(tmp_path: Path) -> None:
    run, longer = synthetic_collectives(windows=6, precision=0.05), synthetic_collectives(
        windows=7, precision=0.05
    )
    rows = [row for row in run.tables["collectives"] if row["line"] < 2]
    last = [row for row in longer.tables["collectives"] if row["line"] == 2]
    run.tables["collectives"] = rows + last
    assert violations(run, tmp_path) == []
    last[-1]["rank"] = 7
    assert violations(run, tmp_path) != []


@pytest.mark.parametrize("value", [-1e-9, float("inf"), nan])
@pytest.mark.parametrize("name", ["timer_overhead_s", "timer_resolution_s"])
def test_the_quality_of_the_clock_is_a_time(tmp_path: Path, name: str, value: float) -> None:
    run = synthetic_collectives()
    run.attributes[name] = value
    assert only(run, tmp_path) == f"{name} is {value} s, must be a time from 0"


def test_the_clock_may_be_missing_elsewhere(run: Synthetic, tmp_path: Path) -> None:
    assert "timer_overhead_s" not in run.attributes
    assert violations(run, tmp_path) == []
    run.attributes["timer_overhead_s"] = 3  # not a floating-point number
    assert "root attribute 'timer_overhead_s' must be" in "; ".join(violations(run, tmp_path))


def test_wrong_elements_contradict_a_passed_check(tmp_path: Path) -> None:
    run = synthetic_collectives()
    run.row("collectives", rank=1, repetition=3)["wrong"] = 4
    assert "wrong = 4, but check is 'passed'" in only(run, tmp_path)
    run.attributes["check"] = "failed"
    assert violations(run, tmp_path) == []


def test_what_a_library_sends_is_not_told(tmp_path: Path) -> None:
    run = synthetic_collectives()
    for row in run.tables["collectives"]:
        row.update(algorithm="native", sent_bytes=-1)
    assert violations(run, tmp_path) == []
