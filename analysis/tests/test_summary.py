"""From files to points: exact numbers, grouping, order and exclusions."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from shardbench.ends import End, scaling_end
from shardbench.narrate import integrity_sentences, speed_sentence, study_sentences
from shardbench.summary.directory import Directory, read_directory
from shardbench.summary.series import Point
from shardbench.summary.studies import Study
from shardbench.summary.warnings import warnings
from shardbench.report.bandwidths import brief_table
from synthetic import PSI, Synthetic, synthetic, synthetic_collectives


def write_all(folder: Path, *runs: Synthetic) -> Directory:
    for index, run in enumerate(runs):
        run.write(folder / f"{index}.h5")
    return read_directory(folder)


def only_study(found: Directory) -> Study:
    assert not found.excluded
    (study,) = found.studies
    return study


def only_point(found: Directory) -> Point:
    (series,) = only_study(found).series
    (point,) = series.points
    return point


def test_step_time_throughput_and_exposure(tmp_path: Path) -> None:
    point = only_point(write_all(tmp_path, synthetic(size=2)))
    assert (point.step_s.median, point.step_s.low, point.step_s.high) == (0.013, 0.010, 0.016)
    assert point.basis == "within launch, 7 steps"
    assert point.tokens_per_s == 64 / 0.013
    assert point.tokens_per_s_interval == (64 / 0.016, 64 / 0.010)
    assert point.exposed_s.median == pytest.approx(0.25 * 0.013)
    assert point.exposed_share == pytest.approx(0.25)


def test_few_steps_have_no_interval(tmp_path: Path) -> None:
    point = only_point(write_all(tmp_path, synthetic(step_s=[0.01, 0.03, 0.02])))
    assert (point.step_s.median, point.step_s.low) == (0.02, None)
    assert point.basis == "none: 3 steps < 6"


def test_six_launches_are_the_samples(tmp_path: Path) -> None:
    runs = [synthetic(step_s=[0.010 + 0.001 * i] * 3, launch=i) for i in range(6)]
    point = only_point(write_all(tmp_path, *runs))
    assert (point.step_s.low, point.step_s.high) == (0.010, 0.015)
    assert point.step_s.median == pytest.approx(0.0125)
    assert point.basis == "6 launches"


def test_fewer_launches_show_the_median_launch(tmp_path: Path) -> None:
    runs = [synthetic(step_s=[t] * 7, launch=i) for i, t in enumerate([0.03, 0.01, 0.02])]
    point = only_point(write_all(tmp_path, *runs))
    assert len(point.launches) == 3
    assert point.step_s.median == 0.02
    assert point.basis == "within launch, 7 steps"


def test_sizes_are_in_numeric_order(tmp_path: Path) -> None:
    runs = [synthetic(size=size, step_s=[0.01] * 2) for size in (128, 4, 16, 1, 2)]
    study = only_study(write_all(tmp_path, *runs))
    assert study.sizes == [1, 2, 4, 16, 128]
    (series,) = study.series
    assert [point.size for point in series.points] == [1, 2, 4, 16, 128]
    assert series.base.size == 1


def test_efficiency_against_the_smallest_size(tmp_path: Path) -> None:
    """N = 1 is absent: the base is 2. Twice the ranks at 4/3 of the time: 75 %."""
    runs = [synthetic(size=2, step_s=[0.03] * 6), synthetic(size=4, step_s=[0.04] * 6)]
    (series,) = only_study(write_all(tmp_path, *runs)).series
    assert series.base.size == 2
    assert [series.efficiency(point) for point in series.points] == pytest.approx([1.0, 0.75])


def test_series_are_named_by_what_differs(tmp_path: Path) -> None:
    runs = [
        synthetic("zero3", options={"prefetch": 0}),
        synthetic("zero3", options={"prefetch": 2}, launch=1),
        synthetic("ddp"),
        synthetic("zero3", 4, options={"prefetch": 2, "ranks": 4, "threads": 3, "output": "x"}),
    ]
    study = only_study(write_all(tmp_path, *runs))
    assert [series.label for series in study.series] == ["ddp", "zero3 (prefetch 0)", "zero3 (prefetch 2)"]
    assert [point.size for point in study.series[2].points] == [2, 4]


def test_options_of_several_parts_are_named_as_they_are_passed(tmp_path: Path) -> None:
    runs = [
        synthetic("zero3", options={"jitter": None}),
        synthetic("zero3", options={"jitter": {"rank": 0.05, "step": 0.1}}, launch=1),
    ]
    study = only_study(write_all(tmp_path, *runs))
    assert [series.label for series in study.series] == [
        "zero3",
        "zero3 (jitter rank=0.05,step=0.1)",
    ]


def test_what_is_recorded_or_verified_beside_the_step_does_not_split(tmp_path: Path) -> None:
    runs = [
        synthetic(size=2, options={"check": True}),
        synthetic(size=4, options={"check": False, "trace": "steps"}),
    ]
    (series,) = only_study(write_all(tmp_path, *runs)).series
    assert (series.label, [point.size for point in series.points]) == ("zero3", [2, 4])


def test_labels_show_no_switch_that_is_off_and_one_number_for_both_directions(tmp_path: Path) -> None:
    options = [
        {"fp32-grad-accum": False, "prefetch": "1,1", "flops": None},
        {"fp32-grad-accum": True, "prefetch": "1,1", "flops": None},
        {"fp32-grad-accum": False, "prefetch": "2,1", "flops": 1e12},
    ]
    runs = [synthetic(options=each, launch=i) for i, each in enumerate(options)]
    assert [series.label for series in only_study(write_all(tmp_path, *runs)).series] == [
        "zero3 (flops 1000000000000.0, prefetch 2,1)",
        "zero3 (fp32-grad-accum, prefetch 1)",
        "zero3 (prefetch 1)",
    ]


def test_series_that_only_an_unset_option_tells_apart_keep_two_names(tmp_path: Path) -> None:
    runs = [synthetic(options={"bucket-mb": each}, launch=i) for i, each in enumerate((None, False))]
    labels = [series.label for series in only_study(write_all(tmp_path, *runs)).series]
    assert labels == ["zero3 (bucket-mb false)", "zero3 (bucket-mb null)"]


def test_simulated_machines_are_never_mixed(tmp_path: Path) -> None:
    machines: list[dict[str, Any]] = [
        {"platform": "flat", "changed": {}},
        {"platform": "ethernet", "changed": {}},
        {"platform": "flat", "changed": {"node.gpus": 4}},
    ]
    runs = [synthetic(simulated=1, launch=i) for i in range(3)]
    for run, machine in zip(runs, machines):
        run.config["simulation"] = machine
    study = only_study(write_all(tmp_path, *runs))
    assert [series.label for series in study.series] == [
        "zero3 (node.gpus 4, platform flat)",
        "zero3 (platform ethernet)",
        "zero3 (platform flat)",
    ]
    assert study.title.endswith("32 tokens a sequence, simulated")
    (tmp_path / "one").mkdir()
    assert only_study(write_all(tmp_path / "one", runs[0])).title.endswith("simulated on flat")


def test_prefetch_families_differ_in_nothing_else(tmp_path: Path) -> None:
    runs = [
        *(
            synthetic(size=size, options={"prefetch": p}, launch=i)
            for size in (4, 2)
            for i, p in enumerate(("10,10", "0,0", "2,1"))
        ),
        synthetic(size=2, options={"prefetch": "0,0", "clip": 1.0}, launch=3),
        synthetic("ddp", 2, options={"prefetch": "1,1"}),
    ]
    (family,) = only_study(write_all(tmp_path, *runs)).prefetch_families
    assert family.scenario == "zero3"
    assert family.depths == [(0, 0), (2, 1), (10, 10)]
    assert {size: list(by_depth) for size, by_depth in family.points.items()} == {
        size: [(0, 0), (2, 1), (10, 10)] for size in (2, 4)
    }


def test_ranks_medians(tmp_path: Path) -> None:
    """Ranks but the last are 1 ms faster; the last waits a quarter of its step."""
    times = only_point(write_all(tmp_path, synthetic(size=3))).typical.rank_times
    assert list(times.ranks) == [0, 1, 2]
    assert list(times.step_s) == pytest.approx([0.012, 0.012, 0.013])
    assert times.own_s[2] == pytest.approx(0.75 * 0.013)


def test_collectives_are_no_launches(tmp_path: Path) -> None:
    found = write_all(tmp_path, synthetic_collectives(size=4, windows=2))
    assert (found.launches, found.excluded) == ([], [])
    reduce, scatter, gather = found.bandwidths
    assert [b.collective for b in found.bandwidths] == ["all_reduce", "reduce_scatter", "all_gather"]
    # Two iterations, from 0 to 1.5 s: 0.75 s each, of 256 bytes.
    assert reduce.iteration_s.median == 0.75
    assert reduce.bytes_per_s == pytest.approx(2 * 3 / 4 * 256 / 0.75)
    assert gather.bytes_per_s == scatter.bytes_per_s == pytest.approx(3 / 4 * 256 / 0.75)
    assert reduce.label == "all_reduce maximum, ring, bf16, N = 4, measured"
    assert [b.wrong for b in found.bandwidths] == [0, 0, 0]


def test_what_was_not_checked_is_not_said_to_be_right(tmp_path: Path) -> None:
    run = synthetic_collectives(size=2)
    for row in run.tables["collectives"]:
        row["wrong"] = -1
    found = write_all(tmp_path, run)
    assert [b.wrong for b in found.bandwidths] == [None] * 3
    assert {row[-1] for row in brief_table(found.bandwidths).rows} == {"unchecked"}


def test_accumulation_that_follows_from_the_global_batch_does_not_split(tmp_path: Path) -> None:
    runs = [synthetic(size=size, options={"global-batch": 8, "grad-accum": 8 // size}) for size in (1, 2, 4)]
    (series,) = only_study(write_all(tmp_path, *runs)).series
    assert series.is_strong
    assert len(series.points) == 3


def test_simulated_runs_and_other_models_are_studies_of_their_own(tmp_path: Path) -> None:
    runs = [
        synthetic(),
        synthetic(simulated=1, launch=1),
        synthetic(options={"model": "25m"}, launch=2),
    ]
    found = write_all(tmp_path, *runs)
    assert [(study.model, study.is_simulated) for study in found.studies] == [
        ("25m", False),
        ("tiny", False),
        ("tiny", True),
    ]


def test_imitated_compute_is_a_study_of_its_own(tmp_path: Path) -> None:
    timed = synthetic(launch=1)
    timed.attributes["compute"] = "timed"
    found = write_all(tmp_path, synthetic(), timed)
    assert [study.title.rpartition("a sequence, ")[2] for study in found.studies] == [
        "measured",
        "measured, compute imitated",
    ]


def test_memory_and_volume(tmp_path: Path) -> None:
    point = only_point(write_all(tmp_path, synthetic(size=4)))
    ledger = point.typical.ledger
    assert ledger.static_bytes == {"parameters": 600, "gradients": 600, "optimizer": 3600}
    assert ledger.static_expected == ledger.static_textbook == 16 * PSI / 4
    assert ledger.volume_expected == ledger.volume_textbook == 3 * PSI * 3 / 4
    assert ledger.volume_measured == 3 * PSI * 3 / 4 + 9
    assert point.ledger_verdict == "ok"


def test_uneven_shards_show_the_rank_with_most(tmp_path: Path) -> None:
    run = synthetic(size=3)
    for quantity, expected in (("static_bytes", 7000), ("parameters_bytes", 1400), ("volume_elements", 5000)):
        run.row("ledger", rank=1, quantity=quantity).update(
            expected=expected, measured=expected + 12, padding=12
        )
    ledger = only_point(write_all(tmp_path, run)).typical.ledger
    assert ledger.static_bytes["parameters"] == 1412
    assert ledger.static_expected == 7000
    assert (ledger.volume_expected, ledger.volume_measured) == (5000, 5012)


def test_peak_is_a_bound_of_the_rank_that_needs_most(tmp_path: Path) -> None:
    peak = only_point(write_all(tmp_path, synthetic(size=4))).peak
    assert peak is not None
    assert (peak.total, peak.is_bound) == (2400 + 2400 + 14400 + 5030, True)
    assert peak.process_high_water == 9_500_000


def test_tracked_total_is_exact(tmp_path: Path) -> None:
    run = synthetic()
    for rank, total in ((0, 20000), (1, 18000)):
        run.tables["memory_peak"].append(dict(rank=rank, category="total_tracked", peak_bytes=total))
    peak = only_point(write_all(tmp_path, run)).peak
    assert peak is not None
    assert (peak.total, peak.is_bound) == (20000, False)
    assert peak.by_category["activations"] == 5000
    assert "total_tracked" not in peak.by_category


def test_ledger_mismatch_is_told(tmp_path: Path) -> None:
    run = synthetic()
    run.row("ledger", rank=1, quantity="all_gather_forward_count")["measured"] = 4
    found = write_all(tmp_path, run)
    assert only_point(found).ledger_verdict == (
        "rank 1, dp all_gather_forward_count: expected 3 + padding 0, measured 4"
    )
    assert "In 1 of 1 run the ledger's" in integrity_sentences(found.launches)[0]


@pytest.mark.parametrize(
    ("algorithm", "gpus", "told"), [("hierarchical", 8, True), ("nccl", 8, False), ("ring", 1, False)]
)
def test_what_is_not_nccls_default_is_told(tmp_path: Path, algorithm: str, gpus: int, told: bool) -> None:
    run = synthetic(options={"algorithm": algorithm})
    run.config["simulation"] = {"machine": {"node": {"gpus": gpus}}}
    sentences = " ".join(integrity_sentences(write_all(tmp_path, run).launches))
    assert ("not NCCL's default" in sentences) == told
    assert ("1 simulated run with nodes of 8 GPUs" in sentences) == told


def test_trace_level_none_is_summarised(tmp_path: Path) -> None:
    run = synthetic(options={"trace": "none"})
    for table in ("events", "memory", "memory_peak", "ledger", "tensors", "clock"):
        run.tables[table] = []
    point = only_point(write_all(tmp_path, run))
    assert point.peak is None
    assert point.ledger_verdict == "not recorded"


@pytest.mark.parametrize(
    ("results", "worst"),
    [(["passed"], "passed"), (["passed", "off"], "off"), (["off", "failed"], "failed")],
)
def test_worst_check_is_shown(tmp_path: Path, results: list[str], worst: str) -> None:
    runs = [synthetic(check=result, launch=i) for i, result in enumerate(results)]
    assert only_point(write_all(tmp_path, *runs)).check == worst


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_incomplete_runs_are_left_out(tmp_path: Path, status: str) -> None:
    found = write_all(tmp_path, synthetic(), synthetic(status=status, launch=1))
    assert len(found.launches) == 1
    (excluded,) = found.excluded
    assert excluded.name == "1.h5"
    assert f"status is '{status}'" in excluded.reason


def test_unusable_files_are_left_out_with_reasons(tmp_path: Path) -> None:
    slow = synthetic(launch=1)
    slow.row("steps", rank=0, step=5)["step_s"] = 0.0
    warm = synthetic(launch=2, step_s=[])
    version = synthetic(launch=3, schema_version=2)
    found = write_all(tmp_path, synthetic(), slow, warm, version)
    shutil.copy(tmp_path / "0.h5", tmp_path / "copy.h5")
    (tmp_path / "damaged.h5").write_bytes((tmp_path / "0.h5").read_bytes()[:5000])
    (tmp_path / "notes.txt").write_text("not a trace")
    found = read_directory(tmp_path)
    reasons = {excluded.name: excluded.reason for excluded in found.excluded}
    assert [launch.name for launch in found.launches] == ["0.h5"]
    assert reasons.pop("1.h5") == "a step time of 0.0 s"
    assert "no timed steps" in reasons.pop("2.h5")
    assert "schema_version is 2" in reasons.pop("3.h5")
    assert reasons.pop("copy.h5") == "a copy of 0.h5"
    assert "truncated or damaged" in reasons.pop("damaged.h5")
    assert not reasons


def test_files_below_are_found(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    synthetic().write(tmp_path / "a" / "b" / "x.h5")
    assert [launch.name for launch in read_directory(tmp_path).launches] == ["a/b/x.h5"]


def test_warnings(tmp_path: Path) -> None:
    run = synthetic(size=4, oversubscribed=1, steady=0, check="failed", launch=1)
    for row in run.tables["ranks"]:
        row.update(threads=2, allowed_cpus=2)
    found = write_all(tmp_path, run, synthetic(size=1, git_commit="fedcba9876543210"))
    told = warnings(found.launches)
    assert len(told) == 5
    assert "up to 4 ranks × 2 threads, 2 CPUs allowed" in told[0]
    assert "1 run not steady" in told[1]
    assert "not measurable here" in told[2]
    assert "check failed" in told[3]
    assert "2 commits (0123456789ab, fedcba987654)" in told[4]


def test_oversubscribed_runs_are_kept_and_marked(tmp_path: Path) -> None:
    assert only_point(write_all(tmp_path, synthetic(oversubscribed=1))).is_oversubscribed


def test_no_warning_without_cause(tmp_path: Path) -> None:
    run = synthetic(size=2)
    run.row("ranks", rank=1)["host"] = "node2"
    assert warnings(write_all(tmp_path, run).launches) == []


def test_summary_sentences(tmp_path: Path) -> None:
    runs = [
        synthetic(scenario, size, step_s=[step_s] * 6)
        for scenario, size, step_s in (
            ("ddp", 1, 0.010),
            ("ddp", 4, 0.010),
            ("zero3", 1, 0.010),
            ("zero3", 4, 0.020),
        )
    ]
    study = only_study(write_all(tmp_path, *runs))
    memory, overlap, scaling = study_sentences(study)
    assert [sentence.topic for sentence in (memory, overlap, scaling)] == ["Memory", "Overlap", "Scaling"]
    assert memory.text == (
        "least static memory (parameters, gradients, optimizer) per rank at N = 4 needs zero3 with 4.800 kB; most, "
        "4.00 times as much, ddp with 19.20 kB; at N = 4 all need the same peak memory per rank, 24.23 kB."
    )
    assert overlap.text.startswith("not measurable here, because all ranks share one host's memory")
    assert "exposed at N = 4 are 25.0 % of a step" in overlap.text
    assert scaling.text == "ddp and zero3: past the end at the base N = 1 (25.0 % of a step exposed)."
    speed = speed_sentence(study)
    assert speed and "Fastest at N = 4: ddp with 12,800 tokens/s, 10.00 ms a step" in speed
    assert "intervals of their step times do not overlap" in speed


def test_what_fits_is_told_against_a_limit(tmp_path: Path) -> None:
    big, small = synthetic("ddp", 2), synthetic("zero3", 2)
    big.row("memory_peak", rank=1, category="optimizer")["peak_bytes"] += 10_000
    study = only_study(write_all(tmp_path, big, small))
    peaks = [series.points[0].peak for series in study.series]
    assert [peak and peak.total for peak in peaks] == [34_210, 24_210]

    def told(limit: float) -> str:
        return study_sentences(study, limit)[0].text.rpartition("; ")[2]

    assert told(24_209) == "none fits into 24.21 kB at N = 2."
    assert study_sentences(study, 24_210)[0].text.endswith(
        "what fits into 24.21 kB at N = 2: zero3; what does not: ddp."
    )
    assert told(34_210) == "what fits into 34.21 kB at N = 2: ddp and zero3."
    assert "fits" not in study_sentences(study)[0].text


def exposing(scenario: str, size: int, share: float, step_s: float = 0.010, **facts: Any) -> Synthetic:
    """A run whose ranks wait for the given share of each step."""
    run = synthetic(scenario, size, step_s=[step_s] * 6, **facts)
    for row in run.tables["steps"]:
        change = share * row["step_s"] - row["exposed_s"]
        row["exposed_s"] += change
        row["exposed_ag_forward_s"] += change
        row["compute_s"] -= change
    return run


def test_scaling_ends_at_the_first_size_that_breaks_a_limit(tmp_path: Path) -> None:
    runs = [
        *(exposing("ddp", n, 0.09) for n in (1, 2, 16)),
        *(exposing("zero1", n, 0.02 * n) for n in (1, 2, 4, 8, 16)),
        *(exposing("zero2", n, 0.0, step_s) for n, step_s in ((2, 0.010), (8, 0.0125), (16, 0.0126))),
        exposing("zero3", 4, 0.3),
    ]
    study = only_study(write_all(tmp_path, *runs))
    ends = {series.scenario: scaling_end(series) for series in study.series}
    assert ends["ddp"] is None
    assert ends["zero1"] == End(8, "of a step exposed", pytest.approx(0.16))
    assert ends["zero2"] == End(16, "efficiency", pytest.approx(0.010 / 0.0126))  # 80.0 % at 8 is within
    assert study_sentences(study)[2].text == (
        "ddp: no end up to N = 16, the largest (9.0 % of a step exposed); zero1: scaling ends at N = 8 (16.0 % of a step "
        "exposed); zero2: scaling ends at N = 16 (79.4 % efficiency)."
    )


def test_what_prefetch_hid_is_told_at_both_ends(tmp_path: Path) -> None:
    """40 % of a step without, 4 % with: 90 % hidden; 50 and 25 %: half."""
    runs = [
        exposing("zero3", n, share, simulated=1, launch=p, options={"prefetch": f"{p},{p}"})
        for n, p, share in (
            (8, 0, 0.4),
            (8, 1, 0.04),
            (16, 0, 0.5),
            (16, 1, 0.2),
            (64, 0, 0.5),
            (64, 1, 0.25),
        )
    ]
    overlap = study_sentences(only_study(write_all(tmp_path, *runs)))[1].text
    assert (
        "at N = 8 prefetch 1 hid 90.0 % of what zero3 exposes without it (4.000 ms without, 0.4000 ms with"
        in overlap
    )
    assert "at N = 64 prefetch 1 hid 50.0 % of what" in overlap
    assert "N = 16" not in overlap
