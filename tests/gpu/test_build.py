"""Where nvcc is, the CUDA backend compiles and links for every architecture, and runs are looked at without a device."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/gpu"  # kept, so that only what has changed is compiled again
SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")
NVCC = shutil.which(os.environ.get("CUDACXX", "nvcc"))


def nvcc_release() -> tuple[int, ...]:
    if NVCC is None:
        return (0,)
    said = subprocess.run([NVCC, "--version"], check=True, capture_output=True, text=True).stdout
    return tuple(int(part) for part in re.search(r"release (\d+)\.(\d+)", said).groups())


pytestmark = pytest.mark.skipif(nvcc_release() < (13, 0), reason="nvcc 13 or later was not found")


def run(*command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


@pytest.fixture(scope="module")
def ddp() -> Path:
    quick = ["-DCMAKE_BUILD_TYPE=", "-DSHARDBENCH_WERROR=ON"]
    configured = run("cmake", "-S", str(ROOT), "--preset", "cuda", "-B", str(BUILD), *quick, timeout_s=300)
    assert configured.returncode == 0, configured.stdout + configured.stderr
    targets = [*SCENARIOS, "gpu_runtime", "paper_gpu"]
    built = run("cmake", "--build", str(BUILD), "-j", str(os.cpu_count() or 1), "--target", *targets, timeout_s=2600)
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    return BUILD / "bin/ddp"


def test_there_is_code_for_every_architecture(ddp: Path) -> None:
    cache = (BUILD / "CMakeCache.txt").read_text()
    assert "SHARDBENCH_CUDA:UNINITIALIZED=ON" in cache or "SHARDBENCH_CUDA:BOOL=ON" in cache
    code = ddp.read_bytes()
    for architecture in (80, 90, 100):
        assert b"sm_%d" % architecture in code


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this host has a device")
def test_without_a_device_one_line_and_exit_1(ddp: Path, tmp_path: Path) -> None:
    finished = run(str(ddp), "--backend", "nccl", "-o", str(tmp_path / "x.h5"), timeout_s=60)
    assert finished.returncode == 1
    assert re.fullmatch(r"ddp: rank 0: --backend nccl needs a CUDA device, and none is visible; .*\n", finished.stderr)
    assert list(tmp_path.iterdir()) == []


def test_the_other_backend_is_as_in_any_build(ddp: Path, tmp_path: Path) -> None:
    finished = run(str(ddp), "-c", "-n", "2", "-o", str(tmp_path / "x.h5"), timeout_s=120)
    assert finished.returncode == 0, finished.stderr
    assert "check passed" in finished.stdout


def test_its_runs_are_sound_on_a_gpu_that_exists_on_paper(ddp: Path) -> None:
    """The tests of that build that need no device."""
    finished = run(
        "ctest", "--test-dir", str(BUILD), "-R", "^gpu[.](runtime|paper)$", "--output-on-failure", timeout_s=600
    )
    assert finished.returncode == 0, finished.stdout[-6000:]
    assert "100% tests passed, 0 tests failed out of 2" in finished.stdout
    assert "Skipped" not in finished.stdout
