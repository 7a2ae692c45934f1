#!/usr/bin/env bash
# `make bench`: where the time of a step goes on this machine, and what prefetch hides over a link. Variants are interleaved and compared by the median over
# rounds, because the machine's speed drifts; ratios within one run mean more than the milliseconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=build/release/bin
rounds=${ROUNDS:-5}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mpiexec=${MPIEXEC:-$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' build/release/CMakeCache.txt)}

# "name ranks executable options...".
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}  # as in `make run`
variants=(
  "ddp-1-rank 1 ddp --model 25m"
  "zero3-1-rank 1 zero3 --model 25m"
  "ddp-2-ranks 2 ddp --model 25m"
  "zero3-2-ranks 2 zero3 --model 25m"
  "zero3-direct 2 zero3 --model 25m --algorithm direct"
  "zero3-ring 2 zero3 --model 25m --algorithm ring"
  "zero3-doubling 2 zero3 --model 25m --algorithm doubling"
  "zero3-native 2 zero3 --model 25m --algorithm native"
  "zero3-no-trace 2 zero3 --model 25m --trace none"
)

for ((round = 1; round <= rounds; ++round)); do
  for variant in "${variants[@]}"; do
    read -r name n executable options <<<"$variant"
    read -ra options <<<"$options"
    "${mpiexec:-mpiexec}" -n "$n" "$bin/$executable" "${options[@]}" -n 6 -w 2 --ranks "$n" --overwrite \
      -o "$scratch/$name.h5" | sed -n 's/^.*: step \([0-9.]*\) ms.*, \([0-9]*\) tokens\/s.*$/\1 \2/p' >>"$scratch/$name.txt"
  done
  echo "bench: round $round of $rounds done" >&2
done

# 6 FLOPs per parameter outside the input embedding and token, and 12 L h s for attention (docs/contract.md).
flops_per_token=$("$bin/zero3" --model 25m --plan |
  awk -F'[:,]' '/"psi"/ { printf "%.0f", 6 * ($2 - 8192 * 512) + 12 * 6 * 512 * 256; exit }')
printf '%-16s %12s %12s %14s\n' variant 'step ms' tokens/s 'model GFLOP/s'
for variant in "${variants[@]}"; do
  name=${variant%% *}
  sort -n "$scratch/$name.txt" | awk -v name="$name" -v flops="$flops_per_token" '
    { step[NR] = $1; tokens[NR] = $2 }
    END { m = int((NR + 1) / 2); printf "%-16s %12.1f %12d %14.1f\n", name, step[m], tokens[m], tokens[m] * flops / 1e9 }'
done

# Overlap cannot be measured over this machine's memory, but over a link between network namespaces it can. 77: not here; it
# has said why.
echo
code=0
build/venv/bin/python jobs/overlap.py --mpiexec "${mpiexec:-mpiexec}" || code=$?
((code == 0 || code == 77)) || exit "$code"

# How well four hosts are told from one and two, over the same kind of link.
echo
code=0
build/venv/bin/python jobs/prediction.py --mpiexec "${mpiexec:-mpiexec}" || code=$?
((code == 0 || code == 77)) || exit "$code"
