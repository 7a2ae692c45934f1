#!/usr/bin/env python3
"""What does prefetch hide? Measures it where it can be measured on one machine: over a link of limited rate.

Runs zero3 with imitated compute on hosts that are network namespaces, for several ratios of compute to communication,
with and without prefetch, and under each way to make progress. docs/overlap.md says how to read the table.

Prints the table to standard output and leaves the HDF5 files. As root: build/venv/bin/python jobs/overlap.py
Exit code 77: such a link cannot be made here; the message says why.
"""

import argparse
import dataclasses
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "analysis"), str(ROOT / "tests/link")]

from network import NetworkError, RateLimitedNetwork, reason_unavailable  # noqa: E402
from shardbench.read import Trace, TraceError, read_trace  # noqa: E402
from shardbench.stats import maximum_over_ranks  # noqa: E402

BEGIN, END = "<!-- overlap:begin -->", "<!-- overlap:end -->"

# Blocks of 852 kB: at 200 Mbit/s each of two ranks sends its half in 17 ms, which is long against the pauses between two
# looks at the network (0.25 ms) and large against what sockets hold (48 kB).
BLOCK = ("--hidden", "128", "--heads", "4", "--kv-heads", "4", "--ffn", "384", "--vocab", "64", "--seq", "32")
# One thread a rank: two "hosts" on one machine would each take all cores.
FIXED = (*BLOCK, "--param-dtype", "fp32", "--compute", "timed", "--threads", "1", "--overwrite")

# What a first run computes at, before it is known how long communication takes.
FIRST_FLOPS = 8e8
FIRST_RUNS = 3
RUN_LIMIT_S = 120.0

# The exit code that test harnesses (automake, meson) know as "skipped".
SKIPPED = 77

PROGRESS = ("none", "poll", "thread")
BALANCED = 1.0


@dataclass(frozen=True)
class Place:
    """Where ranks run, and how they exchange data. One host: shared memory, outside the network."""

    name: str
    hosts: int
    ranks_per_host: int
    algorithm: str

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host


PAIR = Place("2x1", 2, 1, "auto")
QUADS = (Place("2x2-auto", 2, 2, "auto"), Place("2x2-hierarchical", 2, 2, "hierarchical"))
SHARED = Place("1x2-shared-memory", 1, 2, "auto")


@dataclass(frozen=True)
class Point:
    """What is run `launches` times. `ratio`: compute time over communication time that is aimed at."""

    place: Place
    ratio: float
    progress: str
    prefetch: int

    def file(self, launch: int) -> str:
        return f"{self.place.name}_c{self.ratio:g}_{self.progress}_p{self.prefetch}_l{launch}.h5"


@dataclass(frozen=True)
class Alone:
    """One layer in one direction alone, seconds."""

    compute: float
    communication: float


Calibration = Mapping[tuple[str, str], Alone]
"""By layer kind (embedding, block, head) and direction (forward, backward)."""


@dataclass(frozen=True)
class Launch:
    """One file, reduced. Times in seconds."""

    hosts: int
    blocks: int
    step: float
    optimizer: float
    alone: Calibration


def reduced(trace: Trace) -> Launch:
    return Launch(
        hosts=trace.ranks["host"].nunique(),
        blocks=int(trace.config.model["layers"]),
        step=statistics.median(maximum_over_ranks(trace.steps, "step_s")),
        optimizer=statistics.median(maximum_over_ranks(trace.steps, "optimizer_s")),
        alone={
            (row.kind, row.direction): Alone(row.compute_alone_s, row.communication_alone_s)
            for row in trace.calibration.itertuples()
        },
    )


@dataclass(frozen=True)
class Parts:
    """What a step consists of: all layers' compute alone, all collectives alone, the optimizer. Seconds."""

    blocks: int
    alone: Calibration
    optimizer: float

    @property
    def compute(self) -> float:
        return sum(self._layers(kind) * a.compute for (kind, _), a in self.alone.items())

    @property
    def communication(self) -> float:
        return sum(self._layers(kind) * a.communication for (kind, _), a in self.alone.items())

    def _layers(self, kind: str) -> int:
        return self.blocks if kind == "block" else 1

    # A backward row adds a layer's gather and its reduce-scatter. Both gathers of a layer move the same bytes, and
    # forward has nothing else, so the reduce-scatter is the difference.
    def _gather(self, kind: str) -> float:
        return self.alone[kind, "forward"].communication

    def _reduce_scatter(self, kind: str) -> float:
        return self.alone[kind, "backward"].communication - self._gather(kind)

    @property
    def bound(self) -> float:
        """The shortest step that the schedule allows with prefetch 1."""
        # Compute never waits but where it must. The embedding computes nothing, so the first block waits for the
        # embedding's group and its own.
        begin_forward = self._gather("embedding") + self._gather("block")
        head_backward = self.alone["head", "backward"].compute
        begin_backward = self._gather("head") + max(0.0, self._gather("block") - head_backward)
        last_gradients = self._reduce_scatter("block") + self._reduce_scatter("embedding")
        busy_compute = self.compute + begin_forward + begin_backward + last_gradients
        # The network never rests but where it must: the last layers of forward compute before backward asks for more.
        last_block = max(0.0, self.alone["block", "forward"].compute - self._gather("head"))
        busy_network = self.communication + last_block + self.alone["head", "forward"].compute
        return max(busy_compute, busy_network) + self.optimizer

    def hidden(self, step: float) -> float:
        """The share of the shorter of compute and communication that vanished behind the longer."""
        serial = self.compute + self.communication + self.optimizer
        return (serial - step) / min(self.compute, self.communication)


def typical_parts(launches: Sequence[Launch], alike: Sequence[Launch]) -> Parts:
    """Medians. A collective alone is the same at every ratio and with any prefetch: `alike` has every such launch."""
    return Parts(
        blocks=launches[0].blocks,
        alone={
            key: Alone(
                compute=statistics.median(launch.alone[key].compute for launch in launches),
                communication=statistics.median(launch.alone[key].communication for launch in alike),
            )
            for key in launches[0].alone
        },
        optimizer=statistics.median(launch.optimizer for launch in launches),
    )


class Failure(Exception):
    """A run that did not succeed."""


@dataclass(frozen=True)
class Study:
    """Where things are, and the network on which they run."""

    network: RateLimitedNetwork
    bin: Path
    mpiexec: str
    output: Path
    layers: int
    steps: int

    def run(self, point: Point, flops: float, file: str) -> Trace:
        path = self.output / file
        place = point.place
        program = [str(self.bin / "zero3"), *FIXED, "--layers", str(self.layers), "-n", str(self.steps), "-w", "1",
                   "--flops", repr(flops), "--algorithm", place.algorithm, "--progress", point.progress,
                   "--prefetch", str(point.prefetch), "--ranks", str(place.ranks), "-o", str(path)]  # fmt: skip
        environment = dict(os.environ)
        if place.hosts == 1:
            command = ["timeout", "--kill-after=5", str(RUN_LIMIT_S), self.mpiexec, "-n", str(place.ranks), *program]
        else:
            command = self.network.command(place.ranks_per_host, program, self.mpiexec, RUN_LIMIT_S)
            environment |= self.network.environment(place.ranks_per_host)
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(f"{' '.join(program)} on {place.name} ended with exit code {done.returncode} (124: not within"
                          f" {RUN_LIMIT_S:g} s):\n{done.stdout}{done.stderr}")  # fmt: skip
        trace = read_trace(path)
        if trace.incomplete:
            raise Failure(f"{path}: {trace.incomplete}")
        return trace

    def flops(self, place: Place) -> float:
        """The speed at which compute takes as long as communication there."""
        point = Point(place, BALANCED, "poll", 0)
        runs = [reduced(self.run(point, FIRST_FLOPS, f"{place.name}_first_l{i}.h5")) for i in range(FIRST_RUNS)]
        # The shortest: what disturbs a transfer makes it longer.
        first = min((typical_parts([run], [run]) for run in runs), key=lambda parts: parts.communication)
        return FIRST_FLOPS * first.compute / first.communication


def points(ratios: Sequence[float]) -> Iterator[Point]:
    for ratio in ratios:
        yield from (Point(PAIR, ratio, progress, 1) for progress in PROGRESS)
        # Without prefetch nothing is in flight while a layer computes but a reduce-scatter that is waited for next, so
        # who makes progress matters little: once is enough to show it.
        yield from (Point(PAIR, ratio, p, 0) for p in (PROGRESS if ratio == BALANCED else ("poll",)))
    for place in QUADS:
        yield from (Point(place, BALANCED, progress, 1) for progress in PROGRESS)
        yield Point(place, BALANCED, "poll", 0)
    yield from (Point(SHARED, BALANCED, "poll", prefetch) for prefetch in (0, 1))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin", help="where zero3 is (%(default)s)")
    parser.add_argument("--mpiexec", default="mpiexec", help="MPICH's launcher (%(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "results/overlap",
                        help="folder for the HDF5 files; those of an earlier study there are removed (%(default)s)")  # fmt: skip
    parser.add_argument("--launches", type=int, default=3, help="how often each point is launched (%(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a launch (%(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="transformer blocks (%(default)s)")
    parser.add_argument("--rate", type=float, default=200.0, help="of each host's link, Mbit/s (%(default)s)")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0, 4.0], metavar="R",
                        help="compute time over communication time (%(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the order of the runs (%(default)s)")
    parser.add_argument("--read", action="store_true", help="run nothing; tabulate the files that are there")
    parser.add_argument("--insert", type=Path, metavar="FILE",
                        help=f"also replace what stands between {BEGIN} and {END} in this file")  # fmt: skip
    options = parser.parse_args(arguments)
    if min(options.launches, options.steps, options.layers, *options.ratios, options.rate) <= 0:
        parser.error("launches, steps, layers, ratios and rate must be above 0; choose larger numbers")
    return options


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"


HEADINGS = ("hosts x ranks", "algorithm", "compute / comm.", "progress", "step p0, ms", "step p1, ms", "p1 / p0",
            "bound, ms", "p1 / bound", "hidden")  # fmt: skip


def table(results: Mapping[Point, Sequence[Launch]]) -> Iterator[str]:
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|---" * len(HEADINGS) + "|"
    step = {point: statistics.median(launch.step for launch in launches) for point, launches in results.items()}
    for point, launches in results.items():
        if point.prefetch == 0:
            continue
        without = dataclasses.replace(point, prefetch=0)
        borrowed = without not in step
        p0, p1 = step[dataclasses.replace(without, progress="poll") if borrowed else without], step[point]
        p0_text = f"({milliseconds(p0)})" if borrowed else milliseconds(p0)
        steps = [point.progress, p0_text, milliseconds(p1)]
        place = [f"{point.place.hosts} x {point.place.ranks_per_host}", point.place.algorithm]
        if any(launch.hosts == 1 for launch in launches):
            cells = [*place, "", *steps, "not measurable over shared memory", "", "", ""]
        else:
            alike = [launch for other, found in results.items() for launch in found
                     if (other.place, other.progress) == (point.place, point.progress)]  # fmt: skip
            parts = typical_parts(launches, alike)
            ratio = f"{parts.compute / parts.communication:.2f}"
            cells = [*place, ratio, *steps, f"{p1 / p0:.2f}", milliseconds(parts.bound), f"{p1 / parts.bound:.2f}",
                     f"{parts.hidden(p1):.2f}"]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def measure(options: argparse.Namespace, network: RateLimitedNetwork) -> dict[Point, list[Launch]]:
    study = Study(network, options.bin, options.mpiexec, options.output, options.layers, options.steps)
    balanced = {place: study.flops(place) for place in (PAIR, *QUADS)}
    # Its own communication takes hardly any time: it computes as long as the pair does over the link.
    balanced[SHARED] = balanced[PAIR]
    order = list(points(options.ratios))
    results: dict[Point, list[Launch]] = {point: [] for point in order}
    begin, total = time.monotonic(), options.launches * len(order)
    shuffled = random.Random(options.seed)
    for launch in range(1, options.launches + 1):
        for point in shuffled.sample(order, len(order)):
            done = sum(map(len, results.values()))
            left = f", about {(time.monotonic() - begin) * (total - done) / done:.0f} s left" if done else ""
            print(f"overlap: {done + 1} of {total}: {point.file(launch)}{left}", file=sys.stderr)
            trace = study.run(point, balanced[point.place] / point.ratio, point.file(launch))
            results[point].append(reduced(trace))
    return results


def read(options: argparse.Namespace) -> dict[Point, list[Launch]]:
    """What an earlier call with the same options has left."""
    launches = range(1, options.launches + 1)
    return {
        point: [reduced(read_trace(options.output / point.file(launch))) for launch in launches]
        for point in points(options.ratios)
    }


def study(options: argparse.Namespace) -> dict[Point, list[Launch]]:
    options.output.mkdir(parents=True, exist_ok=True)
    for old in options.output.glob("*_l[0-9]*.h5"):
        old.unlink()
    with RateLimitedNetwork(PAIR.hosts, options.rate) as network:
        return measure(options, network)


def insert(file: Path, text: str) -> None:
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise Failure(f"{file} has no {BEGIN} followed by {END}; add both where the table shall stand")
    file.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> int:
    options = parse()
    reason = None if options.read else reason_unavailable(options.mpiexec)
    if reason:
        print(f"overlap: not measured here: {reason}", file=sys.stderr)
        return SKIPPED
    if not options.read and not shutil.which(options.bin / "zero3"):
        print(f"overlap: no executable zero3 in {options.bin}; run make build, or pass --bin", file=sys.stderr)
        return 1
    try:
        results = read(options) if options.read else study(options)
        summary = (f"{os.cpu_count()} cores, {options.rate:g} Mbit/s between two network namespaces, {options.layers}"
                   f" blocks. Medians over {options.launches} launches of {options.steps} timed steps.")  # fmt: skip
        text = "\n".join([summary, "", *table(results)])
        print(text)
        if options.insert:
            insert(options.insert, text)
    except (Failure, NetworkError, TraceError) as error:
        print(f"overlap: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"overlap: interrupted; files so far are in {options.output}", file=sys.stderr)
        return 130  # what a shell reports for SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
