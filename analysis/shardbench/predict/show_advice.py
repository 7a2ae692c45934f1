"""`shardbench advise`: the best stage, mesh and prefetch for a memory and a number of ranks."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from math import log

from shardbench.errors import UsageError
from shardbench.platforms import load_platform
from shardbench.predict.advise import Advice, Request, advise
from shardbench.sweep.launchers import find_installation
from shardbench.units import MILLISECONDS, bytes_text, number, percent, plural, text_table

HEADINGS = (
    "candidate",
    "peak memory/rank",
    "fits",
    "step ms",
    "95 % interval",
    "exposed",
    "tokens/s",
    "per rank",
)
NUMERIC = ("peak memory/rank", "step ms", "95 % interval", "exposed", "tokens/s", "per rank")


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit code.

    Raises:
        UsageError, RunError: see there.
    """
    if options.ranks < 1:
        raise UsageError(f"--ranks {options.ranks} is no number of ranks; pass 1 or more")
    platform = load_platform(options.platform, options.set)
    request = Request(
        model=options.model,
        ranks=options.ranks,
        memory=options.gpu_memory,
        platform=(f"--platform={options.platform}", *(f"--set={change}" for change in options.set)),
        gpus_per_node=int(platform.values["node.gpus"]),
        arguments=tuple(options.passed_on),
        binaries=find_installation(options.bin).binaries,
        sim_bin=options.sim_bin,
    )
    advices, refusals = advise(request)
    for refusal in refusals:
        print(f"not possible: {refusal}", file=sys.stderr)
    ranked = sorted(advices, key=_order)
    if options.format == "json":
        print(json.dumps([_entry(advice) for advice in ranked], indent=1, allow_nan=False))
        return 0
    print(text_table([HEADINGS, *(_row(advice, request) for advice in ranked)], NUMERIC), end="\n\n")
    print(_verdict(ranked, request, platform.name))
    return 0


def _order(advice: Advice) -> tuple[float, int]:
    """The fastest first; of those within a thousandth of one another that which needs least."""
    speed = advice.prediction.tokens_per_s if advice.prediction else 1.0
    return -round(log(speed) / 1e-3), advice.peak_bytes


def _row(advice: Advice, request: Request) -> tuple[str, ...]:
    memory, found = bytes_text(advice.peak_bytes), advice.prediction
    if found is None:
        return (str(advice.candidate), memory, "no", "", "", "", "", "")
    return (
        str(advice.candidate),
        memory,
        "yes?" if found.is_doubtful else "yes",
        number(found.step_s * MILLISECONDS),
        f"{number(found.low_s * MILLISECONDS)} – {number(found.high_s * MILLISECONDS)}",
        percent(found.exposed_share),
        number(found.tokens_per_s),
        number(found.tokens_per_s / request.ranks),
    )


def _verdict(ranked: Sequence[Advice], request: Request, platform: str) -> str:
    best = ranked[0]
    where = f"on {plural(request.ranks, 'rank')} of {platform} with {bytes_text(request.memory)}"
    if best.prediction is None:
        least = min(ranked, key=lambda advice: advice.peak_bytes)
        return f"Nothing fits {where}. Least memory: {least.candidate} with {bytes_text(least.peak_bytes)}."
    rivals = [a for a in ranked[1:] if a.prediction and a.prediction.low_s <= best.prediction.high_s]
    close = [a for a in rivals if a.prediction and a.prediction.tokens == best.prediction.tokens]
    doubt = f" Not told apart from it: {', '.join(str(a.candidate) for a in close[:3])}." if close else ""
    return (
        f"Fastest {where}: {best.candidate}, {number(best.prediction.tokens_per_s)} tokens/s, {bytes_text(best.peak_bytes)} a "
        f"rank.{doubt}"
    )


def _entry(advice: Advice) -> dict[str, object]:
    """Seconds, bytes."""
    return {
        "candidate": str(advice.candidate),
        "scenario": advice.candidate.scenario,
        "options": list(advice.candidate.options),
        "peak_bytes": advice.peak_bytes,
        "fits": advice.prediction is not None,
        "prediction": advice.prediction
        and asdict(advice.prediction)
        | {"tokens_per_s": advice.prediction.tokens_per_s, "exposed_share": advice.prediction.exposed_share},
    }
