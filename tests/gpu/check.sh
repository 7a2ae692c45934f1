#!/usr/bin/env bash
# Proves the CUDA backend on a machine with a GPU: builds for its architecture, runs everything that one device can show, and
# prints one table. Needs nvcc 13, g++, CMake, Ninja, and python3 with numpy and h5py; neither a network nor an MPI launcher.
#
#   tests/gpu/check.sh [--packages FOLDER] [--build-only]
#
# --packages FOLDER  of pack.sh, for a machine without MPICH, HDF5, OpenBLAS, CLI11, fmt, nlohmann-json and GoogleTest: unpacked
#                    beside the build; nothing is installed
# --build-only       asks for no GPU and runs nothing
#
# Variables: CUDA_ARCHITECTURES (default 90, an H200's), JOBS (default: all CPUs), NCCL_ROOT (a folder with include and lib;
# default: where CMake finds NCCL, else python3's package nvidia.nccl).
# Exit code: 0 if every row passed, else 1; 2 usage.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=build/gpu-check
architectures=${CUDA_ARCHITECTURES:-90}
jobs=${JOBS:-$(nproc)}
limit_s=480 # of all together
least_s=120 # for the runs, however long the build has taken

fail() {
  echo "check: $1" >&2
  exit "${2:-1}"
}

packages="" build_only=false
while (($#)); do
  case $1 in
    --packages) (($# > 1)) || fail "--packages needs a folder" 2
      packages=$2
      shift ;;
    --build-only) build_only=true ;;
    *) fail "usage: tests/gpu/check.sh [--packages FOLDER] [--build-only]" 2 ;;
  esac
  shift
done

$build_only || [[ $(nvidia-smi -L 2>/dev/null) == *"GPU "* ]] ||
  fail "no GPU is visible (nvidia-smi -L names none): nothing was built or run; --build-only builds without one"
[[ -n ${CUDACXX-} ]] || command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
for tool in "${CUDACXX:-nvcc}" c++ cmake ninja python3; do
  command -v "$tool" >/dev/null || fail "$tool is missing"
done
$build_only || python3 -c 'import h5py, numpy' 2>/dev/null || fail "python3 lacks numpy or h5py"

mkdir -p "$folder"
settings=()

unpack() { # into $prefix, once for each list of packages
  [[ -d $packages ]] || fail "$packages is no folder; tests/gpu/pack.sh makes it"
  local list
  list=$(ls "$packages")
  [[ -f $prefix.list && $(<"$prefix.list") == "$list" ]] && return
  rm -rf "$prefix"
  local package link
  for package in "$packages"/*.deb; do dpkg-deb -x "$package" "$prefix" || fail "$package cannot be unpacked"; done
  # Links between packages are absolute and would lead out of the prefix.
  find "$prefix" -type l -lname '/*' | while read -r link; do ln -sfn "$prefix$(readlink "$link")" "$link"; done
  printf '%s\n' "$list" >"$prefix.list"
}

if [[ -n $packages ]]; then
  prefix=$PWD/$folder/prefix
  unpack
  triplet=x86_64-linux-gnu
  libraries=$prefix/usr/lib/$triplet
  # mpicc, h5cc and the alternatives for BLAS name places outside of the prefix, so all is said here.
  settings+=(
    "-DCMAKE_PREFIX_PATH=$prefix/usr"
    "-DMPI_ASSUME_NO_BUILTIN_MPI=ON" "-DMPI_SKIP_GUESSING=ON" "-DMPI_C_LIB_NAMES=mpich" "-DMPI_mpich_LIBRARY=$libraries/libmpich.so"
    "-DMPI_C_HEADER_DIR=$prefix/usr/include/$triplet/mpich" "-DMPI_C_COMPILER=NOTFOUND"
    "-DHDF5_ROOT=$prefix/usr" "-DHDF5_NO_FIND_PACKAGE_CONFIG_FILE=ON" "-DHDF5_C_COMPILER_EXECUTABLE=NOTFOUND"
    "-DHDF5_C_INCLUDE_DIR=$prefix/usr/include/hdf5/serial"
    "-DHDF5_hdf5_LIBRARY_RELEASE=$libraries/hdf5/serial/libhdf5.so"
    "-DBLAS_LIBRARIES=$libraries/openblas-openmp/libopenblas.so"
  )
  export CPLUS_INCLUDE_PATH=$prefix/usr/include/$triplet/openblas-openmp
  # For linking, and for the programs; python3 has libraries of its own.
  program_path=$libraries:$prefix/lib/$triplet:$libraries/openblas-openmp:$libraries/hdf5/serial
fi

# NCCL, cuBLASLt and NVTX of Python wheels, where the toolkit came without: libraries there have no unversioned names.
wheel() { # NAME GLOB: the first such file below python3's package nvidia
  python3 - "$1" <<'PY' 2>/dev/null || true
import pathlib, sys, nvidia
print(next(str(f) for root in nvidia.__path__ for f in sorted(pathlib.Path(root).rglob(sys.argv[1]))))
PY
}
toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v "${CUDACXX:-nvcc}")")")")
if [[ -n ${NCCL_ROOT-} ]]; then
  settings+=("-DNCCL_INCLUDE_DIR=$NCCL_ROOT/include" "-DNCCL_LIBRARY=$(compgen -G "$NCCL_ROOT/lib/libnccl.so*" | head -n 1)")
elif [[ ! -e $toolkit/include/nccl.h && ! -e /usr/include/nccl.h && ! -e /usr/local/include/nccl.h ]]; then
  header=$(wheel nccl.h)
  [[ -n $header ]] && settings+=("-DNCCL_INCLUDE_DIR=${header%/*}" "-DNCCL_LIBRARY=$(wheel 'libnccl.so*')")
fi
if [[ ! -e $toolkit/lib64/libcublasLt.so ]]; then
  library=$(wheel 'libcublasLt.so*')
  [[ -n $library ]] && settings+=("-DCUDA_cublasLt_LIBRARY=$library")
  header=$(wheel cublasLt.h)
  [[ -n $header ]] && export CPLUS_INCLUDE_PATH=${CPLUS_INCLUDE_PATH:+$CPLUS_INCLUDE_PATH:}${header%/*}
fi

if [[ ! -e $toolkit/include/nvtx3/nvToolsExt.h ]]; then
  header=$(wheel nvtx3/nvToolsExt.h)
  [[ -n $header ]] && settings+=("-DNVTX_INCLUDE_DIR=${header%/nvtx3/*}")
fi

quietly() { # COMMAND...: its output only where it fails
  "$@" >"$folder/log" 2>&1 || { tail -n 30 "$folder/log" >&2 && fail "$1 $2 failed; its whole output is in $folder/log"; }
}
quietly env LD_LIBRARY_PATH="${program_path-}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
  cmake --preset cuda -B "$folder/build" -DCMAKE_CUDA_ARCHITECTURES="$architectures" "${settings[@]}"
quietly env LD_LIBRARY_PATH="${program_path-}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
  cmake --build "$folder/build" -j "$jobs" --target ddp zero1 zero2 zero3 mesh2d gpu_kernels gpu_timings
echo "check: built for sm_$architectures in $SECONDS s"
$build_only && exit

left_s=$((limit_s - SECONDS))
((left_s > least_s)) || left_s=$least_s
echo "check: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1), $(uname -r)"
python3 -B tests/gpu/checks.py "$folder/build/bin" --budget "$left_s" --library-path "${program_path-}"
