#!/usr/bin/env bash
# The study of `make run`: every scenario that is built, on 1, 2 and 4 ranks, each point launched twice and checked against
# the unsharded reference. Results, logs and the report go to results/demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=build/release/bin
out=results/demo
shardbench=build/venv/bin/shardbench
ranks=(1 2 4)
launches=2
seed=1
# Small enough that the whole study takes minutes on two cores.
options=(--model 25m --layers 2 --vocab 2048 --seq 64 -n 10 -w 2 -c)

# matplotlib's font cache stays in the checkout, and out of a home that may not be writable.
export MPLCONFIGDIR=${MPLCONFIGDIR:-$PWD/build/matplotlib}

# The launcher of the MPI that the executables were linked with.
mpiexec=${MPIEXEC:-$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' build/release/CMakeCache.txt)}
mpiexec=${mpiexec:-mpiexec}

# Threads that spin for each other stand still for milliseconds whenever something else runs on the machine. Where nothing
# guarantees that they are alone they had better sleep. The choice is recorded in each file.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# A point of the study is "tag scenario ranks options...".
points=()
for scenario in ddp zero1 zero2 zero3 mesh2d; do
  [[ -x $bin/$scenario ]] || continue
  for n in "${ranks[@]}"; do
    # Two tensor-parallel ranks where there are two.
    mesh=""
    [[ $scenario == mesh2d ]] && ((n > 1)) && mesh="--tp 2"
    points+=("$scenario $scenario $n $mesh")
    [[ $scenario == zero3 ]] && points+=("zero3-prefetch0 zero3 $n --prefetch 0")
  done
done
((${#points[@]})) || { echo "demo: no scenario in $bin; run make build" >&2 && exit 1; }

# Each launch visits every point once, in an order of its own, so that slow drifts of the machine fall on all of them alike.
RANDOM=$seed
runs=()
for ((launch = 1; launch <= launches; ++launch)); do
  order=("${points[@]}")
  for ((i = ${#order[@]} - 1; i > 0; --i)); do
    j=$((RANDOM % (i + 1)))
    swap=${order[i]} && order[i]=${order[j]} && order[j]=$swap
  done
  for point in "${order[@]}"; do runs+=("$launch $point"); done
done

mkdir -p "$out" "$MPLCONFIGDIR"
rm -f "$out"/*_n[0-9]*_l[0-9]*.{h5,log} "$out/report.html"
echo "demo: ${#runs[@]} runs (${options[*]}), order shuffled with seed $seed"

begin=$SECONDS
for ((k = 0; k < ${#runs[@]}; ++k)); do
  read -r launch tag scenario n extra <<<"${runs[k]}"
  read -ra extra_options <<<"$extra"
  elapsed=$((SECONDS - begin))
  remaining=""
  ((k > 0)) && remaining=", about $((elapsed * (${#runs[@]} - k) / k)) s left"
  printf 'demo: %d of %d: %s, N = %d, launch %d (%d s%s)\n' \
    $((k + 1)) ${#runs[@]} "$tag" "$n" "$launch" "$elapsed" "$remaining"
  file=$out/${tag}_n${n}_l${launch}
  code=0
  "$mpiexec" -n "$n" "$bin/$scenario" "${options[@]}" "${extra_options[@]}" --ranks "$n" --overwrite -o "$file.h5" \
    </dev/null >"$file.log" 2>&1 || code=$?
  if ((code)); then
    tail -n 40 "$file.log" >&2
    echo "demo: $scenario on $n ranks failed with exit code $code; its output is in $file.log" >&2
    exit 1
  fi
done
echo "demo: all runs done in $((SECONDS - begin)) s"

"$shardbench" validate "$out"/*_n[0-9]*_l[0-9]*.h5
"$shardbench" report "$out" -o "$out/report.html"
