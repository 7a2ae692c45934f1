#!/usr/bin/env bash
# Does a clean clone of the last commit build, run and test on a bare Debian 12? Needs root on a Debian 12 host with
# debootstrap and git; the package mirror and apt's proxy and certificate settings are the host's.
#
#   tests/bare/check.sh [BASE [COMMAND...]]
#
# BASE     folder of the bare system, made by debootstrap --variant=minbase if it is not there, kept for the next call and
#          never changed; without it a temporary one is used
# COMMAND  run one after the other in the clone by bash, default 'make run' 'make test'. `.ci/run` brings make itself; for
#          any other, README's prerequisites make and git are installed before.
#
# Ends with each command's last lines, exit code and time. Exit code: 0 if every command succeeded, else 1; 2 usage.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
release=bookworm

fail() {
  echo "check: $1" >&2
  exit "${2:-1}"
}

[[ ${1-} != -* ]] || fail "usage: tests/bare/check.sh [BASE [COMMAND...]]" 2
[[ $EUID -eq 0 ]] || fail "needs root, for chroot and mounts"
for tool in debootstrap git unshare; do
  command -v "$tool" >/dev/null || fail "$tool is missing; apt-get install debootstrap git util-linux"
done

# In namespaces of its own, so that no mount and no process outlives the script, whatever ends it.
if [[ ${CHECK_UNSHARED-} != yes ]]; then
  CHECK_UNSHARED=yes exec unshare --mount --propagation private --pid --fork --kill-child -- bash "${BASH_SOURCE[0]}" "$@"
fi

work=$(mktemp -d)
base=${1:-$work/base}
commands=("${@:2}")
((${#commands[@]})) || commands=("make run" "make test")
machine=$work/machine
clone=/root/shardbench

# shellcheck disable=SC2317 # called by the trap
clean_up() {
  local mounted
  for mounted in run/netns dev sys proc; do # (the first is made by tests over a link)
    if mountpoint -q "$machine/$mounted"; then umount --recursive --lazy "$machine/$mounted"; fi
  done
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

in_machine() { # run in the bare system, with nothing of the host's environment but what reaches the registries and the CPU
  local -a environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb)
  local name
  for name in http_proxy https_proxy no_proxy OPENBLAS_CORETYPE OPENBLAS_L2_SIZE; do
    [[ -v $name ]] && environment+=("$name=${!name}")
  done
  env -i "${environment[@]}" chroot "$machine" "$@" </dev/null
}

# The host's own Debian sources, as lines of sources.list.
# shellcheck disable=SC2016 # apt expands them
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
  awk -v release="$release" '$3 ~ "^" release "(-|$)"' | sort -u)
mirror=$(awk -v release="$release" '$3 == release && $4 == "main" { print $2; exit }' <<<"$sources")
[[ -n $mirror ]] || fail "apt knows no source of Debian $release on this host; run apt-get update first"

if [[ ! -e $base/etc/debian_version ]]; then
  echo "check: making a bare $release in $base"
  # Renamed when whole, so that an interrupted attempt is not taken for a base.
  debootstrap --variant=minbase "$release" "$base.part" "$mirror" >"$work/debootstrap.log" 2>&1 ||
    { tail -n 20 "$work/debootstrap.log" >&2 && fail "debootstrap failed"; }
  mv "$base.part" "$base"
fi

cp -a "$base" "$machine"
printf '%s\n' "$sources" >"$machine/etc/apt/sources.list"
# Proxies, certificates, timeouts; not the host's hooks, whose programs the bare system lacks.
apt-config dump --format '%F "%v";%n' Acquire | grep -v IndexTargets >"$machine/etc/apt/apt.conf.d/99host"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  if [[ -e $file ]]; then mkdir -p "$machine${file%/*}" && cp -L "$file" "$machine$file"; fi
done
mount -t proc proc "$machine/proc"
mount --rbind /sys "$machine/sys"
mount --rbind /dev "$machine/dev"

[[ -z $(git -C "$repository" status --porcelain) ]] ||
  echo "check: the working tree has changes that are not committed; they are not part of this check"
git clone --quiet --no-hardlinks "$repository" "$machine$clone"
echo "check: commit $(git -C "$machine$clone" rev-parse --short HEAD) in $machine$clone"

if [[ ${commands[*]} != *.ci/run* ]]; then
  echo "check: installing README's prerequisites, make and git"
  in_machine bash -c 'export DEBIAN_FRONTEND=noninteractive; apt-get -qq update &&
    apt-get -qq -o Dpkg::Use-Pty=0 install --no-install-recommends make git' >"$work/prerequisites.log" 2>&1 ||
    { tail -n 20 "$work/prerequisites.log" >&2 && fail "make and git cannot be installed"; }
fi

failures=0
summary=""
for command in "${commands[@]}"; do
  echo "check: $command"
  start=$SECONDS
  code=0
  # shellcheck disable=SC2016 # expanded inside
  in_machine bash -c 'cd "$1" && eval "$2"' bash "$clone" "$command" 2>&1 | tee "$work/log" || code=$?
  ((code == 0)) || failures=$((failures + 1))
  summary+=$(printf '\n--- %s: exit code %d, %d s; its last lines:\n' "$command" "$code" $((SECONDS - start)) &&
    tail -n 15 "$work/log")$'\n'
done
printf '%s\n' "$summary"
echo "check: $((${#commands[@]} - failures)) of ${#commands[@]} commands succeeded"
exit $((failures > 0))
