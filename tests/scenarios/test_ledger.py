"""Bytes held and collectives issued equal the contract's counting rules (rules.py) exactly.

A plan (--plan) costs milliseconds, so it covers the grid; test_plan.py shows that runs do what plans say, and the real
runs here are checked against the rules directly.
"""

import itertools
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
import runs
from rules import BYTES, Case

Ledger = dict[tuple[str, str], tuple[float, float, float, str]]
PEAK = ("world", "textbook_peak_bytes")  # test_peak.py
FRACTIONAL = 1e-12  # rounding of (n - 1)/n in double precision


def assert_events_follow_rules(case: Case, rank: int, events: list[dict]) -> None:
    wanted = [(o.phase, o.micro, o.kind, o.layer, o.bucket, o.axis, o.dtype, o.group_size, o.elements, o.bytes)
              for o in case.operations(rank)]
    issued = [(e["phase"], e["micro"], e["kind"], e["layer"], e["bucket"], e["axis"], e["dtype"], e["group_size"],
               e["elements"], e["bytes"])
              for e in without_resumed_computes(events)
              if e["stream"] == "comm" or (e["kind"] == "compute" and e["phase"] != "optimizer")]
    assert issued == wanted
    for event in events:
        moves = event["kind"] in ("all_gather", "reduce_scatter", "all_reduce")
        assert event["stream"] == ("comm" if moves else "compute")
        if moves and event["group_size"] == 1:
            assert event["sent_bytes"] == 0


def without_resumed_computes(events: list[dict]) -> list[dict]:
    """Tensor-parallel communication interrupts a layer's compute, which then goes on as a further event."""
    result = []
    at_work, interrupted = None, False
    for event in events:
        if event["kind"] == "compute":
            here = (event["phase"], event["micro"], event["layer"])
            resumed = interrupted and here == at_work
            at_work, interrupted = here, False
            if resumed:
                continue
        elif event["stream"] == "comm":
            interrupted = event["axis"] == "tp"
        result.append(event)
    return result


def assert_waits_are_complete(events: list[dict], rs_wait: str = "next") -> None:
    """Each collective is waited for once; nothing survives its micro-batch; reduce-scatters wait as asked."""
    in_flight: Counter = Counter()
    for event in events:
        key = (event["layer"], event["bucket"], event["axis"], event["dtype"], event["elements"])
        if event["stream"] == "comm":
            reductions = sum(n for (kind, _, _, axis, *_), n in in_flight.items() if (kind, axis) == ("reduce_scatter", "dp"))
            assert (event["kind"], event["axis"]) != ("reduce_scatter", "dp") or rs_wait == "end" or reductions == 0
            in_flight[event["kind"], *key] += 1
        elif event["kind"] == "wait":
            matching = [k for k, n in in_flight.items() if n and k[1:] == key]
            assert matching, f"a wait for nothing: {event}"
            in_flight[matching[0]] -= 1
        elif event["kind"] == "compute" and event["phase"] == "forward" and event["layer"] == 0:
            assert not +Counter({k: n for k, n in in_flight.items() if k[0] != "all_gather"})
    assert not +in_flight


def assert_ledger_follows_rules(case: Case, rank: int, ledger: Ledger) -> None:
    wanted = case.ledger(rank)
    textbook = case.textbook()
    assert set(ledger) == set(wanted) | set(textbook) | {PEAK}
    for key, (expected, padding) in wanted.items():
        exact = [expected, expected + padding, padding]
        if all(value.denominator == 1 for value in exact):
            assert list(ledger[key][:3]) == exact, key
        else:
            assert list(ledger[key][:3]) == pytest.approx([float(value) for value in exact], rel=FRACTIONAL), key
    for key, expected in textbook.items():
        assert ledger[key][0] == pytest.approx(float(expected), rel=FRACTIONAL), key
        assert ledger[key][1] == pytest.approx(ledger[key][0] + ledger[key][2], rel=FRACTIONAL), key


def closed_forms(case: Case) -> dict[str, Fraction]:
    """The contract's own formulas for axis dp, padding excluded."""
    a, layers, psi = case.accum, case.layers, sum(t.elements for t in case.tensors())
    share = Fraction(case.dp - 1, case.dp)
    if not case.gathers_groups:
        buckets = len(case.buckets())
        if case.scenario == "ddp":
            return {"all_reduce_count": Fraction(buckets), "volume_elements": 2 * psi * share}
        reductions = a if case.scenario == "zero2" else 1
        phase = "optimizer" if case.param_gather == "end" else "forward"
        return {"reduce_scatter_count": Fraction(reductions * buckets), f"all_gather_{phase}_count": Fraction(buckets),
                "all_gather_backward_count": Fraction(0), "volume_elements": (reductions + 1) * psi * share}
    groups = len(case.groups())
    if case.wrap == "root":
        backward = 0 if case.reshard == "none" else a * layers
        volume = 2 * a * psi if case.reshard == "none" else 3 * a * psi - a * case.real(0)
        assert groups == layers + 1
    else:
        backward = {"all": a * (layers + 2), "blocks": a * (layers + 1), "none": 0}[case.reshard]
        volume = {"all": 3 * a * psi, "blocks": a * (3 * psi - case.real(case.last_layer)), "none": 2 * a * psi}[case.reshard]
        assert groups == layers + 2
    return {"all_gather_forward_count": Fraction(a * groups), "reduce_scatter_count": Fraction(a * groups),
            "all_gather_backward_count": Fraction(backward), "volume_elements": volume * share}


def tensor_parallel_counts(case: Case) -> dict[str, int]:
    """The contract's own counts for axis tp, in all of an optimizer step."""
    a, per_pass, blocks = case.accum, 2 * case.layers + 1, case.layers
    again = a * blocks if case.recompute == "full" else 0
    if case.sequence_parallel:
        return {"all_gather_forward_count": a * per_pass, "all_gather_backward_count": a * per_pass + 2 * again,
                "reduce_scatter_count": 2 * a * per_pass + again, "all_reduce_count": per_pass + 3 * a}
    return {"all_gather_forward_count": 0, "all_gather_backward_count": 0, "reduce_scatter_count": 0,
            "all_reduce_count": 2 * a * per_pass + again + 3 * a}


def assert_gathered_bound(case: Case, rank: int, peak: int) -> None:
    """At most (F+1) in forward, (B+1) in backward, largest groups plus what is kept; one more while a copy-out holds both."""
    size = {g: case.gathered(g, rank) * BYTES[case.param_dtype] for g in case.groups()}
    kept = sum(s for g, s in size.items() if case.is_kept_after_forward(g))
    moving = sorted((s for g, s in size.items() if not case.is_kept_after_forward(g)), reverse=True)
    at_once = max(case.prefetch) + 1 + any(case.copies_out(g) for g in case.groups())
    # A kept group, too, is copied out, which holds it twice for a moment.
    twice = max(size.values()) if any(case.copies_out(g) for g in case.groups()) else 0
    largest = moving[0] if moving else 0
    assert peak <= max(kept + at_once * largest, kept + max(case.prefetch) * largest + twice)
    assert peak >= max(size.values())
    if moving and min(case.prefetch) >= len(size):  # everything is gathered at once: no group may be missing
        assert peak >= sum(case.real(g, rank) * BYTES[case.param_dtype] for g in case.groups())


def planned(case: Case, rank: int) -> tuple[list[dict], Ledger, dict[str, int]]:
    plan = runs.plan(case.scenario, case.ranks, rank, *case.options())
    assert plan["psi"] == case.psi
    ledger = {(r["axis"], r["quantity"]): (r["expected"], r["planned"], r["padding"], r["unit"]) for r in plan["ledger"]}
    return plan["events"], ledger, plan["memory"]["peak_bytes"]


def assert_follows_rules(case: Case, rank: int, events: list[dict], ledger: Ledger, peaks: dict[str, int]) -> None:
    assert_events_follow_rules(case, rank, events)
    assert_waits_are_complete(events, "end" if "end" in case.extra else "next")
    assert_ledger_follows_rules(case, rank, ledger)
    if rank % case.tp == 0:  # whose parts closed_forms() counts
        for quantity, value in closed_forms(case).items():
            assert ledger["dp", quantity][0] == pytest.approx(float(value), rel=FRACTIONAL), quantity
    if case.tp > 1:
        for quantity, count in tensor_parallel_counts(case).items():
            assert ledger["tp", quantity][:3] == (count, count, 0), quantity
    if case.gathers_groups:
        assert_gathered_bound(case, rank, peaks["gathered_parameters"])
    else:
        assert peaks["gathered_parameters"] == 0


# Other settings, cycled through the grid so that each meets many of its points.
VARIATIONS = [
    {"accum": 1, "prefetch": (1, 1)},
    {"accum": 3, "prefetch": (0, 0), "layout": "flat"},
    {"accum": 1, "prefetch": (2, 2), "param_dtype": "fp32"},
    {"accum": 3, "prefetch": (1, 0), "fp32_grad_accum": True},
    {"accum": 1, "prefetch": (0, 2), "reduce_dtype": "bf16", "clip": 1.0},
    {"accum": 3, "prefetch": (2, 1), "layout": "flat", "extra": ("--rs-wait", "end", "--communicators", "2")},
    {"accum": 1, "prefetch": (10, 10)},
]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("layers", [1, 2, 3, 7])
def test_zero3_plans(layers: int, ranks: int) -> None:
    variation = itertools.cycle(range(len(VARIATIONS)))
    for _ in range(layers + ranks):
        next(variation)
    for wrap, reshard in itertools.product(["blocks", "root"], ["all", "blocks", "none"]):
        case = Case(layers=layers, ranks=ranks, wrap=wrap, reshard=reshard, **VARIATIONS[next(variation)])
        held = 0
        for rank in range(ranks):
            events, ledger, peaks = planned(case, rank)
            assert_follows_rules(case, rank, events, ledger, peaks)
            held += case.owned(rank)
        assert held == case.psi  # resident shards hold every element once, and nothing else


# Tensors of one MiB and more, so that buckets close; and of a few kB, so that they gather.
LARGE = {"hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 300, "vocab": 4200}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("layers", [1, 2, 3, 7])
def test_ddp_plans(layers: int, ranks: int) -> None:
    for bucket_mb, accum in itertools.product([None, 1, 2], [1, 3]):
        case = Case("ddp", layers=layers, ranks=ranks, accum=accum, bucket_mb=bucket_mb, **LARGE,
                    reduce_dtype="bf16" if accum == 3 else "fp32", fp32_grad_accum=bucket_mb == 1)
        assert bucket_mb is not None or len(case.buckets()) == 2  # the first of 1 MiB, the rest below 25
        for rank in {0, ranks - 1}:
            assert_follows_rules(case, rank, *planned(case, rank))


def test_ddp_of_many_megabytes_uses_the_default_caps() -> None:
    case = Case("ddp", ranks=4, layers=8, hidden=1024, heads=8, kv_heads=8, ffn=2048, vocab=4096)
    sizes = [sum(t.elements for t in bucket) * 4 for bucket in case.buckets()]
    assert sizes[0] == 4096 * 1024 * 4  # a tensor is never split, so the first bucket overshoots its 1 MiB
    assert all(size >= 25 << 20 for size in sizes[1:-1])
    assert_follows_rules(case, 0, *planned(case, 0))


# Other settings of zero1 and zero2; LARGE makes buckets close at 1 and 2 MiB of fp32.
BUCKET_VARIATIONS = [
    {"bucket_mb": None},
    {"bucket_mb": 1, "param_gather": "overlap"},
    {"bucket_mb": 1, "accum": 3, "fp32_grad_accum": True},
    {"bucket_mb": 1, "accum": 3, "param_gather": "overlap", "clip": 1.0, "reduce_dtype": "bf16"},
    {"bucket_mb": 2, "param_dtype": "fp32", "clip": 1.0, "extra": ("--rs-wait", "end", "--communicators", "2")},
    {"bucket_mb": 1, "accum": 3, "param_gather": "overlap", "tied": True, "recompute": "full",
     "extra": ("--rs-wait", "end", "--communicators", "2")},
]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("scenario", ["zero1", "zero2"])
def test_bucket_plans(scenario: str, ranks: int) -> None:
    for index, variation in enumerate(BUCKET_VARIATIONS):
        layers = (1, 2, 3, 7)[(index + ranks) % 4]
        case = Case(scenario, layers=layers, ranks=ranks, **variation, **LARGE)
        if case.bucket_mb is None:
            assert len(case.buckets()) == 1  # without ddp's small first one
        elif layers > 1:
            assert len(case.buckets()) > 1
        for rank in {0, ranks - 1}:
            assert_follows_rules(case, rank, *planned(case, rank))
        assert sum(case.owned(rank) for rank in range(ranks)) == case.psi


def test_every_bucket_is_padded_to_the_ranks() -> None:
    odd = {"hidden": 130, "heads": 1, "kv_heads": 1, "ffn": 301, "vocab": 4201}
    case = Case("zero1", ranks=64, layers=3, bucket_mb=1, **odd)
    sizes = [sum(t.elements for t in bucket) for bucket in case.buckets()]
    assert len(sizes) > 2
    assert all(size % 64 for size in sizes)
    for rank in (0, 63):
        assert_follows_rules(case, rank, *planned(case, rank))


# Models and options that few meshes divide. tp needs whole heads and kv heads.
FOUR_HEADS = {"hidden": 24, "heads": 4, "kv_heads": 4, "ffn": 10, "vocab": 11, "seq": 8}
MESH_VARIATIONS = [
    {"accum": 1},
    {"accum": 3, "sequence_parallel": True, "layout": "flat"},
    {"accum": 1, "sequence_parallel": True, "recompute": "full", "prefetch": (2, 1), "param_dtype": "fp32", "clip": 1.0},
    {"accum": 3, "recompute": "full", "wrap": "root", "prefetch": (0, 0), "fp32_grad_accum": True, "micro_batch": 2},
    {"accum": 1, "wrap": "root", "reshard": "none", "tied": True, "layout": "flat", "clip": 1.0, "reduce_dtype": "bf16"},
    {"accum": 3, "sequence_parallel": True, "reshard": "blocks", "prefetch": (10, 10), "recompute": "full",
     "extra": ("--rs-wait", "end", "--communicators", "2")},
    {"accum": 1, "sequence_parallel": True, "reshard": "none", "wrap": "root", "tied": True},
]


@pytest.mark.parametrize(("dp", "tp"), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2), (4, 2), (1, 4), (2, 4)])
def test_mesh2d_plans(dp: int, tp: int) -> None:
    for index, variation in enumerate(MESH_VARIATIONS):
        layers = (1, 2, 3, 7)[(index + dp + tp) % 4]
        case = Case("mesh2d", layers=layers, ranks=dp * tp, tp=tp, **variation, **FOUR_HEADS)
        for rank in {0, tp - 1, dp * tp - 1}:
            assert_follows_rules(case, rank, *planned(case, rank))
        norms = sum(t.elements for t in case.declared() if t.is_norm)
        held = sum(case.owned(rank) for rank in range(dp * tp))
        assert held == case.psi + (tp - 1) * norms  # norms are replicated over tp, all else is held once


@pytest.mark.parametrize("sizes", [{"vocab": 5}, {"vocab": 1}, {"ffn": 5}, {"ffn": 1, "vocab": 2}])
def test_mesh2d_plans_of_ranks_without_rows(sizes: dict[str, int]) -> None:
    """Ceil chunks of 5 rows for 4 ranks are 2, 2, 1 and 0; the last rank issues the same collectives as the others."""
    for layout, sequence_parallel in [("flat", False), ("per-parameter", True)]:
        case = Case("mesh2d", ranks=8, tp=4, layout=layout, sequence_parallel=sequence_parallel, **(FOUR_HEADS | sizes))
        for rank in (0, 1, 2, 3, 7):
            assert_follows_rules(case, rank, *planned(case, rank))


def test_recomputation_issues_nothing_where_tensors_are_whole() -> None:
    for scenario in ("ddp", "zero1", "zero2", "zero3", "mesh2d"):
        events, ledger, peaks = planned(Case(scenario, ranks=2, accum=2), 1)
        events_again, ledger_again, peaks_again = planned(Case(scenario, ranks=2, accum=2, recompute="full"), 1)
        assert events_again == events
        assert {**ledger_again, PEAK: ledger[PEAK]} == ledger
        assert peaks_again["activations"] < peaks["activations"]


def test_clipping_costs_sharded_gradients_one_scalar_and_ddp_nothing() -> None:
    sharded = [("optimizer", "all_reduce", "fp32", 4, 1)]
    for scenario, wanted in [("ddp", []), ("zero1", sharded), ("zero2", sharded), ("zero3", sharded), ("mesh2d", sharded)]:
        case = Case(scenario, ranks=4, clip=1.0, **FOUR_HEADS, tp=2 if scenario == "mesh2d" else 1)
        events = runs.plan(scenario, 4, 0, *case.options())["events"]
        issued = [(e["phase"], e["kind"], e["dtype"], e["group_size"], e["elements"])
                  for e in events if (e["axis"], e["stream"]) == ("world", "comm")]
        assert issued == wanted


def volume_bytes(case: Case) -> Fraction:
    """Of all ranks together, padding included."""
    return sum((o.volume(o.elements) * BYTES[o.dtype] for rank in range(case.ranks) for o in case.operations(rank)
                if o.kind != "compute"), Fraction(0))


RUNS = [
    Case(ranks=1, layers=1, accum=3, prefetch=(0, 0)),
    Case(ranks=2, layers=3, wrap="root", reshard="blocks", prefetch=(2, 1), param_dtype="fp32"),
    Case(ranks=3, layers=2, accum=3, reshard="blocks", prefetch=(1, 1), fp32_grad_accum=True),
    Case(ranks=4, layers=7, layout="flat", prefetch=(2, 2), reduce_dtype="bf16", clip=1.0),
    Case(ranks=8, layers=2, reshard="none", prefetch=(0, 0), extra=("--rs-wait", "end", "--communicators", "2")),
    Case(ranks=8, layers=1, prefetch=(1, 1)),  # more ranks than rows: some shards are empty
    Case("ddp", ranks=1, layers=1),
    Case("ddp", ranks=3, layers=2, accum=3, bucket_mb=1, **LARGE),
    Case("ddp", ranks=4, layers=2, **LARGE, reduce_dtype="bf16"),
    Case("zero1", ranks=1, layers=1, accum=3),
    Case("zero1", ranks=3, layers=2, accum=3, bucket_mb=1, clip=1.0, **LARGE),
    Case("zero1", ranks=8, layers=1, bucket_mb=1, param_gather="overlap", **LARGE, extra=("--communicators", "2")),
    Case("zero2", ranks=1, layers=1, accum=3, param_gather="overlap"),
    Case("zero2", ranks=3, layers=2, accum=3, bucket_mb=1, param_gather="overlap", fp32_grad_accum=True, **LARGE),
    Case("zero2", ranks=4, layers=2, accum=3, bucket_mb=2, **LARGE, reduce_dtype="bf16", extra=("--rs-wait", "end")),
    Case("mesh2d", ranks=1, **FOUR_HEADS),
    Case("mesh2d", ranks=2, tp=2, accum=3, sequence_parallel=True, recompute="full", **FOUR_HEADS),
    Case("mesh2d", ranks=4, tp=2, accum=3, layout="flat", clip=1.0, recompute="full", **FOUR_HEADS),
    Case("mesh2d", ranks=4, tp=4, sequence_parallel=True, param_dtype="fp32", **(FOUR_HEADS | {"vocab": 5})),
    Case("mesh2d", ranks=6, tp=2, sequence_parallel=True, wrap="root", prefetch=(2, 1), **FOUR_HEADS),
    Case("mesh2d", ranks=8, tp=2, tied=True, wrap="root", reshard="none", **FOUR_HEADS),
]


@pytest.mark.parametrize("index", range(len(RUNS)))
def test_runs(index: int) -> None:
    case = RUNS[index]
    trace = runs.trace(case.scenario, case.ranks, *case.options(), "-n", "1", "-w", "0")
    for rank in range(case.ranks):
        assert_follows_rules(case, rank, trace.events(rank, 0), trace.ledger(rank), trace.peaks(rank))
    # All ranks together really send what the definition of volume says, whatever the algorithm.
    sent = sum(e["sent_bytes"] for rank in range(case.ranks) for e in trace.events(rank, 0) if e["stream"] == "comm")
    assert sent == volume_bytes(case)


@pytest.mark.parametrize("algorithm", ["direct", "ring", "doubling", "hierarchical"])
def test_every_algorithm_sends_the_volume(algorithm: str) -> None:
    worlds = [(scenario, ranks, 1) for scenario in ("ddp", "zero1", "zero2", "zero3") for ranks in (3, 5)]
    for scenario, ranks, tp in [*worlds, ("zero3", 2, 1), ("zero3", 4, 1), ("zero3", 8, 1), ("mesh2d", 4, 4), ("mesh2d", 6, 2)]:
        case = Case(scenario, ranks=ranks, tp=tp, sequence_parallel=ranks == 4, extra=("--algorithm", algorithm), **FOUR_HEADS)
        sent = sum(e["sent_bytes"] for rank in range(ranks) for e in planned(case, rank)[0] if e["stream"] == "comm")
        assert sent == volume_bytes(case)


def spelled(text: str) -> list[tuple[str, int, str, str]]:
    """'forward: 0 copy_in, b1 all_gather' -> (phase, micro, layer or b and bucket, kind) of each operation."""
    result = []
    for line in filter(None, map(str.strip, text.splitlines())):
        phase, _, operations = line.partition(":")
        for operation in operations.split(","):
            subject, kind = operation.split()
            result.append((phase, 0, subject, kind))
    return result


def order_of(events: list[dict]) -> list[tuple[str, int, str, str]]:
    return [(e["phase"], e["micro"], str(e["layer"]) if e["bucket"] == -1 else f"b{e['bucket']}", e["kind"]) for e in events]


ONE_BLOCK = {
    0: """
        forward: 0 copy_in, 0 all_gather, 0 wait, 0 compute
        forward: 1 copy_in, 1 all_gather, 1 wait, 1 copy_out, 1 compute
        forward: 2 copy_in, 2 all_gather, 2 wait, 2 copy_out, 2 compute
        backward: 2 copy_in, 2 all_gather, 2 wait, 2 copy_out, 2 compute
        backward: 2 copy_in, 2 reduce_scatter
        backward: 1 copy_in, 1 all_gather, 1 wait, 1 copy_out, 1 compute
        backward: 2 wait, 2 copy_out, 1 copy_in, 1 reduce_scatter
        backward: 0 copy_in, 0 all_gather, 0 wait, 0 compute
        backward: 1 wait, 1 copy_out, 0 copy_in, 0 reduce_scatter
        backward: 0 wait, 0 copy_out
        optimizer: -1 compute, -1 compute
    """,
    1: """
        forward: 0 copy_in, 0 all_gather, 1 copy_in, 1 all_gather, 0 wait, 0 compute
        forward: 2 copy_in, 2 all_gather, 1 wait, 1 copy_out, 1 compute
        forward: 2 wait, 2 copy_out, 2 compute
        backward: 2 copy_in, 2 all_gather, 1 copy_in, 1 all_gather, 2 wait, 2 copy_out, 2 compute
        backward: 2 copy_in, 2 reduce_scatter
        backward: 0 copy_in, 0 all_gather, 1 wait, 1 copy_out, 1 compute
        backward: 2 wait, 2 copy_out, 1 copy_in, 1 reduce_scatter
        backward: 0 wait, 0 compute
        backward: 1 wait, 1 copy_out, 0 copy_in, 0 reduce_scatter
        backward: 0 wait, 0 copy_out
        optimizer: -1 compute, -1 compute
    """,
}


@pytest.mark.parametrize("prefetch", [0, 1])
def test_zero3_order_of_one_block_spelled_out(prefetch: int) -> None:
    # The embedding is one tensor, whose gather needs no copy-out.
    case = Case(ranks=2, layers=1, prefetch=(prefetch, prefetch))
    trace = runs.trace("zero3", 2, *case.options(), "-n", "1", "-w", "0")
    for rank in range(2):
        assert order_of(trace.events(rank, 0)) == spelled(ONE_BLOCK[prefetch])


# A bucket of 1 MiB ends in the middle of the block.
WIDE_BLOCK = {"hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 33}

# 0 = {head, norm, w2, w3, w1, norm2, wo, wv, wk}, 1 = {wq, norm1, embedding}; each tensor is copied into its bucket.
FILL_AND_REDUCE = """
    backward: 2 compute, b0 copy_in, b0 copy_in
    backward: 1 compute, b0 copy_in, b0 copy_in, b0 copy_in, b0 copy_in, b0 copy_in, b0 copy_in, b0 copy_in
    backward: b0 reduce_scatter, b1 copy_in, b1 copy_in
    backward: 0 compute, b1 copy_in, b0 wait, b0 copy_out, b1 reduce_scatter, b1 wait, b1 copy_out
"""
TWO_BUCKETS = {
    "end": f"""
        forward: 0 compute, 1 compute, 2 compute
        {FILL_AND_REDUCE}
        optimizer: -1 compute, -1 compute, b1 all_gather, b0 all_gather, b1 wait, b0 wait
    """,
    "overlap": f"""
        forward: b1 all_gather, b0 all_gather, b1 wait, 0 compute, b0 wait, 1 compute, 2 compute
        {FILL_AND_REDUCE}
        optimizer: -1 compute, -1 compute
    """,
}


@pytest.mark.parametrize("gather", ["end", "overlap"])
@pytest.mark.parametrize("scenario", ["zero1", "zero2"])
def test_order_of_two_buckets_spelled_out(scenario: str, gather: str) -> None:
    # At A = 1 zero1 and zero2 do the same; what rests differs.
    case = Case(scenario, ranks=2, layers=1, bucket_mb=1, param_gather=gather, **WIDE_BLOCK)
    names = [" ".join(t.name for t in bucket) for bucket in case.buckets()]
    assert names == ["head norm 0.w2 0.w3 0.w1 0.norm2 0.wo 0.wv 0.wk", "0.wq 0.norm1 embedding"]
    trace = runs.trace(scenario, 2, *case.options(), "-n", "1", "-w", "0")
    for rank in range(2):
        assert order_of(trace.events(rank, 0)) == spelled(TWO_BUCKETS[gather])


def test_zero1_reduces_in_the_last_micro_batch_and_zero2_in_each() -> None:
    for scenario, wanted in [("zero1", [(1, 0), (1, 1)]), ("zero2", [(0, 0), (0, 1), (1, 0), (1, 1)])]:
        events = planned(Case(scenario, ranks=2, layers=1, accum=2, bucket_mb=1, **WIDE_BLOCK), 0)[0]
        assert [(e["micro"], e["bucket"]) for e in events if e["kind"] == "reduce_scatter"] == wanted


MESH_ONE_BLOCK = {
    False: """
        forward: 0 compute, 0 all_reduce, 0 wait, 0 compute
        forward: 1 compute, 1 all_reduce, 1 wait, 1 compute, 1 all_reduce, 1 wait, 1 compute
        forward: 2 compute, 2 all_reduce, 2 wait, 2 compute, 2 all_reduce, 2 wait, 2 compute, 2 all_reduce, 2 wait, 2 compute
        backward: 2 compute, 2 all_reduce, 2 wait, 2 compute
        backward: 1 compute, 1 all_reduce, 1 wait, 1 compute, 1 all_reduce, 1 wait, 1 compute
        backward: 0 compute
        optimizer: -1 compute, -1 compute
    """,
    True: """
        forward: 0 compute, 0 reduce_scatter, 0 wait, 0 compute
        forward: 1 compute, 1 all_gather, 1 wait, 1 compute, 1 reduce_scatter, 1 wait, 1 compute
        forward: 1 all_gather, 1 wait, 1 compute, 1 reduce_scatter, 1 wait, 1 compute
        forward: 2 compute, 2 all_gather, 2 wait, 2 compute
        forward: 2 all_reduce, 2 wait, 2 compute, 2 all_reduce, 2 wait, 2 compute, 2 all_reduce, 2 wait, 2 compute
        backward: 2 compute, 2 reduce_scatter, 2 wait, 2 compute
        backward: 1 compute, 1 all_gather, 1 wait, 1 compute, 1 reduce_scatter, 1 wait, 1 compute
        backward: 1 all_gather, 1 wait, 1 compute, 1 reduce_scatter, 1 wait, 1 compute
        backward: 0 compute, 0 all_gather, 0 wait, 0 compute
        backward: 2 all_reduce, 1 all_reduce, 1 all_reduce, 2 wait, 1 wait, 1 wait
        optimizer: -1 compute, -1 compute
    """,
}


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_mesh2d_order_of_one_block_spelled_out(sequence_parallel: bool) -> None:
    """In fp32, which needs no cast on its way over tp. What axis dp does is zero3's and left out."""
    case = Case("mesh2d", ranks=4, tp=2, layers=1, sequence_parallel=sequence_parallel, param_dtype="fp32", **FOUR_HEADS)
    trace = runs.trace("mesh2d", 4, *case.options(), "-n", "1", "-w", "0")
    for rank in range(4):
        events = [e for e in trace.events(rank, 0) if e["axis"] in ("tp", "none")]
        order = order_of([e for e in events if not e["kind"].startswith("copy")])
        assert order == spelled(MESH_ONE_BLOCK[sequence_parallel])


def test_gathered_parameters_peak_spelled_out() -> None:
    """Equal blocks larger than the other groups: the bound is met exactly while blocks are copied out."""
    for prefetch, layout, at_once in [(0, "per-parameter", 2), (1, "per-parameter", 3), (2, "per-parameter", 4),
                                      (0, "flat", 1), (1, "flat", 2), (2, "flat", 3)]:
        case = Case(ranks=2, layers=7, hidden=16, ffn=32, vocab=4, prefetch=(prefetch, prefetch), layout=layout)
        block = case.gathered(1) * 2
        assert block == case.real(1) * 2 > max(case.gathered(0), case.gathered(8)) * 2
        assert planned(case, 0)[2]["gathered_parameters"] == at_once * block


@pytest.mark.parametrize("scenario", ["ddp", "zero1", "zero2", "zero3", "mesh2d"])
def test_activations_do_not_change_with_ranks(scenario: str) -> None:
    def activations(ranks: int, micro_batch: int) -> set[int]:
        case = Case(scenario, ranks=ranks, micro_batch=micro_batch)
        return {planned(case, rank)[2]["activations"] for rank in range(ranks)}

    alone = activations(1, 1)
    assert len(alone) == 1
    assert min(alone) > 0
    assert all(activations(ranks, 1) == alone for ranks in (2, 3, 4, 8))
    assert activations(4, 2) == {2 * min(alone)}
    for ranks in (1, 3):
        trace = runs.trace(scenario, ranks, *Case(scenario, ranks=ranks).options(), "-n", "1", "-w", "0")
        assert {trace.peaks(rank)["activations"] for rank in range(ranks)} == alone
