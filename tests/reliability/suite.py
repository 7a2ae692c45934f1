"""Runs every test that a case names, on the release and on the sanitizer build: `make reliability`.

What each test came to is kept in build/PRESET/reliability.jsonl; docs/reliability.md is written from both (document.py). The
exit code is that of the tests. Choose builds with --preset and cases with --case: what was run before then stays as it was.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import document  # noqa: E402
from cases import BY_NAME, CASES, Case  # noqa: E402

# Of one file of tests. Only a hang is to be ended.
DEADLINE_S = 1800


def tests_by_file(cases: Sequence[Case]) -> dict[str, list[str]]:
    """Tests to run, by the file that they are in; of this folder's files those of the cases."""
    result: dict[str, list[str]] = {}
    for case in cases:
        for test in document.tests_of(case):
            file, _, name = test.partition("::")
            names = result.setdefault(file, [])
            if name not in names:
                names.append(name)
    return result


def run_unit(folder: Path, file: str, names: Sequence[str], record: Path) -> int:
    """A GoogleTest program; its own report becomes lines of the record."""
    report = folder / "reliability-unit.json"
    report.unlink(missing_ok=True)
    patterns = [pattern for name in names for pattern in (name, f"*/{name}/*")]
    program = folder / "bin" / f"unit_{Path(file).stem}"
    code = guarded([str(program), "--gtest_brief=1", f"--gtest_filter={':'.join(patterns)}", f"--gtest_output=json:{report}"],
                   {**os.environ, "OMP_NUM_THREADS": "2"})
    if not report.exists():
        return code or 1
    with record.open("a", encoding="utf-8") as lines:
        for suite in json.loads(report.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                name = f"{suite['name'].rpartition('/')[2]}.{test['name'].partition('/')[0]}"
                lines.write(json.dumps({
                    "test": f"{file}::{name}", "parameters": test["name"].partition("/")[2], "case": None, "reason": "",
                    "outcome": "failed" if "failures" in test else "passed" if test["result"] == "COMPLETED" else "skipped",
                    "seconds": float(test["time"].rstrip("s"))}) + "\n")
    return code


def run_python(folder: Path, file: str, names: Sequence[str], record: Path) -> int:
    environment = {
        **os.environ, "SHARDBENCH_BIN": os.environ.get("SHARDBENCH_BIN", str(folder / "bin")), "SHARDBENCH_RECORD": str(record),
        "PYTEST_PLUGINS": "recorder", "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return guarded([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"{file}::{name}" for name in names)], environment)


def guarded(command: Sequence[str], environment: dict[str, str]) -> int:
    guard = [sys.executable, str(ROOT / "cmake/guard.py"), str(DEADLINE_S)]
    return subprocess.run([*guard, *command], cwd=ROOT, env=environment, check=False).returncode


def run_build(preset: str, cases: Sequence[Case]) -> int:
    folder = ROOT / "build" / preset
    record = folder / document.RECORD
    if len(cases) == len(CASES):
        record.unlink(missing_ok=True)
    worst = 0
    for file, names in tests_by_file(cases).items():
        print(f"== {preset}: {file}", flush=True)
        run = run_unit if file.endswith(".cpp") else run_python
        worst = max(worst, run(folder, file, names, record))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", action="append", choices=document.BUILDS)
    parser.add_argument("--case", action="append", choices=sorted(BY_NAME))
    arguments = parser.parse_args()
    chosen = [BY_NAME[name] for name in arguments.case] if arguments.case else CASES
    worst = max(run_build(preset, chosen) for preset in arguments.preset or document.BUILDS)
    document.write()
    return min(worst, 1)


if __name__ == "__main__":
    sys.exit(main())
