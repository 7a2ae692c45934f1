"""The short version of test_random_runs.py: a few small worlds, always the same."""

import random_runs

SEED = 20
COUNT = 12


def test_few_random_runs() -> None:
    failures = random_runs.failures_of(list(random_runs.random_runs(SEED, COUNT, largest_world=4)))
    assert not failures, f"seed {SEED}: {len(failures)} of {COUNT} runs failed\n\n" + "\n".join(failures)
