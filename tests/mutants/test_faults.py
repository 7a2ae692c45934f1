"""The seeded faults still fit the sources; whether they are caught is the slow part (test_mutants.py)."""

import mutants


def test_there_are_many_with_names_of_their_own() -> None:
    found = mutants.faults()
    assert len(found) >= 80
    assert len({m.name for m in found}) == len(found)


def test_each_finds_the_text_that_it_changes() -> None:
    for mutant in mutants.faults():
        text = (mutants.runs.ROOT / mutant.file).read_text()
        for old, new in mutant.edits:
            assert text.count(old) == 1, f"{mutant.name}: {mutant.file} has {text.count(old)} times {old!r}; adapt the fault"
            assert old != new
