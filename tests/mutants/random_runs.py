"""Random configurations that must all pass `-c` and the ledger.

Only what src/options.cpp accepts is generated: an even head size, kv heads that divide the heads, a tp that divides both,
sequences that tp divides (with --sequence-parallel), tied weights only with a root group, no fp32 accumulator beside fp32
parameters. Sizes are tiny and odd on purpose: one row, prime numbers, fewer rows than ranks.
"""

import random
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import runs

SCENARIOS = ("ddp", "zero1", "zero2", "zero3", "mesh2d")
GATHERS_GROUPS = ("zero3", "mesh2d")
FILLS_BUCKETS = ("ddp", "zero1", "zero2")

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class RandomRun:
    """One command line."""

    scenario: str
    ranks: int
    options: tuple[str, ...]

    def command(self) -> list[str]:
        return runs.mpi_command(self.scenario, self.ranks, self.options)


def random_runs(seed: int, count: int, largest_world: int = 8) -> Iterator[RandomRun]:
    """The same for the same seed; a shorter list is the beginning of a longer one."""
    dice = random.Random(seed)
    for index in range(count):
        yield random_run(dice, SCENARIOS[index % len(SCENARIOS)], largest_world)


def random_run(dice: random.Random, scenario: str, largest_world: int) -> RandomRun:
    ranks = dice.randint(1, largest_world)
    tp = dice.choice([t for t in (1, 2, 3, 4) if ranks % t == 0]) if scenario == "mesh2d" else 1
    layers, seq, dims = _dimensions(dice, tp)
    options = ["-c", "--threads", "1", *dims]
    tied = dice.random() < 0.4
    options.append("--tied" if tied else "--untied")
    options += ["--seed", str(dice.randrange(1 << 16))]
    options += ["--micro-batch", str(dice.randint(1, 3)), "--grad-accum", str(dice.randint(1, 3))]
    steps = dice.randint(1, 6)
    warmup = dice.randrange(steps)
    options += ["-w", str(warmup), "-n", str(steps - warmup), "--window", str(dice.randint(1, 4))]
    options += ["--trace", dice.choice(["none", "steps", "events"])]

    bf16 = dice.random() < 0.5
    options += ["--param-dtype", "bf16" if bf16 else "fp32", "--reduce-dtype", dice.choice(["fp32", "fp32", "bf16"])]
    if bf16 and dice.random() < 0.4:
        options.append("--fp32-grad-accum")
    options += ["--clip", dice.choice(["0", "0", "0.1", "1", "100"])]
    options += ["--recompute", dice.choice(["none", "full"])]
    options += _algorithm(dice, ranks, tp)
    options += ["--progress", dice.choice(["none", "poll", "thread"])]

    if scenario in GATHERS_GROUPS:
        options += ["--layout", dice.choice(["per-parameter", "flat"])]
        options += ["--wrap", "root" if tied else dice.choice(["blocks", "root"])]
        options += ["--reshard-after-forward", dice.choice(["all", "blocks", "none"])]
        options += ["--prefetch", f"{dice.randint(0, layers + 2)},{dice.randint(0, layers + 2)}"]
    if scenario != "ddp":
        options += ["--communicators", str(dice.randint(1, 2)), "--rs-wait", dice.choice(["next", "end"])]
    if scenario in FILLS_BUCKETS:
        options += ["--bucket-mb", dice.choice(["1", "25"])]
    if scenario in ("zero1", "zero2"):
        options += ["--param-gather", dice.choice(["end", "overlap"])]
    if scenario == "mesh2d":
        options += ["--tp", str(tp), "--dp", dice.choice(["-1", str(ranks // tp)])]
        if seq % tp == 0 and dice.random() < 0.6:
            options.append("--sequence-parallel")
    return RandomRun(scenario, ranks, tuple(options))


def _algorithm(dice: random.Random, ranks: int, tp: int) -> list[str]:
    algorithm = dice.choice(["auto", "direct", "ring", "doubling", "native", "hierarchical"])
    if algorithm != "hierarchical":
        return ["--algorithm", algorithm]
    # Nodes of one rank, of whole tensor-parallel groups, or one node.
    sizes = [1, *(tp * n for n in range(1, ranks // tp + 1) if ranks // tp % n == 0)]
    return ["--algorithm", algorithm, "--ranks-per-node", str(dice.choice(sizes))]


def _dimensions(dice: random.Random, tp: int) -> tuple[int, int, list[str]]:
    """Layers, positions, and all dimensions as options."""
    kv_heads = tp * dice.randint(1, 2)
    heads = kv_heads * dice.randint(1, 3)
    hidden = heads * dice.choice([2, 2, 4, 6, 8, 10])
    ffn = dice.choice([1, 2, 3, 5, 7, 13, 16, 31, 64])
    # A large table now and then, so that buckets of 1 MiB close before all gradients are in them.
    vocab = dice.choice([1, 2, 3, 7, 13, 31, 64, 101]) if dice.random() < 0.85 else 300_000 // hidden + dice.randrange(7)
    layers = dice.randint(1, 4)
    seq = dice.randint(1, 9)
    if tp > 1 and dice.random() < 0.5:
        seq = tp * dice.randint(1, 9 // tp)
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv-heads": kv_heads, "ffn": ffn, "vocab": vocab, "seq": seq}
    return layers, seq, [word for name, size in sizes.items() for word in (f"--{name}", str(size))]


def failure_of(run: RandomRun) -> str | None:
    """None, or the exact command and what it said."""
    path = runs.new_file()
    try:
        finished = runs.execute([*run.command(), "-o", str(path)], runs.scratch_folder(), TIMEOUT_S)
    except AssertionError as hang:
        return f"{shlex.join(run.command())}\n{hang}"
    finally:
        path.unlink(missing_ok=True)
    if finished.code == 0 and "check passed" in finished.stdout:
        return None
    return f"{shlex.join(run.command())}\nexit code {finished.code}\n{finished.stdout}{finished.stderr}"


def failures_of(candidates: Sequence[RandomRun]) -> list[str]:
    return [failure for run in candidates if (failure := failure_of(run)) is not None]
