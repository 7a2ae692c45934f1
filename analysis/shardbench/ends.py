"""Where scaling ends: at the first N that breaks a limit, and where NCCL's rings say it must."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardbench.overlap import Rehearsal
from shardbench.redline import Block, Layout, Machine, red_line, windows
from shardbench.summary.launch import Launch
from shardbench.summary.series import Series
from shardbench.units import percent

EXPOSED_LIMIT = 0.10
"""More exposed communication than this share of a step ends scaling."""

EFFICIENCY_LIMIT = 0.80
"""So does less throughput per rank than this share of the base's."""

DEFINITION = (
    f"Scaling ends at the first N at which more than {percent(EXPOSED_LIMIT)} of a step is exposed communication, or "
    f"whose throughput per rank is below {percent(EFFICIENCY_LIMIT)} of the base's (the series' smallest N)."
)


@dataclass(frozen=True)
class End:
    """The first N that breaks a limit: which quantity, and its share there."""

    size: int
    quantity: str
    share: float


def scaling_end(series: Series) -> End | None:
    """Of a series in numeric order of N; None where no N that was run breaks a limit."""
    for point in series.points:
        efficiency = series.efficiency(point)
        if point.exposed_share > EXPOSED_LIMIT:
            return End(point.size, "of a step exposed", point.exposed_share)
        if efficiency < EFFICIENCY_LIMIT:
            return End(point.size, "efficiency", efficiency)
    return None


def closed_form_end(series: Series) -> int | None:
    """N*, from which on a block's collectives take longer than it computes (`shardbench.redline`).

    None where the closed form does not apply or lacks a figure: it is for simulated zero3 that gathers a block ahead in
    bf16 and reduces in fp32 by NCCL's rings, and takes the block's compute from the rehearsal of a run of the series.
    """
    launches = [launch for point in series.points for launch in point.launches]
    rehearsed = [(launch, launch.rehearsal) for launch in launches if isinstance(launch.rehearsal, Rehearsal)]
    if not rehearsed or not all(map(_applies, launches)):
        return None
    launch, alone = rehearsed[0]
    machine = Machine(dict(_dotted((launch.config.simulation or {})["machine"])))
    layout = Layout(launch.config.options["layout"])
    block = Block(_block_elements(launch), alone.forward_s, alone.backward_s)
    try:
        return min(red_line(machine, window) for window in windows(machine, block, layout))
    except (KeyError, ValueError):  # a machine without NCCL's figures, or without latency
        return None


def _applies(launch: Launch) -> bool:
    options, simulation = launch.config.options, launch.config.simulation or {}
    wanted = {"algorithm": "nccl", "param-dtype": "bf16", "reduce-dtype": "fp32", "communicators": 1}
    return (
        launch.attributes.scenario == "zero3"
        and bool(launch.attributes.simulated)
        and "gpu" in simulation.get("machine", {})
        and all(options.get(name) == value for name, value in wanted.items())
        and options.get("reshard-after-forward") == "all"
        and options.get("recompute") == "none"
        and options.get("prefetch") == "1,1"
    )


def _block_elements(launch: Launch) -> int:
    """Parameters of one block: all but the embedding, the final norm and the head (one with the embedding if tied)."""
    model = launch.config.model
    rows = model["vocab"] * (1 if model["tied"] else 2)
    return int(launch.attributes.psi - (rows + 1) * model["hidden"]) // int(model["layers"])


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
