"""What holds for every option of every program, as it is started: read in one way only, or refused in a line.

The options are taken from --help, so that a new one is tested too. tests/unit/option_properties.cpp tests the MPI
programs' parsers more thoroughly; here they, and the ledger, are tested as whole programs, and under a locale
that writes 1.234,5.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import runs

DONE, USAGE = 0, 2
LIMIT_S = 10.0
PROGRAMS = ("ddp", "zero1", "zero2", "zero3", "mesh2d", "collectives", "ledger")
NUMERIC = ("SIGMAS", "INT", "INTS", "NUMBER", "SIZE", "COUNT", "F[,B]")
# "0" and "1" are in the range of some and not of others.
NOWHERE_A_NUMBER = ("0x10", "010", " 5", "5 ", "+5", "٣", "-", "nan", "inf", "1e400", "5x", "1,5x", "2.5.1", "1_000", "5\n", "--5", "1e-400")
NOT_WHOLE = (*NOWHERE_A_NUMBER, "1e9", "1.5", "2147483648x", "18446744073709551617", "9223372036854775808")


@dataclass(frozen=True)
class Option:
    program: str
    short: str
    name: str
    kind: str
    example: str = "1"

    def __str__(self) -> str:
        return f"{self.program} {self.name}"


HEAD = re.compile(r"  (?:(-\w),)?(--[\w-]+)(?: ([^\s:=]+)(?::\S.*?)?)?(?:=\S*)?(?:\s\s.*)?")


def options_of(program: str) -> Iterator[Option]:
    text = subprocess.run([runs.BIN / program, "--help"], env=runs.environment(), capture_output=True, text=True, timeout=60, check=True).stdout
    for line in text.splitlines():
        if line.startswith("  -"):
            match = HEAD.fullmatch(line)
            assert match, line
            listed = re.search(r"TEXT:\{([\w-]+)", line)
            yield Option(program, match[1] or "", match[2], match[3] or "", listed[1] if listed else "1")


OPTIONS = [option for program in PROGRAMS for option in options_of(program)]


def context(option: Option) -> list[str]:
    """What the ledger needs besides, so that it looks at the option."""
    if option.program != "ledger" or option.name in ("--params", "--model"):
        return []
    return ["--model", "tiny", "--peak"]


def run(folder: Path, option: Option, *words: str, **environment: str) -> runs.Finished:
    finished = runs.execute([str(runs.BIN / option.program), *context(option), *words], folder, **environment)
    assert finished.seconds < LIMIT_S, str(finished)
    return finished


def refused(folder: Path, option: Option, *words: str) -> str:
    finished = run(folder, option, *words)
    assert (finished.code, finished.stdout) == (USAGE, ""), str(finished)
    (line,) = finished.stderr.splitlines()
    assert line.startswith(f"{option.program}: "), str(finished)
    assert not list(folder.iterdir())
    return line


def test_the_options_are_found() -> None:
    assert len(OPTIONS) > 180
    assert {option.kind for option in OPTIONS} <= {*NUMERIC, "", "CHOICE", "LIST", "FILE", "TEXT", "Print"}
    assert {option.kind for option in OPTIONS if option.program == "ledger"} >= {"INT", "INTS", "COUNT", "F[,B]"}


ledger = pytest.mark.parametrize("option", [option for option in OPTIONS if option.program == "ledger" and option.name != "--help"], ids=str)


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.program == "ledger" and option.kind in NUMERIC], ids=str)
def test_the_ledger_refuses_what_is_no_number(tmp_path: Path, option: Option) -> None:
    values = NOWHERE_A_NUMBER if option.kind == "COUNT" else NOT_WHOLE
    for value in values:
        assert option.name in refused(tmp_path, option, f"{option.name}={value}")
    for words in ([option.name, ""], [f"{option.name}="], [option.name]):
        assert option.name in refused(tmp_path, option, *words)


@ledger
def test_the_ledger_refuses_an_option_twice_or_with_a_surplus_value(tmp_path: Path, option: Option) -> None:
    words = [option.name] if not option.kind else [option.name, option.example]
    if option.name not in ("--model", "--peak"):  # which stand in the context
        assert "given 2 times" in refused(tmp_path, option, *words, *words)
    if not option.kind:
        assert option.name in refused(tmp_path, option, f"{option.name}=1")


@ledger
def test_the_ledger_names_what_was_misspelt(tmp_path: Path, option: Option) -> None:
    generator = random.Random(f"{option.name}")
    place = generator.randrange(3, len(option.name)) if len(option.name) > 3 else 2
    others = {other.name for other in OPTIONS if other.program == "ledger"}
    for misspelt in (option.name[:place] + option.name[place + 1:], option.name[:place] + "x" + option.name[place:], option.name[1:]):
        if misspelt in others or misspelt in ("--", "-"):
            continue
        line = refused(tmp_path, option, f"{misspelt}=1")
        assert misspelt in line
        assert re.search(r"did you mean --[\w-]+\?", line), line


@pytest.mark.parametrize(("text", "parameters"), [("7000000000", 7_000_000_000), ("7e9", 7_000_000_000), ("7B", 7_000_000_000), ("7b", 7_000_000_000),
                                                  ("1.5M", 1_500_000), ("4.35M", 4_350_000), ("0.001m", 1000), ("1.1B", 1_100_000_000), ("1", 1)])
def test_the_ledger_reads_a_number_of_parameters(tmp_path: Path, text: str, parameters: int) -> None:
    for words in (["--params", text], [f"--params={text}"]):
        finished = runs.execute([str(runs.BIN / "ledger"), *words, "--n", "1", "--stage", "0", "--format", "json"], tmp_path)
        assert json.loads(finished.stdout)[0]["parameters_bytes"] == 2 * parameters


@pytest.mark.parametrize("text", ["0", "1.5", "-7B", "7K", "7G", "7BB", "B", "M", "9007199254740993", "1e16", "0.0000001M", "7 B", "7,5B"])
def test_the_ledger_refuses_other_numbers_of_parameters(tmp_path: Path, text: str) -> None:
    option = Option("ledger", "", "--params", "COUNT")
    assert "--params" in refused(tmp_path, option, f"--params={text}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_whole_programs_refuse_as_their_parsers_do(tmp_path: Path, program: str) -> None:
    """Some of each program: the exit code, one line, no file."""
    generator = random.Random(program)
    numeric = [option for option in OPTIONS if option.program == program and option.kind in ("INT", "INTS")]
    for option in generator.sample(numeric, min(5, len(numeric))):
        value = generator.choice(NOT_WHOLE)
        assert option.name in refused(tmp_path, option, f"{option.name}={value}")
        assert "given 2 times" in refused(tmp_path, option, option.name, "1", option.name, "1")


# --- locales

SOURCES = Path("/usr/share/i18n")


@pytest.fixture(scope="module")
def comma(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a locale that writes 1.234,5, made for this test."""
    if not (SOURCES / "locales/de_DE").exists():
        pytest.skip(f"no locale can be made: {SOURCES}/locales is not there (Debian's package locales)")
    folder = tmp_path_factory.mktemp("locales")
    made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")], capture_output=True, text=True, timeout=120)
    if not (folder / "de_DE.UTF-8/LC_NUMERIC").exists():
        pytest.skip(f"localedef made no locale: {made.stderr}")
    variables = {"LOCPATH": str(folder), "LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"}
    shown = subprocess.run([sys.executable, "-c", "import locale; locale.setlocale(locale.LC_ALL, ''); print(locale.str(1.5))"],
                           env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == "1,5\n"
    return variables


@pytest.mark.parametrize("command", [
    "ledger --params 7.5B --n 1,64",
    "ledger --model 7b --n 64 --peak --format csv",
    "ledger --model 7b --n 64 --peak --format json",
    "zero3 --plan --model 25m --ranks 8 --clip 0.5 --compute timed --flops 1.5e12",
    "mesh2d --plan --ranks 4 --tp 2 --clip 2.5",
    "zero3 --clip 1,5",
    "collectives -b 1,5M",
    "zero3 --help",
    "collectives --help",
    "ledger --help",
])
def test_a_comma_locale_changes_nothing_that_is_printed(tmp_path: Path, comma: dict[str, str], command: str) -> None:
    program, *words = command.split()
    plain, localised = (runs.execute([str(runs.BIN / program), *words], tmp_path, **variables) for variables in ({"LC_ALL": "C"}, comma))
    assert (localised.code, localised.stdout, localised.stderr) == (plain.code, plain.stdout, plain.stderr)


def test_a_comma_locale_changes_nothing_that_is_measured(tmp_path: Path, comma: dict[str, str]) -> None:
    (tmp_path / "times.json").write_text('{"embedding": {"forward": 0.0001, "backward": 0.0001}, "block": {"forward": 0.001, "backward": 0.0021},'
                                         ' "head": {"forward": 0.0011, "backward": 0.002}, "optimizer": {"step": 0.0005}}')
    options = ["--compute", "timed", "--calibration", "times.json", "--clip", "0.5", "-n", "2", "-w", "0", "-o", "t.h5"]
    finished = runs.execute(runs.mpi_command("zero3", 2, options), tmp_path, **comma)
    assert finished.code == DONE, str(finished)
    trace = runs.Trace(tmp_path / "t.h5")
    assert trace.config["options"]["clip"] == 0.5
    compute_s = trace["steps"]["compute_s"].min()
    assert compute_s >= 2 * (0.001 + 0.0021)  # two blocks; a comma would have left whole seconds, or none
    program = runs.execute([sys.executable, "-m", "shardbench", "validate", "t.h5"], tmp_path, PYTHONPATH=str(runs.ROOT / "analysis"), **comma)
    assert program.stdout == "t.h5: valid\n", str(program)
    reports = [runs.execute([sys.executable, "-m", "shardbench", "report", ".", "-o", "r.html"], tmp_path, PYTHONPATH=str(runs.ROOT / "analysis"), **v)
               for v in ({"LC_ALL": "C.UTF-8"}, comma)]
    assert reports[0].code == DONE, str(reports[0])
    assert reports[1].stdout == reports[0].stdout


def test_a_comma_locale_changes_nothing_that_collectives_prints(tmp_path: Path, comma: dict[str, str]) -> None:
    command = [runs.MPIEXEC, "-n", "2", str(runs.BIN / "collectives"), "-b", "1.5K", "-e", "1.5K", "-n", "2", "--precision", "0.9", "-J", "r.json", "--output", "c.h5"]
    finished = runs.execute(command, tmp_path, **comma)
    assert finished.code == DONE, str(finished)
    lines = [line for line in finished.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) == 3
    assert "," not in "".join(lines)
    assert all(result["in_place"]["time"] > 0 for result in json.loads((tmp_path / "r.json").read_text())["results"])
    assert runs.Trace(tmp_path / "c.h5").config["options"]["precision"] == 0.9


def test_parsers_under_the_locale_of_the_c_library(tmp_path: Path, comma: dict[str, str]) -> None:
    tests = runs.BIN / "unit_option_properties"
    if not tests.exists():
        pytest.skip("the unit tests are not built")
    finished = runs.execute([str(tests), "--gtest_filter=Locales.OfCChangeNothing"], tmp_path, **comma)
    assert finished.code == DONE, str(finished)
    assert "[  PASSED  ] 1 test." in finished.stdout, str(finished)
