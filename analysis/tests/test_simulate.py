"""What is decided before and after a simulation; tests/scenarios runs real ones."""

import signal
from pathlib import Path

import pytest

from shardbench import simulate
from shardbench.cli import main
from shardbench.platforms import load_platform
from shardbench.simulate import SimulationError, plan_simulation
from synthetic import Synthetic


@pytest.fixture
def sim_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build that has everything but content."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    for file in ("bin/zero3", "bin/ddp", f"lib/{simulate.LOADER}"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    return tmp_path / "bin"


def plan(sim_bin: Path, *options: str, scenario: str = "zero3", ranks: int = 8) -> simulate.Simulation:
    return plan_simulation(scenario, ranks, load_platform("flat"), options, sim_bin)


@pytest.mark.parametrize("words", [["-o", "x.h5"], ["-ox.h5"], ["--output", "x.h5"], ["--output=x.h5"]])
def test_the_output_is_found_among_the_options(sim_bin: Path, words: list[str]) -> None:
    planned = plan(sim_bin, "-n", "3", *words, "--overwrite")
    assert planned.output == Path("x.h5")
    assert list(planned.options) == ["-n", "3", *words, "--overwrite", "--ranks", "8"]


@pytest.mark.parametrize("words", [["-o", "x.h5", "--output=y.h5"], ["-o=x.h5"], ["-output", "x.h5"]])
def test_the_scenario_itself_judges_how_its_output_is_named(sim_bin: Path, words: list[str]) -> None:
    assert list(plan(sim_bin, *words).options) == [*words, "--ranks", "8"]


def test_without_an_output_the_name_says_what_it_is(sim_bin: Path) -> None:
    planned = plan(sim_bin)
    assert planned.output.name.startswith("zero3_n8_") and planned.output.name.endswith("_sim.h5")
    assert list(planned.options) == ["--ranks", "8", "--output", str(planned.output)]


@pytest.mark.parametrize("words", [["--ranks", "4"], ["--ranks=4"]])
def test_the_users_expectation_of_the_world_size_stays(sim_bin: Path, words: list[str]) -> None:
    assert list(plan(sim_bin, *words, "-ox.h5").options) == [*words, "-ox.h5"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "my model"], ["'my model'", "one word"]),
        (["-o", "my file.h5"], ["'my file.h5'", "one word"]),
        (["--model", ""], ["''", "one word"]),
        (["--model", "*"], ["'*'", "expands"]),
        (["--plan"], ["--plan", "build/release/bin/zero3 --plan"]),
        (["--cfg=smpi/host-speed:1"], ["SimGrid"]),
    ],
)
def test_what_would_not_arrive_is_refused(sim_bin: Path, options: list[str], words: list[str]) -> None:
    with pytest.raises(SimulationError) as refusal:
        plan(sim_bin, *options)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_unknown_scenarios_and_missing_builds_are_named(sim_bin: Path, tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="no scenario 'zero4'.*ddp, zero3"):
        plan(sim_bin, scenario="zero4")
    with pytest.raises(SimulationError, match="cmake --preset sim"):
        plan(tmp_path / "nowhere")
    (sim_bin.parent / "lib" / simulate.LOADER).unlink()
    with pytest.raises(SimulationError, match="cmake --preset sim"):
        plan(sim_bin)


def test_simgrid_may_be_missing(sim_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(SimulationError, match="libsimgrid-dev"):
        plan(sim_bin)


def test_a_negative_number_of_ranks_is_refused(sim_bin: Path) -> None:
    with pytest.raises(SimulationError, match="--ranks 0"):
        plan(sim_bin, ranks=0)


@pytest.mark.parametrize(
    ("codes", "signalled", "code", "words"),
    [
        (set(), None, 1, "before it wrote a file"),
        ({2}, None, 2, "refused its options"),
        ({1}, None, 1, "before it wrote a file"),
        (set(), signal.SIGTERM, 1, "stopped by SIGTERM"),
    ],
)
def test_a_run_that_leaves_no_file_has_failed(
    tmp_path: Path, codes: set[int], signalled: signal.Signals | None, code: int, words: str
) -> None:
    found, problem = simulate._verdict(tmp_path / "none.h5", None, codes, signalled)
    assert found == code
    assert words in problem


def test_the_file_of_an_earlier_run_is_no_success(tmp_path: Path) -> None:
    old = tmp_path / "old.h5"
    old.write_bytes(b"complete")
    code, problem = simulate._verdict(old, simulate._identity(old), set(), None)
    assert code == 1
    assert "before it wrote a file" in problem


@pytest.mark.parametrize(
    ("status", "codes", "code", "words"),
    [
        ("complete", set(), 0, ""),
        ("complete", {3}, 3, "checks failed"),
        ("running", set(), 1, "status 'running'"),
        ("interrupted", {1}, 1, "status 'interrupted'"),
        ("failed", {1}, 1, "status 'failed'"),
        # Another run has written it meanwhile.
        ("complete", {2}, 2, "refused its options"),
        ("complete", {1}, 1, "another run's"),
    ],
)
def test_the_status_of_the_file_decides(
    run: Synthetic, tmp_path: Path, status: str, codes: set[int], code: int, words: str
) -> None:
    run.attributes["status"] = status
    found, problem = simulate._verdict(run.write(tmp_path / "a.h5"), None, codes, None)
    assert found == code
    assert words in problem and bool(words) == bool(problem)


def test_a_file_that_cannot_be_read_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"no HDF5")
    code, problem = simulate._verdict(tmp_path / "a.h5", None, set(), None)
    assert code == 1
    assert "cannot be read" in problem
    assert simulate._verdict(tmp_path / "a.h5", None, {1}, None) == (1, "the run failed, see above")


def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "zero3", "--ranks", "8", "--platform", "moon"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("shardbench simulate: there is no platform 'moon'")
    assert said.count("\n") == 1
