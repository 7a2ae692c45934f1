"""The invariants of schema version 1: what has to hold between the numbers of one file.

Each check yields one sentence for each invariant that is violated, with the first offending row and how many there are.
The shape of the file (datasets, fields, types) is checked by `read`. `run` has what holds within the tables of a training
run, `accounts` what tables say of each other, `benchmark` the files of the program `collectives`.
"""

from pathlib import Path

from shardbench.read import Trace, TraceError, read_trace
from shardbench.validate import accounts, benchmark, run
from shardbench.validate.run import ledger_mismatches

__all__ = ["file_violations", "ledger_mismatches", "violations"]


def file_violations(path: Path) -> list[str]:
    """Everything that is wrong with a file, one sentence each; empty for a valid file."""
    try:
        trace = read_trace(path)
    except TraceError as error:
        return list(error.problems)
    return violations(trace)


def violations(trace: Trace) -> list[str]:
    """Every violated invariant of a trace, one sentence each; empty where all hold.

    Tables are only compared with each other if each is sound by itself: else the same would be said several times.
    """
    found = [sentence for check in (*run.CHECKS, *benchmark.CHECKS) for sentence in check(trace)]
    return found or [sentence for check in accounts.CHECKS for sentence in check(trace)]
