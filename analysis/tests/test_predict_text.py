"""What `predict` says about its predictions: how good they are, and where they may be wrong."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shardbench.predict.directory import Found
from shardbench.predict.model import Prediction, Skill
from shardbench.predict.outlook import Outlook
from shardbench.predict.show_predictions import additions, doubts, sentences
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
    configuration: Any = SimpleNamespace(label="zero3", setup=SimpleNamespace(tp=1))
    return Outlook(configuration, predictions, skill, exposed_from)


def test_what_rests_on_a_doubtful_prediction_is_marked() -> None:
    (certain,) = sentences(outlook(SURE, DOUBTFUL, exposed_from=8))
    (doubted,) = sentences(outlook(SURE, DOUBTFUL, exposed_from=64))
    assert certain.endswith("from N = 8 on.")
    assert doubted.endswith("from N = 64? on.")


def test_a_remedy_is_told_once() -> None:
    assert list(doubts([outlook(SURE)])) == []
    (told,) = doubts([outlook(SURE, DOUBTFUL), outlook(DOUBTFUL)])
    assert told.count("all_gather nccl any") == 1
    assert "the program collectives" in told


def test_each_doubt_has_its_sentence() -> None:
    kind = "all_gather nccl any, world, between nodes"
    few = replace(SURE, ranks=64, undecided=(kind,))
    (told,) = doubts([outlook(few)])
    assert f"do not tell whether the latency of {kind} grows with N" in told
    assert len(list(doubts([outlook(few, DOUBTFUL)]))) == 2


def measured(ranks: tuple[int, ...] = (2, 4, 8), tp: int = 1, backend: str = "mpi") -> Any:
    """On nodes of two ranks, with the MPI library's collectives."""
    file = SimpleNamespace(per_node=2, config=SimpleNamespace(options={"ranks-per-node": 2}))
    return SimpleNamespace(
        setup=SimpleNamespace(tp=tp),
        place=SimpleNamespace(backend=backend),
        is_simulated=False,
        algorithm="native",
        files=(file,),
        measured={count: file for count in ranks},
    )


def test_the_command_for_what_files_lack() -> None:
    undecided = replace(DOUBTFUL, outside=(), undecided=DOUBTFUL.outside)
    said = [Outlook(measured(), (guess,), None, None) for guess in (SURE, undecided, DOUBTFUL, DOUBTFUL)]
    assert additions(said[:2], HERE, BINARIES) == []
    assert additions(said, HERE, BINARIES) == [
        "for n in 4 8; do mpiexec -n $n bin/collectives -b 256 -e 64M -f 4 -d all --algorithm native "
        "--progress poll --ranks-per-node 2 --output 'two words'/collectives_n$n.h5 || break; done"
    ]
    (command,) = additions([Outlook(measured((2, 4)), (DOUBTFUL,), None, None)], HERE, BINARIES)
    assert command.startswith("mpiexec -n 4 bin/collectives ") and command.endswith("/collectives_n4.h5")


def test_no_command_where_the_program_collectives_communicates_otherwise() -> None:
    simulated = measured()
    simulated.is_simulated = True
    for configuration in (measured(tp=2), measured(backend="nccl"), simulated):
        assert additions([Outlook(configuration, (DOUBTFUL,), None, None)], HERE, BINARIES) == []


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
