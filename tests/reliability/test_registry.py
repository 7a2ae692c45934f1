"""The list of cases, the tests that it names, and the document made of both agree."""

import ast
import re
from pathlib import Path

import document
import runs
from cases import CASES


def python_tests(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def unit_tests(path: Path) -> set[str]:
    return {f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_P|_F)?\((\w+), (\w+)\)", path.read_text(), re.MULTILINE)}


def test_every_case_is_told_and_shown() -> None:
    assert len({entry.name for entry in CASES}) == len(CASES)
    for entry in CASES:
        assert entry.befalls, entry
        assert bool(entry.not_built) != bool(entry.outcome), f"{entry.name}: an outcome, or what is not built"
        assert bool(document.tests_of(entry)) != bool(entry.not_built), f"{entry.name}: tests, or what is not built"


def test_every_test_that_is_named_exists() -> None:
    for entry in CASES:
        for test in document.tests_of(entry):
            file, _, name = test.partition("::")
            path = runs.ROOT / file
            assert path.exists(), test
            assert name in (unit_tests(path) if path.suffix == ".cpp" else python_tests(path)), test


def test_the_document_lists_exactly_the_cases() -> None:
    assert document.listed() == [entry.name for chapter in document.Chapter for entry in CASES if entry.chapter is chapter], (
        "docs/reliability.md is out of date; run `make reliability`")
    assert "FAILED" not in document.DOCUMENT.read_text()
