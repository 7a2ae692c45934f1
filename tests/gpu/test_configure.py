"""CUDA is off unless asked for, and who asks for it without having it hears which part is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

needs_nvcc = pytest.mark.skipif(shutil.which(os.environ.get("CUDACXX", "nvcc")) is None, reason="nvcc was not found")


def configure(folder: Path, *arguments: str) -> tuple[int, str]:
    command = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder / "build"), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return finished.returncode, " ".join((finished.stdout + finished.stderr).split())


def test_it_is_off_unless_asked_for_and_says_so(tmp_path: Path) -> None:
    code, said = configure(tmp_path, "-DSHARDBENCH_TESTS=OFF")
    assert code == 0, said
    assert "CUDA: off (preset cuda" in said


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    code, said = configure(tmp_path, "-DSHARDBENCH_CUDA=ON", "-DCMAKE_CUDA_COMPILER=NOTFOUND")
    assert code != 0
    assert "SHARDBENCH_CUDA is on, but nvcc was not found" in said


def test_a_simulation_has_no_gpu(tmp_path: Path) -> None:
    code, said = configure(tmp_path, "-DSHARDBENCH_CUDA=ON", "-DSHARDBENCH_SIMULATION=ON", "-DSIMGRID_LIBRARY=x", "-DSMPI_INCLUDE_DIR=/x")
    assert code != 0
    assert "SHARDBENCH_CUDA and SHARDBENCH_SIMULATION exclude each other" in said


@needs_nvcc
@pytest.mark.parametrize("part, variable", [("nccl.h", "NCCL_INCLUDE_DIR"), ("library", "NCCL_LIBRARY")])
def test_a_missing_nccl_is_named(tmp_path: Path, part: str, variable: str) -> None:
    code, said = configure(tmp_path, "-DSHARDBENCH_CUDA=ON", f"-D{variable}=")
    assert code != 0
    assert "SHARDBENCH_CUDA is on, but NCCL's" in said and part in said


@needs_nvcc
def test_an_old_compiler_is_named(tmp_path: Path) -> None:
    code, said = configure(tmp_path, "-DSHARDBENCH_CUDA=ON", "-DSHARDBENCH_CUDA_NEEDED=99.0")
    assert code != 0
    assert "is nvcc" in said and "99.0 or later is needed" in said


@needs_nvcc
def test_a_missing_nvtx_is_named(tmp_path: Path) -> None:
    code, said = configure(tmp_path, "-DSHARDBENCH_CUDA=ON", "-DNVTX_INCLUDE_DIR=")
    assert code != 0
    assert "SHARDBENCH_CUDA is on, but NVTX's" in said


@needs_nvcc
def test_a_missing_cublaslt_is_named(tmp_path: Path) -> None:
    code, said = configure(tmp_path, "-DSHARDBENCH_CUDA=ON", "-DCUDA_cublasLt_LIBRARY=")
    assert code != 0
    assert "SHARDBENCH_CUDA is on, but cuBLASLt was not found" in said
