#!/usr/bin/env bash
# Sets up everything that building, running and testing need. `make deps` calls it, and so do `make run` and `make test`.
#
#   cmake/deps.sh [--lint]      --lint adds clang-format and clang-tidy
#
# On Debian 12 as root it installs what is missing through apt-get. Anywhere else it installs nothing: it names what is
# missing and fails. Then it creates build/venv with the Python package of analysis/. With nothing to do it needs no network.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
unset PYTHONHOME PYTHONPATH

# Debian's own interpreter, whatever comes first in PATH: only it sees the python3-* packages below.
python=/usr/bin/python3

# Debian package, and how to tell on another system that its content is there (alternatives separated by |).
requirements=(
  "g++                     tool:c++"
  "make                    tool:make"
  "cmake                   tool:cmake"
  "ninja-build             tool:ninja"
  "git                     tool:git"
  "pkg-config              tool:pkg-config|tool:pkgconf"
  "mpich                   tool:mpiexec"
  "libmpich-dev            tool:mpicxx"
  "libhdf5-dev             config:hdf5|tool:h5cc"
  "zlib1g-dev              config:zlib|header:zlib.h"
  # The OpenMP build: the default one starts threads of its own beside OpenMP's.
  "libopenblas-openmp-dev  config:openblas|header:cblas.h|header:openblas/cblas.h"
  "libcli11-dev            header:CLI/CLI.hpp"
  "libfmt-dev              header:fmt/format.h"
  "nlohmann-json3-dev      header:nlohmann/json.hpp"
  "libgtest-dev            header:gtest/gtest.h"
  "libsimgrid-dev          tool:smpirun"
  # Only for tests that are skipped where they are missing; so nobody is asked for them: those over a rate-limited link, and
  # those of the batch scripts.
  "iproute2                tool:ip|tool:true"
  "slurmctld               tool:slurmctld|tool:true"
  "slurmd                  tool:slurmd|tool:true"
  "slurm-client            tool:sbatch|tool:true"
  "python3                 tool:$python"
  "python3-venv            module:venv"
  "python3-pip             module:pip"
  "python3-setuptools      module:setuptools"
  "python3-wheel           module:wheel"
  "python3-h5py            module:h5py"
  "python3-numpy           module:numpy"
  "python3-pandas          module:pandas"
  "python3-matplotlib      module:matplotlib"
  "python3-jinja2          module:jinja2"
  "python3-tqdm            module:tqdm"
  "python3-pytest          module:pytest"
)
lint_requirements=(
  "clang-format            tool:clang-format"
  "clang-tidy              tool:run-clang-tidy"
  # clang reads omp.h from its own folder, not from g++'s.
  "libomp-dev              tool:run-clang-tidy"
)

die() {
  printf 'deps: %s\n' "$@" >&2
  exit 1
}

case "${1-}" in
  "") ;;
  --lint) requirements+=("${lint_requirements[@]}") ;;
  *) printf 'usage: cmake/deps.sh [--lint]\n' >&2 && exit 2 ;;
esac

present() { # PROBES: is one of these there?
  local probe
  local -a probes
  IFS='|' read -ra probes <<<"$1"
  for probe in "${probes[@]}"; do
    case $probe in
      tool:*) command -v "${probe#*:}" ;;
      header:*) "${CXX:-c++}" -x c++ -std=c++20 -E -include "${probe#*:}" /dev/null ;;
      config:*) pkg-config --exists "${probe#*:}" ;;
      module:*) "$python" -I -c "import ${probe#*:}" ;;
    esac >/dev/null 2>&1 && return 0
  done
  return 1
}

find_missing() { # sets `missing`: what dpkg does not know as installed and, where it will not be installed, no probe finds
  local requirement package probes installed=""
  if command -v dpkg-query >/dev/null; then
    # The second letter of the state is i for installed; unknown names are reported by the loop below.
    installed=$(dpkg-query -W -f '${db:Status-Abbrev}=${Package}\n' "${requirements[@]%% *}" 2>/dev/null || true)
  fi
  missing=()
  for requirement in "${requirements[@]}"; do
    read -r package probes <<<"$requirement"
    [[ $'\n'$installed$'\n' == *$'\n'?"i ="$package$'\n'* ]] && continue
    if ! $can_install && present "$probes"; then continue; fi
    missing+=("$package")
  done
}

install_missing() {
  local log=build/deps.log
  mkdir -p build
  local -a options=(-q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=600)
  printf 'deps: installing %d packages and what they need: %s\n' "${#missing[@]}" "${missing[*]}"
  # Of about a thousand lines one in fifty is shown, so that a slow network and a stop look different.
  if ! {
    apt-get "${options[@]}" update &&
      apt-get "${options[@]}" install --no-install-recommends "${missing[@]}"
  } </dev/null 2>&1 | tee "$log" |
    awk '/^(Need to get|Fetched|After this operation)/ || (/^(Get:|Unpacking |Setting up )/ && ++n % 50 == 0) {
           print "deps:   " substr($0, 1, 100); fflush() }'; then
    tail -n 20 "$log" >&2
    die "apt-get failed; its full output is in $log"
  fi
}

name_missing() {
  local -a lines=("missing on this machine:")
  local package
  for package in "${missing[@]}"; do lines+=("  $package"); done
  if command -v apt-get >/dev/null; then
    lines+=("Only root can install them:" "  apt-get update && apt-get install --no-install-recommends ${missing[*]}")
  else
    lines+=("These are Debian 12's names, and this system has no apt-get. Install the counterparts, or load your site's"
      "modules; without them cmake --preset release still builds where it finds MPI, HDF5, BLAS, CLI11, fmt and json.")
  fi
  die "${lines[@]}"
}

venv_is_current() {
  [[ -f $stamp && -x build/venv/bin/shardbench && ! analysis/pyproject.toml -nt $stamp ]] &&
    [[ $(<"$stamp") == "$root" ]] && # a copied or renamed checkout keeps a venv that points at the old place
    build/venv/bin/python -I -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("shardbench"))'
}

create_venv() {
  printf 'deps: creating build/venv with the command shardbench\n'
  [[ -f analysis/pyproject.toml ]] || die "analysis/pyproject.toml is not there: this is not a whole checkout of shardbench"
  mkdir -p build
  rm -rf build/venv
  "$python" -m venv --system-site-packages build/venv
  # Isolated from the user's pip settings; every dependency is one of the packages above.
  build/venv/bin/python -m pip --isolated --quiet --disable-pip-version-check --no-cache-dir install \
    --no-index --no-deps --no-build-isolation --editable analysis
  printf '%s\n' "$root" >"$stamp"
}

can_install=false
if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then can_install=true; fi

find_missing
if ((${#missing[@]})); then
  if $can_install; then install_missing; else name_missing; fi
fi

stamp=build/venv/shardbench.stamp
venv_is_current 2>/dev/null || create_venv
