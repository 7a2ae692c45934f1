"""What can befall a run, what must come of it, and which tests show that.

docs/reliability.md is this list with the tests' results (document.py). A case without `tests` is that of the tests of this
folder that carry its name (`@case`). Tests of other folders are named here:

    scenarios/test_usage.py::test_usage     a function of a pytest file below tests/, or analysis/...
    unit/layout.cpp::Chunks.AreCeilChunks   a GoogleTest of tests/unit; parametrised ones by suite and name, too
"""

from dataclasses import dataclass
from enum import Enum


class Chapter(Enum):
    launch = "Launch"
    signals = "Signals"
    failure = "Ranks that fail, die or stand still"
    output = "The output file"
    hdf5 = "HDF5"
    threads = "Threads and placement"
    shards = "Shards and meshes"
    sizes = "Sizes and metrics"
    time = "Time and memory"
    build = "Build and provenance"
    tests = "Tests"


@dataclass(frozen=True)
class Case:
    name: str
    chapter: Chapter
    befalls: str
    outcome: str
    tests: tuple[str, ...] = ()
    not_built: str = ""  # what is missing, where the case cannot occur yet


def _launch() -> list[Case]:
    chapter = Chapter.launch
    return [
        Case("unconnected-copies", chapter, "Launcher and MPI library do not understand each other: each process believes that it is alone",
             "With `--ranks`, or where Slurm says that there are more tasks: refused, both sizes named, no file; exit 2",
             ("scenarios/test_usage.py::test_copies_that_no_launcher_connects", "scenarios/test_usage.py::test_slurm_task_that_is_alone",
              "slurm/test_slurm.py::test_tasks_that_no_plugin_connects_are_refused")),
        Case("world-size", chapter, "A job of 1 to 4 ranks is started", "The world has that size, every rank its own process"),
        Case("exit-code-lost", chapter, "An exit code is lost in a pipe or a launcher",
             "Scripts use pipefail; files that are not marked complete count as incomplete, whatever a launcher said",
             ("reliability/test_launch.py::test_job_scripts_do_not_lose_exit_codes",
              "analysis/tests/test_summary.py::test_incomplete_runs_are_left_out", "analysis/tests/test_read.py::test_incomplete_runs_say_so")),
        Case("thread-level", chapter, "The MPI library provides fewer threads than `--progress` needs", "Refused, both named, no file"),
        Case("refused-sizes", chapter, "Negative or overflowing sizes and counts, on which MPICH would crash", "Refused before MPI sees them",
             ("unit/options.cpp::Values.OutsideTheirRangeAreRefused", "unit/schedule.cpp::Carried.RefusesSizesThatDoNotDivide",
              "unit/options.cpp::Property.AnyCommandLineIsRefusedInALineOrValid")),
        Case("ranks-disagree", chapter, "One rank was started with other options", "Found at the start, the option named, no file; exit 2"),
        Case("binaries-disagree", chapter, "Ranks run different programs", "Found at the start, both named, no file"),
        Case("one-rank-refuses", chapter, "One rank's options are wrong", "All ranks end with its message; exit 2"),
        Case("one-rank-cannot-read", chapter, "A calibration file is missing on one rank's node", "The job ends and names the file"),
        Case("help-without-mpi", chapter, "`--help`, `--version` or `--plan` where MPI cannot start", "Answered; MPI is not touched",
             ("scenarios/test_usage.py::test_help_and_version_need_no_mpi",)),
        Case("slurm-launch", chapter, "The batch scripts start ranks on two nodes, through srun or mpiexec; srun inherits no --cpus-per-task",
             "One world, every rank with the CPUs and threads that were asked for",
             ("slurm/test_slurm.py::test_ranks_start_on_all_nodes", "slurm/test_slurm.py::test_each_task_has_the_cpus_that_were_asked_for")),
        Case("slurm-refusals", chapter, "A batch script is submitted with a wrong scenario, option, site file or folder",
             "One line in the job's log, no file; exit 2",
             ("slurm/test_slurm.py::test_what_makes_no_sense_is_refused_in_a_line",)),
    ]


def _signals() -> list[Case]:
    chapter = Chapter.signals
    return [
        Case("signal", chapter, "SIGTERM, SIGINT or SIGUSR1 reaches one rank, all ranks or mpiexec",
             "The running step, at most the next one too, is finished on every rank; status `interrupted` with all steps done; one line; exit 1"),
        Case("signal-any-moment", chapter, "SIGTERM during MPI_Init, set-up, rehearsal, a step or a flush",
             "The job ends non-zero; a file says `interrupted` or `failed`"),
        Case("second-signal", chapter, "A second signal, while a long step is being finished", "The job ends at once, non-zero"),
        Case("signal-collectives", chapter, "SIGTERM reaches the program `collectives`", "Status `interrupted`; exit 1"),
        Case("slurm-limit", chapter, "A Slurm job comes near its time limit, or meets `scancel`", "Every rank finishes its step; status `interrupted`",
             ("slurm/test_slurm.py::test_a_job_at_its_time_limit_closes_its_file",
              "slurm/test_slurm.py::test_a_job_that_is_told_to_end_closes_its_file")),
        Case("slurm-requeue", chapter, "A Slurm job is requeued", "It starts again and replaces its file; the log of the first launch is kept",
             ("slurm/test_slurm.py::test_a_requeued_job_replaces_its_file",)),
        Case("slurm-study", chapter, "A study that runs as a Slurm job or array is signalled, or everything of it killed at once",
             "Submitted again, it does what is left; each point is complete once",
             ("slurm/test_slurm.py::test_a_study_that_was_cut_short_is_finished_by_submitting_it_again",
              "slurm/test_slurm.py::test_a_study_as_one_job_closes_its_file_and_goes_on_where_it_stopped")),
    ]


def _failure() -> list[Case]:
    chapter = Chapter.failure
    return [
        Case("rank-killed", chapter, "SIGKILL reaches one rank, rank 0 included", "The job ends non-zero; status `failed`; flushed windows kept"),
        Case("slurm-rank-killed", chapter, "SIGKILL reaches one rank of a Slurm job",
             "srun ends the job after at most KillWait (slurm.conf); status `failed`, or `running` if Slurm also killed the caretaker",
             ("slurm/test_slurm.py::test_a_rank_that_dies_ends_the_job",)),
        Case("rank-fails", chapter, "In a step of one rank an MPI call fails, or SIGSEGV or abort() ends it",
             "The job ends non-zero; of the error one line with rank and call; status `failed`; flushed windows kept"),
        Case("setup-fails", chapter, "An MPI call of set-up fails on one rank", "The job ends non-zero, the call named"),
        Case("rank-leaves", chapter, "A rank calls _exit(0) in the middle",
             "The job ends; mpiexec's code may be 0, but the file says `failed`; flushed windows kept"),
        Case("rank-stalls", chapter, "A thread of a rank, or all its threads, stand still for ever",
             "After `--stall-timeout` (here 3 s) one line names rank, step, phase and operation; the job ends non-zero; status `failed`"),
        Case("setup-stalls", chapter, "A rank stands still in MPI_Init or set-up", "Likewise, without step"),
        Case("slow-rank", chapter, "A rank is slow: a step takes longer than the time-out, each operation less", "No stall is reported; the run is complete"),
        Case("stall-timeout-values", chapter, "`--stall-timeout` is negative, not a number or not finite", "Refused; exit 2"),
        Case("out-of-memory", chapter, "Memory is refused to one rank, in set-up or in a step",
             "The job ends non-zero, one line with the rank; status `failed`; flushed windows kept"),
        Case("random-failures", chapter, "20 random failures: error, SIGKILL, SIGSEGV, abort, standstill; any scenario, 2 to 5 ranks, any moment",
             "Each ends non-zero in time, leaves no process, and a readable file with status `failed`"),
        Case("random-kills", chapter, "50 times SIGKILL at a random instant, of one rank, of all, or of mpiexec and everything else",
             "The file opens with every window whose flush had returned"),
    ]


def _output() -> list[Case]:
    chapter = Chapter.output
    return [
        Case("disk-full", chapter, "Writing fails with ENOSPC, EIO or EDQUOT, at once or after some windows",
             "One line with path and reason; exit 1; no crash in HDF5's exit handler; flushed windows kept"),
        Case("disk-full-real", chapter, "The file system of the output is full (a small tmpfs)", "Likewise"),
        Case("read-only-file-system", chapter, "The file system is read-only", "One line with path and reason; exit 1"),
        Case("read-only-folder", chapter, "No file may be made in the folder", "One line with path and reason; exit 1"),
        Case("file-size-limit", chapter, "The file may not grow (ulimit -f, a quota of a batch system)",
             "EFBIG as one line, no death by SIGXFSZ; exit 1; flushed windows kept"),
        Case("locked-file", chapter, "Another process has locked the existing output", "Refused; HDF5_USE_FILE_LOCKING named; the file untouched"),
        Case("two-jobs-one-file", chapter, "A second job names the file that a running job writes", "Refused; the running job goes on"),
        Case("output-gone", chapter, "The output is removed or replaced while it is written",
             "The job ends with one line that says so; exit 1; what replaced it is untouched"),
        Case("no-file-there", chapter, "The output is a folder, /dev/full, below a file or in a missing folder", "One line with path and reason; exit 1"),
        Case("existing-output", chapter, "The output exists", "Kept unless `--overwrite`; never touched by a refused run",
             ("scenarios/test_usage.py::test_existing_output_is_kept", "scenarios/test_usage.py::test_overwrite_replaces_an_existing_output",
              "scenarios/test_usage.py::test_bad_calibration_touches_no_output", "scenarios/test_usage.py::test_meshes_that_do_not_fit")),
        Case("unwritable-output", chapter, "The output cannot be written, alone, under mpiexec, with and without `--overwrite`",
             "Found before step 0; one line with path and reason; exit 1",
             ("scenarios/test_usage.py::test_outputs_that_cannot_be_written", "unit/trace_file.cpp::TraceFiles.ThatCannotBeWrittenNamePathAndReason")),
        Case("stdout-closed", chapter, "Who reads standard output has gone", "The file is complete; exit 0"),
        Case("damaged-file", chapter, "A file is truncated, of another schema or no HDF5", "The analysis names file and reason, and goes on with the others",
             ("analysis/tests/test_read.py::test_truncated_file", "analysis/tests/test_read.py::test_not_hdf5_and_absent",
              "analysis/tests/test_summary.py::test_unusable_files_are_left_out_with_reasons")),
    ]


def _hdf5() -> list[Case]:
    chapter = Chapter.hdf5
    return [
        Case("empty-ranks", chapter, "A rank has nothing of its own to write", "It takes part in everything; every table has its rows"),
        Case("parallel-hdf5", chapter, "The HDF5 found is a parallel build", "Configure stops and names it and HDF5_ROOT"),
        Case("hdf5-version", chapter, "Which HDF5, which MPI?", "`--version` tells header and library version, flavour, and the MPI library",
             ("unit/trace_file.cpp::Hdf5.TellsHeadersLibraryAndFlavour", "scenarios/test_usage.py::test_help_and_version_need_no_mpi")),
        Case("flushed-rows", chapter, "A reader opens the file of a running job", "It holds what was flushed",
             ("unit/trace_file.cpp::TraceFiles.HoldWhatWasAppendedAfterAFlush", "unit/trace_file.cpp::TraceFiles.TakeManyAppendsAndANewStatus")),
    ]


def _threads() -> list[Case]:
    chapter = Chapter.threads
    return [
        Case("placement", chapter, "Ranks share CPUs, or have more threads than CPUs",
             "Affinity, allowed CPUs, threads and local rank are recorded; `oversubscribed` where threads exceed CPUs"),
        Case("oversubscribed", chapter, "The analysis meets oversubscribed runs", "Marked, with a warning",
             ("analysis/tests/test_summary.py::test_oversubscribed_runs_are_kept_and_marked", "analysis/tests/test_summary.py::test_warnings")),
        Case("progress-thread", chapter, "A progress thread's communication fails", "Whoever waits hears of it",
             ("unit/schedule.cpp::ProgressEngine.TellsAWaiterOfAFailureElsewhere",)),
    ]


def _shards() -> list[Case]:
    chapter = Chapter.shards
    return [
        Case("more-ranks-than-rows", chapter, "Tensors of shapes (2,3), (1,), (5,7), scalars on up to 8 ranks",
             "Ceil chunks, each element once, empty ranks included",
             ("unit/layout.cpp::Chunks.AreCeilChunksWithTheEmptyOnesKept", "unit/layout.cpp::Shards.HoldEveryElementExactlyOnce",
              "scenarios/test_ledger.py::test_mesh2d_plans_of_ranks_without_rows")),
        Case("counts-that-do-not-divide", chapter, "25 elements on 3, 5, 6 and 7 ranks; a vocabulary of 50257 on 512", "Counts add up",
             ("unit/layout.cpp::Chunks.Of25ElementsAddUpTo25", "unit/layout.cpp::Chunks.OfAVocabularyOver512RanksLeaveFourEmpty",
              "unit/schedule.cpp::Schedule.SendsTheVolumeOverAllRanksWhereTheyDoNotDivide")),
        Case("odd-worlds", chapter, "3, 5 or 7 ranks, which divide nothing", "Training agrees with one rank's",
             ("scenarios/test_golden.py::test_odd_worlds_agree_with_one_rank",)),
        Case("one-rank", chapter, "One rank, under mpiexec or alone", "The same values; nothing sent; no NaN or infinity; bandwidth 0 or not given"),
        Case("meshes-that-do-not-fit", chapter, "4 ranks as (3,1), (2,3), (-2,2), (0,4), (1,1), (-1,-1)", "Refused on all ranks in seconds, in one line; exit 2",
             ("scenarios/test_usage.py::test_meshes_that_do_not_fit", "scenarios/test_usage.py::test_usage")),
        Case("derived-mesh", chapter, "One side of the mesh is left open, as in (-1,2)", "Derived",
             ("scenarios/test_golden_mesh.py::test_one_side_of_the_mesh_is_derived",)),
        Case("mesh-order", chapter, "8 ranks as 4 by 2", "tp groups {0,1}{2,3}{4,5}{6,7}, dp groups {0,2,4,6}{1,3,5,7}, as stored"),
        Case("tied-weights", chapter, "Vocabulary 1000, hidden size 64, tied or not", "One embedding less, counted and trained once",
             ("unit/initial_state.cpp::Tied.SavesOneEmbedding", "unit/layout.cpp::Grouping.TiedWeightsAreInTheRootOnce",
              "scenarios/test_golden.py::test_uneven_tied")),
    ]


def _sizes() -> list[Case]:
    chapter = Chapter.sizes
    return [
        Case("beyond-32-bits", chapter, "2^31 + 10 and 2^32 + 4 elements; 2048 blocks of 524,288", "Exact in 64 bits",
             ("unit/schedule.cpp::Schedule.IsExactBeyondThirtyTwoBits", "unit/schedule.cpp::Schedule.SplitsAnyCountBeyondThirtyTwoBitsIntoAdjacentBlocks",
              "unit/layout.cpp::Chunks.StayExactForHugeTensors", "unit/ledger.cpp::Ledger.DoesNotOverflowAtScale")),
        Case("bus-bandwidth", chapter, "Bandwidth factors and volumes at N = 1, 2, 3, 4, 512", "As nccl-tests defines them",
             ("unit/ledger.cpp::LedgerVolume.HasTheBusBandwidthFactors", "unit/collectives.cpp::CollectiveSizes.GiveBandwidthsAsNcclTestsDefinesThem",
              "unit/ledger.cpp::LedgerVolume.SplitsIntoTheStagesCollectives")),
        Case("misspelt-options", chapter, "An unknown, misspelt or foreign option, alone and under mpiexec", "Refused, the nearest name offered; exit 2",
             ("scenarios/test_usage.py::test_usage", "unit/options.cpp::Unknown.OptionsAreAnsweredWithTheNearestName",
              "unit/options.cpp::Unknown.OptionsOfOtherScenariosAreNamedAsSuch")),
        Case("effective-configuration", chapter, "Which options did a run really have?", "All effective ones are stored",
             ("unit/options.cpp::Json.HoldsTheEffectiveConfiguration",)),
    ]


def _time() -> list[Case]:
    chapter = Chapter.time
    return [
        Case("straggler", chapter, "One rank computes slower than the others",
             "Its steps show it, the others' waits show it, the headline is the maximum over ranks; warm-up is stored and left out"),
        Case("straggler-named", chapter, "Which rank is the straggler?", "The report names it, with what others wait for it",
             ("analysis/tests/test_stragglers.py::test_a_slow_rank_of_a_real_run_is_named",)),
        Case("clocks", chapter, "Ranks have clocks of their own", "Offsets and their uncertainty are measured before and after the steps"),
        Case("progress-mode", chapter, "Collectives advance only inside MPI calls", "Mode recorded; compute, exposed wait and issue are separate numbers"),
        Case("split-step", chapter, "Where did a step's time go?", "Compute, exposed, optimizer and other add up to the step",
             ("unit/recorder.cpp::Story.StepTimeIsComputePlusExposedPlusOptimizerPlusOther", "analysis/tests/test_validate.py::test_step_sum")),
        Case("memory-kinds", chapter, "Resident size counts shared pages N times and misses untouched ones",
             "Resident, proportional, high-water and tracked bytes are told apart"),
        Case("static-memory", chapter, "Static bytes by stage and N", "As published; monotone in both",
             ("unit/ledger.cpp::LedgerTable.ReproducesSevenBillionToTheDigit", "unit/ledger.cpp::Ledger.StaticBytesFallWithStageAndRanks",
              "unit/ledger.cpp::LedgerTable.ReproducesOtherPublishedSizes")),
        Case("constant-descriptors", chapter, "Hundreds of steps", "File descriptors stay the same, memory mappings do not pile up"),
        Case("constant-communicators", chapter, "Hundreds of steps under each algorithm", "Communicators stay the same; no request is left in flight"),
        Case("constant-memory", chapter, "A thousand steps", "Tracked bytes at step 1000 are those of step 10; resident size within what caches take"),
    ]


def _build() -> list[Case]:
    chapter = Chapter.build
    return [
        Case("missing-library", chapter, "A library is missing", "Configure stops and names it"),
        Case("nccl-asked-for", chapter, "`--backend nccl` in a build without it", "Refused; exit 2. What really communicated is in the file",
             ("scenarios/test_usage.py::test_usage", "reliability/test_launch.py::test_the_file_says_where_it_comes_from")),
        Case("provenance", chapter, "A file found years later", "Schema, program, commit, build, versions, configuration, hosts, time, command line, status"),
        Case("cuda", chapter, "CUDA asked for and a part of it missing", "", not_built="no device to try it on yet"),
        Case("nccl", chapter, "NCCL errors, time-outs and version mismatches", "", not_built="no device to try it on yet"),
    ]


def _tests() -> list[Case]:
    chapter = Chapter.tests
    return [
        Case("hung-test", chapter, "A test hangs with ranks running", "Killed with every process it started before CTest's own time-out"),
        Case("interrupted-ctest", chapter, "CTest is interrupted, told to end or killed", "No process of its tests is left"),
    ]


CASES = [*_launch(), *_signals(), *_failure(), *_output(), *_hdf5(), *_threads(), *_shards(), *_sizes(), *_time(), *_build(), *_tests()]
BY_NAME = {case.name: case for case in CASES}
