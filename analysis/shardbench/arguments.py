"""Command lines: refused in one line, with the nearest command or option where there is none of that name."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from shardbench.errors import did_you_mean
from shardbench.units import parse_bytes

USAGE = 2
"""The exit code of a command line that cannot be understood."""


class Parser(argparse.ArgumentParser):
    """argparse's parser, also for the commands below it; options are not abbreviated."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parses all or refuses; argparse calls it for the command's own arguments, too.

        An unknown option comes first: argparse would rather miss the one that it was meant to be.
        """
        arguments = list(sys.argv[1:] if args is None else args)
        known = [name for action in self._actions for name in action.option_strings]
        for name in (argument.partition("=")[0] for argument in self._own(arguments)):
            if name.startswith("--") and name != "--" and name not in known:
                self.error(f"there is no option {name}{did_you_mean(name, known)}")
        parsed, rest = super().parse_known_args(arguments, namespace)
        if rest:
            is_option = rest[0].startswith("-")
            self.error(
                f"there is no option {rest[0]}" if is_option else f"'{rest[0]}' is one argument too many"
            )
        return parsed, rest

    def _own(self, arguments: list[str]) -> list[str]:
        """Without what is a command's below."""
        if self._subparsers is None:
            return arguments
        commands = (index for index, argument in enumerate(arguments) if not argument.startswith("-"))
        return arguments[: next(commands, None)]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what = action.option_strings[-1] if action.option_strings else str(action.metavar).lower()
        choices = did_you_mean(str(value), known) or f"; choose from {', '.join(known)}"
        self.error(f"there is no {what} '{value}'{choices}")


def memory_size(text: str) -> int:
    """An argument such as 80GB; bytes."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
