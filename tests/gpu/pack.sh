#!/usr/bin/env bash
# Gathers the Debian 12 packages that check.sh needs on a machine with CUDA, NCCL, g++ and CMake but without them and
# without a network. Needs apt with Debian 12's archive, not root; installs nothing.
#
#   tests/gpu/pack.sh [FOLDER]      default build/gpu-packages; what is there already is not fetched again
#
# Take the folder along with the checkout, then: tests/gpu/check.sh --packages FOLDER
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${1:-build/gpu-packages}
limit_mib=64

# What is compiled and linked against. Of what these ask for in turn (Fortran, static linking, MPI's tools) nothing is used.
development=(libmpich-dev libhdf5-dev zlib1g zlib1g-dev libopenblas-openmp-dev libcli11-dev libfmt-dev nlohmann-json3-dev libgtest-dev)
# What runs, with all that it needs but what a machine with a C++ compiler has.
libraries=(libmpich12 libhdf5-103-1 libopenblas0-openmp libfmt9)
there=(libstdc++6 libgomp1 perl debconf adduser)

fail() {
  echo "pack: $1" >&2
  exit "${2:-1}"
}

[[ ${1-} != -* && $# -le 1 ]] || fail "usage: tests/gpu/pack.sh [FOLDER]" 2
for tool in apt-get dpkg; do command -v "$tool" >/dev/null || fail "$tool is missing; run this on Debian 12"; done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/status"

# The packages that apt would install on an empty system, with versions.
closure() {
  apt-get -qq -s -o Dir::State::status="$work/status" -o Debug::NoLocking=1 install --no-install-recommends "$@" |
    awk '$1 == "Inst" { gsub(/[(]/, "", $3); print $2 "=" $3 }' | sort
}

{ closure "${libraries[@]}" >"$work/all" && closure "${there[@]}" >"$work/there"; } ||
  fail "apt cannot resolve ${libraries[*]}; run apt-get update, on Debian 12"
mapfile -t packages < <(printf '%s\n' "${development[@]}" && comm -23 "$work/all" "$work/there")

mkdir -p "$folder"
(cd "$folder" && apt-get -qq -o APT::Sandbox::User=root download "${packages[@]}") || fail "apt-get download failed"

# Nothing of an earlier list travels along.
for file in "$folder"/*.deb; do
  name=${file##*/}
  [[ " ${packages[*]} " == *" ${name%%_*}"[=\ ]* ]] || rm "$file"
done
size_mib=$((($(cat "$folder"/*.deb | wc -c) + (1 << 20) - 1) >> 20))
echo "pack: ${#packages[@]} packages, $size_mib MiB, in $folder; there: tests/gpu/check.sh --packages $folder"
((size_mib < limit_mib)) || fail "that is not below $limit_mib MiB"
