"""Lets `python -m shardbench` stand for the command."""

import sys

from shardbench.cli import main

sys.exit(main())
