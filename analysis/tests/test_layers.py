"""Who imports what."""

import ast
from collections.abc import Iterator
from pathlib import Path

import shardbench

PACKAGE = Path(shardbench.__file__).parent


def importers(module: str) -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if module in {name.partition(".")[0] for name in imported(path)}
    }


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_only_the_process_that_opens_a_file_knows_hdf5() -> None:
    assert importers("h5py") == {"read/contents.py", "read/shape.py"}
