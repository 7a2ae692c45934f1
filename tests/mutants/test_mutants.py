"""Every seeded fault is caught, by `-c` or by the golden files (mutants.py). Prints who caught which.

SHARDBENCH_MUTANTS=PATTERN (a regular expression) tries only the faults whose name matches.
"""

import os
import re

import mutants
import pytest


def test_every_fault_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    pattern = os.environ.get("SHARDBENCH_MUTANTS", "")
    chosen = [m for m in mutants.faults() if re.search(pattern, m.name)]
    assert chosen, f"no fault matches {pattern!r}"
    survivors = []
    with capsys.disabled():
        print(f"\n{'fault':36}  {'caught by':9}  {'s':>5}  message", flush=True)
        for verdict in mutants.verdicts(mutants.Workbench(), chosen):
            print(f"{verdict.mutant.name:36}  {verdict.outcome.caught_by or 'NOTHING':9}  {verdict.seconds:5.1f}  "
                  f"{verdict.outcome.message.strip().splitlines()[-1]}", flush=True)
            if verdict.survived:
                survivors.append(verdict.survived)
    assert not survivors, "\n".join(survivors)
