# One target carries the warnings and code generation that all of our code is compiled with.
add_library(shardbench_options INTERFACE)
set(host_compiles $<COMPILE_LANGUAGE:C,CXX>)  # what follows is not for nvcc
target_compile_options(shardbench_options INTERFACE $<${host_compiles}:-Wall;-Wextra;-Wconversion;-Wshadow;-Wpedantic>)
target_include_directories(shardbench_options INTERFACE ${PROJECT_SOURCE_DIR})
if(SHARDBENCH_WERROR)
  target_compile_options(shardbench_options INTERFACE $<${host_compiles}:-Werror>)
endif()
if(SHARDBENCH_NATIVE)
  target_compile_options(shardbench_options INTERFACE $<${host_compiles}:-march=native>)
endif()
# exp and sqrt need not report errors through errno, so loops that call them can be vectorised. No value changes.
target_compile_options(shardbench_options INTERFACE $<${host_compiles}:-fno-math-errno>)
if(SHARDBENCH_SANITIZE)
  target_compile_options(shardbench_options INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
                                                      -fno-omit-frame-pointer
                         # g++ 12 suspects std::regex in instrumented code.
                         -Wno-maybe-uninitialized)
  target_link_options(shardbench_options INTERFACE -fsanitize=address,undefined)
endif()
# Ranks compare their executables by the linker's fingerprint.
target_link_options(shardbench_options INTERFACE -Wl,--build-id=sha1)
if(SHARDBENCH_SIMULATION AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The simulator runs all ranks in one process; GNU-unique symbols would be shared between modules.
  target_compile_options(shardbench_options INTERFACE -fno-gnu-unique)
endif()
