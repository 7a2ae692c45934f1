"""Which stage, mesh and prefetch: what fits a memory, and what of that is fastest.

Memory is what the executables plan at the N in question. Time is predicted: each candidate is simulated on two to four nodes of the
platform, and extrapolated (`outlook`).
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from shardbench.bar import bar
from shardbench.errors import RunError, UsageError
from shardbench.plans import ANY_FLOPS, NoSchedule, ask
from shardbench.predict.model import (
    Measured,
    Prediction,
    build,
    configurations,
    fit_places,
    measure,
    with_residual,
)
from shardbench.processes import Together, ends_with_this_process
from shardbench.predict.remedy import NODES, SIMULATED_SIZES
from shardbench.read import read_trace

SHRUNK_HEADS = (2, 16)
"""Head sizes of smaller models beside the candidate. Their collectives are small, as shards are at large N; a library may choose
other ways for those."""

PATIENCE_S = 600
"""A rehearsal takes seconds to a minute; only a hang is to be found here."""


@dataclass(frozen=True)
class Request:
    """What is asked for. `arguments`: options for all scenarios. `platform`: as `shardbench simulate` takes it, --set included."""

    model: str
    ranks: int
    memory: int
    platform: tuple[str, ...]
    gpus_per_node: int
    arguments: tuple[str, ...]
    binaries: Path
    sim_bin: Path | None


@dataclass(frozen=True)
class Candidate:
    """A stage or mesh. `prefetch` is None where there is none; `rehearsed` what its costs are taken from."""

    scenario: str
    tp: int
    recompute: str
    prefetch: int | None

    @property
    def options(self) -> tuple[str, ...]:
        mesh = (f"--tp={self.tp}", "--sequence-parallel") if self.scenario == "mesh2d" else ()
        ahead = (f"--prefetch={self.prefetch}",) if self.prefetch is not None else ()
        return (*mesh, f"--recompute={self.recompute}", *ahead)

    @property
    def rehearsed(self) -> "Candidate":
        """Gathering ahead changes when operations run and not what they cost."""
        return self if self.prefetch is None else replace(self, prefetch=1)

    def __str__(self) -> str:
        return " ".join((self.scenario, *self.options))


@dataclass(frozen=True)
class Advice:
    """A candidate at the N in question. `prediction` is None where it does not fit."""

    candidate: Candidate
    peak_bytes: int
    prediction: Prediction | None


def candidates(gpus_per_node: int) -> Iterator[Candidate]:
    """All stages, and tensor parallelism within a node."""
    for recompute in ("none", "full"):
        for scenario in ("ddp", "zero1", "zero2"):
            yield Candidate(scenario, 1, recompute, None)
        for prefetch in (0, 1, 2):
            yield Candidate("zero3", 1, recompute, prefetch)
        for tp in (2, 4, 8):
            if tp <= gpus_per_node:
                for prefetch in (0, 1, 2):
                    yield Candidate("mesh2d", tp, recompute, prefetch)


def advise(request: Request) -> tuple[list[Advice], list[str]]:
    """Every candidate that the executables plan, and a line for each that they refuse.

    Raises:
        UsageError: no candidate is accepted.
        RunError: a simulation failed.
    """
    planned: list[tuple[Candidate, int]] = []
    refusals: list[str] = []
    for candidate in candidates(request.gpus_per_node):
        try:
            planned.append((candidate, _peak_bytes(request, candidate)))
        except NoSchedule as error:
            refusals.append(f"{candidate}: {error}")
    if not planned:
        raise UsageError(f"no stage or mesh is possible: {refusals[0]}")
    fitting = [candidate for candidate, peak in planned if peak <= request.memory]
    predictions = _predictions(request, fitting) if fitting else {}
    return [Advice(c, peak, predictions.get(c)) for c, peak in planned], refusals


def _peak_bytes(request: Request, candidate: Candidate) -> int:
    arguments = (
        *(f"--ranks={request.ranks}", f"--model={request.model}", "--compute=timed", f"--flops={ANY_FLOPS}"),
        *(*request.arguments, *candidate.options),
    )
    answer = ask(candidate.scenario, arguments, request.binaries)
    return int(answer["memory"]["peak_bytes"]["total_tracked"])


def _predictions(request: Request, fitting: Sequence[Candidate]) -> dict[Candidate, Prediction]:
    rehearsed = list(dict.fromkeys(candidate.rehearsed for candidate in fitting))
    runs = {candidate: [_own_run(request, candidate, n) for n in _sizes(request)] for candidate in rehearsed}
    others = [run for n in _sizes(request) for run in _small_runs(request, rehearsed, n)]
    done = _simulated([run for own in runs.values() for run in own] + others, request)
    lines = fit_places(done.values())
    found = {}
    for candidate in fitting:
        (configuration,) = configurations([done[run] for run in runs[candidate.rehearsed]], request.binaries)
        model = build(configuration, lines[configuration.place], request.binaries)
        model = with_residual(model, configuration)
        if candidate.prefetch is not None:
            kept = [a for a in model.setup.arguments if not a.startswith("--prefetch=")]
            setup = replace(model.setup, arguments=(*kept, f"--prefetch={candidate.prefetch}"))
            model = replace(model, setup=setup)
        found[candidate] = model.predict(request.ranks)
    return found


@dataclass(frozen=True)
class _Run:
    """One simulation: what `shardbench simulate` gets."""

    scenario: str
    ranks: int
    options: tuple[str, ...]


def _sizes(request: Request) -> list[int]:
    """N of the rehearsals; no more than what is asked for."""
    sizes = [nodes * request.gpus_per_node for nodes in NODES]
    return sizes if request.ranks > sizes[-1] else [request.ranks]


def _own_run(request: Request, candidate: Candidate, ranks: int) -> _Run:
    options = (f"--model={request.model}", *request.arguments, *candidate.options, "--steps=1", "--warmup=1")
    return _Run(candidate.scenario, ranks, options)


def _small_runs(request: Request, rehearsed: Iterable[Candidate], ranks: int) -> Iterator[_Run]:
    """What shows how the library carries out small collectives on each kind of group."""
    if ranks == request.ranks:
        return
    tensor = sorted({candidate.tp for candidate in rehearsed})
    if 1 in tensor:
        yield _Run("collectives", ranks, SIMULATED_SIZES)
    for tp in tensor:
        if tp > 1:
            for size in SHRUNK_HEADS:
                hidden = 8 * tp * size
                shape = {"layers": 2, "hidden": hidden, "heads": 8 * tp, "kv-heads": tp, "ffn": 3 * hidden}
                shape |= {"vocab": 4 * hidden, "seq": 64, "tp": tp, "steps": 1, "warmup": 1}
                options = (f"--{name}={value}" for name, value in shape.items())
                yield _Run("mesh2d", ranks, (*options, "--sequence-parallel"))


def _simulated(runs: Sequence[_Run], request: Request) -> dict[_Run, Measured]:
    """Runs each once, as many at a time as there are CPUs."""
    distinct = list(dict.fromkeys(runs))
    with tempfile.TemporaryDirectory(prefix="shardbench-advise-") as folder:
        processes = Together()

        def simulated(numbered: tuple[int, _Run]) -> Measured:
            index, run = numbered
            return _simulate(run, request, Path(folder) / f"{index}.h5", processes)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            try:
                done = bar(pool.map(simulated, enumerate(distinct)), "rehearsal", len(distinct))
                return dict(zip(distinct, done))
            except BaseException:  # which nobody wants to hear of only when the others are done
                pool.shutdown(wait=False, cancel_futures=True)
                processes.terminate()
                raise


def _simulate(run: _Run, request: Request, output: Path, processes: Together) -> Measured:
    command = [
        sys.executable,
        "-m",
        "shardbench",
        "simulate",
        run.scenario,
        f"--ranks={run.ranks}",
        *request.platform,
    ]
    command += [f"--sim-bin={request.sim_bin}"] if request.sim_bin else []
    with subprocess.Popen(
        [*command, "--", *run.options, f"--output={output}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=ends_with_this_process(signal.SIGTERM),
    ) as process:
        processes.add(process)
        try:
            _, said = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            said = f"no end after {PATIENCE_S} s"
    if process.returncode:
        last = " ".join(said.split()) or f"exit code {process.returncode}"
        raise RunError(
            f"the rehearsal {run.scenario} {' '.join(run.options)} on {run.ranks} ranks failed: {last}"
        )
    trace = read_trace(output)
    output.unlink()
    return measure(trace, f"{run.scenario} on {run.ranks}")
