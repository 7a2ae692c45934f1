# Everything comes from the system or from a cluster's modules; nothing is downloaded.
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)

# Matrix products run inside OpenMP regions too: a BLAS with threads of its own would multiply them. Debian keeps the
# OpenMP build of OpenBLAS beside others.
find_library(SHARDBENCH_OPENBLAS_OPENMP NAMES openblas PATH_SUFFIXES openblas-openmp NO_CACHE
             PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH)
if(SHARDBENCH_OPENBLAS_OPENMP AND NOT BLAS_LIBRARIES)
  set(BLAS_LIBRARIES ${SHARDBENCH_OPENBLAS_OPENMP})
endif()
find_package(BLAS REQUIRED)

# The serial flavour: only rank 0 writes. (Asked for by component, since pkg-config's plain hdf5 may mean MPI.)
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)
if(HDF5_IS_PARALLEL)
  message(FATAL_ERROR "HDF5 ${HDF5_VERSION} at ${HDF5_C_INCLUDE_DIRS} is a parallel build, tied to one MPI library; "
                      "shardbench writes from one rank. Load a serial HDF5 module or set HDF5_ROOT to one.")
endif()

# Checksums of the trace file. HDF5 itself is usually built on it.
find_package(ZLIB REQUIRED)

if(SHARDBENCH_SIMULATION)
  find_library(SIMGRID_LIBRARY simgrid REQUIRED)
  find_path(SMPI_INCLUDE_DIR smpi/mpi.h REQUIRED)
else()
  find_package(MPI REQUIRED COMPONENTS C)
endif()

message(STATUS "BLAS: ${BLAS_LIBRARIES}")
message(STATUS "HDF5: ${HDF5_VERSION} (serial)")
