"""Which stage, mesh and prefetch: what fits a memory, and what of that is fastest.

Memory is what the executables plan at the N in question. Time is predicted: each candidate is simulated on two to four nodes of the
platform, and extrapolated (`outlook`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardbench.errors import UsageError
from shardbench.plans import ANY_FLOPS, SIMULATED_COMMUNICATION, NoSchedule, ask
from shardbench.predict.model import Prediction, build, configurations, fit_places, with_residual
from shardbench.predict.rehearsals import NODES, Rehearsal, Stage, rehearse, small_collectives


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
    said = {argument.partition("=")[0] for argument in request.arguments}
    simulated = (f"--{name}={value}" for name, value in SIMULATED_COMMUNICATION.items())
    assumed = [option for option in simulated if option.partition("=")[0] not in said]
    arguments = (
        *(f"--ranks={request.ranks}", f"--model={request.model}", "--compute=timed", f"--flops={ANY_FLOPS}"),
        *(*assumed, *request.arguments, *candidate.options),
    )
    answer = ask(candidate.scenario, arguments, request.binaries)
    return int(answer["memory"]["peak_bytes"]["total_tracked"])


def _predictions(request: Request, fitting: Sequence[Candidate]) -> dict[Candidate, Prediction]:
    rehearsed = list(dict.fromkeys(candidate.rehearsed for candidate in fitting))
    sizes = _sizes(request)
    own = {candidate: [_own_run(request, candidate, n) for n in sizes] for candidate in rehearsed}
    runs = [run for of_candidate in own.values() for run in of_candidate]
    if sizes != [request.ranks]:
        runs += small_collectives({candidate.tp for candidate in rehearsed}, request.gpus_per_node)
    done = rehearse(runs, Stage(request.platform, request.sim_bin))
    lines = fit_places(done.values())
    found = {}
    for candidate in fitting:
        (configuration,) = configurations([done[run] for run in own[candidate.rehearsed]], request.binaries)
        model = build(configuration, lines[configuration.place], request.binaries)
        model = with_residual(model, configuration)
        if candidate.prefetch is not None:
            kept = [a for a in model.setup.arguments if not a.startswith("--prefetch=")]
            setup = replace(model.setup, arguments=(*kept, f"--prefetch={candidate.prefetch}"))
            model = replace(model, setup=setup)
        found[candidate] = model.predict(request.ranks)
    return found


def _sizes(request: Request) -> list[int]:
    """N of the rehearsals; no more than what is asked for."""
    sizes = [nodes * request.gpus_per_node for nodes in NODES]
    return sizes if request.ranks > sizes[-1] else [request.ranks]


def _own_run(request: Request, candidate: Candidate, ranks: int) -> Rehearsal:
    options = (f"--model={request.model}", *request.arguments, *candidate.options, "--steps=1", "--warmup=1")
    return Rehearsal(candidate.scenario, ranks, options)
