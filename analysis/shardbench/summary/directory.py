"""All that is below a directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardbench.busbw import BusBandwidth, bus_bandwidths
from shardbench.plans import BENCHMARK
from shardbench.summary.launch import Launch, reduce_trace
from shardbench.summary.setups import origin
from shardbench.summary.studies import Study, studies_of
from shardbench.summary.usable import Excluded, usable_traces


@dataclass(frozen=True)
class Directory:
    """What was found below a directory."""

    name: str
    launches: Sequence[Launch] = ()
    bandwidths: Sequence[BusBandwidth] = ()
    excluded: Sequence[Excluded] = ()

    @cached_property
    def studies(self) -> list[Study]:
        """The launches, grouped."""
        return studies_of(self.launches)


def read_directory(path: Path) -> Directory:
    """Reads all *.h5 below a directory, or one file, and keeps the summaries.

    Files that are incomplete, damaged, copies of another, or without timed steps are listed in `excluded`.

    Raises:
        UsageError: there is nothing to read.
    """
    launches: list[Launch] = []
    bandwidths: list[BusBandwidth] = []
    excluded: list[Excluded] = []
    for name, trace in usable_traces(path, excluded):
        attributes = trace.attributes
        if attributes.scenario == BENCHMARK:
            where = origin(attributes, trace.config)
            bandwidths += bus_bandwidths(trace.collectives, attributes.world_size, name, where)
        else:
            launches.append(reduce_trace(trace, name))
    return Directory(str(path), launches, bandwidths, sorted(excluded, key=lambda left_out: left_out.name))
