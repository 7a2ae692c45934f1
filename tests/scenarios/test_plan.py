"""--plan prints what a run then does: every event but its times, the ledger and the peaks of tracked memory."""

import json
import time

import pytest
import runs

MODEL = {"--layers": "2", "--hidden": "12", "--heads": "2", "--kv-heads": "1", "--ffn": "10", "--vocab": "11", "--seq": "4"}
TIMED = "--compute timed --flops 1e12"
FOUR_HEADS = "--hidden 24 --heads 4 --kv-heads 4"

CASES = [
    ("zero3", [1, 2, 4, 5], ""),
    ("zero3", [2, 5], "--prefetch 0 --grad-accum 3 --param-dtype fp32"),
    ("zero3", [4, 5], "--prefetch 2,1 --reshard-after-forward blocks --communicators 2 --fp32-grad-accum"),
    ("zero3", [1, 4], "--prefetch 10 --wrap root --rs-wait end --reduce-dtype bf16 --algorithm ring"),
    ("zero3", [4, 5], "--tied --layout flat --grad-accum 2 --clip 0.5 --algorithm doubling --progress thread"),
    ("zero3", [2, 5], "--layout flat --reshard-after-forward none --algorithm direct --progress none"),
    ("zero3", [4], "--algorithm native --clip 1 --micro-batch 3"),
    ("zero3", [4], "--algorithm hierarchical --ranks-per-node 2"),
    ("zero3", [1, 2, 4, 5], f"{TIMED} --payload phantom"),
    ("zero3", [5], f"{TIMED} --payload real --layout flat --wrap root --grad-accum 2 --algorithm ring"),
    ("ddp", [1, 2, 4, 5], ""),
    ("ddp", [2, 5], "--grad-accum 3 --param-dtype fp32 --clip 1 --algorithm ring"),
    ("ddp", [4], "--vocab 40000 --bucket-mb 1 --reduce-dtype bf16 --fp32-grad-accum --algorithm doubling"),
    ("ddp", [5], "--vocab 50000 --micro-batch 2 --progress none --algorithm direct"),
    ("ddp", [2], "--vocab 50000 --algorithm native"),
    ("ddp", [1, 4, 5], f"{TIMED} --payload phantom --grad-accum 2"),
    ("ddp", [3], "--recompute full --micro-batch 2"),
    ("zero3", [3], "--recompute full --grad-accum 2"),
    ("zero1", [1, 2, 5], ""),
    ("zero1", [2, 5], "--grad-accum 3 --param-dtype fp32 --clip 1 --algorithm ring --param-gather overlap"),
    ("zero1", [4], "--vocab 40000 --bucket-mb 1 --param-gather overlap --fp32-grad-accum --communicators 2 --recompute full"),
    ("zero1", [4], f"{TIMED} --payload phantom --grad-accum 2 --param-gather overlap"),
    ("zero2", [1, 2, 5], ""),
    ("zero2", [2, 5], "--grad-accum 3 --fp32-grad-accum --clip 1 --algorithm doubling --param-gather overlap"),
    ("zero2", [4], "--vocab 40000 --bucket-mb 1 --reduce-dtype bf16 --rs-wait end --tied --recompute full --progress none"),
    ("zero2", [4], f"{TIMED} --payload phantom --grad-accum 2"),
    ("mesh2d", [1, 2, 4], ""),
    ("mesh2d", [2, 4], f"--tp 2 {FOUR_HEADS}"),
    ("mesh2d", [2, 4], f"--tp 2 {FOUR_HEADS} --sequence-parallel --param-dtype fp32 --clip 1"),
    ("mesh2d", [4], f"--tp 2 {FOUR_HEADS} --sequence-parallel --recompute full --grad-accum 2 --layout flat --algorithm ring"),
    ("mesh2d", [6], f"--tp 2 {FOUR_HEADS} --recompute full --prefetch 2,1 --wrap root --tied --algorithm doubling"),
    ("mesh2d", [4], f"--tp 4 {FOUR_HEADS} --sequence-parallel --vocab 5 --ffn 5 --communicators 2 --rs-wait end"),
    ("mesh2d", [4], f"--tp 2 {FOUR_HEADS} --algorithm native --progress thread"),
    ("mesh2d", [4], f"--tp 2 {FOUR_HEADS} --sequence-parallel --recompute full {TIMED} --payload phantom"),
    ("mesh2d", [4], f"--tp 2 {FOUR_HEADS} {TIMED} --payload real --clip 1"),
    ("mesh2d", [2], f"--tp 2 {FOUR_HEADS} {TIMED} --payload real --param-dtype fp32 --sequence-parallel"),
    ("zero1", [3], f"{TIMED} --payload real --param-gather overlap --clip 1"),
]


@pytest.mark.parametrize(("scenario", "ranks", "options"), [(s, n, o) for s, worlds, o in CASES for n in worlds])
def test_run_does_what_the_plan_says(scenario: str, ranks: int, options: str) -> None:
    sizes = [word for name, size in MODEL.items() if name not in options.split() for word in (name, size)]
    words = [*sizes, *options.split(), "--threads", "1"]
    trace = runs.trace(scenario, ranks, *words, "-w", "1", "-n", "2", "--window", "1")
    for rank in range(ranks):
        plan = runs.plan(scenario, ranks, rank, *words)
        assert (plan["scenario"], plan["ranks"], plan["rank"]) == (scenario, ranks, rank)
        assert plan["psi"] == trace.attributes["psi"]
        assert plan["events"]
        for step in range(3):
            assert trace.events(rank, step) == [{**event, "step": step} for event in plan["events"]]
        planned = {(r["axis"], r["quantity"]): (r["expected"], r["planned"], r["padding"], r["unit"]) for r in plan["ledger"]}
        assert trace.ledger(rank) == planned
        peaks = {c: b for c, b in trace.peaks(rank).items() if not c.startswith("process_")}
        assert peaks == plan["memory"]["peak_bytes"]
        assert plan["memory"]["static_bytes"] == planned["world", "static_bytes"][1]


def test_a_plan_needs_no_options_and_defaults_to_one_rank() -> None:
    finished = runs.execute([str(runs.BIN / "zero3"), "--plan"], runs.scratch_folder())
    assert (finished.code, finished.stderr) == (0, "")
    plan = json.loads(finished.stdout)
    assert (plan["ranks"], plan["rank"]) == (1, 0)


def test_a_plan_leaves_nothing_behind(tmp_path: runs.Path) -> None:
    finished = runs.execute([str(runs.BIN / "ddp"), "--plan", "--ranks", "7", "--rank", "6"], tmp_path)
    assert finished.code == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("scenario", "options"), [
    ("ddp", ""), ("zero1", "--param-gather overlap"), ("zero2", "--grad-accum 2"), ("zero3", ""),
    ("mesh2d", "--tp 8 --sequence-parallel --recompute full"),
])
def test_the_largest_preset_is_planned_in_seconds(scenario: str, options: str) -> None:
    begin = time.monotonic()
    plan = runs.plan(scenario, 512, 511, "--model", "405b", *options.split())
    assert time.monotonic() - begin < 10.0  # about half a second when the machine is idle
    assert plan["psi"] == 405_853_388_800
