"""An output that cannot be written, from the start or in the middle: one line with path and reason, and no crash."""

import errno
import fcntl
import os
import resource
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import jobs
import pytest
import runs
from recorder import Record, case

FEW = ["-n", "40", "-w", "1", "--window", "4", "--threads", "1"]


def assert_told(finished: runs.Finished, scenario: str, path: str, reason: int | str) -> None:
    assert finished.code == jobs.RUN_TIME_FAILURE, str(finished)
    jobs.assert_no_crash(finished)
    (line,) = jobs.own_lines(finished, scenario)
    assert path in line, line
    assert (os.strerror(reason) if isinstance(reason, int) else reason) in line, line


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=lambda e: errno.errorcode[e])
@pytest.mark.parametrize("room", [0, 3_000, 20_000, 60_000, 200_000])
@case("disk-full")
def test_a_disk_that_fills_up_or_breaks(tmp_path: Path, reason: int, room: int, record: Record) -> None:
    with jobs.Job(tmp_path, options=jobs.ENDLESS, rank=0, write_bytes=room, write_errno=reason) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        record.seconds(finished.seconds)
        assert_told(finished, "zero3", "x.h5", reason)
        flushed = job.flushed()
        if flushed.get("steps"):
            trace = jobs.trace_of_ended(job.output)
            assert trace.attributes["status"] == "failed"
            jobs.assert_keeps(job, flushed, trace)


@pytest.mark.parametrize("scenario", ["ddp", "zero1", "zero2", "mesh2d"])
@case("disk-full")
def test_a_disk_that_fills_up_under_every_scenario(tmp_path: Path, scenario: str, record: Record) -> None:
    with jobs.Job(tmp_path, scenario, ranks=2, rank=0, write_bytes=100_000) as job:
        finished = job.finish(limit_s=jobs.PATIENCE_S)
        record.seconds(finished.seconds)
        assert_told(finished, scenario, "x.h5", errno.ENOSPC)


def can_mount() -> bool:
    """Root in a place where it may mount: then the full disk is a real one, in a mount namespace of its own."""
    return shutil.which("unshare") is not None and subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False).returncode == 0


needs_mount = pytest.mark.skipif(not can_mount(), reason="only root may mount; disk-full injects the same errors without")


def execute_mounted(folder: Path, options: str, scenario: str, then: str = "true", prepare: str = "true") -> runs.Finished:
    """Runs a job whose output folder is a file system of its own; `then` still sees that."""
    (folder / "mounted").mkdir()
    job = shlex.join(runs.mpi_command(scenario, 2, [*jobs.ENDLESS, "-o", "mounted/x.h5"]))
    script = f"mount -t tmpfs -o {options} tmpfs mounted && {prepare} && {{ {job}; code=$?; {then}; exit $code; }}"
    return runs.execute(["unshare", "--mount", "sh", "-c", script], folder)


@needs_mount
@pytest.mark.parametrize("size", ["8k", "64k", "1m", "6m"])
@case("disk-full-real")
def test_a_small_file_system(tmp_path: Path, size: str, record: Record) -> None:
    finished = execute_mounted(tmp_path, f"size={size}", "zero3", then="sleep 1; cp mounted/x.h5 kept.h5 || true")
    record.seconds(finished.seconds)
    assert_told(finished, "zero3", "mounted/x.h5", errno.ENOSPC)
    if size == "6m":
        trace = runs.Trace(tmp_path / "kept.h5")
        assert trace.attributes["status"] == "failed"
        assert len(trace["steps"]) > 0


@needs_mount
@case("read-only-file-system")
def test_a_read_only_file_system(tmp_path: Path, record: Record) -> None:
    finished = execute_mounted(tmp_path, "size=1m", "zero3", prepare="mount -o remount,ro mounted")
    record.seconds(finished.seconds)
    assert_told(finished, "zero3", "mounted/x.h5", errno.EROFS)


@case("read-only-folder")
def test_a_folder_that_may_not_be_written(tmp_path: Path, record: Record) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    if os.geteuid() == 0:
        # Root may write anywhere, but not where nothing can be: in the kernel's own tables.
        folder, reason = Path("/proc/self/fdinfo"), errno.ENOENT
    else:
        folder.chmod(0o555)
        reason = errno.EACCES
    finished = runs.execute(runs.mpi_command("zero3", 2, [*FEW, "-o", str(folder / "x.h5")]), tmp_path)
    record.seconds(finished.seconds)
    assert_told(finished, "zero3", str(folder / "x.h5"), reason)


@case("file-size-limit")
def test_a_file_that_may_not_grow(tmp_path: Path, record: Record) -> None:
    """RLIMIT_FSIZE (ulimit -f, or a batch system's): EFBIG, and no death by SIGXFSZ."""
    with jobs.Job(tmp_path) as job:
        job.wait_for_steps(jobs.WARMUP + 2 * jobs.WINDOW)
        limit = job.output.stat().st_size + 10_000
        resource.prlimit(job.rank_processes()[0], resource.RLIMIT_FSIZE, (limit, limit))
        finished = job.finish()
        record.seconds(finished.seconds)
        assert_told(finished, "zero3", "x.h5", errno.EFBIG)
        trace = jobs.trace_of_ended(job.output)
        assert trace.attributes["status"] == "failed"
        jobs.assert_keeps(job, job.flushed(), trace)


@case("file-size-limit")
def test_a_file_that_may_not_grow_since_before_the_job(tmp_path: Path, record: Record) -> None:
    job = shlex.join(runs.mpi_command("zero3", 2, [*jobs.ENDLESS, "-o", "x.h5"]))
    # 6 MiB. (Below 4.2 MB a rank MPICH itself cannot make its shared memory.)
    finished = runs.execute(["bash", "-c", f"ulimit -f 6144; exec {job}"], tmp_path)
    record.seconds(finished.seconds)
    assert_told(finished, "zero3", "x.h5", errno.EFBIG)
    trace = jobs.trace_of_ended(tmp_path / "x.h5")
    assert trace.attributes["status"] == "failed"
    assert len(trace["steps"]) > 0


@case("locked-file")
def test_a_file_that_another_process_has_locked(tmp_path: Path, record: Record) -> None:
    output = tmp_path / "x.h5"
    output.write_text("precious")
    with output.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        finished = runs.execute(runs.mpi_command("zero3", 2, [*FEW, "-o", "x.h5", "--overwrite"]), tmp_path)
    record.seconds(finished.seconds)
    assert_told(finished, "zero3", "x.h5", "HDF5_USE_FILE_LOCKING")
    assert output.read_text() == "precious"


@case("two-jobs-one-file")
def test_a_second_job_does_not_take_the_file_of_a_running_one(tmp_path: Path, record: Record) -> None:
    with jobs.Job(tmp_path, ranks=2) as job:
        job.wait_for_steps(jobs.WARMUP)
        for options, code in (([], jobs.USAGE), (["--overwrite"], jobs.RUN_TIME_FAILURE)):
            finished = runs.execute(runs.mpi_command("zero3", 2, [*FEW, "-o", "x.h5", *options]), tmp_path)
            record.seconds(finished.seconds)
            assert finished.code == code, str(finished)
            assert "x.h5" in finished.stderr
        before = job.flushed()["steps"]
        job.wait_for(lambda: job.flushed()["steps"] > before)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
@case("output-gone")
def test_an_output_that_is_removed_or_replaced_while_it_is_written(tmp_path: Path, replaced: bool, record: Record) -> None:
    with jobs.Job(tmp_path, ranks=2) as job:
        job.wait_for_steps(jobs.WARMUP + jobs.WINDOW)
        if replaced:
            (tmp_path / "other").write_text("precious")
            (tmp_path / "other").rename(job.output)
        else:
            job.output.unlink()
        job.begin = time.monotonic()
        finished = job.finish()
        record.seconds(finished.seconds)
        assert finished.code == jobs.RUN_TIME_FAILURE, str(finished)
        jobs.assert_no_crash(finished)
        (line,) = jobs.own_lines(finished, "zero3")
        assert "x.h5" in line, line
        assert ("replaced" if replaced else "removed") in line, line
        if replaced:
            assert job.output.read_text() == "precious"
        else:
            assert not job.output.exists()


@pytest.mark.parametrize("output", [".", "/dev/full", "file/x.h5", "missing/x.h5"])
@case("no-file-there")
def test_outputs_that_are_no_files(tmp_path: Path, output: str, record: Record) -> None:
    (tmp_path / "file").write_text("no folder")
    finished = runs.execute(runs.mpi_command("zero3", 2, [*FEW, "-o", output]), tmp_path)
    record.seconds(finished.seconds)
    reason = {"file/x.h5": errno.ENOTDIR, "missing/x.h5": errno.ENOENT}.get(output, "not a regular file")
    assert_told(finished, "zero3", output, reason)


@case("stdout-closed")
def test_a_reader_that_has_gone_is_no_success(tmp_path: Path, record: Record) -> None:
    """`zero3 ... | head`: the file is what counts, and it is complete; nothing hangs or crashes."""
    job = shlex.join(runs.mpi_command("zero3", 2, [*FEW, "-o", "x.h5"]))
    finished = runs.execute(["bash", "-c", f"{job} | true"], tmp_path)
    record.seconds(finished.seconds)
    assert finished.code == 0, str(finished)
    jobs.assert_no_crash(finished)
    assert jobs.trace_of_ended(tmp_path / "x.h5").attributes["status"] == "complete"
