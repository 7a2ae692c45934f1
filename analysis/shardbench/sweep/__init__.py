"""Runs a study: a grid of configurations, each launched several times in shuffled order.

The layers, each using only those before it: `study` (the TOML file and its grid), `point` (what is
run, its identity and its files), `plan` (what the executables say about a point beforehand), `claims`
(who runs a point), `launchers` (the command lines), `progress` (durations, what is left), `run` (the
sweep), `command` (the command line).
"""
