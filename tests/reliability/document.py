"""Writes docs/reliability.md: the cases of cases.py with what their tests came to on each build (suite.py)."""

import ast
import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from cases import CASES, Case, Chapter  # noqa: E402

DOCUMENT = ROOT / "docs/reliability.md"
BUILDS = {"release": "release", "asan": "ASan + UBSan"}
RECORD = "reliability.jsonl"

INTRODUCTION = """# Reliability

What can befall a run, what must come of it, and what came of it when the tests were last run: `make reliability` runs them on
the release build and on the one with AddressSanitizer and UndefinedBehaviorSanitizer, and writes this page. All go through the
real executables, except where a unit test is named. Errors, deaths and standstills are injected by a library between a rank
and what it calls ([tests/faults/inject.c](../tests/faults/inject.c)), or are real signals, limits and file systems.

A number in a build's column is the longest time, in seconds, from what befell the run to its end with no process left; where
a test does not measure that, how long the test took. `×n` says in how many variants the case was tested. "not here" means that
the case cannot be tested on that build; the reason stands below.
"""


@dataclass(frozen=True)
class Result:
    """What became of one test with one set of parameters."""

    test: str
    outcome: str
    reason: str
    seconds: float


@functools.cache
def marked_tests() -> dict[str, tuple[str, ...]]:
    """By case: the tests of this folder that carry its mark, as FILE::FUNCTION. Read, not imported."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            for decorator in node.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Name(id="case"), args=[ast.Constant(value=str(name))]):
                        found[name] = (*found.get(name, ()), f"tests/reliability/{path.name}::{node.name}")
    return found


def tests_of(case: Case) -> list[str]:
    return [*(qualified(test) for test in case.tests), *marked_tests().get(case.name, ())]


def qualified(test: str) -> str:
    return test if test.startswith("analysis/") else f"tests/{test}"


def results(build: str) -> list[Result]:
    path = ROOT / "build" / build / RECORD
    if not path.exists():
        print(f"{path.relative_to(ROOT)} is not there, so the page says of the build {build} that it was not run")
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    # Of a test that was run again the last run counts.
    last = {(line["test"], line["parameters"]): line for line in lines}
    return [Result(line["test"], line["outcome"], line["reason"], line["seconds"]) for line in last.values()]


def verdict(case: Case, found: Sequence[Result], footnotes: list[str]) -> str:
    """A cell of the table."""
    if case.not_built:
        return "not built"
    own = [result for result in found if result.test in tests_of(case)]
    if any(result.outcome == "failed" for result in own):
        return f"**{sum(result.outcome == 'failed' for result in own)} of {len(own)} FAILED**"
    missing = set(tests_of(case)) - {result.test for result in own}
    if missing:
        return "not run"
    passed = [result for result in own if result.outcome == "passed"]
    if not passed:
        reason = own[0].reason.removeprefix("Skipped: ")
        if reason not in footnotes:
            footnotes.append(reason)
        return f"not here ({footnotes.index(reason) + 1})"
    return f"{max(result.seconds for result in passed):.1f} s ×{len(passed)}"


def link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name}](../{file})"


def render(by_build: dict[str, Sequence[Result]]) -> str:
    parts = [INTRODUCTION]
    footnotes: list[str] = []
    tables = []
    for chapter in Chapter:
        rows = [case for case in CASES if case.chapter is chapter]
        tables += [f"## {chapter.value}\n",
                   "| case | what happens | what must come of it | " + " | ".join(BUILDS.values()) + " | shown by |",
                   "|---|---|---|" + "---|" * len(BUILDS) + "---|"]
        for case in rows:
            cells = [f"`{case.name}`", case.befalls, case.outcome or case.not_built.capitalize()]
            cells += [verdict(case, found, footnotes) for found in by_build.values()]
            cells.append("<br>".join(link(test) for test in tests_of(case)))
            tables.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        tables.append("")
    text = "\n".join(tables)
    built = [case for case in CASES if not case.not_built]
    parts.append(f"{len(built)} cases, {len(CASES) - len(built)} more that cannot occur yet. "
                 + " ".join(summary(BUILDS[build], found) for build, found in by_build.items()) + "\n")
    parts.append(text)
    if footnotes:
        parts += ["## Not here\n", *(f"{index}. {note.capitalize()}." for index, note in enumerate(footnotes, 1)), ""]
    return "\n".join(parts)


def summary(name: str, found: Sequence[Result]) -> str:
    named = {test for case in CASES for test in tests_of(case)}
    own = [result for result in found if result.test in named]
    if not own:
        return f"{name}: not run."
    failed = sum(result.outcome == "failed" for result in own)
    passed = sum(result.outcome == "passed" for result in own)
    return f"{name}: {passed} tests passed, {failed} failed."


def listed() -> list[str]:
    """Names of the cases that the document lists, in its order."""
    return [line.split("`")[1] for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]


def write() -> None:
    DOCUMENT.write_text(render({build: results(build) for build in BUILDS}), encoding="utf-8")
    print(f"wrote {DOCUMENT.relative_to(ROOT)}")


if __name__ == "__main__":
    write()
