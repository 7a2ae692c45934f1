"""Many random runs without a fault: each passes `-c` and its ledger (random_runs.py).

SHARDBENCH_RANDOM_SEED and SHARDBENCH_RANDOM_RUNS choose others than the default's.
"""

import os

import pytest
import random_runs

SEED = int(os.environ.get("SHARDBENCH_RANDOM_SEED") or 1)
COUNT = int(os.environ.get("SHARDBENCH_RANDOM_RUNS") or 200)


def test_random_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nSHARDBENCH_RANDOM_SEED={SEED} SHARDBENCH_RANDOM_RUNS={COUNT}", flush=True)
    failures = random_runs.failures_of(list(random_runs.random_runs(SEED, COUNT)))
    assert not failures, f"seed {SEED}: {len(failures)} of {COUNT} runs failed\n\n" + "\n".join(failures)
