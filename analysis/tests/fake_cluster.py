"""Programs that stand in for the scenarios and for what starts them, and note how they were called."""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
import unittest.mock
from pathlib import Path

from shardbench import cli
from synthetic import PSI

ANALYSIS = Path(__file__).resolve().parents[1]

SCENARIO = '''
"""A scenario: plans, or writes a trace. What befalls it is in the folder's behaviour.json, by a word of its options."""
import json, signal, sys, time
from pathlib import Path

FOLDER = Path({folder!r})
DEFAULTS = {{"steps": 7, "warmup": 2, "trace": "events", "micro-batch": 1, "grad-accum": 1, "prefetch": 1, "label": ""}}
name, words = Path(sys.argv[0]).name, dict(word[2:].partition("=")[::2] for word in sys.argv[1:])


def fail(why, code):
    print(f"{{name}}: {{why}}", file=sys.stderr)
    sys.exit(code)


def value(text):
    return int(text) if text.lstrip("-").isdigit() else text or True


ranks = int(words.pop("ranks"))
output, plan = words.pop("output", None), "plan" in words
options = {{key: value(text) for key, text in words.items() if key not in ("plan", "overwrite")}}
for key in options:
    if key not in (*DEFAULTS, "model", "check", "compute", "payload", "flops", "seq", "algorithm", "progress"):
        fail(f"--{{key}} is unknown", 2)
effective = {{**DEFAULTS, "dp": ranks, **options}}
if plan:
    with (FOLDER / "plans.jsonl").open("a") as plans:
        plans.write(json.dumps(options) + "\\n")
    print(json.dumps({{"psi": {psi}, "options": effective, "events": [{{}}] * 10, "ledger": [{{}}] * 4,
                      "memory": {{"peak_bytes": {{"total_tracked": 5000000}}}}}}))
    sys.exit()
with (FOLDER / "runs.jsonl").open("a") as runs:
    runs.write(json.dumps({{"scenario": name, "ranks": ranks, "options": options, "output": output, "words": sys.argv[1:]}}) + "\\n")
behaviour = json.loads((FOLDER / "behaviour.json").read_text())
status, heard = behaviour.get("status", "complete"), []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: heard.append(number))
deadline = time.monotonic() + behaviour.get("seconds", 0)
(FOLDER / "started").write_text(str(time.monotonic()))
while time.monotonic() < deadline and not heard and not (FOLDER / "go").exists():
    time.sleep(0.01)
if heard:
    time.sleep(0.3)  # the step is finished first
    status = "interrupted"
if behaviour.get("fail") in (ranks, name):
    fail("the disk is full; make room", behaviour.get("code", 1))
sys.path[:0] = [{tests!r}]
from synthetic import synthetic
effective |= behaviour.get("options", {{}})
run = synthetic(name, ranks, options=effective, status=status, simulated=0, check=behaviour.get("check", "passed"))
run.write(Path(output))
(FOLDER / "ended").write_text(" ".join(map(str, heard)))
sys.exit(1 if heard else 0)
'''

MPIEXEC = """
import os, sys
assert sys.argv[1] == "-n"
os.execv(sys.argv[3], sys.argv[3:])
"""

SRUN = """
import json, os, sys
words = sys.argv[1:]
program = next(i for i, word in enumerate(words) if not word.startswith("--"))
with open({folder!r} + "/srun.jsonl", "a") as file:
    file.write(json.dumps(words[:program]) + "\\n")
os.execv(words[program], words[program:])
"""

SBATCH = """
import json, sys
with open({folder!r} + "/sbatch.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
print(4711)
"""

SQUEUE = """
import sys
known = {{"--jobs=1": "RUNNING"}}
job = next(word for word in sys.argv if word.startswith("--jobs="))
if job not in known:
    sys.exit("slurm_load_jobs error: Invalid job id specified")
print(known[job])
"""


class FakeCluster:
    """A folder with executables, launchers and what they have noted; studies write to `output`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.binaries = folder / "bin"
        self.output = folder / "out"
        self.binaries.mkdir()
        for scenario in ("ddp", "zero3"):
            self._program(self.binaries / scenario, SCENARIO)
        commands = {"mpiexec": MPIEXEC, "srun": SRUN, "sbatch": SBATCH, "squeue": SQUEUE}
        for name, text in commands.items():
            self._program(folder / name, text)
        self.behave()

    def _program(self, path: Path, text: str) -> None:
        body = text.format(folder=str(self.folder), tests=str(ANALYSIS / "tests"), psi=PSI)
        path.write_text(f"#!{sys.executable}\n{body}")
        path.chmod(0o755)

    def behave(self, **behaviour: object) -> None:
        """What the scenarios do: seconds, status, check, fail (a scenario or a number of ranks), code."""
        (self.folder / "behaviour.json").write_text(json.dumps(behaviour))

    def study(self, text: str, name: str = "study.toml") -> Path:
        path = self.folder / name
        path.write_text(f"output = '{self.output}'\n{text}")
        return path

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SHARDBENCH_"))}
        return {
            **kept,
            "PYTHONPATH": str(ANALYSIS),
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "MPIEXEC": str(self.folder / "mpiexec"),
        }

    def start(self, study: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "shardbench", "sweep", str(study), "--bin", str(self.binaries)]
        return subprocess.Popen(
            [*command, *options],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def sweep(self, study: Path, *options: str, **environment: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr. In this process, which has loaded already what takes long to load."""
        stdout, stderr = io.StringIO(), io.StringIO()
        with (
            unittest.mock.patch.dict(os.environ, {**self.environment, **environment}, clear=True),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            code = cli.main(["sweep", str(study), "--bin", str(self.binaries), *options])
        return code, stdout.getvalue(), stderr.getvalue()

    def noted(self, what: str) -> list[dict]:
        path = self.folder / f"{what}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def runs(self) -> list[str]:
        """The stems of the files that scenarios were asked to write, in order."""
        return [Path(run["output"]).stem for run in self.noted("runs")]

    def wait_for(self, name: str, seconds: float = 30) -> None:
        """Until a file is in the folder; it is then removed."""
        deadline = time.monotonic() + seconds
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"{name} does not appear"
            time.sleep(0.01)
        (self.folder / name).unlink()
