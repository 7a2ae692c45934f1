# What the batch scripts share. Sourced by them, with `root` set to the checkout; every line is explained in docs/slurm.md.
# shellcheck shell=bash
set -euo pipefail

refuse() { # PROBLEM: one line, exit code 2
  printf 'shardbench, job %s: %s\n' "${SLURM_JOB_ID:-none}" "$1" >&2
  exit 2
}

[[ -n ${SLURM_JOB_ID-} ]] || refuse "this script runs inside a Slurm job; submit it with sbatch"

site=${SHARDBENCH_SITE:-$root/jobs/sites/generic.env}
[[ -f $site && -r $site ]] || refuse "the site file $site cannot be read; set SHARDBENCH_SITE to one, as an absolute path"
set +u # the functions of module systems read variables that may be unset
# shellcheck source=sites/generic.env
source "$site"
set -u

bin=${SHARDBENCH_BIN:-$root/build/release/bin}
# Where only nodes were asked for Slurm starts one task on each, and leaves SLURM_NTASKS unset.
ntasks=${SLURM_NTASKS:-$SLURM_JOB_NUM_NODES}
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
# What sbatch --export keeps from this script srun would keep from the ranks.
export SLURM_EXPORT_ENV=ALL

# Sets `launch`, the command that starts one copy of what follows for each task.
case ${SHARDBENCH_LAUNCHER:-srun} in
  srun)
    # From 22.05 on srun does not inherit --cpus-per-task (man srun). By itself it lets the others wait when a task has failed.
    launch=(srun --mpi="${SLURM_MPI_TYPE:-pmi2}" --ntasks="$ntasks" --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1)
    ;;
  mpiexec)
    # Hydra starts one proxy on each node, through srun, and the proxy the ranks: they share the CPUs that the proxy has.
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_ON_NODE
    launch=("${MPIEXEC:-mpiexec}" -n "$ntasks")
    ;;
  *) refuse "SHARDBENCH_LAUNCHER is '$SHARDBENCH_LAUNCHER'; set it to srun or mpiexec in $site" ;;
esac

# Runs a command and exits with its code. What Slurm signals to this shell before the time limit reaches the ranks.
run() { # COMMAND...
  local code=0
  # In the background: bash runs a trap during `wait`, but not while a command in the foreground runs.
  "$@" </dev/null &
  local command=$!
  trap 'kill -USR1 "$command" 2>/dev/null || true' USR1
  # The others have got it, too. Where cgroups tell Slurm what belongs to a script, all of it ends with this shell: so wait.
  trap : TERM
  while kill -0 "$command" 2>/dev/null; do wait "$command" || true; done # a signal ends `wait`, too
  wait "$command" || code=$?
  exit "$code"
}
