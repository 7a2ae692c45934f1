"""The schedule of a step, as the executable itself plans it (`--plan`)."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shardbench.plans import ANY_FLOPS, ask
from shardbench.read import Config

DIMENSIONS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq")

STEP_OPTIONS = (
    *("micro-batch", "grad-accum", "global-batch", "param-dtype", "reduce-dtype", "fp32-grad-accum", "clip"),
    *("recompute", "layout", "wrap", "reshard-after-forward", "prefetch", "communicators", "rs-wait"),
    *("bucket-mb", "param-gather", "sequence-parallel", "algorithm", "progress", "ranks-per-node"),
    *("payload", "threads"),
)
"""Options that decide what a step does or what it needs."""


@dataclass(frozen=True)
class Local:
    """Work on the compute stream. `block`: embedding, block, head, root or none; `piece`: tensor-parallel collectives cut a
    layer's compute into pieces."""

    kind: str
    phase: str
    block: str
    bucket: int
    piece: int


@dataclass(frozen=True)
class Collective:
    """Asked for here, carried out when the queue of its communicator comes to it. Size S in bytes."""

    collective: str
    algorithm: str
    dtype: str
    axis: str
    size: int
    queue: str


@dataclass(frozen=True)
class Wait:
    """Compute stands still until the collective with this index, counted in order of issue, is done."""

    collective: int


Operation = Local | Collective | Wait


@dataclass(frozen=True)
class Setup:
    """A configuration but for its world size."""

    scenario: str
    model: str
    arguments: tuple[str, ...]
    tp: int
    layers: int
    seq: int
    has_root: bool
    communicators: int

    def at(self, ranks: int) -> list[str]:
        """The executable's arguments."""
        mesh = [f"--tp={self.tp}", "--dp=-1"] if self.scenario == "mesh2d" else []
        return [f"--ranks={ranks}", *self.arguments, *mesh]


@dataclass(frozen=True)
class Schedule:
    """Rank 0's step on paper. Bytes per rank."""

    ranks: int
    dp: int
    tp: int
    operations: tuple[Operation, ...]
    peak_bytes: int
    tokens: int


def setup_facts(config: Config) -> dict[str, Any]:
    """All of a configuration that `setup_of` looks at."""
    names = (*STEP_OPTIONS, "model", "compute", "tp")
    return {"shape": config.model} | {name: config.options.get(name) for name in names}


def setup_of(scenario: str, config: Config, binaries: Path) -> Setup:
    """What a file's run was configured with, as arguments: what differs from the executable's defaults.

    Raises:
        UsageError, RunError: as for `ask`.
    """
    options, model = config.options, config.model
    shape = [f"--{name.replace('_', '-')}={model[name]}" for name in DIMENSIONS]
    shape += ["--tied" if model["tied"] else "--untied"]
    arguments = [f"--model={options['model']}", *shape]
    if options.get("compute") == "timed":
        arguments += ["--compute=timed", f"--flops={ANY_FLOPS}"]
    defaults = ask(scenario, [*arguments, "--ranks=1"], binaries)["options"]
    is_strong = options.get("global-batch") is not None
    for name in STEP_OPTIONS:
        value = options.get(name)
        if value == defaults.get(name) or value is None:
            continue
        if name == "grad-accum" and is_strong:  # follows from the global batch and N
            continue
        if isinstance(value, bool):
            arguments += [f"--{name}"] if value else []
        else:
            arguments.append(f"--{name}={value}")
    return Setup(
        scenario=scenario,
        model=str(options["model"]),
        arguments=tuple(arguments),
        tp=int(options.get("tp", 1)),
        layers=int(model["layers"]),
        seq=int(model["seq"]),
        has_root=options.get("wrap") == "root",
        communicators=int(options.get("communicators") or 1),
    )


@cache
def plan(setup: Setup, ranks: int, binaries: Path) -> Schedule:
    """The schedule at a world size, asked for once.

    Raises:
        UsageError, RunError: as for `ask`.
    """
    answer = ask(setup.scenario, setup.at(ranks), binaries)
    options, events = answer["options"], answer["events"]
    sequences = options["micro-batch"] * options["grad-accum"] * options["dp"]
    return Schedule(
        ranks=ranks,
        dp=options["dp"],
        tp=options["tp"],
        operations=tuple(operations(events, setup.layers, setup.has_root, setup.communicators)),
        peak_bytes=answer["memory"]["peak_bytes"]["total_tracked"],
        tokens=sequences * setup.seq,
    )


def operations(
    events: Iterable[Mapping[str, Any]], layers: int, has_root: bool, communicators: int
) -> Iterable[Operation]:
    """Of rows as in the table `events`, in order of issue.

    A wait names no collective. It repeats a collective's subject, and those of one subject are waited for as they were
    issued.
    """
    pending: dict[tuple[Any, ...], deque[int]] = defaultdict(deque)
    pieces: dict[tuple[Any, ...], int] = defaultdict(int)
    issued = 0
    for row in events:
        subject = tuple(row[name] for name in ("axis", "layer", "bucket", "elements", "dtype"))
        if row["stream"] == "comm":
            pending[subject].append(issued)
            issued += 1
            yield Collective(
                collective=row["kind"],
                algorithm=row["algorithm"],
                dtype=row["dtype"],
                axis=row["axis"],
                size=row["bytes"],
                queue=_queue(row, communicators),
            )
        elif row["kind"] == "wait":
            yield Wait(pending[subject].popleft())
        else:
            where = tuple(row[name] for name in ("micro", "layer", "bucket", "phase", "kind"))
            yield Local(
                row["kind"],
                row["phase"],
                block_of(row["layer"], layers, has_root),
                row["bucket"],
                pieces[where],
            )
            pieces[where] += 1


def _queue(row: Mapping[str, Any], communicators: int) -> str:
    divided = row["axis"] == "dp" and communicators == 2
    return f"{row['axis']} {row['kind']}" if divided else str(row["axis"])


def block_of(layer: int, layers: int, has_root: bool) -> str:
    """The class of a layer; blocks are alike, so what one costs the others do."""
    if layer < 0:
        return "none"
    if layer == 0:
        return "root" if has_root else "embedding"
    return "head" if layer == layers + 1 else "block"
