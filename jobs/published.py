#!/usr/bin/env python3
"""Does the simulator agree with published measurements? Compares it with torchtitan's Llama 3.1 8B on 8 and 128 H100,
and with published NCCL bandwidths. docs/published.md says what was assumed, from which source, and what the gap means.

Compute is calibrated on the 8-GPU throughput; nothing is fitted to 128 GPUs.

Prints the tables to standard output: build/venv/bin/python jobs/published.py
With --update it writes them into docs/published.md, and the calibration into jobs/calibrations/.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "analysis"))

from shardbench.read import Trace, TraceError, read_trace  # noqa: E402
from shardbench.stats import maximum_over_ranks  # noqa: E402

PAGE = ROOT / "docs/published.md"
CALIBRATION_FILE = ROOT / "jobs/calibrations/torchtitan-8b-h100.json"
RUN_LIMIT_S = 120.0

# torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3 (FSDP, no compilation), and its hardware.
PUBLISHED_TOKENS_PER_S = {8: 5762, 128: 5605}
PUBLISHED_MEMORY_GIB = {8: 82.4, 128: 67.0}
MACHINE = ("gpu.memory_bandwidth=2.4e12",)
SEQUENCE, MICRO_BATCH = 8192, 2
TOKENS = SEQUENCE * MICRO_BATCH
CALIBRATED_RANKS = 8
RANKS = (8, 16, 32, 64, 128)
RANKS_WITH_JITTER = (32, 128)

# The calibrated times contain the copies around collectives, as the measured step does.
COPIES_CALIBRATED = ("gpu.memory_bandwidth=1e21", "gpu.launch_s=0.0")

# FSDP2 gathers two groups ahead in forward, one in backward.
MODEL = ("--model", "8b", "--micro-batch", str(MICRO_BATCH), "--seq", str(SEQUENCE), "--prefetch", "2,1")
# train_configs/llama3_8b.toml; selective recomputation is in the calibrated times.
CALIBRATED = ("--clip", "1", "--recompute", "full", "--trace", "steps")
BLOCKS = ("--wrap", "blocks", "--reshard-after-forward", "blocks")
ROOT_GROUP = ("--wrap", "root")

# 8 % between GPUs of one kind (Sinha et al., SC22), read as the span between the whiskers of a box plot: 4 interquartile
# ranges, each 1.349 standard deviations of a normal distribution.
SIGMA = 0.08 / (4 * 1.349)
# Mean slow-down of computation that overlaps with communication (Lee et al., arXiv:2507.03114).
GAMMA_MEAN = 0.189
# Matrix products beside an NCCL kernel take twice as long on an H100 under FSDP (PyTorch issue 143988).
GAMMA_PRODUCTS = 1.0

# Bus bandwidth, GB/s: NVIDIA/nccl issue 1229 (size not given), 1218 (2 GB), github.com/aigatech/vpbenchmarking (peaks).
PUBLISHED_BANDWIDTH = {
    "all_gather": {1: 183, 4: 324, 32: 200},
    "reduce_scatter": {4: 360, 8: 345, 16: 320, 32: 300, 64: 280, 128: 260},
}
GPUS_PER_NODE = 8

Calibration = Mapping[str, Mapping[str, float]]
"""Seconds by layer kind and direction: the content of a calibration file."""


class Failure(Exception):
    """A run that did not succeed."""


@dataclass(frozen=True)
class Case:
    """What disturbs the ranks, how layers are grouped, and where the platform differs."""

    name: str
    sigma: float = 0.0
    gamma: float = 0.0
    groups: Sequence[str] = BLOCKS
    changes: Sequence[str] = COPIES_CALIBRATED

    @property
    def options(self) -> tuple[str, ...]:
        jitter = ("--jitter", f"rank={self.sigma!r}") if self.sigma else ()
        contention = ("--contention", repr(self.gamma)) if self.gamma else ()
        return (*self.groups, *jitter, *contention)


QUIET = Case("quiet")
QUIET_ROOT = Case("quiet-root", groups=ROOT_GROUP)
QUIET_COPIES = Case("quiet-copies", changes=MACHINE)
DISTURBED = (
    Case("gamma-mean", gamma=GAMMA_MEAN),
    Case("gamma-products", gamma=GAMMA_PRODUCTS),
    Case("sigma", sigma=SIGMA),
    Case("sigma-gamma-mean", sigma=SIGMA, gamma=GAMMA_MEAN),
    Case("sigma-gamma-products", sigma=SIGMA, gamma=GAMMA_PRODUCTS),
)


@dataclass(frozen=True)
class Simulator:
    """Runs executables of preset sim and reads what they leave in `output`. `changes`: of the platform, KEY=VALUE."""

    bin: Path
    output: Path

    def run(self, program: str, ranks: int, options: Sequence[str], changes: Sequence[str] = MACHINE) -> str:
        command = [sys.executable, "-m", "shardbench", "simulate", program, "--ranks", str(ranks),
                   "--platform", "h100-fat-tree", *(f"--set={change}" for change in changes),
                   "--sim-bin", str(self.bin), "--", *options, "--overwrite"]  # fmt: skip
        path = os.pathsep.join(filter(None, (str(ROOT / "analysis"), os.environ.get("PYTHONPATH"))))
        try:
            done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=RUN_LIMIT_S)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failure(f"{' '.join(command)} was not done within {RUN_LIMIT_S:g} s; is the machine busy?") from None
        if done.returncode != 0:
            raise Failure(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def train(self, file: str, ranks: int, options: Sequence[str], changes: Sequence[str] = MACHINE) -> Trace:
        path = self.output / f"{file}.h5"
        self.run("zero3", ranks, [*MODEL, *options, "-n", "1", "-w", "1", "-o", str(path)], changes)
        return read_trace(path)

    def train_calibrated(self, case: Case, ranks: int, calibration: Path, seed: int = 1) -> Trace:
        options = [*CALIBRATED, *case.options, "--calibration", str(calibration), "--seed", str(seed)]
        return self.train(f"{case.name}_n{ranks}_s{seed}", ranks, options, case.changes)

    def steps(self, case: Case, ranks: int, calibration: Path, seeds: int) -> list[float]:
        """A step's seconds for each seed; without jitter all are alike, so there is one."""
        chosen = range(1, seeds + 1) if case.sigma else [1]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda seed: step_s(self.train_calibrated(case, ranks, calibration, seed)), chosen))


def step_s(trace: Trace) -> float:
    return float(statistics.median(maximum_over_ranks(trace.steps, "step_s")))


def exposed_s(trace: Trace) -> float:
    return float(statistics.median(maximum_over_ranks(trace.steps, "exposed_s")))


def roofline(simulator: Simulator) -> Calibration:
    """What the platform's roofline says of each layer, with the recomputation that torchtitan's option `op` causes."""
    trace = simulator.train("roofline", CALIBRATED_RANKS, BLOCKS)
    seconds: dict[str, dict[str, float]] = {}
    for row in trace.calibration.itertuples():
        seconds.setdefault(row.kind, {})[row.direction] = row.compute_alone_s
    model = trace.config.model
    hidden, ffn = model["hidden"], model["ffn"]
    keys_width = hidden * model["kv_heads"] // model["heads"]
    # Every second matrix product runs again: of wq, wk, wv, wo, w1, w3, w2 the second, fourth and sixth
    # (torchtitan, parallelize_llama.py, _apply_ac_to_transformer_block). Per token; attention counts whole.
    again = hidden * (keys_width + hidden + ffn)
    forward = hidden * (2 * keys_width + 2 * hidden + 3 * ffn) + 2 * hidden * SEQUENCE
    seconds["block"]["recompute"] = again / forward * seconds["block"]["forward"]
    seconds["optimizer"] = {"step": statistics.median(maximum_over_ranks(trace.steps, "optimizer_s"))}
    return seconds


def scaled(calibration: Calibration, factor: float) -> Calibration:
    return {kind: {what: factor * s for what, s in by.items()} for kind, by in calibration.items()}


def write(calibration: Calibration, path: Path) -> Path:
    path.write_text(json.dumps(calibration, indent=2) + "\n")
    return path


@dataclass(frozen=True)
class Fit:
    """A factor on calibrated times, the file with the result, and the steps that it gives: seconds, one a seed."""

    factor: float
    file: Path
    steps: Sequence[float]

    @property
    def step(self) -> float:
        return statistics.mean(self.steps)


def calibrate(simulator: Simulator, case: Case, base: Calibration, seeds: int) -> Fit:
    """The factor on `base` with which 8 GPUs reach the published throughput."""
    target = TOKENS / PUBLISHED_TOKENS_PER_S[CALIBRATED_RANKS]

    def fit(factor: float) -> Fit:
        file = write(scaled(base, factor), simulator.output / f"{case.name}.json")
        return Fit(factor, file, simulator.steps(case, CALIBRATED_RANKS, file, seeds))

    # A secant; nearly all of a step is compute, so the first slope is that of a step which is nothing else.
    now, slope = fit(1.0), target
    for _ in range(6):
        if abs(now.step / target - 1) < 1e-6:
            return now
        before, now = now, fit(now.factor + (target - now.step) / slope)
        slope = (now.step - before.step) / (now.factor - before.factor)
    raise Failure(f"{case.name}: no factor gives {PUBLISHED_TOKENS_PER_S[CALIBRATED_RANKS]} tokens/s on 8 GPUs; the"
                  f" last one, {now.factor}, gives {TOKENS / now.step:.1f}")  # fmt: skip


def percent(share: float) -> str:
    return f"{100 * share + 0.0:+.2f}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def prose(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def published_loss() -> float:
    return 1 - PUBLISHED_TOKENS_PER_S[128] / PUBLISHED_TOKENS_PER_S[8]


def quiet_section(simulator: Simulator, base: Calibration) -> tuple[str, Calibration]:
    rows: list[list[str]] = []

    def add(name: str, case: Case, ranks: Sequence[int], calibration: Path, first: float) -> float:
        """Rows for `ranks`; the loss of the last one against a step of `first` seconds."""
        lost = 0.0
        for n in ranks:
            trace = simulator.train_calibrated(case, n, calibration)
            step = step_s(trace)
            lost = 1 - first / step
            published = f"{PUBLISHED_TOKENS_PER_S[n]:,}" if n in PUBLISHED_TOKENS_PER_S else ""
            rows.append([name, str(n), f"{1e3 * step:.2f}", f"{1e3 * exposed_s(trace):.2f}", f"{TOKENS / step:,.1f}",
                         published, percent(lost)])  # fmt: skip
        return lost

    ends = (RANKS[0], RANKS[-1])
    quiet, root, apart = (calibrate(simulator, case, base, 1) for case in (QUIET, QUIET_ROOT, QUIET_COPIES))
    lost = add("blocks", QUIET, RANKS, quiet.file, quiet.step)
    add("root", QUIET_ROOT, ends, root.file, root.step)
    with_copies = add("blocks, copies apart", QUIET_COPIES, ends, apart.file, apart.step)
    calibration = json.loads(quiet.file.read_text())
    shrunk = {**calibration, "optimizer": scaled(calibration, CALIBRATED_RANKS / RANKS[-1])["optimizer"]}
    file = write(shrunk, simulator.output / "shrunk.json")
    shrunk_lost = add("blocks, optimizer / 16", QUIET, ends[1:], file, quiet.step)

    verdict = "within" if 0 <= lost <= published_loss() else "NOT within"
    headings = ("groups", "GPUs", "step, ms", "waits, ms", "tokens/s/GPU", "published", "loss, %")
    summary = (
        f"The factor on the roofline's times is {quiet.factor:.4f}. From 8 to 128 GPUs {percent(lost)} % is lost, {verdict}"
        f" 0 … {100 * published_loss():.1f} %; with copies apart {percent(with_copies)} %, with an optimizer that shrinks"
        f" {percent(shrunk_lost)} %."
    )
    return f"{table(headings, rows)}\n\n{prose(summary)}", calibration


def expected_maximum(count: int, points: int = 20000) -> float:
    """Of `count` standard normal numbers, by the midpoint rule over quantiles."""
    normal = statistics.NormalDist()
    return statistics.fmean(normal.inv_cdf(((i + 0.5) / points) ** (1 / count)) for i in range(points))


def disturbed_section(simulator: Simulator, base: Calibration, seeds: int, say: Callable[[str], None]) -> str:
    rows = []
    for case in DISTURBED:
        say(case.name)
        fit = calibrate(simulator, case, base, seeds)
        cells = []
        for n in RANKS_WITH_JITTER:
            steps = simulator.steps(case, n, fit.file, seeds)
            text = percent(1 - fit.step / statistics.mean(steps))
            if case.sigma:
                error = math.hypot(*(statistics.stdev(s) / math.sqrt(len(s)) for s in (fit.steps, steps)))
                text += f" ± {100 * error / statistics.mean(steps):.2f}"
            cells.append(text)
        rows.append([f"{100 * case.sigma:.2f}", f"{case.gamma:g}", f"{fit.factor:.4f}", *cells])
    headings = ("σ of ranks, %", "γ", "factor", *(f"loss at {n}, %" for n in RANKS_WITH_JITTER))
    alone = SIGMA * (expected_maximum(128) - expected_maximum(8))
    summary = (
        f"Published at 128: {percent(published_loss())} %. Means over {seeds} seeds and their standard errors. If a step"
        f" simply took as long as its slowest rank, σ would cost {percent(alone)} % at 128: the expected maximum of 128"
        f" normal numbers is {expected_maximum(128):.2f} σ, of 8 {expected_maximum(8):.2f} σ."
    )
    return f"{table(headings, rows)}\n\n{prose(summary)}"


def memory_section(simulator: Simulator) -> str:
    def peak_gib(ranks: int, recompute: str) -> float:
        options = [*BLOCKS, "--recompute", recompute, "--trace", "steps"]
        trace = simulator.train(f"memory_{recompute}_n{ranks}", ranks, options)
        peaks = trace.memory_peak
        return float(peaks[peaks["category"] == "total_tracked"]["peak_bytes"].max()) / 2**30

    ends = (RANKS[0], RANKS[-1])
    found = {recompute: [peak_gib(n, recompute) for n in ends] for recompute in ("none", "full")}
    lines = {
        "tracked, `--recompute none`": found["none"],
        "torchtitan, selective": [PUBLISHED_MEMORY_GIB[n] for n in ends],
        "tracked, `--recompute full`": found["full"],
    }
    rows = ([name, f"{first:.1f}", f"{last:.1f}", f"{first - last:.1f}"] for name, (first, last) in lines.items())
    return table(("GiB", "8 GPUs", "128 GPUs", "difference"), rows)


def bus_bandwidth(simulator: Simulator, nodes: int, sizes: Sequence[str]) -> Iterator[tuple[str, int, float]]:
    """Collective, bytes and GB/s of each line."""
    path = simulator.output / f"collectives_{nodes}.h5"
    for collective in ("all_gather", "reduce_scatter"):
        text = simulator.run("collectives", nodes * GPUS_PER_NODE, [*sizes, "--collective", collective, "-n", "2",
                             "-w", "1", "--output", str(path)])  # fmt: skip
        for line in text.splitlines():
            if line and not line.startswith("#"):
                columns = line.split()
                yield collective, int(columns[0]), float(columns[-2])


def size_name(size: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def collectives_section(simulator: Simulator) -> str:
    curves = {
        (nodes, collective, size): busbw
        for nodes in (1, 4)
        for collective, size, busbw in bus_bandwidth(simulator, nodes, ("-b", "8K", "-e", "8G", "-f", "4"))
    }
    columns = [(nodes, collective) for collective in PUBLISHED_BANDWIDTH for nodes in (1, 4)]
    curve = table(
        ("size", "all-gather, 1 node", "4 nodes", "reduce-scatter, 1 node", "4 nodes"),
        ([size_name(size), *(f"{curves[nodes, collective, size]:.2f}" for nodes, collective in columns)]
         for size in sorted({size for _, _, size in curves})),
    )  # fmt: skip
    sizes = (2 * 2**30, 8 * 2**30)
    excess: dict[tuple[str, int], list[float]] = {}
    rows = []
    for nodes in (1, 4, 8, 16, 32, 64, 128):
        row = [str(nodes)]
        lines = bus_bandwidth(simulator, nodes, ("-b", "2G", "-e", "8G", "-f", "4"))
        large = {(collective, size): busbw for collective, size, busbw in lines}
        for collective, published in PUBLISHED_BANDWIDTH.items():
            row += [f"{large[collective, size]:.0f}" for size in sizes]
            row.append(str(published.get(nodes, "")))
            for size in sizes if nodes in published else ():
                excess.setdefault((collective, size), []).append(large[collective, size] / published[nodes] - 1)
        rows.append(row)
    headings = ("nodes", "all-gather, 2 GiB", "8 GiB", "published", "reduce-scatter, 2 GiB", "8 GiB", "published")
    against = "; ".join(
        f"{collective.replace('_', '-')}, {size_name(size)}: {100 * min(shares):+.0f} to {100 * max(shares):+.0f} %"
        for (collective, size), shares in excess.items()
    )
    return (f"Bus bandwidth, GB/s:\n\n{curve}\n\nOver the number of nodes, beside what others measured:\n\n"
            f"{table(headings, rows)}\n\n{prose(f'Simulated against published: {against}.')}")  # fmt: skip


def insert(page: str, section: str, text: str) -> str:
    begin, end = f"<!-- {section}:begin -->", f"<!-- {section}:end -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise Failure(f"{PAGE} has no {begin} followed by {end}; add both where the table shall stand")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SHARDBENCH_SIM_BIN") or ROOT / "build/sim/bin"
    parser.add_argument("--sim-bin", type=Path, default=Path(default), help="executables of preset sim (%(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "results/published",
                        help="folder for traces and calibrations; those of an earlier study are replaced (%(default)s)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=16, help="runs with jitter at each number of GPUs (%(default)s)")
    parser.add_argument("--update", action="store_true",
                        help=f"also write the tables into {PAGE.name} and the calibration into jobs/calibrations")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds} tells no standard error; choose 2 or more")
    if not (options.sim_bin / "zero3").is_file():
        parser.error(f"no zero3 in {options.sim_bin}; build preset sim (make build), or say where it is with --sim-bin")
    return options


def main() -> int:
    options = parse()
    begin = time.monotonic()

    def say(what: str) -> None:
        print(f"published: {what}, after {time.monotonic() - begin:.0f} s", file=sys.stderr)

    try:
        options.output.mkdir(parents=True, exist_ok=True)
        simulator = Simulator(options.sim_bin, options.output)
        say("the roofline")
        base = roofline(simulator)
        say("without jitter and contention")
        quiet, calibration = quiet_section(simulator, base)
        sections = {"quiet": quiet, "disturbed": disturbed_section(simulator, base, options.seeds, say)}
        say("memory")
        sections["memory"] = memory_section(simulator)
        say("collectives")
        sections["collectives"] = collectives_section(simulator)
        for text in sections.values():
            print(f"{text}\n")
        if options.update:
            page = PAGE.read_text()
            for name, text in sections.items():
                page = insert(page, name, text)
            PAGE.write_text(page)
            write(calibration, CALIBRATION_FILE)
    except (Failure, TraceError, OSError) as error:
        print(f"published: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
