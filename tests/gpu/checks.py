"""What check.sh runs on a GPU, as one table. Needs numpy and h5py; starts every program without an MPI launcher.

    checks.py BIN [--backend nccl|mpi] [--budget SECONDS] [--library-path PATH]

With `--backend mpi` the same runs take place on the CPU and what only a GPU can tell is left out: that tests this file.
A row that fails says why; then the exit code is 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")

# Relative. The host's kernels are off by 1e-7 in fp32; in bf16, made to round what products read as the GPU's do, by 1e-5 and 4e-4.
LOSS_TOLERANCE = {"bf16": 1e-3, "fp32": 1e-5}
NORM_TOLERANCE = {"bf16": 5e-3, "fp32": 1e-4}  # of gradients
PEAK_FLOPS = 989e12  # NVIDIA H200 SXM datasheet: dense bf16
LEAST_MFU = 0.45
LONGEST_RUN_S = 100.0  # so that one run that hangs leaves time for others
SHOWN_LINES = 30  # of a failed program's output, from its begin and from its end
ONE_BILLION = ("--model", "1b", "--micro-batch", "2", "-w", "2", "-n", "5", "--trace", "steps")


class Failed(Exception):
    """A row's check failed; the text says why, in one line, and `output` is what the program said."""

    def __init__(self, why: str, output: str = "") -> None:
        super().__init__(why)
        self.output = output


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    result: str
    seconds: float
    ok: bool
    output: str = ""  # of a program that failed


class Runner:
    """Starts the programs of one build with one backend, until the time is used up."""

    def __init__(self, bin_folder: Path, backend: str, budget_s: float, scratch: Path, environment: dict[str, str]) -> None:
        self.bin, self.backend, self.scratch, self.environment = bin_folder, backend, scratch, environment
        self.deadline = time.monotonic() + budget_s

    def run(self, program: str, *options: str) -> str:
        """What a program prints; it must succeed."""
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise Failed("not run: the time is used up")
        try:
            done = subprocess.run([self.bin / program, *options], cwd=self.scratch, env=self.environment, capture_output=True,
                                  text=True, timeout=min(left_s, LONGEST_RUN_S))
        except subprocess.TimeoutExpired as late:
            said = b"".join(part for part in (late.stdout, late.stderr) if isinstance(part, bytes))
            raise Failed(f"still running after {late.timeout:.0f} s", said.decode(errors="replace")) from None
        except OSError as error:
            raise Failed(f"cannot be started: {error.strerror}") from None
        if done.returncode != 0:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            why = f"exit code {done.returncode}: {lines[-1] if lines else 'it said nothing'}"
            raise Failed(why, done.stdout + done.stderr)
        return done.stdout

    def train(self, scenario: str, *options: str) -> Path:
        """The file of a run of one rank, which must say that this backend ran."""
        file = self.scratch / "run.h5"
        self.run(scenario, "--backend", self.backend, "--overwrite", "-o", str(file), *options)
        with h5py.File(file, "r") as trace:
            ran = trace.attrs["backend"]
        ran = ran.decode() if isinstance(ran, bytes) else ran
        if ran != self.backend:
            raise Failed(f"the file says that backend {ran} ran")
        return file


def environment_of_programs(library_path: str) -> dict[str, str]:
    # A process that a launcher started would take itself for one of several ranks.
    launcher = ("PMI", "SLURM_", "MPI_LOCAL", "HYDI_", "HYDRA_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(launcher)}
    kept.setdefault("NCCL_DEBUG", "WARN")  # what goes wrong, for the output of a run that fails
    if library_path:
        kept["LD_LIBRARY_PATH"] = ":".join([library_path, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    return kept


def golden_options(golden: dict) -> list[str]:
    """Options of exactly the golden file's steps on one rank."""
    model = golden["model"]
    sizes = [word for key, value in model.items() if key != "tied" for word in (f"--{key.replace('_', '-')}", str(value))]
    return [*sizes, "--tied" if model["tied"] else "--untied", "--seed", str(golden["seed"]), "--global-batch",
            str(golden["global_batch"]), "--param-dtype", golden["param_dtype"], "-w", "0", "-n", str(len(golden["losses"]))]


def largest_difference(what: str, found: np.ndarray, golden: list[float], allowed: float) -> str:
    """From the golden values, relative; raises Failed beyond what is allowed (NaN is beyond it)."""
    wanted = np.array(golden)
    if found.shape != wanted.shape:
        raise Failed(f"{len(found)} {what} instead of {len(wanted)}")
    difference = float(np.max(np.abs(found / wanted - 1)))
    if not difference <= allowed:
        raise Failed(f"{what} differ from golden by {difference:.1e}, more than {allowed:.0e}")
    return f"{what} within {difference:.1e} ({allowed:.0e} allowed)"


def steps_agree(runner: Runner, scenario: str, name: str) -> str:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    dtype = golden["param_dtype"]
    with h5py.File(runner.train(scenario, *golden_options(golden)), "r") as trace:
        steps = trace["steps"][()]
    losses = largest_difference("losses", steps["loss"], golden["losses"], LOSS_TOLERANCE[dtype])
    return f"{losses}, {largest_difference('gradient norms', steps['grad_norm'], golden['grad_norms'], NORM_TOLERANCE[dtype])}"


def check_passes(runner: Runner, scenario: str) -> str:
    runner.train(scenario, "-c", "-n", "3")
    return "gradients and masters agree with the host's reference"


def model_flops_per_token(model: dict, psi: int) -> int:
    """docs/contract.md, "Model FLOPs per token"."""
    embedding = 0 if model["tied"] else model["vocab"] * model["hidden"]
    return 6 * (psi - embedding) + 12 * model["layers"] * model["hidden"] * model["seq"]


def utilisation(file: Path) -> tuple[str, float]:
    """Median step and its parts, and model FLOPs over what the datasheet promises."""
    with h5py.File(file, "r") as trace:
        steps = trace["steps"][()]
        model = json.loads(trace["config"][()])["model"]
        psi = int(trace.attrs["psi"])
    timed = steps[steps["warmup"] == 0]
    step_s = float(np.median(timed["step_s"]))
    parts = ", ".join(f"{part} {1e3 * np.median(timed[f'{part}_s']):.1f}" for part in ("compute", "exposed", "optimizer", "other"))
    return f"step {1e3 * step_s:.1f} ms ({parts})", model_flops_per_token(model, psi) * int(timed["tokens"][0]) / step_s / PEAK_FLOPS


def step_of_1b(runner: Runner) -> str:
    step, mfu = utilisation(runner.train("ddp", *ONE_BILLION))
    said = f"{step}, MFU {100 * mfu:.1f} % of {PEAK_FLOPS / 1e12:.0f} TFLOP/s ({100 * LEAST_MFU:.0f} % asked)"
    if not mfu >= LEAST_MFU:
        raise Failed(said)
    return said


def timings(runner: Runner) -> str:
    found = json.loads(runner.run("gpu_timings").splitlines()[-1])  # NCCL may have said something before
    return (f"mark {1e6 * found['mark_host_s']:.2f} us on the host, {1e6 * found['mark_stream_s']:.2f} us on the stream; copied by "
            f"all_gather {found['all_gather_bytes_per_s'] / 1e9:.0f} GB/s, "
            f"reduce_scatter {found['reduce_scatter_bytes_per_s'] / 1e9:.0f} GB/s ({found['device']})")


def kernels_agree(runner: Runner) -> str:
    said = runner.run("gpu_kernels", "--gtest_brief=1").splitlines()
    passed = [line.strip("[] ") for line in said if "PASSED" in line]
    if not passed:
        raise Failed("it does not say that anything passed", "\n".join(said))
    return passed[0]


def checks(runner: Runner) -> Iterator[tuple[str, Callable[[], str]]]:
    """Names and checks in the order of what a short time should be spent on."""
    if runner.backend == "nccl":
        yield "kernels and their twins", lambda: kernels_agree(runner)
    for name in ("tiny_bf16_gb4", "tiny_fp32_gb4"):
        for scenario in SCENARIOS:
            yield f"{scenario} {name}", lambda scenario=scenario, name=name: steps_agree(runner, scenario, name)
    for scenario in SCENARIOS:
        yield f"{scenario} -c", lambda scenario=scenario: check_passes(runner, scenario)
    if runner.backend == "nccl":
        yield "marks and NCCL alone", lambda: timings(runner)
        yield "1b, ddp, one device", lambda: step_of_1b(runner)


def row(what: str, check: Callable[[], str]) -> Row:
    begin = time.monotonic()
    output = ""
    try:
        result, ok = check(), True
    except Exception as error:  # whatever goes wrong in one row, the others are shown
        result, ok = " ".join(f"{error if isinstance(error, Failed) else repr(error)}".split()), False
        output = getattr(error, "output", "")
    return Row(what, result, time.monotonic() - begin, ok, output)


def as_line(row: Row) -> str:
    """A row of a Markdown table."""
    return f"| {row.what} | {'ok' if row.ok else 'FAILED'} | {row.seconds:.1f} s | {row.result} |"


def as_text(row: Row) -> str:
    """What a failed program said: its first lines, where tests say what differs, and its last."""
    lines = row.output.splitlines()
    if len(lines) > 2 * SHOWN_LINES:
        lines[SHOWN_LINES:-SHOWN_LINES] = [f"... {len(lines) - 2 * SHOWN_LINES} lines ..."]
    return "\n".join([f"--- {row.what}", *lines])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What check.sh runs on a GPU, as one table.")
    parser.add_argument("bin", type=Path, help="folder of the executables")
    parser.add_argument("--backend", choices=("nccl", "mpi"), default="nccl")
    parser.add_argument("--budget", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--library-path", default="", metavar="PATH", help="where the programs look for libraries first")
    options = parser.parse_args(arguments)
    environment = environment_of_programs(options.library_path)
    print("| check | | time | result |\n|---|---|---|---|", flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="shardbench-gpu-") as scratch:
        runner = Runner(options.bin.resolve(), options.backend, options.budget, Path(scratch), environment)
        for what, check in checks(runner):
            rows.append(row(what, check))
            print(as_line(rows[-1]), flush=True)
    for failed in rows:
        if failed.output:
            print(f"\n{as_text(failed)}")
    passed = sum(done.ok for done in rows)
    print(f"\n{passed} of {len(rows)} checks passed")
    return 0 if passed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
