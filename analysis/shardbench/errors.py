"""Errors that end a command."""


class UsageError(Exception):
    """Input that cannot be worked on: problem, reason, what to do, in one line. Exit code 2."""


class RunError(Exception):
    """What went wrong while running: problem, reason, what to do, in one line. Exit code 1."""
