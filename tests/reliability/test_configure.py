"""What the build refuses, and that it says which part is missing."""

from pathlib import Path

import pytest
import runs
from recorder import Record, case

PARALLEL_HDF5 = """
set(HDF5_FOUND TRUE)
set(HDF5_VERSION 1.14.0)
set(HDF5_IS_PARALLEL TRUE)
set(HDF5_C_INCLUDE_DIRS /opt/parallel/include)
set(HDF5_C_LIBRARIES hdf5)
"""


def configure(folder: Path, *arguments: str) -> runs.Finished:
    return runs.execute(["cmake", "-G", "Ninja", "-S", str(runs.ROOT), "-B", str(folder / "build"), *arguments], folder)


@case("parallel-hdf5")
def test_a_parallel_hdf5_is_refused(tmp_path: Path, record: Record) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/FindHDF5.cmake").write_text(PARALLEL_HDF5)
    finished = configure(tmp_path, f"-DCMAKE_MODULE_PATH={tmp_path}/modules")
    record.seconds(finished.seconds)
    assert finished.code != 0, str(finished)
    words = " ".join(finished.stderr.split())
    assert "HDF5 1.14.0 at /opt/parallel/include is a parallel build" in words, str(finished)
    assert "HDF5_ROOT" in words


@pytest.mark.parametrize("package", ["MPI", "HDF5", "CLI11", "fmt", "nlohmann_json", "OpenMP", "BLAS"])
@case("missing-library")
def test_a_missing_library_is_named(tmp_path: Path, package: str, record: Record) -> None:
    (tmp_path / "modules").mkdir()
    # As when its module or package finds nothing.
    (tmp_path / f"modules/Find{package}.cmake").write_text(
        f"include(FindPackageHandleStandardArgs)\nfind_package_handle_standard_args({package} REQUIRED_VARS NOWHERE_TO_BE_FOUND)\n")
    finished = configure(tmp_path, f"-DCMAKE_MODULE_PATH={tmp_path}/modules", "-DCMAKE_FIND_PACKAGE_PREFER_CONFIG=OFF")
    record.seconds(finished.seconds)
    assert finished.code != 0, str(finished)
    assert package in finished.stderr, str(finished)
