"""What to run where files do not show how the library carries out small collectives."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import join, quote

from shardbench.platforms import shipped_names
from shardbench.predict.model import Configuration
from shardbench.predict.rehearsals import NODES, SIMULATED_SIZES

MEASURED_SIZES = ("-b", "256", "-e", "64M", "-f", "4")
"""Larger ones are in the scenarios' files."""


def remedy(configuration: Configuration, directory: Path, binaries: Path) -> str:
    """In words, or as a command for a shell that adds files to `directory`."""
    if configuration.setup.tp > 1:
        return "run small models with the same tp, at the same numbers of nodes"
    if configuration.place.backend != "mpi":  # which the program collectives does not have
        return "run small models at the same numbers of nodes"
    sizes = _sizes(configuration)
    ranks = str(sizes[0]) if len(sizes) == 1 else "$n"
    command = (
        f"{_program(configuration, ranks, binaries)} --output {quote(str(directory))}/collectives_n{ranks}.h5"
    )
    return (
        command if len(sizes) == 1 else f"for n in {' '.join(map(str, sizes))}; do {command} || break; done"
    )


def _sizes(configuration: Configuration) -> list[int]:
    """Every N that was run on several nodes; where machines cost nothing, on three numbers of nodes at least."""
    per_node = max(file.per_node for file in configuration.files)
    found = {ranks for ranks in configuration.measured if ranks > per_node}
    if configuration.is_simulated:
        for nodes in NODES:
            found |= {nodes * per_node} if len(found) < len(NODES) else set()
    return sorted(found or {ranks for ranks in configuration.measured if ranks > 1})


def _program(configuration: Configuration, ranks: str, binaries: Path) -> str:
    options = configuration.files[0].config.options
    own = ["-d", "all"] if options.get("reduce-dtype") == "bf16" else []
    if not configuration.is_simulated:
        own += ["--algorithm", configuration.algorithm]
        program = join([str(binaries / "collectives"), *MEASURED_SIZES, *own])
        return f"mpiexec -n {ranks} {program}"
    own += ["--algorithm", "coarse"] if configuration.algorithm == "coarse" else []
    machine = f"shardbench simulate collectives --ranks {ranks} {join(_machine(configuration))}"
    return f"{machine} -- {join([*SIMULATED_SIZES, *own])}"


def _machine(configuration: Configuration) -> Sequence[str]:
    simulation = configuration.files[0].config.simulation or {}
    name = str(simulation.get("platform"))
    changes: Iterable[tuple[str, object]] = (simulation.get("changed") or {}).items()
    platform = name if name in shipped_names() else f"{name}.toml"
    return ["--platform", platform, *(word for key, value in changes for word in ("--set", f"{key}={value}"))]
