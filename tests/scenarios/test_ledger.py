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
FRACTIONAL = 1e-12  # rounding of (n - 1)/n in double precision


def assert_events_follow_rules(case: Case, events: list[dict]) -> None:
    wanted = [(o.phase, o.micro, o.kind, o.layer, o.bucket, o.axis, o.dtype, o.group_size, o.elements, o.bytes)
              for o in case.operations()]
    issued = [(e["phase"], e["micro"], e["kind"], e["layer"], e["bucket"], e["axis"], e["dtype"], e["group_size"],
               e["elements"], e["bytes"])
              for e in events
              if e["stream"] == "comm" or (e["kind"] == "compute" and e["phase"] != "optimizer")]
    assert issued == wanted
    for event in events:
        moves = event["kind"] in ("all_gather", "reduce_scatter", "all_reduce")
        assert event["stream"] == ("comm" if moves else "compute")
        if moves and case.ranks == 1:
            assert (event["group_size"], event["sent_bytes"]) == (1, 0)


def assert_waits_are_complete(events: list[dict], rs_wait: str = "next") -> None:
    """Each collective is waited for once; nothing survives its micro-batch; reduce-scatters wait as asked."""
    in_flight: Counter = Counter()
    for event in events:
        key = (event["layer"], event["bucket"], event["axis"], event["dtype"], event["elements"])
        if event["stream"] == "comm":
            reductions = sum(n for (kind, *_), n in in_flight.items() if kind == "reduce_scatter")
            assert event["kind"] != "reduce_scatter" or rs_wait == "end" or reductions == 0
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
    assert set(ledger) == set(wanted) | set(textbook)
    for key, (expected, padding) in wanted.items():
        row = ledger[key]
        if (expected * case.ranks).denominator == 1 and expected.denominator == 1 and padding.denominator == 1:
            assert row[:3] == (expected, expected + padding, padding), key
        else:
            assert row[:3] == pytest.approx([float(expected), float(expected + padding), float(padding)], rel=FRACTIONAL), key
    for key, expected in textbook.items():
        assert ledger[key][0] == pytest.approx(float(expected), rel=FRACTIONAL), key
        assert ledger[key][1] == pytest.approx(ledger[key][0] + ledger[key][2], rel=FRACTIONAL), key


def closed_forms(case: Case) -> dict[str, Fraction]:
    """The contract's own formulas for zero3, padding excluded."""
    a, groups, layers, psi = case.accum, len(case.groups()), case.layers, case.psi
    share = Fraction(case.ranks - 1, case.ranks)
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


def assert_gathered_bound(case: Case, peak: int) -> None:
    """At most (F+1) in forward, (B+1) in backward, largest groups plus what is kept; one more while a copy-out holds both."""
    size = {g: case.gathered(g) * BYTES[case.param_dtype] for g in case.groups()}
    kept = sum(s for g, s in size.items() if case.is_kept_after_forward(g))
    moving = sorted((s for g, s in size.items() if not case.is_kept_after_forward(g)), reverse=True)
    at_once = max(case.prefetch) + 1 + any(case.copies_out(g) for g in case.groups())
    # A kept group, too, is copied out, which holds it twice for a moment.
    twice = max(size.values()) if any(case.copies_out(g) for g in case.groups()) else 0
    largest = moving[0] if moving else 0
    assert peak <= max(kept + at_once * largest, kept + max(case.prefetch) * largest + twice)
    assert peak >= max(size.values())
    if moving and min(case.prefetch) >= len(size):  # everything is gathered at once: no group may be missing
        assert peak >= sum(case.real(g) * BYTES[case.param_dtype] for g in case.groups())


def planned(case: Case, rank: int) -> tuple[list[dict], Ledger, dict[str, int]]:
    plan = runs.plan(case.scenario, case.ranks, rank, *case.options())
    assert plan["psi"] == case.psi
    ledger = {(r["axis"], r["quantity"]): (r["expected"], r["planned"], r["padding"], r["unit"]) for r in plan["ledger"]}
    return plan["events"], ledger, plan["memory"]["peak_bytes"]


def assert_follows_rules(case: Case, rank: int, events: list[dict], ledger: Ledger, peaks: dict[str, int]) -> None:
    assert_events_follow_rules(case, events)
    assert_waits_are_complete(events, "end" if "end" in case.extra else "next")
    assert_ledger_follows_rules(case, rank, ledger)
    if case.scenario == "zero3":
        for quantity, value in closed_forms(case).items():
            assert ledger["dp", quantity][0] == pytest.approx(float(value), rel=FRACTIONAL), quantity
        assert_gathered_bound(case, peaks["gathered_parameters"])
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
            held += case.held(rank)
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


def test_clipping_costs_zero3_one_scalar_and_ddp_nothing() -> None:
    for scenario, wanted in [("zero3", [("optimizer", "all_reduce", 1)]), ("ddp", [])]:
        events = runs.plan(scenario, 3, 0, *replace(Case(scenario), clip=1.0).options())["events"]
        issued = [(e["phase"], e["kind"], e["elements"]) for e in events if (e["axis"], e["stream"]) == ("world", "comm")]
        assert issued == wanted


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
]


@pytest.mark.parametrize("index", range(len(RUNS)))
def test_runs(index: int) -> None:
    case = RUNS[index]
    trace = runs.trace(case.scenario, case.ranks, *case.options(), "-n", "1", "-w", "0")
    for rank in range(case.ranks):
        assert_follows_rules(case, rank, trace.events(rank, 0), trace.ledger(rank), trace.peaks(rank))
    # All ranks together really send what the definition of volume says, whatever the algorithm.
    sent = sum(e["sent_bytes"] for rank in range(case.ranks) for e in trace.events(rank, 0) if e["stream"] == "comm")
    assert sent == case.ranks * sum(o.volume(o.elements) * BYTES[o.dtype] for o in case.operations() if o.kind != "compute")


@pytest.mark.parametrize("algorithm", ["direct", "ring", "doubling", "hierarchical"])
def test_every_algorithm_sends_the_volume(algorithm: str) -> None:
    for scenario, ranks in itertools.product(["zero3", "ddp"], [2, 3, 4, 5, 8]):
        case = Case(scenario, ranks=ranks, extra=("--algorithm", algorithm))
        sent = sum(e["sent_bytes"] for rank in range(ranks) for e in planned(case, rank)[0] if e["stream"] == "comm")
        assert sent == ranks * sum(o.volume(o.elements) * BYTES[o.dtype] for o in case.operations() if o.kind != "compute")


def spelled(text: str) -> list[tuple[str, int, int, str]]:
    """'forward: 0 copy_in, 0 all_gather' -> (phase, micro, layer, kind) of each operation."""
    result = []
    for line in filter(None, map(str.strip, text.splitlines())):
        phase, _, operations = line.partition(":")
        for operation in operations.split(","):
            layer, kind = operation.split()
            result.append((phase, 0, int(layer), kind))
    return result


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
        order = [(e["phase"], e["micro"], e["layer"], e["kind"]) for e in trace.events(rank, 0)]
        assert order == spelled(ONE_BLOCK[prefetch])


def test_gathered_parameters_peak_spelled_out() -> None:
    """Equal blocks larger than the other groups: the bound is met exactly while blocks are copied out."""
    for prefetch, layout, at_once in [(0, "per-parameter", 2), (1, "per-parameter", 3), (2, "per-parameter", 4),
                                      (0, "flat", 1), (1, "flat", 2), (2, "flat", 3)]:
        case = Case(ranks=2, layers=7, hidden=16, ffn=32, vocab=4, prefetch=(prefetch, prefetch), layout=layout)
        block = case.gathered(1) * 2
        assert block == case.real(1) * 2 > max(case.gathered(0), case.gathered(8)) * 2
        assert planned(case, 0)[2]["gathered_parameters"] == at_once * block


@pytest.mark.parametrize("scenario", ["ddp", "zero3"])
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
        trace = runs.trace(scenario, ranks, *Case(scenario).options(), "-n", "1", "-w", "0")
        assert {trace.peaks(rank)["activations"] for rank in range(ranks)} == alone
