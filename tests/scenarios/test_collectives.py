"""The program collectives: nccl-tests' columns, what the file holds, and what is really sent, counted from outside.

The messages are counted by a library that stands between the program and MPI (tests/pmpi).
"""

import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import runs

sys.path.insert(0, str(runs.ROOT / "analysis"))

from shardbench import stats  # noqa: E402
from shardbench.read import read_trace  # noqa: E402
from shardbench.validate import file_violations  # noqa: E402

RUN_TIME_FAILURE, USAGE, CHECK_FAILED = 1, 2, 3
LIMIT_S = 5.0  # for a refusal

COUNTER = runs.BIN.parent / "lib/count_messages.so"
ELEMENT_BYTES = {"float": 4, "bfloat16": 2}
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
WIDTHS = "size count type redop root time algbw busbw wrong in_time in_algbw in_busbw in_wrong".split()


@dataclass(frozen=True)
class Line:
    """One result line of standard output."""

    collective: str
    size: int
    count: int
    type: str
    redop: str
    root: int
    time_us: float
    algbw: float
    busbw: float
    wrong: str


def parse(stdout: str) -> list[Line]:
    lines, collective = [], ""
    for text in stdout.splitlines():
        if heading := re.fullmatch(r"# (\w+), algorithm \w+", text):
            collective = heading[1]
        if text.startswith("#") or not text.strip():
            continue
        fields = dict(zip(WIDTHS, text.split(), strict=True))
        assert {fields[name] for name in ("time", "algbw", "busbw", "wrong")} == {"N/A"}, text
        lines.append(Line(collective, int(fields["size"]), int(fields["count"]), fields["type"], fields["redop"], int(fields["root"]),
                          *(float(fields[name]) for name in ("in_time", "in_algbw", "in_busbw")), fields["in_wrong"]))
    return lines


def bench(ranks: int, options: str, folder: Path, code: int = 0, **environment: str) -> tuple[runs.Finished, runs.Trace]:
    path = folder / "c.h5"
    # Variables for the ranks only: mpiexec itself must not load what is preloaded.
    words = ["env", *(f"{name}={value}" for name, value in environment.items()), str(runs.BIN / "collectives")]
    finished = runs.execute([runs.MPIEXEC, "-n", str(ranks), *words, *options.split(), "--output", str(path), "--overwrite"], folder)
    assert finished.code == code, str(finished)
    return finished, runs.Trace(path)


def granted(collective: str, requested: int, type_: str, ranks: int) -> tuple[int, int]:
    """Size and count as nccl-tests computes them: all-reduce whole elements, else 16-byte multiples for each rank."""
    count = requested // ELEMENT_BYTES[type_]
    if collective == "all_reduce":
        return count * ELEMENT_BYTES[type_], count
    alignment = 16 // ELEMENT_BYTES[type_]
    count = count // ranks // alignment * alignment
    return count * ranks * ELEMENT_BYTES[type_], count


def factor(collective: str, ranks: int) -> float:
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def seconds(trace: runs.Trace, line: int) -> float:
    """Of one iteration: over the timed iterations of each rank, then the mean over ranks."""
    rows = trace["collectives"]
    rows = rows[(rows["line"] == line) & (rows["warmup"] == 0)]
    times = []
    for rank in range(trace.ranks):
        own = rows[rows["rank"] == rank]
        times.append((own["end_s"].max() - own["start_s"].min()) / len(own))
    return float(np.mean(times))


def test_columns_agree_with_the_file_and_with_the_rules(tmp_path: Path) -> None:
    ranks, sizes = 3, [100, 1000, 10_000, 100_000]
    finished, trace = bench(ranks, "-b 100 -e 100000 -f 10 -n 4 -w 2 -d all -o all", tmp_path)
    lines = parse(finished.stdout)
    wanted = [(collective, redop, type_, size) for collective in COLLECTIVES for type_ in ("float", "bfloat16")
              for redop in (("none",) if collective == "all_gather" else ("sum", "prod", "max", "min", "avg")) for size in sizes]
    assert [(line.collective, line.redop, line.type) for line in lines] == [w[:3] for w in wanted]
    for index, (line, (collective, _, type_, requested)) in enumerate(zip(lines, wanted, strict=True)):
        assert (line.size, line.count) == granted(collective, requested, type_, ranks)
        assert (line.root, line.wrong) == (-1, "0")
        elapsed_s = seconds(trace, index)
        assert line.time_us == pytest.approx(1e6 * elapsed_s, abs=0.051, rel=1e-4)
        assert line.algbw == pytest.approx(line.size / elapsed_s / 1e9, abs=0.0051)
        assert line.busbw == pytest.approx(line.size / elapsed_s / 1e9 * factor(collective, ranks), abs=0.0051)
        rows = trace["collectives"][trace["collectives"]["line"] == index]
        assert len(rows) == ranks * (2 + 4 + 1)
        assert set(rows["size_bytes"]) == {line.size}
        assert set(rows["count"]) == {line.count}
    average = float(re.search(r"^# Avg bus bandwidth +: (\S+) $", finished.stdout, re.MULTILINE)[1])
    exact = np.mean([line.size / seconds(trace, i) / 1e9 * factor(line.collective, ranks) for i, line in enumerate(lines)])
    assert average == pytest.approx(exact, rel=1e-4)
    assert "# Out of bounds values : 0 OK\n" in finished.stdout
    assert (trace.attributes["status"], trace.attributes["check"], trace.attributes["scenario"]) == ("complete", "passed", "collectives")


@pytest.mark.parametrize(("ranks", "options"), [
    (1, "-b 0 -e 1M -f 1 -i 512K"),
    (3, "-b 100 -e 100000 -f 10 -n 4 -w 2 -d all -o all"),
    (4, "-b 4K -e 64K -f 4 -n 1 -w 0 -c 0 --algorithm hierarchical --ranks-per-node 2 --collective all_gather,all_reduce"),
    (2, "-b 1K -e 1K -n 2 --algorithm native --progress thread"),
])
def test_run_does_what_the_plan_says(tmp_path: Path, ranks: int, options: str) -> None:
    planned = runs.execute([str(runs.BIN / "collectives"), "--plan", "--ranks", str(ranks), *options.split()], tmp_path)
    assert planned.code == 0, str(planned)
    assert os.listdir(tmp_path) == []
    plan = json.loads(planned.stdout)
    finished, trace = bench(ranks, options, tmp_path)
    rows = trace["collectives"][trace["collectives"]["rank"] == 0]
    assert len(rows) == len(plan["lines"]) * plan["repetitions"]
    fields = ("collective", "algorithm", "dtype", "size_bytes", "count", "sent_bytes")
    first = rows[rows["repetition"] == 0]
    assert [tuple(line[name] for name in fields) for line in plan["lines"]] == [tuple(row[name] for name in fields) for row in first]
    assert [line["op"] for line in plan["lines"]] == [line.redop for line in parse(finished.stdout)]
    assert plan["options"] == trace.config["options"]


def test_a_plan_refuses_what_a_run_would(tmp_path: Path) -> None:
    for options, reason in (("--algorithm hierarchical --ranks 5 --ranks-per-node 2", "hierarchical"), ("-b 2 -e 1", "--minbytes"),
                            ("--algorithm nccl --ranks 257 -c 1", "256"), ("--progress stream --ranks 257 -c 1", "256")):
        refused = runs.execute([str(runs.BIN / "collectives"), "--plan", *options.split()], tmp_path)
        assert (refused.code, refused.stdout) == (USAGE, ""), str(refused)
        assert reason in refused.stderr
        assert len(refused.stderr.splitlines()) == 1


def test_defaults_are_those_of_nccl_tests(tmp_path: Path) -> None:
    finished, trace = bench(1, "", tmp_path)
    lines = parse(finished.stdout)
    assert [(line.collective, line.size, line.type) for line in lines] == [(c, 32 << 20, "float") for c in COLLECTIVES]
    assert [line.redop for line in lines] == ["sum", "sum", "none"]
    assert [line.busbw for line in lines] == [0.0] * 3
    rows = trace["collectives"]
    assert np.sum(rows["warmup"] == 0) == 3 * 20
    assert np.sum(rows["wrong"] == 0) == 3
    assert np.sum(rows["warmup"] == 1) == 3 * 2  # one warm-up, one checked
    assert set(rows["algorithm"]) == {"local"}
    assert not rows["sent_bytes"].any()


@pytest.mark.parametrize(("ranks", "algorithm", "progress"), [
    *((2, algorithm, "thread") for algorithm in ("direct", "ring", "doubling", "hierarchical", "native")),
    *((5, algorithm, "none") for algorithm in ("direct", "ring", "doubling", "native")),
    (4, "hierarchical --ranks-per-node 2", "thread"),
    (6, "hierarchical --ranks-per-node 3", "none"),
    (6, "hierarchical --ranks-per-node 1", "poll"),
])
def test_every_algorithm_is_right(tmp_path: Path, ranks: int, algorithm: str, progress: str) -> None:
    _, trace = bench(ranks, f"-b 640 -e 300000 -f 400 -n 2 -w 0 -d all -o all --progress {progress} --algorithm {algorithm}", tmp_path)
    rows = trace["collectives"]
    assert set(rows["algorithm"]) == {algorithm.split()[0]}
    assert not rows["wrong"][rows["wrong"] >= 0].any()
    assert file_violations(trace.path) == []


def counted(folder: Path, ranks: int) -> list[list[int]]:
    """Communicators, messages and bytes of each rank."""
    return [[int(word) for word in (folder / f"counted.{rank}").read_text().split()] for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("algorithm", ["direct", "ring", "doubling", "hierarchical"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_sent_bytes_are_what_really_is_sent(tmp_path: Path, collective: str, algorithm: str, ranks: int) -> None:
    if not COUNTER.exists():
        pytest.skip("the counting library is not built with sanitizers")
    nodes = "--ranks-per-node 2" if algorithm == "hierarchical" and ranks != 3 else ""
    repetitions = 3 + 2 + 1  # timed, warm-up, checked
    for type_, requested in [("float", 5000), ("bfloat16", 5_000_000)]:
        options = f"-b {requested} -e {requested} -n 3 -w 2 -d {type_} --collective {collective} --algorithm {algorithm} {nodes}"
        _, trace = bench(ranks, options, tmp_path, LD_PRELOAD=str(COUNTER), COUNT_MESSAGES=str(tmp_path / "counted"))
        seen = counted(tmp_path, ranks)
        rows = trace["collectives"]
        size, _ = granted(collective, requested, type_, ranks)
        for rank, (communicators, messages, sent) in enumerate(seen):
            own = rows[rows["rank"] == rank]
            assert communicators == 1
            assert messages > 0
            assert len(own) == repetitions
            assert len(set(own["sent_bytes"])) == 1, "repetitions differ"
            assert sent == own["sent_bytes"].sum()
            if collective != "all_reduce":  # equal blocks
                assert sent == repetitions * size * (ranks - 1) // ranks
        # S(n-1)/n for each rank, twice for an all-reduce, whatever the algorithm.
        assert sum(sent for _, _, sent in seen) == repetitions * size * (ranks - 1) * (2 if collective == "all_reduce" else 1)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_wrong_element_is_seen_counted_and_fails_the_run(tmp_path: Path, collective: str) -> None:
    if not COUNTER.exists():
        pytest.skip("the spoiling library is not built with sanitizers")
    finished, trace = bench(3, f"-b 3000 -e 3000 -n 1 -w 0 --algorithm direct --collective {collective}", tmp_path, CHECK_FAILED,
                            LD_PRELOAD=str(COUNTER), SPOIL_MESSAGES="1")
    rows = trace["collectives"]
    checked = rows[rows["wrong"] >= 0]
    assert len(checked) == 3
    (line,) = parse(finished.stdout)
    assert int(line.wrong) == checked["wrong"].sum() > 0
    failing = int(np.sum(checked["wrong"] > 0))
    assert f"# Out of bounds values : {failing} FAILED\n" in finished.stdout
    assert (trace.attributes["status"], trace.attributes["check"]) == ("failed", "failed")
    # Nobody looked: nobody complains.
    finished, trace = bench(3, f"-b 3000 -e 3000 -n 1 -w 0 -c 0 --algorithm direct --collective {collective}", tmp_path,
                            LD_PRELOAD=str(COUNTER), SPOIL_MESSAGES="1")
    assert [line.wrong for line in parse(finished.stdout)] == ["N/A"]
    assert (trace.attributes["status"], trace.attributes["check"]) == ("complete", "off")
    assert set(trace["collectives"]["wrong"]) == {-1}


def test_repetitions_of_a_line_run_one_after_another(tmp_path: Path) -> None:
    _, trace = bench(2, "-b 1M -e 1M -n 10 --algorithm ring", tmp_path)
    rows = trace["collectives"]
    for rank, line in itertools.product(range(2), range(3)):
        own = rows[(rows["rank"] == rank) & (rows["line"] == line)]
        assert own["repetition"].tolist() == list(range(12))
        assert own["warmup"].tolist() == [1, *[0] * 10, 1]
        assert own["wrong"].tolist() == [-1] * 11 + [0]
        assert np.all(own["start_s"] < own["end_s"])
        timed = own[own["warmup"] == 0]
        # Back to back: the next begins when one is done, without an issue in between.
        gaps = timed["start_s"][1:] - timed["end_s"][:-1]
        assert np.all(gaps >= 0)
        assert np.median(gaps) < 0.1 * np.median(timed["end_s"] - timed["start_s"])


# --- windows until a precision or a budget is reached

BELOW_A_LINE = re.compile(r"#   stop (\w+): (\d+) windows; slowest rank (\S+) us (?:in \[(\S+), (\S+)\], (\S+) % wide|without .*)")


def reasons(stdout: str) -> list[tuple[str, int]]:
    """What stands below each line of the table: what ended it, and after how many windows."""
    return [(match[1], int(match[2])) for match in map(BELOW_A_LINE.fullmatch, stdout.splitlines()) if match]


@pytest.mark.parametrize(("precision", "budget_s"), [(0.9, 10.0), (0.2, 1.0)])
def test_windows_are_repeated_until_the_interval_is_narrow_enough(tmp_path: Path, precision: float, budget_s: float) -> None:
    ranks, iterations = 3, 4
    finished, trace = bench(ranks, f"-b 1K -e 64K -f 64 -n {iterations} -w 2 --precision {precision} --budget {budget_s}", tmp_path)
    assert file_violations(trace.path) == []
    lines, said = parse(finished.stdout), reasons(finished.stdout)
    assert len(lines) == len(said) == 6
    table = read_trace(trace.path).collectives
    for index, (line, (stop, windows)) in enumerate(zip(lines, said, strict=True)):
        rows = table[table["line"] == index]
        assert set(rows["stop"]) == {stop}
        assert len(rows) == ranks * (2 + windows * iterations + 1)
        times = stats.window_times(rows)
        assert len(times) == windows
        # As the program decided after each window: stop as soon as the interval is narrow enough, and no sooner.
        widths = [stats.relative_width(stats.estimate_median(times[:count])) for count in range(1, windows + 1)]
        narrow = [width is not None and width <= precision for width in widths]
        assert narrow == [False] * (windows - 1) + [stop == "precision"]
        assert stop in ("precision", "budget")
        assert (windows >= stats.MINIMUM_SAMPLES) or stop == "budget"
        own = rows[rows["rank"] == 0]
        timed = own[own["window"] >= 0]
        if stop == "budget":  # on rank 0's clock, which also saw what lies between the windows
            assert timed["end_s"].max() - timed["start_s"].min() > 0.5 * budget_s
        # The column is the mean over ranks, as nccl-tests prints it; then the median over windows.
        of_rank = rows[rows["window"] >= 0].groupby(["window", "rank"]).agg(first=("start_s", "min"), last=("end_s", "max"))
        means = ((of_rank["last"] - of_rank["first"]) / iterations).groupby("window").mean()
        assert line.time_us == pytest.approx(1e6 * means.median(), abs=0.051, rel=1e-4)


def test_a_budget_ends_a_line_that_never_gets_precise(tmp_path: Path) -> None:
    finished, trace = bench(2, "-b 1M -e 1M -n 1 --precision 1e-9 --budget 0.2", tmp_path)  # small ones may tie to the nanosecond
    assert [stop for stop, _ in reasons(finished.stdout)] == ["budget"] * 3
    assert finished.seconds < 10
    assert file_violations(trace.path) == []


def test_one_window_may_use_up_the_budget(tmp_path: Path) -> None:
    finished, trace = bench(2, "-b 4K -e 4K -n 3 --precision 0.05 --budget 1e-9", tmp_path)
    assert reasons(finished.stdout) == [("budget", 1)] * 3
    assert "without an interval" in finished.stdout
    assert file_violations(trace.path) == []


def test_more_rows_than_memory_shall_hold_end_a_line(tmp_path: Path) -> None:
    finished, trace = bench(1, "-b 8 -e 8 -n 600000 -c 0 --collective all_gather --precision 1e-9 --budget 600", tmp_path)
    assert reasons(finished.stdout) == [("rows", 1)]
    assert set(trace["collectives"]["stop"]) == {"rows"}


def test_without_a_precision_there_is_one_window_and_no_word_of_it(tmp_path: Path) -> None:
    finished, trace = bench(2, "-b 4K -e 4K -n 3 -w 2", tmp_path)
    rows = trace["collectives"]
    assert set(rows["stop"]) == {"iterations"}
    assert rows[(rows["rank"] == 1) & (rows["line"] == 0)]["window"].tolist() == [-1, -1, 0, 0, 0, -1]
    assert "stop" not in finished.stdout
    assert trace.config["options"]["precision"] is None


def test_every_window_begins_after_the_one_before_it_on_every_rank(tmp_path: Path) -> None:
    _, trace = bench(2, "-b 64K -e 64K -n 5 --collective all_reduce --precision 1e-9 --budget 0.1", tmp_path)
    rows, offsets = trace["collectives"], {row["rank"]: row["offset_s"] for row in trace["clock"]}
    uncertainty_s = trace["clock"]["uncertainty_s"].max()
    for window in range(1, rows["window"].max() + 1):
        before, now = rows[rows["window"] == window - 1], rows[rows["window"] == window]
        ended_s = max(row["end_s"] - offsets[row["rank"]] for row in before)
        assert all(row["start_s"] - offsets[row["rank"]] >= ended_s - 4 * uncertainty_s for row in now)


def test_the_clock_is_measured(tmp_path: Path) -> None:
    _, trace = bench(3, "-b 8 -e 8 -n 1", tmp_path)
    assert 0 < trace.attributes["timer_overhead_s"] < 1e-3
    assert 0 < trace.attributes["timer_resolution_s"] < 0.1


def test_json_names_the_reason_to_stop(tmp_path: Path) -> None:
    finished, _ = bench(2, f"-b 1K -e 1K -n 2 --precision 0.9 -J {tmp_path}/r.json", tmp_path)
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert [(r["stop"], r["windows"], r["actual_iterations"]) for r in results] == [
        (stop, windows, 2 * windows) for stop, windows in reasons(finished.stdout)]
    assert len(results) == 3


def test_json_repeats_the_table(tmp_path: Path) -> None:
    for name in ("r.json", "r.json.0", "r.json.1"):  # as nccl-tests, it never replaces one
        finished, trace = bench(2, f"-b 1K -e 4K -f 4 -n 2 -J {tmp_path}/r.json", tmp_path)
        assert f"# Wrote {tmp_path}/{name}\n" in finished.stdout
        report = json.loads((tmp_path / name).read_text())
        lines = parse(finished.stdout)
        assert len(report["results"]) == len(lines) == 6
        for index, (line, result) in enumerate(zip(lines, report["results"], strict=True)):
            assert (result["size"], result["count"], result["type"], result["redop"]) == (line.size, line.count, line.type, line.redop)
            assert result["experiment_name"] == line.collective
            assert result["in_place"]["time"] == pytest.approx(1e6 * seconds(trace, index))
            assert result["out_of_place"] is None
            assert result["actual_iterations"] == 2
        assert report["out_of_bounds"] == {"count": 0, "okay": "true"}
        assert [device["rank"] for device in report["config"]["devices"]] == [0, 1]
        assert report["config"]["step_factor"] == 4


def test_the_file_says_where_it_comes_from(tmp_path: Path) -> None:
    _, trace = bench(2, "-b 1K -e 1K -n 1 --ranks-per-node 1 --algorithm hierarchical --ranks 2", tmp_path)
    assert trace.config["options"]["minbytes"] == 1024
    assert trace.config["options"]["ranks-per-node"] == 1
    assert sorted(trace["ranks"]["rank"]) == [0, 1]
    assert len(trace["clock"]) == 4
    assert "collectives -b 1K" in trace.attributes["command_line"]
    assert file_violations(trace.path) == []


def test_default_output_is_named_like_the_scenarios(tmp_path: Path) -> None:
    finished = runs.execute([runs.MPIEXEC, "-n", "2", str(runs.BIN / "collectives"), "-b", "8", "-e", "8", "-n", "1"], tmp_path)
    assert finished.code == 0, str(finished)
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"collectives_n2_\d{8}T\d{6}Z_\w+\.h5", path.name)
    assert f"# Wrote {path.name}\n" in finished.stdout


LAUNCHES = {"alone": [], "mpiexec -n 3": [runs.MPIEXEC, "-n", "3"]}


def refused(folder: Path, code: int, launch: Sequence[str], options: Sequence[str]) -> str:
    before = sorted(os.listdir(folder))
    finished = runs.execute([*launch, str(runs.BIN / "collectives"), *options], folder)
    assert finished.code == code, str(finished)
    assert finished.stdout == "", str(finished)
    (line,) = finished.stderr.splitlines()
    assert line.startswith("collectives: "), str(finished)
    assert finished.seconds < LIMIT_S, str(finished)
    assert sorted(os.listdir(folder)) == before
    return line


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize(("options", "said"), [
    ("--maxbyte 4", ["--maxbyte", "--maxbytes"]),
    ("-b 2M -e 1M", ["--minbytes 2M", "--maxbytes 1M"]),
    ("-b 3X", ["3X"]),
    ("-f 2 -b 0 -e 1", ["--stepfactor"]),
    ("-o mul", ["mul", "sum|prod"]),
    ("-d int8", ["int8", "float"]),
    ("--collective bcast", ["bcast", "all_gather"]),
    ("--algorithm tree", ["tree", "hierarchical"]),
    ("--algorithm nccl", ["nccl", "shardbench simulate"]),
    ("--progress never", ["never", "poll"]),
    ("-n", ["--iters"]),
    ("--ranks 2", ["--ranks 2"]),
    ("--ranks-per-node 0", ["--ranks-per-node"]),
    ("--budget 3", ["--budget", "--precision"]),
    ("--precision 0", ["--precision"]),
    ("--precision 0,05", ["--precision", "0,05"]),
    ("--precision 0.1 --budget 0", ["--budget"]),
    ("--output --overwrite", ["--output", "--overwrite"]),
])
def test_usage(tmp_path: Path, launch: str, options: str, said: list[str]) -> None:
    line = refused(tmp_path, USAGE, LAUNCHES[launch], options.split())
    assert all(word in line for word in said), line


def test_nodes_that_are_not_equal_are_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, USAGE, LAUNCHES["mpiexec -n 3"], ["--algorithm", "hierarchical", "--ranks-per-node", "2"])
    assert all(word in line for word in ("hierarchical", "0,0,1", "--ranks-per-node")), line


@pytest.mark.parametrize("launch", LAUNCHES)
def test_an_existing_file_is_kept(tmp_path: Path, launch: str) -> None:
    (tmp_path / "c.h5").write_text("precious")
    line = refused(tmp_path, USAGE, LAUNCHES[launch], ["--output", "c.h5"])
    assert "--overwrite" in line
    assert (tmp_path / "c.h5").read_text() == "precious"


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("options", ["-b 900000G -e 900000G", "-e 900000G"])
def test_buffers_beyond_the_memory_are_refused(tmp_path: Path, launch: str, options: str) -> None:
    line = refused(tmp_path, RUN_TIME_FAILURE, LAUNCHES[launch], options.split())
    assert all(word in line for word in ("--maxbytes", "memory")), line


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("option", ["--output", "-J"])
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, launch: str, option: str) -> None:
    path = "nowhere/file" if option == "--output" else f"{tmp_path}/nowhere/file"
    finished = runs.execute([*LAUNCHES[launch], str(runs.BIN / "collectives"), option, path], tmp_path)
    assert finished.code == RUN_TIME_FAILURE, str(finished)
    (line,) = finished.stderr.splitlines()
    assert "nowhere/file" in line


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_what_is_printed_under_mpiexec_is_printed_once(tmp_path: Path, option: str) -> None:
    alone = runs.execute([str(runs.BIN / "collectives"), option], tmp_path)
    together = runs.execute([runs.MPIEXEC, "-n", "3", str(runs.BIN / "collectives"), option], tmp_path)
    assert (together.code, together.stderr) == (0, "")
    assert together.stdout == alone.stdout != ""
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed")
@pytest.mark.skipif(not (runs.SIM_BIN / "collectives").exists(), reason=f"{runs.SIM_BIN}/collectives is not built (preset sim)")
@pytest.mark.parametrize("algorithm", ["nccl", "coarse", "ring"])
def test_simulated_counts_that_do_not_divide_are_all_sent(tmp_path: Path, algorithm: str) -> None:
    command = [sys.executable, "-m", "shardbench", "simulate", "collectives", "--ranks", "24", "--platform", "h100-fat-tree",
               "--sim-bin", str(runs.SIM_BIN), "--", "-b", "256", "-e", "64K", "-f", "4", "-n", "1", "-w", "0",
               "--algorithm", algorithm, "--output", str(tmp_path / "c.h5")]
    finished = runs.execute(command, tmp_path, PYTHONPATH=str(runs.ROOT / "analysis"))
    assert finished.code == 0, str(finished)
    assert file_violations(tmp_path / "c.h5") == []
