"""Who may include whom, and that no state outlives or escapes its object.

scenarios -> train -> {comm, device, kernels, trace, model, shard, ledger} -> units. Each library is included in one
place only. A simulator runs all ranks in one process, so nothing mutable may be global.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SHARDBENCH_BIN") or ROOT / "build/release/bin").parent
SOURCES = sorted(p for folder in ("src", "kernels") for p in (ROOT / folder).rglob("*") if p.suffix in {".cpp", ".hpp", ".h", ".cu", ".cuh"})

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)

# A file may include files of its own level and of lower ones.
LEVELS = [
    ("src/main.cpp", 4),
    ("src/program", 4),  # entered by every main
    ("src/backends", 4),
    ("src/tools/", 4),
    ("src/scenarios/", 3),
    ("src/scenario.hpp", 2),  # what train runs, and scenarios are
    ("src/train/", 2),
    ("src/collectives/", 2),
    ("src/options", 1),
    ("src/ledger/", 1),
    ("src/comm/", 1),
    ("src/device/", 1),
    ("src/trace/", 1),
    ("src/model/", 1),
    ("src/shard/", 1),
    ("kernels/", 1),
    ("src/units.hpp", 0),
    ("src/errors.hpp", 0),
    ("src/say.hpp", 0),
    ("src/build_info.hpp", 0),
    ("src/build_id", 0),
    ("src/command_line", 0),
    ("src/option_parsing", 0),
    ("src/launch", 3),
    ("src/supervise/", 0),
]


def level_of(file: str) -> int | None:
    return next((level for prefix, level in LEVELS if file.startswith(prefix)), None)


def included_by(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def who_includes(header: str) -> set[str]:
    return {name_of(p) for p in SOURCES if any(re.fullmatch(header, i) for i in included_by(p))}


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 40
    assert who_includes("mpi.h")
    assert who_includes("hdf5.h")


def test_only_the_mpi_backend_includes_mpi() -> None:
    assert all(file.startswith("src/comm/mpi/") for file in who_includes(r"(.*/)?s?mpi\.h|smpi/.*|simgrid/.*"))


def test_only_the_entry_points_know_the_mpi_backend() -> None:
    users = {f for f in who_includes(r"src/comm/mpi/.*") if not f.startswith("src/comm/mpi/")}
    assert all(level_of(file) == 4 for file in users), users


def test_only_the_trace_file_includes_hdf5() -> None:
    assert who_includes(r"hdf5.*\.h") == {"src/trace/trace_file.cpp"}


def test_only_the_nccl_backend_includes_nccl() -> None:
    assert who_includes(r"nccl.*\.h") == {"src/comm/nccl/nccl_communicator.cpp"}


def test_only_the_cuda_device_and_kernels_include_cuda() -> None:
    users = who_includes(r"(cuda|cublas|device_launch).*\.h")
    assert users
    assert all(file.startswith(("src/device/cuda/", "kernels/cuda/")) for file in users), users


def test_nobody_below_the_entry_points_knows_the_gpu() -> None:
    users = who_includes(r"(src/device/cuda|src/comm/nccl|kernels/cuda)/.*")
    outside = {f for f in users if not f.startswith(("src/device/cuda/", "src/comm/nccl/", "kernels/cuda/"))}
    assert all(level_of(file) == 4 for file in outside), outside


def test_every_file_has_a_level() -> None:
    assert [name_of(p) for p in SOURCES if level_of(name_of(p)) is None] == []


def test_no_lower_layer_includes_a_higher_one() -> None:
    upwards = []
    for path in SOURCES:
        for header in included_by(path):
            if not header.startswith(("src/", "kernels/")):
                continue
            assert (ROOT / header).exists() or (BUILD / header).exists(), f"{name_of(path)}: {header}"
            if level_of(header) > level_of(name_of(path)):
                upwards.append(f"{name_of(path)} includes {header}")
    assert upwards == []


def test_includes_have_no_cycle() -> None:
    headers = {name_of(p): [h for h in included_by(p) if (ROOT / h).exists()] for p in SOURCES}
    done: set[str] = set()

    def visit(file: str, path: tuple[str, ...]) -> None:
        assert file not in path, " -> ".join((*path, file))
        if file in done:
            return
        for header in headers.get(file, []):
            visit(header, (*path, file))
        done.add(file)

    for file in headers:
        visit(file, ())


@pytest.mark.parametrize("path", sorted((ROOT / "src/scenarios").glob("*")), ids=lambda p: p.name)
def test_a_newcomer_reads_a_scenario_in_one_short_file(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 200


@pytest.mark.parametrize("path", sorted((ROOT / "src/scenarios").glob("*")), ids=lambda p: p.name)
def test_scenarios_name_no_backend(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"^\s*#\s*(if|ifdef|ifndef|elif)\b", text, re.MULTILINE)
    assert re.findall(r"\w*(?:mpi|nccl|cuda|hdf5)\w*", text.replace("simpl", ""), re.IGNORECASE) == []


# --- mutable globals --------------------------------------------------------------------------------------------------

# Sections that a running program may write; .data.rel.ro becomes read-only once it is loaded.
WRITABLE = re.compile(r"\s(\*COM\*|\.(?:data|bss|tdata|tbss)(?!\.rel\.ro)\S*)\s+[0-9a-f]+\s+(?:\.hidden\s+)?(.+)$")
# Names that the compilers make, nvcc's too, and libraries' templates and inline variables.
FOREIGN = re.compile(r"(DW\.ref|std::|__gnu|fmt::|CLI::|nlohmann::|testing::|\.|\*\.|__device_stub__|__cudaFatCubinHandle|nvtxGlobals_|InitializeInjectionNvtx|__asan|__ubsan|_GLOBAL_|construction vtable|vtable|typeinfo)")


def writable_symbols(objects: Iterable[Path]) -> set[str]:
    command = ["objdump", "-t", "-C", *map(str, objects)]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = set()
    for line in table.splitlines():
        match = WRITABLE.search(line)
        if match and " d  " not in line[:30]:  # a section's own symbol
            name = match[2].removeprefix("guard variable for ")
            if not FOREIGN.match(name):
                found.add(name)
    return found


def is_constant(symbol: str, sources: str) -> bool:
    """Whether every declaration of that name is const (a constant built at start-up lies in writable memory too)."""
    plain = re.sub(r"\[abi:\w+\]", "", symbol).replace("(anonymous namespace)", "")
    scope, _, name = plain.rpartition("::")
    # Locals that live on are declared static; namespaces are not indented, so their variables start a line.
    begin = r"\b((?:static|thread_local)\s" if scope.endswith((")", "const")) else r"^((?=\w)"
    declarations = re.findall(rf"{begin}[^\n(=;{{]*?)\b{re.escape(name)}\s*[\[({{=;]", sources, re.MULTILINE)
    constant = re.compile(r"(?:(?:static|inline|thread_local)\s+)*const(?:expr)?\s[^*]*(?:\*\s*const\s*)?$")
    return bool(declarations) and all(constant.match(d) for d in declarations)


def mutable_globals(objects: Iterable[Path], sources: str) -> list[str]:
    return sorted(s for s in writable_symbols(objects) if not is_constant(s, sources))


def test_no_mutable_globals_or_static_locals() -> None:
    objects = [o for folder in ("src", "kernels") for o in (BUILD / folder).rglob("*.o")]
    assert len(objects) > 20, f"no objects below {BUILD}; build it, or set SHARDBENCH_BIN to a build's bin"
    assert mutable_globals(objects, "\n".join(p.read_text() for p in SOURCES)) == []


def test_the_check_for_mutable_globals_can_fail(tmp_path: Path) -> None:
    source = tmp_path / "globals.cpp"
    source.write_text("""
#include <string>
namespace shardbench {
const std::string fixed_text = std::string(100, 'x');
const std::string& fixed_local() { static const std::string kept_text(100, 'y'); return kept_text; }
constexpr int number = 3;
const char* const fixed_pointer = "a";
int zeroed;
int initialised = 4;
const char* movable_pointer = "b";
thread_local int per_thread = 0;
inline int shared_inline = 2;
static const char* movable_in_function(int i) { static const char* last = "c"; static int calls; calls += i; return last + calls; }
namespace { std::string text; }
int use(int i) { per_thread += i; return zeroed + initialised + number + *movable_in_function(i) + shared_inline + int(text.size()) + *fixed_pointer; }
}
int outside_any_namespace = 1;
""")
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler
    for flags in (["-O0"], ["-O2", "-fPIC"]):
        compiled = tmp_path / "globals.o"
        subprocess.run([compiler, "-std=c++20", *flags, "-c", str(source), "-o", str(compiled)], check=True)
        found = {s.rpartition("::")[2] for s in mutable_globals([compiled], source.read_text())}
        wanted = {"zeroed", "initialised", "movable_pointer", "per_thread", "shared_inline", "calls", "text", "outside_any_namespace"}
        assert found - {"last"} == wanted  # an optimiser drops `last`, which nobody changes
