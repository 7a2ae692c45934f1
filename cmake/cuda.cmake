# The CUDA and NCCL backend, only where it is asked for: a compiler that happens to be installed must not change what a build
# is. Whoever asks hears which part is missing.
option(SHARDBENCH_CUDA "Build the CUDA and NCCL backend (--backend nccl)" OFF)
if(NOT SHARDBENCH_CUDA)
  message(STATUS "CUDA: off (preset cuda, or -DSHARDBENCH_CUDA=ON)")
  return()
endif()
if(SHARDBENCH_SIMULATION)
  message(FATAL_ERROR "SHARDBENCH_CUDA and SHARDBENCH_SIMULATION exclude each other: a simulated rank has no GPU. Choose one.")
endif()

# cuBLASLt and NCCL promise nothing across major versions; 13 is what this was written for.
set(SHARDBENCH_CUDA_NEEDED 13.0 CACHE STRING "Oldest nvcc that will do")
mark_as_advanced(SHARDBENCH_CUDA_NEEDED)

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "SHARDBENCH_CUDA is on, but nvcc was not found; put the bin directory of CUDA ${SHARDBENCH_CUDA_NEEDED} or later on "
                      "PATH, or set CUDACXX, or leave SHARDBENCH_CUDA off.")
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90 100)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # one copy, the one that NCCL and cuBLASLt use
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25, Debian 12's, knows nvcc up to C++17
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS SHARDBENCH_CUDA_NEEDED)
  message(FATAL_ERROR "SHARDBENCH_CUDA is on, but ${CMAKE_CUDA_COMPILER} is nvcc ${CMAKE_CUDA_COMPILER_VERSION}; "
                      "${SHARDBENCH_CUDA_NEEDED} or later is needed.")
endif()

find_package(CUDAToolkit REQUIRED)
if(NOT TARGET CUDA::cublasLt)
  message(FATAL_ERROR "SHARDBENCH_CUDA is on, but cuBLASLt was not found in ${CUDAToolkit_LIBRARY_DIR}; install CUDA's libcublas.")
endif()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  message(FATAL_ERROR "SHARDBENCH_CUDA is on, but NCCL's nccl.h (${NCCL_INCLUDE_DIR}) or library (${NCCL_LIBRARY}) was not found; "
                      "install libnccl-dev, or set CMAKE_PREFIX_PATH or NCCL_INCLUDE_DIR and NCCL_LIBRARY.")
endif()
add_library(shardbench_nccl_library INTERFACE)
target_include_directories(shardbench_nccl_library SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
target_link_libraries(shardbench_nccl_library INTERFACE ${NCCL_LIBRARY} CUDA::cudart)

find_path(NVTX_INCLUDE_DIR nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NOT NVTX_INCLUDE_DIR)
  message(FATAL_ERROR "SHARDBENCH_CUDA is on, but NVTX's nvtx3/nvToolsExt.h was not found; install CUDA's nvtx, or set NVTX_INCLUDE_DIR.")
endif()

message(STATUS "CUDA: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}, NCCL ${NCCL_LIBRARY}")
