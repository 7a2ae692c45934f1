"""Where the numbers come from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardbench.summary.launch import Launch


@dataclass(frozen=True)
class Provenance:
    """What all runs share, said once; and a table of what is each run's own."""

    common: Sequence[tuple[str, str]]
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def provenance(launches: Sequence[Launch]) -> Provenance:
    """In the order of scenario, N and file."""
    if not launches:
        return Provenance([], [], [])
    launches = sorted(launches, key=lambda run: (run.attributes.scenario, run.size, run.name))
    facts = [dict(_facts(launch)) for launch in launches]
    names = list(facts[0])
    shared = [name for name in names if len({fact[name] for fact in facts}) == 1]
    own = [name for name in names if name not in shared]
    return Provenance(
        [(name, facts[0][name]) for name in shared],
        ["file", *own],
        [[launch.name, *(fact[name] for name in own)] for launch, fact in zip(launches, facts)],
    )


def period(launches: Sequence[Launch]) -> str:
    """When the runs were made, UTC."""
    created = sorted(launch.attributes.created_utc for launch in launches)
    if not created:
        return ""
    return created[0] if created[0] == created[-1] else f"{created[0]} to {created[-1]}"


def _facts(launch: Launch) -> Iterator[tuple[str, str]]:
    attributes = launch.attributes
    simulation = launch.config.simulation or {}
    yield "N", str(launch.size)
    yield "commit", attributes.git_commit[:12] + (" (modified)" if attributes.git_dirty else "")
    yield "build", attributes.build_type
    yield "MPI", attributes.mpi_library
    yield "HDF5", attributes.hdf5_version
    yield "NCCL", attributes.nccl_version or "none"
    yield "backend", attributes.backend
    yield "platform", launch.platform or "real"
    yield "SimGrid", str(simulation.get("simgrid", "none"))
    yield "waiting", launch.config.wait_policy
    yield "algorithm", str(launch.config.options.get("algorithm", "unknown"))
    yield "trace", str(launch.config.options.get("trace", "unknown"))
    yield "host", _hosts(launch.hosts)
    yield "threads per rank", str(launch.threads)
    yield "seed", str(attributes.seed)
    yield "started (UTC)", attributes.created_utc
    yield "command line", attributes.command_line


def _hosts(hosts: Sequence[str], shown: int = 4) -> str:
    more = f" and {len(hosts) - shown} more" if len(hosts) > shown else ""
    return ", ".join(hosts[:shown]) + more
