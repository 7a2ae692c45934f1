"""The command, and what its page says. How the page is built: test_report_page.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardbench
from shardbench.cli import main
from pages import parse
from synthetic import Synthetic, synthetic, synthetic_collectives


def write(folder: Path, *runs: Synthetic) -> None:
    for index, run in enumerate(runs):
        run.write(folder / f"{index}.h5")


def page_of(folder: Path) -> str:
    page = folder / "report.html"
    assert main(["report", str(folder), "-o", str(page)]) == 0
    return page.read_text(encoding="utf-8")


def test_table_and_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = (128, 1, 16, 2, 4)
    write(tmp_path, *(synthetic(size=size, step_s=[0.01] * 6) for size in sizes))
    page_of(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(tmp_path / "report.html")
    rows = [line.split() for line in lines if line.startswith("zero3")]
    assert [row[1] for row in rows] == ["1", "2", "4", "16", "128", "2", "4", "16", "128"]
    assert lines[4].split("  ")[0] == "zero3"
    waited = next(line for line in lines if re.match(r"zero3 +2  +2.500 ", line))
    for cell in ("below ± 0.0020 (clocks)", "2.50", "nobody", "not measurable (one host)"):
        assert f"  {cell}" in waited
    one = next(line for line in lines if re.match(r"zero3 +1 ", line))
    for cell in ("10.00", "10.00 – 10.00", "3,200", "2.500 (25.0 %)", "≤ 24.20 kB", "ok", "passed"):
        assert cell in one


def test_points_that_lack_the_same_are_told_together(tmp_path: Path) -> None:
    write(tmp_path, *(synthetic(scenario, size=1) for scenario in ("ddp", "zero1", "zero3")))
    assert "series of one N: ddp, zero1 and zero3 at N\u00a0=\u00a01." in page_of(tmp_path)


def test_a_single_point_has_no_scaling_figures(tmp_path: Path) -> None:
    write(tmp_path, synthetic(size=1))
    page = page_of(tmp_path)
    assert "Parallel efficiency" not in page
    assert "Missing: no line over N for series of one N: zero3 at N\u00a0=\u00a01." in page
    assert "Elements against 2Ψ and 3Ψ" not in page
    assert "Missing: a group of one rank over dp communicates nothing: zero3 at N\u00a0=\u00a01." in page
    assert "Static memory over N" in page


def test_all_text_is_escaped(tmp_path: Path) -> None:
    odd = "<script>alert(\"x\")</script> & 'ü' $\\alpha$ 模型"
    run = synthetic(scenario=odd, command_line=odd, options={"model": odd}, git_commit=odd)
    run.row("ranks", rank=0)["host"] = odd
    write(tmp_path, run, synthetic(scenario=odd, size=4, options={"model": odd, "note": odd}))
    broken = synthetic(status=odd, launch=5)
    broken.write(tmp_path / "<b>'\"ü.h5")
    page = page_of(tmp_path)
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page
    assert "模型" in page
    parse(page)


def test_exclusions_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, synthetic(), synthetic(status="failed", launch=1), synthetic(oversubscribed=1, size=4))
    page = page_of(tmp_path)
    out = capsys.readouterr().out
    assert "1.h5: incomplete: status is 'failed' (the run failed)" in out
    assert re.search(r"zero3 +4\* ", out)
    assert "* oversubscribed" in out
    assert '<section id="excluded">\n<h2>Left out</h2>' in page
    assert "more threads than CPUs" in page


def test_hidden_fraction_is_printed_only_where_it_can_be_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compute alone 3 + 1.5 (optimizer and other), communication alone 2, step 5 ms: 0.75 of 2 is hidden."""
    one_host, two_hosts, simulated, alone = (
        synthetic(size=size, step_s=[0.005] * 6, launch=i) for i, size in enumerate((2, 2, 2, 1))
    )
    two_hosts.row("ranks", rank=1)["host"] = "node2"
    two_hosts.config["options"]["seed"] = 2
    simulated.attributes["simulated"] = 1
    for run in (one_host, two_hosts, simulated, alone):
        run.tables["calibration"] = [
            dict(kind="embedding", layer=0, direction="forward", compute_alone_s=0.001,
                 communication_alone_s=0.0005),
            dict(kind="block", layer=1, direction="forward", compute_alone_s=0.002,
                 communication_alone_s=0.0015),
        ]  # fmt: skip
    write(tmp_path, one_host, two_hosts, simulated, alone)
    page = page_of(tmp_path)
    cells = [line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines()]
    assert cells.count("0.75") == 2
    assert cells.count("not measurable (one host)") == 1
    assert page.count(">0.75</td>") == 2
    assert page.count(">75.0</td>") == 4  # IMB's and OSU's overlap, %
    assert "not measurable (one host): zero3" in page
    assert ">N=2</text>" in page
    assert ">N=1</text>" not in page  # a single rank hides nothing
    assert "Over shared memory (all ranks on one host) overlap is not measurable" in page


def test_waits_below_the_clocks_uncertainty_are_not_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = synthetic(step_s=[0.01] * 6)
    for row in run.tables["clock"]:
        row["uncertainty_s"] = 0.0 if row["rank"] == 0 else 0.001
    steps = synthetic(step_s=[0.01] * 6, options={"trace": "steps", "seed": 3}, launch=1)
    steps.tables["events"] = []
    write(tmp_path, run, steps)
    page = page_of(tmp_path)
    told = capsys.readouterr().out
    assert "below ± 1.0 (clocks)" in told
    assert "not recorded" in told
    assert "below ± 1.0 (clocks)" in page


def test_exact_peak_is_written_at_the_bar(tmp_path: Path) -> None:
    run = synthetic()
    for rank in range(2):
        run.tables["memory_peak"].append(dict(rank=rank, category="total_tracked", peak_bytes=21_700))
    write(tmp_path, run)
    page = page_of(tmp_path)
    assert ">21.7</text>" in page  # kB, instead of the sum of the categories' peaks
    assert ">24.2</text>" not in page


def test_failed_check_and_mismatch_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic(check="failed")
    run.row("ledger", rank=0, quantity="static_bytes")["measured"] += 8
    write(tmp_path, run)
    page = page_of(tmp_path)
    mismatch = "rank 0, world static_bytes: expected 9,600 + padding 0, measured 9,608"
    assert mismatch in capsys.readouterr().out
    assert "✗ mismatch" in page
    assert f"✗ Ledger of zero3, N\u00a0=\u00a02: {mismatch}" in page
    assert "✗ failed" in page


def test_same_input_same_page(tmp_path: Path) -> None:
    write(tmp_path, *(synthetic(size=n) for n in (1, 2)))
    assert page_of(tmp_path) == page_of(tmp_path)


def test_provenance_is_there(tmp_path: Path) -> None:
    write(tmp_path, synthetic(git_dirty=1), synthetic(size=4))
    page = page_of(tmp_path)
    for text in (
        "0123456789ab (modified)",
        "MPICH 4.0.2",
        "1.10.8",
        "node1",
        "Release",
        "mpiexec -n 4 zero3",
    ):
        assert text in page


def test_nothing_usable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, synthetic(status="running"))
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html")]) == 1
    told = capsys.readouterr()
    assert "none of the 1 files" in told.err
    assert "status is 'running'" in told.out
    assert not (tmp_path / "r.html").exists()


def test_unwritable_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, synthetic())
    for output, problem in (
        (tmp_path / "none" / "r.html", "lies in a folder that does not exist"),
        (tmp_path, "is a folder"),
    ):
        assert main(["report", str(tmp_path), "-o", str(output)]) == 2
        said = capsys.readouterr()
        assert said.out == "" and f"{problem}; pass the path of a file" in said.err
    assert main(["report", str(tmp_path), "-o", "/dev/full"]) == 1
    assert "cannot be written (No space left on device); pass another path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["report", "{}/none"], "does not exist; pass the folder"),
        (["report", "{}"], "no *.h5 file below"),
        (["validate", "{}"], "is a folder; pass the path of a trace file"),
        (["validate", "{}/none.h5"], "does not exist; pass the path"),
        (["valdate"], "no command 'valdate'; did you mean validate?"),
        (["report"], "required: DIR"),
        (["report", "{}", "--outptu", "x"], "no option --outptu"),
        (["report", "{}", "--gpu-memory", "80 apples"], "'80 apples' is no size; pass for example 80GB"),
        ([], "required: COMMAND"),
    ],
)
def test_usage_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    try:
        code = main([argument.format(tmp_path) for argument in arguments])
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]
    error = capsys.readouterr().err
    assert code == 2
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["report", "--help"], ["validate", "--help"]]
)
def test_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 0
    assert "shardbench" in capsys.readouterr().out


def test_validate_prints_a_line_for_each_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.h5", tmp_path / "bad.h5"
    synthetic().write(good)
    run = synthetic(status="failed")
    run.row("ledger", quantity="static_bytes")["measured"] = 1
    run.write(bad)
    assert main(["validate", str(good)]) == 0
    assert main(["validate", str(good), str(bad)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{good}: valid"] * 2
    assert len(lines) == 4
    assert all(line.startswith(f"{bad}: ") for line in lines[2:])


def test_output_does_not_depend_on_locale_or_encoding(tmp_path: Path) -> None:
    write(tmp_path, *(synthetic(size=n) for n in (1, 2)))
    page = page_of(tmp_path)
    command = [sys.executable, "-m", "shardbench", "report", str(tmp_path), "-o", str(tmp_path / "c.html")]
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PATH": "", "HOME": str(tmp_path)}
    environment["PYTHONPATH"] = str(
        Path(shardbench.__file__).parents[1]
    )  # this package, not an installed one
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "c.html").read_text(encoding="utf-8") == page


def test_fp32_reductions_make_zero3_equal_to_ddp_in_bytes(tmp_path: Path) -> None:
    runs = [synthetic(scenario, 4) for scenario in ("ddp", "zero2", "zero3")]
    for run, bytes_per_element in zip(runs, (8, 6, 8)):
        for row in run.tables["ledger"]:
            if row["quantity"] == "volume_bytes":
                expected = 900.0 * bytes_per_element
                row.update(expected=expected, measured=expected + row["padding"])
    write(tmp_path, *runs)
    page = page_of(tmp_path)
    assert "1.50 times ddp&#39;s elements but exactly as many bytes" in page
    assert "what is reduced in fp32: zero3 at N\u00a0=\u00a04." in page


def test_no_equality_is_claimed_where_bytes_differ(tmp_path: Path) -> None:
    write(tmp_path, *(synthetic(scenario, 4) for scenario in ("ddp", "zero3")))
    assert "exactly as many bytes" not in page_of(tmp_path)


def test_a_straggler_is_named(tmp_path: Path) -> None:
    """Rank 1 asks for every collective 2 ms later than rank 0, which waits for it."""
    run = synthetic(size=2, step_s=[0.02] * 6)
    for row in run.tables["events"]:
        if row["rank"] == 1 and row["stream"] == "comm":
            row["issue_s"] += 0.002
            row["start_s"] += 0.002
    write(tmp_path, run)
    page = page_of(tmp_path)
    assert "rank 1 is waited for: 2.00 ms a step" in page
    assert '<td data-label="straggler">rank 1</td>' in page


def test_collectives_alone_make_a_page_of_bandwidths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, synthetic_collectives(size=2), synthetic_collectives(size=1))
    page = page_of(tmp_path)
    parse(page)
    assert "Bus bandwidth over size" in page
    assert (
        "Not drawn: a group of one rank has no bus bandwidth: all_gather, ring, bf16, N\u00a0=\u00a01, measured, 64"
        in page
    )
    assert "no timed steps" not in page
    # Two iterations of 128 bytes in 1.5 s; of an all-reduce over two ranks a link carries as many.
    assert re.search(
        r"all_reduce maximum, ring, bf16, N = 2, measured +128 +750,000 +128 +750,000 +0.0000001707 ",
        capsys.readouterr().out,
    )


def test_missing_records_are_said(tmp_path: Path) -> None:
    run = synthetic(size=4, options={"trace": "none"}, simulated=1)
    for table in ("events", "memory", "memory_peak", "ledger", "tensors", "clock"):
        run.tables[table] = []
    write(tmp_path, run)
    page = page_of(tmp_path)
    for text in (
        "Missing: no memory recorded (trace level none): zero3 at N\u00a0=\u00a04.",
        "Missing: no ledger recorded: zero3 at N\u00a0=\u00a04.",
        "Missing: hidden fraction not recorded (needs --trace events): zero3 at N\u00a0=\u00a04.",
        "Missing: no timeline of a step without --trace events: zero3.",
        "what is hidden was not recorded (it needs --trace events)",
    ):
        assert text in page, text
