"""From files to points: exact numbers, grouping, order and exclusions."""

import shutil
from pathlib import Path

import pytest

from shardbench.narrate import integrity_sentences, study_sentences
from shardbench.summary import Directory, Point, Study, read_directory, warnings
from synthetic import PSI, Synthetic, synthetic


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
        "zero3 (jitter rank=0.05,step=0.1)",
        "zero3 (jitter unset)",
    ]


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
    assert [study.title.rpartition("parameters, ")[2] for study in found.studies] == [
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


@pytest.mark.parametrize(("algorithm", "gpus", "told"), [("hierarchical", 8, True), ("nccl", 8, False), ("ring", 1, False)])
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
    scope, memory, speed, scaling = study_sentences(study)
    assert scope == "4 runs of ddp and zero3 at N = 1 and 4."
    assert memory == (
        "Least static memory per rank at N = 4: zero3 with 4.800 kB. "
        "Most: ddp with 19.20 kB, 4.00 times as much."
    )
    assert "Fastest at N = 4: ddp with 12,800 tokens/s, 10.00 ms a step" in speed
    assert "intervals of their step times do not overlap" in speed
    assert "ddp 4.00-fold (100.0 %) and zero3 2.00-fold (50.0 %)" in scaling
