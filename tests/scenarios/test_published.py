"""The simulator against published measurements: docs/published.md holds, as far as a minute can tell."""

import json
import shutil
import sys

import pytest
import runs

sys.path.insert(0, str(runs.ROOT / "jobs"))

import published  # noqa: E402

pytestmark = [
    pytest.mark.skipif(shutil.which("smpirun") is None, reason="smpirun (SimGrid) is not installed"),
    pytest.mark.skipif(not (runs.SIM_BIN / "zero3").exists(), reason=f"{runs.SIM_BIN}/zero3 is not built (preset sim)"),
]


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> published.Simulator:
    return published.Simulator(runs.SIM_BIN, tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def step_on_8(simulator: published.Simulator) -> float:
    return published.step_s(simulator.train_calibrated(published.QUIET, 8, published.CALIBRATION_FILE))


def test_the_calibration_gives_the_published_throughput_on_8_gpus(step_on_8: float) -> None:
    assert published.TOKENS / step_on_8 == pytest.approx(5762, rel=1e-3)


def test_128_gpus_lose_no_more_than_was_published(simulator: published.Simulator, step_on_8: float) -> None:
    step = published.step_s(simulator.train_calibrated(published.QUIET, 128, published.CALIBRATION_FILE))
    assert 0.0 <= 1 - step_on_8 / step <= 1 - 5605 / 5762


def test_the_calibration_is_the_roofline_times_one_factor(simulator: published.Simulator) -> None:
    base, stored = published.roofline(simulator), json.loads(published.CALIBRATION_FILE.read_text())
    assert {kind: set(by) for kind, by in stored.items()} == {kind: set(by) for kind, by in base.items()}
    factors = [stored[kind][what] / seconds for kind, by in base.items() for what, seconds in by.items()]
    assert factors == pytest.approx([factors[0]] * len(factors), rel=1e-6)


def test_what_a_page_lacks_is_named() -> None:
    page = published.PAGE.read_text()
    for section in ("quiet", "disturbed", "memory", "collectives"):
        assert f"<!-- {section}:begin -->\nnew\n<!-- {section}:end -->" in published.insert(page, section, "new")
    with pytest.raises(published.Failure, match="has no <!-- other:begin -->"):
        published.insert(page, "other", "new")


def test_expected_maxima() -> None:
    # Harter, Expected values of normal order statistics, Biometrika 48 (1961).
    assert published.expected_maximum(2) == pytest.approx(0.56419, abs=1e-4)
    assert published.expected_maximum(8) == pytest.approx(1.42360, abs=1e-3)
    assert published.expected_maximum(100) == pytest.approx(2.50759, abs=1e-3)
