import re
from collections import Counter
from pathlib import Path

import pytest

from shardbench.errors import UsageError
from shardbench.sweep.point import Machine, Point, Run
from shardbench.sweep.study import Study, read_study


def study(folder: Path, text: str, launcher: str | None = None) -> Study:
    path = folder / "a study.toml"
    path.write_text(text)
    return read_study(path, launcher)


GRID = """
output = "out"
scenario = ["ddp", "zero3"]
ranks = [1, 2, 4]
model = "25m"
repetitions = 3
options = {steps = 5, micro-batch = [1, 2], check = true}
"""


def test_lists_make_a_grid(tmp_path: Path) -> None:
    points = study(tmp_path, GRID).points
    assert len(points) == 2 * 3 * 2
    assert {(p.scenario, p.ranks, p.options["micro-batch"]) for p in points} == {
        (scenario, ranks, batch) for scenario in ("ddp", "zero3") for ranks in (1, 2, 4) for batch in (1, 2)
    }
    assert {p.model for p in points} == {"25m"}
    assert points[0].arguments() == ["--model=25m", "--steps=5", "--micro-batch=1", "--check"]


def test_what_trains_no_model_has_none(tmp_path: Path) -> None:
    text = "output = 'out'\nmodel = '25m'\n[[study]]\nscenario = ['ddp', 'collectives']\nranks = 2\noptions = {}\n"
    ddp, collectives = study(tmp_path, text).points
    assert (ddp.model, ddp.arguments()) == ("25m", ["--model=25m"])
    assert (collectives.model, collectives.arguments()) == (None, [])
    assert collectives.name == f"collectives_n2_{collectives.hash}"
    several = "output = 'out'\nscenario = ['ddp', 'collectives']\nmodel = ['25m', '1b']\nranks = 2\n"
    assert [(p.scenario, p.model) for p in study(tmp_path, several).points] == [
        *(("ddp", "25m"), ("ddp", "1b")),
        ("collectives", None),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "scenario = 'collectives'\nmodel = 'tiny'",
        "[[study]]\nscenario = 'collectives'\nmodel = 'tiny'",
        "[[study]]\nscenario = ['collectives']\nmodel = 'tiny'",
        "scenario = 'collectives'\n[[study]]\nmodel = ['tiny', '25m']",
    ],
)
def test_what_trains_no_model_may_name_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="collectives trains no model; leave the key 'model' out"):
        study(tmp_path, f"output = 'out'\nranks = 2\n{text}")


def test_each_repetition_visits_every_point_once_in_its_own_order(tmp_path: Path) -> None:
    runs = study(tmp_path, GRID).runs
    passes = [[run.point.hash for run in runs if run.repetition == number] for number in (1, 2, 3)]
    assert [run.repetition for run in runs] == [1] * 12 + [2] * 12 + [3] * 12
    assert all(len(set(order)) == 12 for order in passes)
    assert set(passes[0]) == set(passes[1]) == set(passes[2])
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert runs == study(tmp_path, GRID).runs
    assert runs != study(tmp_path, f"seed = 2\n{GRID}").runs


def test_tables_share_what_the_file_says_and_say_the_rest(tmp_path: Path) -> None:
    text = """
    output = "out"
    model = "25m"
    options = {steps = 5, warmup = 1}
    repetitions = 2
    [[study]]
    scenario = "ddp"
    ranks = 1
    [[study]]
    scenario = "zero3"
    ranks = [1, 2]
    repetitions = 1
    options = [{prefetch = [0, 1]}, {prefetch = "2,1", steps = 9}]
    """
    runs = Counter(
        (r.point.scenario, r.point.ranks, tuple(r.point.arguments())) for r in study(tmp_path, text).runs
    )
    shared = ("--model=25m", "--steps=5", "--warmup=1")
    assert runs == {
        ("ddp", 1, shared): 2,
        **{("zero3", n, (*shared, f"--prefetch={p}")): 1 for n in (1, 2) for p in (0, 1)},
        **{("zero3", n, ("--model=25m", "--steps=9", "--warmup=1", "--prefetch=2,1")): 1 for n in (1, 2)},
    }


def test_a_simulation_is_a_grid_over_platforms_too(tmp_path: Path) -> None:
    text = """
    output = "out"
    scenario = "zero3"
    ranks = 8
    launcher = "simulate"
    platform = ["flat", "ethernet"]
    set = {"node.nic_latency_s" = [1e-6, 1e-5]}
    """
    machines = [point.machine for point in study(tmp_path, text).points]
    assert [(m.platform, m.overrides) for m in machines if m] == [
        (name, {"node.nic_latency_s": latency}) for name in ("flat", "ethernet") for latency in (1e-6, 1e-5)
    ]
    assert [m.figures["node.nic_latency_s"] for m in machines if m] == [1e-6, 1e-5, 1e-6, 1e-5]
    assert len({point.hash for point in study(tmp_path, text).points}) == 4
    # Started for real, the four are one point.
    (point,) = study(tmp_path, text, launcher="srun").points
    assert point.machine is None


def test_grids_that_differ_only_in_how_they_start_merge_when_all_start_alike(tmp_path: Path) -> None:
    text = """
    output = "out"
    scenario = "zero3"
    ranks = 8
    [[study]]
    [[study]]
    launcher = "simulate"
    platform = "flat"
    """
    assert len(study(tmp_path, text).runs) == 2
    assert len(study(tmp_path, text, launcher="srun").runs) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rank = 2", ["key 'rank' is unknown", "'ranks'"]),
        ("[[study]]\noption = 2", ["[[study]] 1", "'option'", "'options'"]),
        ("[[study]]\noutput = 'x'", ["[[study]] 1", "'output'"]),
        ("study = 3", ["[[study]]"]),
        ("scenario = 'ddp'", ["'ranks'"]),
        ("ranks = 2", ["'scenario'"]),
        ("scenario = 'ddp'\nranks = 0", ["ranks = 0"]),
        ("scenario = 'ddp'\nranks = true", ["ranks = True"]),
        ("scenario = 'ddp'\nranks = '2'", ["ranks = '2'"]),
        ("scenario = 'ddp'\nranks = []", ["ranks", "empty"]),
        ("scenario = 'ddp'\nranks = [2, 2]", ["ddp_tiny_n2_", "occurs twice", "repetitions"]),
        ("scenario = '../ddp'\nranks = 2", ["'../ddp'", "not a name"]),
        ("scenario = 'ddp'\nranks = 2\nrepetitions = 0", ["repetitions = 0"]),
        ("scenario = 'ddp'\nranks = 2\nseed = -1", ["seed = -1"]),
        ("scenario = 'ddp'\nranks = 2\nname = 5", ["name"]),
        ("scenario = 'ddp'\nranks = 2\nlauncher = 'pbs'", ["'pbs'", "srun"]),
        ("scenario = 'ddp'\nranks = 2\nlauncher = 'simulate'", ["'platform'"]),
        ("scenario = 'ddp'\nranks = 2\nlauncher = 'simulate'\nplatform = 3", ["platform = 3"]),
        ("scenario = 'ddp'\nranks = 2\nlauncher = 'simulate'\nplatform = 'flt'", ["flt", "flat"]),
        ("scenario = 'ddp'\nranks = 2\nlauncher = 'simulate'\nplatform = 'flat'\nset = {gpu = 1}", ["gpu"]),
        ("scenario = 'ddp'\nranks = 2\noptions = {output = 'x.h5'}", ["options.output", "the key 'output'"]),
        ("scenario = 'ddp'\nranks = 2\noptions = {overwrite = true}", ["options.overwrite", "itself"]),
        (
            "scenario = 'collectives'\nranks = 2\noptions = {output_file = 'x'}",
            ["output_file", "which launch"],
        ),
        ("scenario = 'ddp'\nranks = 2\noptions = {--steps = 3}", ["options.--steps"]),
        ("scenario = 'ddp'\nranks = 2\noptions = {steps = []}", ["steps", "empty"]),
        ("scenario = 'ddp'\nranks = 2\noptions = {calibration = \"a\\nb\"}", ["calibration", "line of text"]),
        ("scenario = 'ddp'\nranks = 2\noptions = {calibration = ''}", ["calibration", "line of text"]),
        ("scenario = 'ddp'\nranks = 2\noptions = {since = 2024-01-01}", ["since"]),
        ("scenario = 'ddp'\nranks = 2\noptions = 3", ["options"]),
        ("scenario 3", ["not TOML"]),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        study(tmp_path, f"output = 'out'\n{text}")
    line = str(refused.value)
    assert "\n" not in line
    assert "a study.toml" in line
    assert all(words in line for words in said), line


def test_a_study_says_where_results_go(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no key 'output'; say where"):
        study(tmp_path, "scenario = 'ddp'\nranks = 1")
    with pytest.raises(UsageError, match=r"none\.toml cannot be read \(No such file"):
        read_study(tmp_path / "none.toml")


POINT = Point("zero3", 4, "25m", {"prefetch": "2,1", "steps": 5}, None)


@pytest.mark.parametrize(
    "other",
    [
        Point("mesh2d", 4, "25m", POINT.options, None),
        Point("zero3", 8, "25m", POINT.options, None),
        Point("zero3", 4, "1b", POINT.options, None),
        Point("zero3", 4, "25m", {"prefetch": "2,1", "steps": 6}, None),
        Point("zero3", 4, "25m", {"prefetch": "2,1"}, None),
        Point("zero3", 4, "25m", POINT.options, Machine("flat", {}, {"node.gpus": 1})),
        Point("zero3", 4, "25m", POINT.options, Machine("flat", {}, {"node.gpus": 4})),
    ],
)
def test_whatever_a_point_is_changes_its_identity(other: Point) -> None:
    assert other.hash != POINT.hash
    assert other.name != POINT.name


def test_identity_does_not_depend_on_how_it_is_written(tmp_path: Path) -> None:
    assert Point("zero3", 4, "25m", {"steps": 5, "prefetch": "2,1"}, None).hash == POINT.hash
    # Files keep their names from one version to the next.
    assert POINT.name == "zero3_25m_prefetch2,1_n4_3661d707"
    assert Run(POINT, 2, "srun").name == Run(POINT, 2, "mpiexec").name == f"{POINT.name}_r2"
    written = "output = 'out'\nscenario = 'ddp'\nranks = 2\n"
    (without,) = study(tmp_path, written).points
    (off,) = study(tmp_path, f"{written}options = {{check = false}}").points
    assert without == off


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e12, "1e+12"), (0.5, "0.5"), (2.0, "2"), (1.23456789, "1.23456789"), (3, "3"), ("2,1", "2,1")],
)
def test_numbers_keep_their_value(value: float | str, text: str) -> None:
    assert Point("ddp", 1, "tiny", {"flops": value}, None).arguments()[1] == f"--flops={text}"


def test_names_are_plain_and_short_whatever_the_values() -> None:
    nasty = {f"option{n}": "$(touch x); a b/../c\"'*é" for n in range(40)}
    name = Point("zero3", 4, "25m", nasty, Machine("/some where/my platform.toml", {"a.b": "; c"}, {})).name
    assert re.fullmatch(r"[A-Za-z0-9_.,+-]+", name)
    assert len(name) < 200
    assert "my-platform" in name
