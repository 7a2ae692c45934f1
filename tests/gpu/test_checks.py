"""The script for machines with a GPU, as far as it can be tested without one: its runs on the CPU, and its verdicts."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SHARDBENCH_BIN") or ROOT / "build/release/bin")
sys.path.insert(0, str(Path(__file__).parent))
import checks  # noqa: E402


def test_every_run_agrees_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main([str(BIN), "--backend", "mpi"]) == 0
    said = capsys.readouterr().out
    assert "15 of 15 checks passed" in said
    for scenario in checks.SCENARIOS:
        assert f"| {scenario} tiny_bf16_gb4 | ok |" in said and f"| {scenario} -c | ok |" in said


def test_what_cannot_run_is_a_row_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ddp").write_text("#!/bin/sh\necho first\necho the device fell off >&2\nexit 1\n")
    (tmp_path / "ddp").chmod(0o755)
    assert checks.main([str(tmp_path), "--backend", "mpi"]) == 1
    said = capsys.readouterr().out
    assert "exit code 1: the device fell off |" in said
    assert "--- ddp -c\nfirst\nthe device fell off\n" in said
    assert "| zero1 -c | FAILED |" in said and "cannot be started: No such file or directory" in said
    assert "0 of 15 checks passed" in said


def test_used_up_time_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main([str(BIN), "--backend", "mpi", "--budget", "0"]) == 1
    assert capsys.readouterr().out.count("not run: the time is used up") == 15


def test_steps_are_compared_with_golden() -> None:
    golden = [5.0, 4.0, 2.0]
    assert "losses within 9.0e-04" in checks.largest_difference("losses", np.array([5.0, 4.0, 2.0018]), golden, 1e-3)
    for wrong in ([5.0, 4.0, 2.003], [5.0, 4.0, np.nan], [5.0, 4.0]):
        with pytest.raises(checks.Failed):
            checks.largest_difference("losses", np.array(wrong), golden, 1e-3)


def test_a_row_fails_whatever_is_raised_and_long_output_is_cut() -> None:
    def broken() -> str:
        raise IndexError("no step")

    assert not checks.row("x", broken).ok and "IndexError('no step')" in checks.row("x", broken).result
    lines = checks.as_text(checks.Row("x", "", 0.0, False, "\n".join(map(str, range(100))))).splitlines()
    assert lines[:2] == ["--- x", "0"] and lines[-1] == "99" and "... 40 lines ..." in lines and len(lines) == 62


def test_model_flops_are_the_contracts() -> None:
    one = {"tied": True, "vocab": 128256, "hidden": 2048, "layers": 16, "seq": 4096}
    assert checks.model_flops_per_token(one, 1_235_814_400) == 6 * 1_235_814_400 + 12 * 16 * 2048 * 4096
    assert checks.model_flops_per_token({**one, "tied": False}, 10**9) == 6 * (10**9 - 128256 * 2048) + 12 * 16 * 2048 * 4096


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this host has a device")
def test_without_a_gpu_one_line_and_exit_1() -> None:
    done = subprocess.run([ROOT / "tests/gpu/check.sh"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == "" and done.stderr.startswith("check: no GPU is visible") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--packages"], ["--else"], ["x"]])
def test_wrong_usage(arguments: list[str]) -> None:
    done = subprocess.run([ROOT / "tests/gpu/check.sh", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("check: ")


def test_a_step_is_told_with_its_parts(tmp_path: Path) -> None:
    file = tmp_path / "x.h5"
    subprocess.run([BIN / "ddp", "-n", "2", "--trace", "steps", "-o", file], check=True, capture_output=True, timeout=60)
    told, mfu = checks.utilisation(file)
    assert re.fullmatch(r"step [\d.]+ ms \(compute [\d.]+, exposed [\d.]+, optimizer [\d.]+, other -?[\d.]+\)", told)
    assert 0 < mfu < 1
