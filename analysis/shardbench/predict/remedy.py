"""The command that shows how a machine carries out small collectives, where files do not and nothing can be simulated."""

from pathlib import Path
from shlex import join, quote

from shardbench.predict.model import Configuration

SIZES = ("-b", "256", "-e", "64M", "-f", "4", "-d", "all")
"""From latency alone to transfer alone; larger ones are in the scenarios' files."""


def collectives_command(configuration: Configuration, directory: Path, binaries: Path) -> str | None:
    """For a shell: adds files of the program `collectives` to `directory`, for each N that was measured on several nodes.

    None for simulations, which `predict` makes itself, and where that program does not communicate as the configuration does:
    groups of a mesh, and backends other than MPI.
    """
    if configuration.is_simulated or configuration.setup.tp > 1 or configuration.place.backend != "mpi":
        return None
    per_node = max(file.per_node for file in configuration.files)
    measured = [ranks for ranks in configuration.measured if ranks > 1]
    sizes = [ranks for ranks in measured if ranks > per_node] or measured
    ranks = str(sizes[0]) if len(sizes) == 1 else "$n"
    program = join([str(binaries / "collectives"), *SIZES, *_as_configured(configuration)])
    command = f"mpiexec -n {ranks} {program} --output {quote(str(directory))}/collectives_n{ranks}.h5"
    return (
        command if len(sizes) == 1 else f"for n in {' '.join(map(str, sizes))}; do {command} || break; done"
    )


def _as_configured(configuration: Configuration) -> list[str]:
    own = configuration.files[0].config.options
    nodes = ["--ranks-per-node", str(own["ranks-per-node"])] if own.get("ranks-per-node") else []
    return ["--algorithm", configuration.algorithm, "--progress", str(own.get("progress", "poll")), *nodes]
