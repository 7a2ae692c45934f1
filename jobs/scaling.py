#!/usr/bin/env python3
"""Where does zero3 stop scaling? Simulates it to 4096 GPUs, beside the closed form of shardbench.redline.

Writes docs/scaling.md and its figures from jobs/scaling.md.j2: build/venv/bin/python jobs/scaling.py
What has been simulated is kept in results/scaling and not simulated again, so an interrupted call can be repeated. A
result belongs to one command, platform and executable: when one of them changes, it is simulated anew.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from math import log2
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "analysis"))

from shardbench.platforms import PlatformError, load_platform  # noqa: E402
from shardbench.plot import INK, SERIES_COLOURS, SERIES_MARKERS, STYLE  # noqa: E402
from shardbench.read import TraceError, read_trace  # noqa: E402
from shardbench.redline import Machine, red_line, windows  # noqa: E402
from shardbench.simulate import BIN_VARIABLE  # noqa: E402
from shardbench.stats import maximum_over_ranks, timed_steps  # noqa: E402

HIDDEN, FFN, KV_WIDTH = 4096, 14336, 1024
BLOCK = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_WIDTH + 3 * HIDDEN * FFN + 2 * HIDDEN
"""Parameters of a block of 8b."""

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
    mesh_ranks: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    algorithm_ranks: tuple[int, ...] = (16, 64, 128, 256)
    ring_largest: int = 256
    layers: int | None = None


QUICK = Grid(ranks=(8, 16), tokens=(1024,), prefetch_tokens=(1024,), latency_scales=(16.0,), network_scales=(),
             red_tokens=(2048,), largest=64, mesh_ranks=(64,), algorithm_ranks=(16,), ring_largest=8, layers=4)  # fmt: skip


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
            command = [sys.executable, "-m", "shardbench", *run.words, "-o", str(trace)]
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


def block_compute(grid: Grid, tokens: int) -> Run:
    """Its calibration says what a block computes alone."""
    return Run("zero3", 8, ("--model", "8b", "--layers", "2", "--seq", str(tokens), *ONE_STEP, "--trace", "events"))


def fixed_runs(grid: Grid) -> list[Run]:
    """All that is known beforehand; the red line's depend on what is found."""
    runs = [zero3(grid, n, t) for t in grid.tokens for n in grid.ranks]
    runs += [zero3(grid, n, t, prefetch) for t in grid.prefetch_tokens for n in grid.ranks for prefetch in (0, 2)]
    runs += [mesh2d(grid, n, t) for t in grid.prefetch_tokens for n in grid.mesh_ranks]
    runs += [mesh2d_events(grid, n, t) for t in grid.prefetch_tokens for n in (8, 16)]
    runs += [zero3(grid, n, t, 1, p) for p in OTHER_PLATFORMS for t in grid.prefetch_tokens[:2] for n in grid.ranks]
    runs += [block_compute(grid, t) for t in sorted({*grid.tokens, *grid.red_tokens})]
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
            Run("zero3", ranks, ("--model", "8b", "--layers", layers, "--seq", str(self.tokens), *ONE_STEP,
                                 "--trace", "steps"), FAT_TREE, self.changes)
            for layers in ("4", "6")
        )  # fmt: skip
        return short, long


def closed_form(sims: Simulations, grid: Grid, place: Place) -> tuple[int, int]:
    """N* forward and backward."""
    block = sims.get(block_compute(grid, place.tokens))["block"]
    both = windows(place.machine, BLOCK, block["forward"], block["backward"])
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
    guesses = {place: min(closed_form(sims, grid, place)) for place in places(grid)}
    searched = {place: guess for place, guess in guesses.items() if guess <= grid.largest}
    tasks = [
        (4 * place.runs(guess)[0].work, f"red line at {place.tokens} tokens, hops x {place.scale:g}: near {guess}",
         partial(simulated_red_line, sims, place, guess))
        for place, guess in searched.items()
    ]  # fmt: skip
    return dict(zip(searched, at_once(tasks, workers), strict=True))


# --- the page -----------------------------------------------------------------------------------------------------------

TEMPLATE = "scaling.md.j2"
LIMITS = (0.1, 0.5)
FOLKLORE = 512


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def joined(words: Iterable[object]) -> str:
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last


def require(claim: str, holds: bool) -> None:
    if not holds:
        raise Failure(f"the page says that {claim}, but its data do not; change the template")


class Page:
    """What the template asks for. Every figure comes from simulations or from the closed form."""

    def __init__(self, sims: Simulations, grid: Grid, red_lines: Mapping[Place, int]) -> None:
        self.sims, self.grid, self.red_lines = sims, grid, red_lines
        self.machine = Machine(load_platform(FAT_TREE).values)
        self.block, self.folklore = BLOCK, FOLKLORE
        self.largest_ranks = max(grid.ranks)

    def zero3_command(self) -> str:
        run = zero3(self.grid, 8, 1)
        words = replace_word(replace_word(run.words, "--seq", "T"), "--prefetch", "P")
        return f"shardbench {' '.join(replace_word(words, '--ranks', 'N'))}"

    def platform_command(self) -> str:
        return self.zero3_command().replace(FAT_TREE, "PLATFORM").replace("--prefetch P", "--prefetch 1")

    def mesh_command(self) -> str:
        words = mesh2d(self.grid, 8, 1).words
        return f"shardbench {' '.join(replace_word(replace_word(words, '--seq', 'T'), '--ranks', 'N'))}"

    def gather_command(self) -> str:
        words = gather(8, "ALGORITHM").words
        return f"shardbench {' '.join(replace_word(words, '--ranks', 'N'))}"

    def red_line_command(self) -> str:
        words = Place(1, 1.0).runs(8)[0].words
        words = replace_word(replace_word(words, "--layers", "4|6"), "--seq", "T")
        return f"shardbench {' '.join(replace_word(words, '--ranks', 'N'))}".replace(
            " -- ", "".join(f" --set {key}=[...]" for key in HOPS) + " -- "
        )

    def share(self, ranks: int, tokens: int, prefetch: int = 1, platform: str = FAT_TREE) -> float:
        figures = self.sims.get(zero3(self.grid, ranks, tokens, prefetch, platform))
        return float(figures["exposed_s"] / figures["step_s"])

    def prefetch_table(self, tokens: int) -> str:
        rows = []
        for ranks in self.grid.ranks:
            row: list[object] = [ranks]
            for prefetch in (0, 1, 2):
                figures = self.sims.get(zero3(self.grid, ranks, tokens, prefetch))
                rate = figures["tokens_of_rank"] / figures["step_s"]
                row += [ms(figures["step_s"]), f"{rate:,.0f}", percent(figures["exposed_s"] / figures["step_s"])]
            rows.append(row)
        names = ("step, ms", "tokens/s/GPU", "exposed")
        return table(["N", *(f"{name}, p{p}" for p in (0, 1, 2) for name in names)], rows)

    def crossing(self, tokens: int, prefetch: int, limit: float) -> str:
        for ranks in self.grid.ranks:
            if self.share(ranks, tokens, prefetch) > limit:
                return str(ranks)
        return f"> {self.largest_ranks}"

    def crossing_table(self) -> str:
        rows = [
            [tokens, *(self.crossing(tokens, p, limit) if p == 1 or tokens in self.grid.prefetch_tokens else ""
                       for limit in LIMITS for p in (0, 1, 2))]
            for tokens in self.grid.tokens
        ]  # fmt: skip
        return table(["tokens per GPU", *(f"> {100 * limit:.0f} %, p{p}" for limit in LIMITS for p in (0, 1, 2))], rows)

    def second_prefetch_gain(self) -> str:
        """What prefetch 2 saves of a step at best, against prefetch 1."""
        steps = ([self.sims.get(zero3(self.grid, n, t, p))["step_s"] for p in (1, 2)]
                 for t in self.grid.prefetch_tokens for n in self.grid.ranks)  # fmt: skip
        return percent(max(1 - two / one for one, two in steps))

    def hop(self, place: Place) -> float:
        """Mean hop of LL128's rings, seconds."""
        return next(r for r in place.machine.rings(3) if r.protocol == "LL128").mean_hop_s(place.machine.gpus)

    def mean_hop_us(self) -> str:
        return f"{1e6 * self.hop(Place(1, 1.0)):.2f}"

    def network_hop_us(self) -> str:
        ring = next(ring for ring in self.machine.rings(3) if ring.protocol == "LL128")
        return f"{1e6 * ring.between_nodes_s:g}"

    def compute(self, tokens: int) -> dict[str, float]:
        return dict(self.sims.get(block_compute(self.grid, tokens))["block"])

    def red_line_cell(self, place: Place) -> str:
        closed = min(closed_form(self.sims, self.grid, place))
        return f"{closed:,} / {self.red_lines[place]:,}" if place in self.red_lines else f"{closed:,}"

    def surface_table(self) -> str:
        scales = self.grid.latency_scales
        heads = [f"ᾱ = {1e6 * self.hop(Place(1, scale)):.2f} µs (× {scale:g})" for scale in scales]
        rows = [
            [tokens, *(ms(self.compute(tokens)[d]) for d in ("forward", "backward")),
             *(self.red_line_cell(Place(tokens, scale)) for scale in scales)]
            for tokens in self.grid.red_tokens
        ]  # fmt: skip
        return table(["tokens per GPU", "block forward, ms", "backward, ms", *heads], rows)

    def network_table(self) -> str:
        points = [Place(self.grid.network_tokens, s, HOPS[1:]) for s in self.grid.network_scales]
        rows = [[f"× {p.scale:g}", f"{1e6 * self.hop(p):.2f}", self.red_line_cell(p)] for p in points]
        return table(["hop between nodes", "ᾱ, µs", "N*"], rows)

    def regimes_table(self) -> str:
        rows = []
        for tokens in self.grid.red_tokens:
            place = Place(tokens, 1.0)
            forward, backward = closed_form(self.sims, self.grid, place)
            at = max(min(forward, backward), 3 * self.machine.gpus)
            protocols = {self.machine.fastest(at, size).protocol for size in (2 * BLOCK, 4 * BLOCK)}
            rows.append([tokens, f"{forward:,}", f"{backward:,}", joined(sorted(protocols))])
        return table(["tokens per GPU", "N* forward", "N* backward", "protocol there"], rows)

    def worst_agreement(self) -> str:
        points = self.red_lines.items()
        return percent(max(abs(n / min(closed_form(self.sims, self.grid, p)) - 1) for p, n in points))

    def exact_agreements(self) -> int:
        return sum(n == min(closed_form(self.sims, self.grid, p)) for p, n in self.red_lines.items())

    def binding(self) -> str:
        pairs = [closed_form(self.sims, self.grid, place) for place in places(self.grid)]
        require("backward binds everywhere", all(backward <= forward for forward, backward in pairs))
        return "backward"

    def tokens_at(self, ranks: int, scale: float) -> int | None:
        """Tokens per GPU at which N* is `ranks`; compute between sampled lengths is interpolated."""
        machine = Place(1, scale).machine
        sampled = sorted({*self.grid.tokens, *self.grid.red_tokens})
        known = [self.compute(tokens) for tokens in sampled]

        def lies_at(tokens: int) -> int:
            forward, backward = (
                float(np.exp(np.interp(np.log(tokens), np.log(sampled), np.log([k[d] for k in known]))))
                for d in ("forward", "backward")
            )
            return min(red_line(machine, window) for window in windows(machine, BLOCK, forward, backward))

        low, high = sampled[0], sampled[-1]
        if lies_at(low) >= ranks or lies_at(high) < ranks:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if lies_at(middle) < ranks else (low, middle)
        return high

    def folklore_table(self) -> str:
        tokens = [self.tokens_at(FOLKLORE, scale) for scale in self.grid.latency_scales]
        return table(["ᾱ, µs", *(f"{1e6 * self.hop(Place(1, scale)):.2f}" for scale in self.grid.latency_scales)],
                     [[f"tokens per GPU at which N* is {FOLKLORE}", *(f"{t:,}" if t else "outside" for t in tokens)]])  # fmt: skip

    def gather_s(self, ranks: int, algorithm: str) -> float | None:
        if algorithm == "ring" and ranks > self.grid.ring_largest:
            return None
        return float(self.sims.get(gather(ranks, algorithm))["seconds"])

    def algorithms_table(self) -> str:
        def cells(ranks: int) -> Iterable[str]:
            for algorithm in ALGORITHMS:
                seconds = self.gather_s(ranks, algorithm)
                yield "" if seconds is None else ms(seconds)

        rows = [[n, *cells(n), ms(self.machine.seconds(n, 2 * BLOCK))] for n in self.grid.algorithm_ranks]
        return table(["N", *(f"`{algorithm}`" for algorithm in ALGORITHMS), "closed form of `nccl`"], rows)

    def ring_factor(self) -> str:
        """How much slower than nccl a rank-ordered ring is, on two nodes."""
        ranks = min(self.grid.algorithm_ranks)
        factor = (self.gather_s(ranks, "coarse") or 0.0) / (self.gather_s(ranks, "nccl") or 1.0)
        return f"{factor:.1f}"

    def hierarchical_sentence(self) -> str:
        ranks = max(self.grid.algorithm_ranks)
        ratio = (self.gather_s(ranks, "hierarchical") or 0.0) / (self.gather_s(ranks, "nccl") or 1.0)
        than = "slower" if ratio > 1 else "faster"
        return f"At N = {ranks} `hierarchical` is {max(ratio, 1 / ratio):.2f} times {than} than `nccl`."

    def oversubscription_sentence(self) -> str:
        leaf = int(self.machine.values["network.leaf_nodes"]) * self.machine.gpus
        pairs = {n: [self.sims.get(zero3(self.grid, n, t, 1, p))["step_s"] for t in self.grid.prefetch_tokens[:2]
                     for p in (FAT_TREE, OTHER_PLATFORMS[0])] for n in self.grid.ranks}  # fmt: skip
        slower = {n: max(v[1::2][i] / v[::2][i] - 1 for i in range(len(v) // 2)) for n, v in pairs.items()}
        require("under one leaf both are alike", all(x < 1e-6 for n, x in slower.items() if n <= leaf))
        if max(slower) <= leaf:
            return f"Up to {leaf} GPUs, under one leaf, nothing passes these."
        return (f"Up to {leaf} GPUs, under one leaf, nothing passes these; beyond, a step takes up to"
                f" {percent(max(slower.values()))} longer.")  # fmt: skip

    def exposed_tp_s(self, tokens: int) -> float:
        """Measured at 8 GPUs; groups of 8 within nodes do not know of others."""
        eight, sixteen = (self.sims.get(mesh2d_events(self.grid, n, tokens))["exposed_tp_s"] for n in (8, 16))
        require("what tp exposes does not depend on N", abs(sixteen / eight - 1) < 0.01)
        return float(eight)

    def mesh_table(self, tokens: int) -> str:
        rows = []
        tp_s = self.exposed_tp_s(tokens)
        for n in self.grid.mesh_ranks:
            mesh, flat = self.sims.get(mesh2d(self.grid, n, tokens)), self.sims.get(zero3(self.grid, n, tokens))
            winner = "mesh2d" if mesh["step_s"] < flat["step_s"] else "zero3"
            rows.append([n, n // 8, ms(flat["step_s"]), ms(mesh["step_s"]), ms(flat["exposed_s"]),
                         ms(max(0.0, mesh["exposed_s"] - tp_s)), ms(tp_s), f"{flat['peak_bytes'] / 1e9:.1f}",
                         f"{mesh['peak_bytes'] / 1e9:.1f}", winner])  # fmt: skip
        return table(["N", "dp", "zero3 step, ms", "mesh2d step, ms", "zero3 exposed, ms", "mesh2d exposed dp",
                      "exposed tp", "zero3 peak, GB", "mesh2d peak, GB", "shorter"], rows)  # fmt: skip

    def mesh_wins(self, tokens: int) -> str:
        wins = [n for n in self.grid.mesh_ranks
                if self.sims.get(mesh2d(self.grid, n, tokens))["step_s"]
                < self.sims.get(zero3(self.grid, n, tokens))["step_s"]]  # fmt: skip
        if not wins:
            return f"nowhere up to N = {max(self.grid.mesh_ranks):,}"
        if len(wins) == len(self.grid.mesh_ranks):
            return "at every N of the table"
        return f"at N = {joined(f'{n:,}' for n in wins)}"

    def platforms_table(self, tokens: int) -> str:
        rows = []
        for n in self.grid.ranks:
            row: list[object] = [n]
            for platform in (FAT_TREE, *OTHER_PLATFORMS):
                step_s = self.sims.get(zero3(self.grid, n, tokens, 1, platform))["step_s"]
                row += [ms(step_s), percent(self.share(n, tokens, 1, platform))]
            rows.append(row)
        names = (FAT_TREE, *OTHER_PLATFORMS)
        return table(["N", *(f"{name}, {what}" for name in names for what in ("step, ms", "exposed"))], rows)

    # --- figures

    def draw(self, folder: Path) -> None:
        matplotlib.style.use(STYLE)
        self._draw_shares().savefig(folder / "scaling-exposed.svg", metadata={"Date": None}, bbox_inches="tight")
        self._draw_surface().savefig(folder / "scaling-red-line.svg", metadata={"Date": None}, bbox_inches="tight")

    def _draw_shares(self) -> Figure:
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.subplots()
        for tokens, colour, marker in zip(self.grid.tokens, SERIES_COLOURS, SERIES_MARKERS):
            shares = [100 * self.share(n, tokens) for n in self.grid.ranks]
            axes.plot(self.grid.ranks, shares, color=colour, marker=marker, label=f"{tokens:,}", ms=4)
        for limit in LIMITS:
            axes.axhline(100 * limit, color=INK, lw=0.6, ls=":")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(self.grid.ranks))
        axes.set_xticks(self.grid.ranks, [str(n) for n in self.grid.ranks])
        axes.set(xlabel="GPUs", ylabel="exposed, % of a step", ylim=(0, 100))
        axes.legend(title="tokens per GPU", frameon=False)
        return figure

    def _draw_surface(self) -> Figure:
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.subplots()
        for scale, colour, marker in zip(self.grid.latency_scales, SERIES_COLOURS, SERIES_MARKERS):
            points = [Place(tokens, scale) for tokens in self.grid.red_tokens]
            closed = [min(closed_form(self.sims, self.grid, place)) for place in points]
            axes.plot(self.grid.red_tokens, closed, color=colour, label=f"{1e6 * self.hop(points[0]):.2f}")
            found = [p for p in points if p in self.red_lines]
            axes.plot(
                [p.tokens for p in found], [self.red_lines[p] for p in found], color=colour, marker=marker, ls="", ms=5
            )
        axes.axhline(FOLKLORE, color=INK, lw=0.6, ls=":")
        axes.annotate(str(FOLKLORE), (max(self.grid.red_tokens), FOLKLORE), va="bottom", ha="right")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(self.grid.red_tokens, [f"{t:,}" for t in self.grid.red_tokens])
        axes.xaxis.set_minor_locator(NullLocator())
        exponents = range(3, int(log2(axes.get_ylim()[1])) + 1)
        axes.set_yticks([2**e for e in exponents], [f"{2**e:,}" for e in exponents])
        axes.set(xlabel="tokens per GPU", ylabel="red line N*, GPUs")
        axes.legend(title="mean hop, µs", frameon=False)
        return figure


def replace_word(words: Sequence[str], option: str, value: str) -> list[str]:
    place = list(words).index(option) + 1
    return [*words[:place], value, *words[place + 1 :]]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sim-bin", type=Path, default=Path(os.environ.get(BIN_VARIABLE) or ROOT / "build/sim/bin"),
                        help="where the simulated executables are (%(default)s)")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs",
                        help="folder for scaling.md and its figures (%(default)s)")  # fmt: skip
    parser.add_argument("--results", type=Path, default=ROOT / "results/scaling",
                        help="folder for what has been simulated (%(default)s)")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="simulations at once (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few ranks and layers: tries the script, says nothing")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} simulates nothing; pass 1 or more")
    return options


def main() -> int:
    options = parse()
    grid = QUICK if options.quick else Grid()
    try:
        sims = Simulations(options.results, options.sim_bin)
        page = Page(sims, grid, simulate_all(sims, grid, options.jobs))
        environment = Environment(loader=FileSystemLoader(ROOT / "jobs"), undefined=StrictUndefined,
                                  trim_blocks=True, keep_trailing_newline=True)  # fmt: skip
        text = environment.get_template(TEMPLATE).render(page=page, grid=grid, percent=percent, ms=ms, joined=joined)
        options.output.mkdir(parents=True, exist_ok=True)
        page.draw(options.output)
        (options.output / "scaling.md").write_text(text)
    except (Failure, PlatformError, TraceError, OSError) as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"scaling: interrupted; what was simulated is in {options.results}; the same command goes on",
              file=sys.stderr)  # fmt: skip
        return 130  # what a shell reports for SIGINT
    print(f"wrote {options.output / 'scaling.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
