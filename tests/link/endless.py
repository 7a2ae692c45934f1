"""Jobs that do not end by themselves."""

import subprocess
import time
from pathlib import Path

import runs

WINDOW, WARMUP = 4, 1
OPTIONS = ["-w", str(WARMUP), "--window", str(WINDOW), "--threads", "1"]
ENDLESS = ["-n", "32000", *OPTIONS]


def ranks_of(job: subprocess.Popen[str], scenario: str) -> list[int]:
    """Process ids by rank."""
    found = {}
    for process in runs.descendants(job.pid):
        try:
            if Path(f"/proc/{process}/comm").read_text().strip() != scenario:
                continue
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found.update({int(v[9:]): process for v in variables if v.startswith(b"PMI_RANK=")})
    return [found[rank] for rank in sorted(found)]


def wait_for_windows(job: subprocess.Popen[str], output: Path, scenario: str, ranks: int, windows: int) -> None:
    """A file larger than one that ended after `windows` windows has something of the next; those before are flushed."""
    enough = runs.trace(scenario, ranks, "-n", str(windows * WINDOW), *OPTIONS).path.stat().st_size
    deadline = time.monotonic() + runs.TIMEOUT_S
    while not output.exists() or output.stat().st_size <= enough:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
