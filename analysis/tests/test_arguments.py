"""Command lines: what is refused, in which words, and that help is complete."""

import argparse

import pytest

from shardbench.arguments import Parser
from shardbench.cli import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["reprot", "x"], "no command 'reprot'; did you mean report?"),
        (["frobnicate"], "no command 'frobnicate'; choose from validate, report"),
        (["--verison"], "no option --verison; did you mean --version?"),
        (
            ["report", "x", "--outptu", "y"],
            "shardbench report: there is no option --outptu; did you mean --output?",
        ),
        (["report", "x", "--outp=y"], "no option --outp; did you mean --output?"),
        (["report", "x", "-z"], "no option -z"),
        (["report", "x", "y"], "'y' is one argument too many"),
        (["simulate", "zero3", "--rank", "4"], "no option --rank; did you mean --ranks?"),
        (["sweep", "x", "--launcher", "mpixec"], "no --launcher 'mpixec'; did you mean mpiexec?"),
        ([], "required: COMMAND"),
    ],
)
def test_the_nearest_name_is_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert told in refusal(capsys, *arguments)


def test_values_may_look_like_options_after_an_equals_sign() -> None:
    parser = Parser()
    parser.add_argument("--sbatch")
    assert parser.parse_args(["--sbatch=--ntasks=8"]).sbatch == "--ntasks=8"


def commands() -> list[str]:
    from shardbench.cli import _parser

    actions = [action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return list(actions[0].choices)


@pytest.mark.parametrize("command", commands())
def test_every_option_has_a_help_text(capsys: pytest.CaptureFixture[str], command: str) -> None:
    from shardbench.cli import _parser

    subparsers = next(a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    parser = subparsers.choices[command]
    assert parser.description
    assert command in {action.dest for action in subparsers._choices_actions}
    assert all(action.help for action in parser._actions)
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: shardbench {command}")
