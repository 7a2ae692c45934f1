#!/usr/bin/env python3
"""Where does zero3 stop scaling? Simulates it to 4096 GPUs, beside the closed form of shardbench.redline.

Writes docs/scaling.md and its figures from jobs/scaling.md.j2: build/venv/bin/python jobs/scaling.py
What has been simulated is kept in results/scaling and not simulated again, so an interrupted call can be repeated. A
result belongs to one command, platform and executable: when one of them changes, it is simulated anew.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from scaling_page import Page, joined, ms, percent
from scaling_study import QUICK, ROOT, Failure, Grid, Simulations, simulate_all
from shardbench.platforms import PlatformError
from shardbench.read import TraceError
from shardbench.simulate import BIN_VARIABLE

TEMPLATE = "scaling.md.j2"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sim-bin", type=Path, default=Path(os.environ.get(BIN_VARIABLE) or ROOT / "build/sim/bin"),
                        help="where the simulated executables are (%(default)s)")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs",
                        help="folder for scaling.md and its figures (%(default)s)")  # fmt: skip
    parser.add_argument("--results", type=Path, default=ROOT / "results/scaling",
                        help="folder for what has been simulated (%(default)s)")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="simulations at once (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few ranks and layers: tries the script, says nothing")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} simulates nothing; pass 1 or more")
    return options


def main() -> int:
    options = parse()
    grid = QUICK if options.quick else Grid()
    try:
        sims = Simulations(options.results, options.sim_bin)
        page = Page(sims, grid, simulate_all(sims, grid, options.jobs))
        environment = Environment(loader=FileSystemLoader(ROOT / "jobs"), undefined=StrictUndefined,
                                  trim_blocks=True, keep_trailing_newline=True)  # fmt: skip
        text = environment.get_template(TEMPLATE).render(page=page, grid=grid, percent=percent, ms=ms, joined=joined)
        options.output.mkdir(parents=True, exist_ok=True)
        page.draw(options.output)
        (options.output / "scaling.md").write_text(text)
    except (Failure, PlatformError, TraceError, OSError) as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"scaling: interrupted; what was simulated is in {options.results}; the same command goes on",
              file=sys.stderr)  # fmt: skip
        return 130  # what a shell reports for SIGINT
    print(f"wrote {options.output / 'scaling.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
