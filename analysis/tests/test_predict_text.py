"""What `predict` says about its predictions: how good they are, and where they may be wrong."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shardbench.predict.directory import Found
from shardbench.predict.model import Prediction, Skill
from shardbench.predict.outlook import Outlook
from shardbench.predict.remedy import remedy
from shardbench.predict.show_predictions import doubts, sentences
from shardbench.summary.usable import Excluded

HERE, BINARIES = Path("two words"), Path("bin")
SURE = Prediction(
    ranks=8,
    step_s=0.1,
    low_s=0.1,
    high_s=0.1,
    exposed_s=0.0,
    without_communication_s=0.1,
    tokens=64,
    peak_bytes=1,
    outside=(),
    undecided=(),
)
DOUBTFUL = replace(SURE, ranks=64, outside=("all_gather nccl any, world, between nodes",))


def outlook(*predictions: Prediction, skill: Skill | None = None, exposed_from: int | None = None) -> Outlook:
    return Outlook(configuration(), predictions, skill, exposed_from)


def configuration(tp: int = 1, ranks: tuple[int, ...] = (8, 16), **facts: Any) -> Any:
    """Of nodes of 8 ranks."""
    simulation = {"platform": "flat", "changed": {"node.nic_bandwidth": 25e9}} | facts
    file = SimpleNamespace(per_node=8, config=SimpleNamespace(options={}, simulation=simulation))
    return SimpleNamespace(
        label="zero3",
        setup=SimpleNamespace(tp=tp),
        place=SimpleNamespace(backend=facts.get("backend", "mpi")),
        is_simulated=not facts.get("measured"),
        algorithm="native" if facts.get("measured") else "nccl",
        files=(file,),
        measured={count: file for count in ranks},
    )


def test_what_rests_on_a_doubtful_prediction_is_marked() -> None:
    (certain,) = sentences(outlook(SURE, DOUBTFUL, exposed_from=8))
    (doubted,) = sentences(outlook(SURE, DOUBTFUL, exposed_from=64))
    assert certain.endswith("from N = 8 on.")
    assert doubted.endswith("from N = 64? on.")


def test_a_remedy_is_told_once() -> None:
    assert list(doubts([outlook(SURE)], HERE, BINARIES)) == []
    (told,) = doubts([outlook(SURE, DOUBTFUL), outlook(DOUBTFUL)], HERE, BINARIES)
    assert told.count("all_gather nccl any") == 1
    assert told.splitlines()[-1] == remedy(configuration(), HERE, BINARIES)


def test_a_simulated_machine_is_asked_on_three_numbers_of_nodes() -> None:
    command = remedy(configuration(), HERE, BINARIES)
    assert command.startswith(
        "for n in 16 24 32; do shardbench simulate collectives --ranks $n "
        "--platform flat --set node.nic_bandwidth=25000000000.0 -- -b 256 "
    )
    assert command.endswith(" --output 'two words'/collectives_n$n.h5 || break; done")
    assert remedy(configuration(ranks=(8, 16, 64, 128)), HERE, BINARIES).startswith("for n in 16 64 128;")
    assert "--platform mine.toml" in remedy(configuration(platform="mine"), HERE, BINARIES)


def test_a_machine_is_asked_where_it_was_used() -> None:
    command = remedy(configuration(measured=True), HERE, BINARIES)
    assert command.startswith("mpiexec -n 16 bin/collectives -b 256 -e 64M ")
    assert command.endswith(" --algorithm native --output 'two words'/collectives_n16.h5")


def test_where_the_program_collectives_does_not_help() -> None:
    assert remedy(configuration(tp=2), HERE, BINARIES).startswith("run small models with the same tp")
    assert remedy(configuration(backend="nccl"), HERE, BINARIES).startswith("run small models")


def test_each_doubt_has_its_sentence() -> None:
    kind = "all_gather nccl any, world, between nodes"
    few = replace(SURE, ranks=64, undecided=(kind,))
    (told,) = doubts([outlook(few)], HERE, BINARIES)
    assert f"do not tell whether the latency of {kind} grows with N" in told
    assert len(list(doubts([outlook(few, DOUBTFUL)], HERE, BINARIES))) == 2


def test_a_model_without_skill_is_not_recommended() -> None:
    good, bad = Skill(0.9, 0.01, 64, True), Skill(-0.5, 0.3, 64, True)
    texts = [" ".join(sentences(outlook(SURE, skill=skill))) for skill in (good, bad)]
    assert ["do not rely on it" in text for text in texts] == [False, True]
    (hidden,) = list(sentences(outlook(SURE, skill=Skill(None, 0.0, 8, False))))[1:]
    assert "communication is hidden at N = 8" in hidden


def test_files_left_out_for_one_reason_share_a_line() -> None:
    found = Found(
        excluded=[Excluded("a.h5", "crowded"), Excluded("b.h5", "broken"), Excluded("c.h5", "crowded")]
    )
    assert found.reasons() == ["left out a.h5 and c.h5: crowded", "left out b.h5: broken"]
