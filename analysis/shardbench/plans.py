"""What an executable says about a run before it runs (`--plan`)."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardbench.errors import RunError, UsageError

PATIENCE_S = 300
"""A plan takes 0.1 s at 2048 ranks; only a hang is to be found here."""

ANY_FLOPS = "1e12"
"""How fast compute is changes nothing in a plan, but imitated compute has to be told."""

SIMULATED_COMMUNICATION: Mapping[str, str] = {"algorithm": "nccl", "progress": "stream"}
"""How a simulation communicates unless told otherwise. Plans have to be told."""

BENCHMARK = "collectives"
"""The program that measures collectives alone, and trains nothing. In its files it is the scenario."""

ANSWERED = ("psi", "options", "memory")
"""What every plan says."""

OF_A_STEP, OF_THE_BENCHMARK = ("events", "ledger"), ("lines", "repetitions")
"""What those of scenarios and that of `collectives` say besides."""


class NoSchedule(RunError):
    """The executable refuses a configuration at a world size, for example a global batch that does not divide."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no schedule: {reason}")
        self.reason = reason


def ask(scenario: str, arguments: Sequence[str], binaries: Path) -> dict[str, Any]:
    """What the executable answers to --plan.

    Raises:
        UsageError: it is missing.
        NoSchedule: it refuses.
        RunError: it does not answer, or in another form.
    """
    path = binaries / scenario
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UsageError(f"{path} is no executable, and plans come from there; run make build, or pass --bin")
    try:
        # In a session of its own, so that Ctrl-C reaches only this process.
        done = subprocess.run(
            [str(path), "--plan", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{path} --plan did not answer ({error}); run make build") from error
    if done.returncode:
        raise NoSchedule(
            " ".join(done.stderr.split()) or f"{path} --plan ended with exit code {done.returncode}"
        )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    expected = {*ANSWERED, *(OF_THE_BENCHMARK if scenario == BENCHMARK else OF_A_STEP)}
    if not isinstance(answer, dict) or not expected <= answer.keys():
        raise RunError(
            f"{path} --plan answers in a form that is not known here; use executables of this version (make build)"
        )
    return answer
