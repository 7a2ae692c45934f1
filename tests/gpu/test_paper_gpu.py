"""All that a run asks of a GPU's libraries, on a GPU that exists on paper (paper_gpu.cpp), which computes nothing but looks."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SHARDBENCH_BIN") or ROOT / "build/cuda/bin")
LIBRARY = BIN.parent / "lib/libpaper_gpu.so"
SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="this build has no CUDA")


def run(folder: Path, ranks: int, program: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    launcher = [] if ranks == 1 else [os.environ.get("SHARDBENCH_MPIEXEC") or "mpiexec", "-n", str(ranks)]
    environment = [f"{name}={value}" for name, value in {"LD_PRELOAD": str(LIBRARY), "OMP_NUM_THREADS": "1", **variables}.items()]
    command = [*launcher, "env", *environment, str(BIN / program), "--backend", "nccl", "-n", "2", *options, "-o", str(folder / "x.h5")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def expect_sound(done: subprocess.CompletedProcess[str], ranks: int) -> None:
    assert done.returncode == 0, done.stderr
    reports = re.findall(r"paper GPU: (\d+) kernels, (\d+) products, (\d+) collectives, (\d+) allocations left", done.stderr)
    assert len(reports) == ranks, done.stderr
    for kernels, products, collectives, left in reports:
        assert min(int(kernels), int(products), int(collectives)) > 0 and int(left) == 0


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("options", ["", "--grad-accum 2 --clip 1 --recompute full --param-dtype fp32", "--heads 16 --kv-heads 8 --ffn 191"])
def test_one_rank(tmp_path: Path, scenario: str, options: str) -> None:
    expect_sound(run(tmp_path, 1, scenario, *options.split()), 1)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_ranks(tmp_path: Path, scenario: str) -> None:
    expect_sound(run(tmp_path, 2, scenario), 2)


@pytest.mark.parametrize("command", [
    "zero1 --param-gather overlap --reduce-dtype bf16",
    "zero2 --param-gather overlap --communicators 2 --clip 1 --vocab 251",
    "zero3 --layout flat --communicators 2 --prefetch 2,2 --clip 1 --ffn 191 --vocab 251",
])
def test_shards_that_begin_anywhere(tmp_path: Path, command: str) -> None:
    expect_sound(run(tmp_path, 3, *command.split()), 3)


@pytest.mark.parametrize("ranks, groups, options", [
    (2, "21", ""),
    (2, "212", "--sequence-parallel --recompute full --ffn 1"),  # a rank without columns of w2
    (4, "2242", "--sequence-parallel --clip 1"),
])
def test_tensor_parallel_ranks(tmp_path: Path, ranks: int, groups: str, options: str) -> None:
    expect_sound(run(tmp_path, ranks, "mesh2d", "--tp", "2", *options.split(), PAPER_GPU_GROUPS=groups), ranks)


def test_a_lost_peer_ends_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, 1, "zero3", PAPER_GPU_LOST="1")
    assert done.returncode == 1
    assert "zero3: rank 0: NCCL gave up a collective: " in done.stderr
