"""The same bytes in a locale with a decimal comma, another time zone, another terminal width and order of sets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardbench
from synthetic import synthetic

# A program that embeds the package may have set its locale, which a plain Python process has not.
PROGRAM = """
import locale, sys
locale.setlocale(locale.LC_ALL, "")
assert locale.localeconv()["decimal_point"] == sys.argv.pop(1), locale.localeconv()
from shardbench.cli import main
sys.exit(main())
"""
COMMANDS = (
    ["report", "{runs}", "-o", "{out}/report.html"],
    ["compare", "{runs}", "{runs}/../other"],
    ["compare", "{runs}", "{runs}", "--format", "json", "--threshold", "2.5"],
    ["export", "{runs}", "-o", "{out}/steps.csv"],
    ["export", "{runs}", "-o", "{out}/points.csv", "--table", "points"],
    ["export", "{runs}", "-o", "{out}/events.csv", "--table", "events"],
    ["validate", "{runs}/1.h5", "{runs}/2.h5", "{runs}/broken.h5"],
)


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the locale de_DE.UTF-8, whatever the system has."""
    folder = tmp_path_factory.mktemp("locales")
    localedef = shutil.which("localedef")
    if localedef is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("localedef or its description of de_DE is not there (Debian: package locales)")
    made = subprocess.run(
        [localedef, "-i", "de_DE", "-f", "UTF-8", folder / "de_DE.UTF-8"], capture_output=True, text=True
    )
    assert (folder / "de_DE.UTF-8" / "LC_NUMERIC").exists(), made.stderr
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for size in (1, 2):
        synthetic(size=size, step_s=[1234.5 + i / 3 for i in range(7)]).write(folder / f"{size}.h5")
    broken = synthetic(launch=1)
    broken.row("steps", rank=1, step=4)["other_s"] += 1.5e-6
    broken.write(folder / "broken.h5")
    (folder.parent / "other").mkdir()
    facts = dict(mpi_library="MPICH 4.3", build_type="Debug", git_commit="fedcba9876543210")
    synthetic(step_s=[1234.5 + i / 3 for i in range(7)], **facts).write(folder.parent / "other" / "2.h5")
    return folder


def outputs(runs: Path, out: Path, point: str, environment: dict[str, str]) -> dict[str, bytes]:
    out.mkdir()
    package = str(Path(shardbench.__file__).parents[1])
    said = {}
    for command in COMMANDS:
        arguments = [argument.format(runs=runs, out=out) for argument in command]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, point, *arguments],
            env={**os.environ, "PYTHONPATH": package, **environment},
            capture_output=True,
        )
        assert done.returncode == int(command[0] == "validate"), done.stderr.decode()
        said[" ".join(command)] = done.stdout.replace(bytes(out), b"OUT") + done.stderr
    return said | {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def test_no_byte_depends_on_the_environment(runs: Path, german: Path, tmp_path: Path) -> None:
    plain = outputs(
        runs,
        tmp_path / "plain",
        ".",
        {"LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": "80", "PYTHONHASHSEED": "1"},
    )
    there = {"LC_ALL": "de_DE.UTF-8", "LOCPATH": str(german), "TZ": "Asia/Kolkata"}
    there |= {"COLUMNS": "200", "PYTHONHASHSEED": "2"}
    elsewhere = outputs(runs, tmp_path / "elsewhere", ",", there)
    assert b"1234.5" in plain["steps.csv"]
    assert plain.keys() == elsewhere.keys()
    assert [name for name in plain if plain[name] != elsewhere[name]] == []
