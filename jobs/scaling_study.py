"""What jobs/scaling.py simulates: the grid, each simulation run once and kept, and the search for the red line."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "analysis"))

from shardbench.platforms import load_platform  # noqa: E402
from shardbench.read import read_trace  # noqa: E402
from shardbench.redline import Block, Layout, Machine, red_line, windows  # noqa: E402
from shardbench.simulate import BIN_VARIABLE  # noqa: E402
from shardbench.stats import maximum_over_ranks, timed_steps  # noqa: E402

# Of 8b (docs/contract.md): rows, and columns of all weights and norms with so many rows.
HIDDEN, FFN, KV_WIDTH = 4096, 14336, 1024
ROWS_COLUMNS = ((HIDDEN, HIDDEN + HIDDEN + FFN + 2), (KV_WIDTH, 2 * HIDDEN), (FFN, 2 * HIDDEN))
BLOCK = sum(rows * columns for rows, columns in ROWS_COLUMNS)
"""Parameters of a block."""

FAT_TREE = "h100-fat-tree"
# Simulated steps are alike to the last digit, so one is enough and none needs warming up.
ONE_STEP = ("-n", "1", "-w", "0")
HOPS = ("nccl.gpu_link_hop_us.ring", "nccl.network_hop_us.ring")
# Of a block: launches of kernels are 5 us apart, what is shorter is rounding.
EXPOSED_S = 1e-6


class Failure(Exception):
    """A simulation that did not succeed."""


@dataclass(frozen=True)
class Run:
    scenario: str
    ranks: int
    options: tuple[str, ...]
    platform: str = FAT_TREE
    changes: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """After `shardbench`."""
        changes = [word for change in self.changes for word in ("--set", change)]
        return ["simulate", self.scenario, "--ranks", str(self.ranks), "--platform", self.platform, *changes, "--",
                *self.options]  # fmt: skip

    @property
    def work(self) -> float:
        """Roughly the seconds that it takes."""
        return 2 + self.ranks * (0.0015 if "--layers" in self.options else 0.006)


@dataclass(frozen=True)
class Grid:
    """What is simulated. `layers` shortens the model for a test; None: all of them."""

    ranks: tuple[int, ...] = tuple(2**k for k in range(3, 13))
    tokens: tuple[int, ...] = (8192, 4096, 2048, 1024, 512)
    prefetch_tokens: tuple[int, ...] = (8192, 2048, 512)
    latency_scales: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    network_scales: tuple[float, ...] = (0.5, 2.0, 4.0)
    red_tokens: tuple[int, ...] = (8192, 6144, 4096, 3072, 2048, 1536, 1024)
    network_tokens: int = 2048
    largest: int = 2048  # beyond which the red line stands in closed form only
    mesh_ranks: tuple[int, ...] = (64, 128, 256, 512, 1024)
    platform_ranks: tuple[int, ...] = tuple(2**k for k in range(3, 12))
    algorithm_ranks: tuple[int, ...] = (16, 64, 128, 256)
    ring_largest: int = 256
    layers: int | None = None


QUICK = Grid(ranks=(8, 16), tokens=(1024,), prefetch_tokens=(1024,), latency_scales=(16.0,), network_scales=(),
             red_tokens=(2048,), largest=64, mesh_ranks=(16,), platform_ranks=(8, 16), algorithm_ranks=(16,), ring_largest=8, layers=4)  # fmt: skip


class Simulations:
    """Runs each simulation once, ever: its figures are kept as JSON."""

    def __init__(self, folder: Path, sim_bin: Path) -> None:
        if not (sim_bin / "zero3").is_file():
            raise Failure(f"no simulated scenarios in {sim_bin}; run make build, or pass --sim-bin")
        self._folder, self._bin = folder, sim_bin
        folder.mkdir(parents=True, exist_ok=True)

    def known(self, run: Run) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self.file(run).read_text()))
        except (OSError, ValueError):
            return None

    def get(self, run: Run) -> dict[str, Any]:
        return self.known(run) or self._simulate(run)

    def file(self, run: Run) -> Path:
        platform = load_platform(run.platform, run.changes).description(run.ranks)
        identity = json.dumps([run.words, platform, _digest(self._bin, run.scenario)], sort_keys=True)
        return self._folder / f"{run.scenario}_n{run.ranks}_{hashlib.sha256(identity.encode()).hexdigest()[:12]}.json"

    def _simulate(self, run: Run) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            trace = Path(folder) / "trace.h5"
            command = [sys.executable, "-m", "shardbench", *run.words, "--output", str(trace)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "analysis"), BIN_VARIABLE: str(self._bin)}
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode != 0:
                reason = " ".join(done.stderr.split())
                raise Failure(f"shardbench {shlex.join(run.words)} ended with exit code {done.returncode}: {reason}")
            figures = {"command": f"shardbench {shlex.join(run.words)}", **_figures(trace)}
            # Complete or not there: a kill in between must not leave half a result.
            result = Path(folder) / "result.json"
            result.write_text(json.dumps(figures, indent=1))
            result.replace(self.file(run))
        return figures


@cache
def _digest(folder: Path, scenario: str) -> str:
    files = [folder / scenario, *sorted((folder.parent / "lib").glob("*.so"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _figures(path: Path) -> dict[str, Any]:
    """Seconds and bytes."""
    trace = read_trace(path)
    if trace.incomplete:
        raise Failure(f"{path}: {trace.incomplete}")
    if not trace.collectives.empty:
        calls = trace.collectives
        return {"seconds": float((calls["end_s"] - calls["start_s"]).max())}
    columns = ("step_s", "exposed_s", "exposed_ag_forward_s", "exposed_ag_backward_s", "exposed_rs_s", "compute_s")
    figures: dict[str, Any] = {column: float(maximum_over_ranks(trace.steps, column)[0]) for column in columns}
    # Ranks with smaller shards copy less, and wait for the others: the rank that waits least waits for the network.
    figures["least_exposed_s"] = float(timed_steps(trace.steps)["exposed_s"].min())
    figures["tokens_of_rank"] = int(timed_steps(trace.steps)["tokens"].max())
    peaks = trace.memory_peak[trace.memory_peak["category"] == "total_tracked"]
    figures["peak_bytes"] = int(peaks["peak_bytes"].max())
    block = trace.calibration[trace.calibration["kind"] == "block"]
    figures["block"] = {str(row.direction): float(row.compute_alone_s) for row in block.itertuples()}
    waits = trace.events[trace.events["kind"] != "wait"]
    waits = waits[(waits["axis"] == "tp") & (waits["step"] >= 0)]
    figures["exposed_tp_s"] = float(waits.groupby("rank")["wait_s"].sum().max()) if len(waits) else 0.0
    return figures


def step(grid: Grid, scenario: str, ranks: int, tokens: int, *more: str, platform: str = FAT_TREE) -> Run:
    layers = ("--layers", str(grid.layers)) if grid.layers else ()
    options = ("--model", "8b", *layers, "--seq", str(tokens), *more, *ONE_STEP)
    return Run(scenario, ranks, (*options, "--trace", "steps") if "--trace" not in more else options, platform)


def zero3(grid: Grid, ranks: int, tokens: int, prefetch: int = 1, platform: str = FAT_TREE) -> Run:
    return step(grid, "zero3", ranks, tokens, "--prefetch", str(prefetch), platform=platform)


# Of a tensor-parallel group: 8 sequences over 8 GPUs are as many tokens a GPU as zero3's one.
MESH = ("--tp", "8", "--micro-batch", "8", "--sequence-parallel", "--prefetch", "1")


def mesh2d(grid: Grid, ranks: int, tokens: int) -> Run:
    return step(grid, "mesh2d", ranks, tokens, *MESH)


def mesh2d_events(grid: Grid, ranks: int, tokens: int) -> Run:
    return step(grid, "mesh2d", ranks, tokens, *MESH, "--trace", "events")


OTHER_PLATFORMS = ("h100-fat-tree-4to1", "ethernet")
ALGORITHMS = ("nccl", "coarse", "hierarchical", "doubling", "ring")


def gather(ranks: int, algorithm: str) -> Run:
    """One block's all-gather alone."""
    size = str(2 * BLOCK)
    return Run("collectives", ranks, ("--collective", "all_gather", "-d", "bfloat16", "-b", size, "-e", size,
                                      "-c", "0", *ONE_STEP, "--algorithm", algorithm))  # fmt: skip


def block_compute(tokens: int) -> Run:
    """Its calibration says what a block computes alone."""
    return Run("zero3", 8, ("--model", "8b", "--layers", "2", "--seq", str(tokens), *ONE_STEP, "--trace", "events"))


def fixed_runs(grid: Grid) -> list[Run]:
    """All that is known beforehand; the red line's depend on what is found."""
    runs = [zero3(grid, n, t) for t in grid.tokens for n in grid.ranks]
    runs += [zero3(grid, n, t, prefetch) for t in grid.prefetch_tokens for n in grid.ranks for prefetch in (0, 2)]
    runs += [mesh2d(grid, n, t) for t in grid.prefetch_tokens for n in grid.mesh_ranks]
    runs += [mesh2d_events(grid, n, t) for t in grid.prefetch_tokens for n in (8, 16)]
    runs += [
        zero3(grid, n, t, 1, p) for p in OTHER_PLATFORMS for t in grid.prefetch_tokens[:2] for n in grid.platform_ranks
    ]
    runs += [block_compute(t) for t in sorted({*grid.tokens, *grid.red_tokens})]
    runs += [gather(n, a) for a in ALGORITHMS for n in grid.algorithm_ranks if a != "ring" or n <= grid.ring_largest]
    return list(dict.fromkeys(runs))


# --- the red line, simulated --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A point of the surface: the latency of every hop, or of hops between nodes alone, times `scale`."""

    tokens: int
    scale: float
    keys: tuple[str, ...] = HOPS

    @property
    def changes(self) -> tuple[str, ...]:
        if self.scale == 1.0:
            return ()
        values = load_platform(FAT_TREE).values
        return tuple(f"{key}=[{','.join(f'{v * self.scale:g}' for v in values[key])}]" for key in self.keys)

    @property
    def machine(self) -> Machine:
        return Machine(load_platform(FAT_TREE, self.changes).values)

    def runs(self, ranks: int) -> tuple[Run, Run]:
        """Which differ by two blocks between others: what these expose, blocks expose."""
        short, long = (
            Run("zero3", ranks, ("--model", "8b", "--layers", layers, "--layout", Layout.FLAT.value, "--seq", str(self.tokens), *ONE_STEP,
                                 "--trace", "steps"), FAT_TREE, self.changes)
            for layers in ("4", "6")
        )  # fmt: skip
        return short, long


def closed_form(sims: Simulations, place: Place) -> tuple[int, int]:
    """N* forward and backward."""
    block = sims.get(block_compute(place.tokens))["block"]
    both = windows(place.machine, Block(BLOCK, block["forward"], block["backward"]), Layout.FLAT)
    forward, backward = (red_line(place.machine, window) for window in both)
    return forward, backward


def simulated_red_line(sims: Simulations, place: Place, guess: int) -> int:
    """The smallest N, in whole nodes, at which blocks expose something; found from a guess outward."""
    g = place.machine.gpus

    @cache
    def exposes(ranks: int) -> bool:
        short, long = (sims.get(run)["least_exposed_s"] for run in place.runs(ranks))
        return bool(long - short > 2 * EXPOSED_S)

    stride, above = g, guess
    while not exposes(above):
        above, stride = above + stride, 2 * stride
    stride, below = g, max(0, above - g)  # of 0 ranks nothing is exposed
    while below and exposes(below):
        above, below, stride = below, max(0, below - stride), 2 * stride
    while above - below > g:
        middle = (below + above) // 2 // g * g
        above, below = (middle, below) if exposes(middle) else (above, middle)
    return above


def places(grid: Grid) -> list[Place]:
    return [Place(t, scale) for t in grid.red_tokens for scale in grid.latency_scales] + [
        Place(grid.network_tokens, scale, HOPS[1:]) for scale in grid.network_scales
    ]


# --- running all of it --------------------------------------------------------------------------------------------------


class Progress:
    def __init__(self, work: float) -> None:
        self._work, self._done, self._begin, self._lock = work, 0.0, time.monotonic(), threading.Lock()

    def add(self, work: float, what: str) -> None:
        with self._lock:
            self._done += work
            left = (time.monotonic() - self._begin) * (self._work - self._done) / self._done
            print(f"scaling: {100 * self._done / self._work:3.0f} %, about {left / 60:.1f} min left: {what}",
                  file=sys.stderr)  # fmt: skip


def at_once(tasks: Sequence[tuple[float, str, Callable[[], Any]]], workers: int) -> list[Any]:
    """The tasks' results, in order. Each has its work and its name."""
    progress = Progress(sum(work for work, _, _ in tasks))

    def perform(task: tuple[float, str, Callable[[], Any]]) -> Any:
        work, what, function = task
        result = function()
        progress.add(work, what)
        return result

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(perform, task) for task in tasks]
        try:
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def simulate_all(sims: Simulations, grid: Grid, workers: int) -> dict[Place, int]:
    """Everything that the page needs. Returns the simulated red line where it is simulated."""
    missing = [run for run in fixed_runs(grid) if sims.known(run) is None]
    at_once([(run.work, " ".join(run.words[:5]), partial(sims.get, run)) for run in missing], workers)
    guesses = {place: min(closed_form(sims, place)) for place in places(grid)}
    searched = {place: guess for place, guess in guesses.items() if guess <= grid.largest}
    tasks = [
        (4 * place.runs(guess)[0].work, f"red line at {place.tokens} tokens, hops x {place.scale:g}: near {guess}",
         partial(simulated_red_line, sims, place, guess))
        for place, guess in searched.items()
    ]  # fmt: skip
    return dict(zip(searched, at_once(tasks, workers), strict=True))
