# Tests know how many cores they occupy, how long they may take and what they are.

# Python with h5py and pytest: the project's environment where it exists.
find_program(SHARDBENCH_PYTHON NAMES python PATHS ${PROJECT_SOURCE_DIR}/build/venv/bin NO_DEFAULT_PATH)
if(NOT SHARDBENCH_PYTHON)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(SHARDBENCH_PYTHON ${Python3_EXECUTABLE})
endif()

# shardbench_add_unit_test(NAME [LIBRARIES ...]): a GoogleTest program from tests/unit/NAME.cpp, without MPI.
function(shardbench_add_unit_test name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES" ${ARGN})
  add_executable(unit_${name} ${name}.cpp)
  target_link_libraries(unit_${name} PRIVATE shardbench_train shardbench_options GTest::gtest_main ${ARG_LIBRARIES})
  add_test(NAME unit.${name} COMMAND unit_${name})
  set_tests_properties(unit.${name} PROPERTIES LABELS unit TIMEOUT 120 ENVIRONMENT "OMP_NUM_THREADS=2")
endfunction()

# shardbench_add_guarded_test(NAME TIMEOUT s COMMAND ...): a test that starts processes, all of which end with it.
# The guard's deadline comes first, so that it can still kill what CTest does not know.
function(shardbench_add_guarded_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "COMMAND" ${ARGN})
  math(EXPR deadline "${ARG_TIMEOUT} - ${ARG_TIMEOUT} / 10 - 2")
  add_test(NAME ${name} COMMAND ${SHARDBENCH_PYTHON} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/guard.py ${deadline} ${ARG_COMMAND}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()

# shardbench_lock_cores(NAME): of the tests that start several ranks only as many run at once as the machine has pairs of
# cores, whatever -j says. CTest compares PROCESSORS with -j, not with the machine; and ranks that share a core with the ranks of
# other tests are slow enough to miss what a test may rightly expect (a refusal within seconds).
function(shardbench_lock_cores name)
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR pairs "(${cores} + 1) / 2")
  get_property(locked GLOBAL PROPERTY shardbench_locked_tests)
  list(LENGTH locked turn)
  math(EXPR pair "${turn} % ${pairs}")
  set_property(GLOBAL APPEND PROPERTY shardbench_locked_tests ${name})
  set_tests_properties(${name} PROPERTIES RESOURCE_LOCK cores_${pair})
endfunction()

# shardbench_add_python_test(NAME FILE LABELS ... [TIMEOUT s] [PROCESSORS n]): one pytest file.
function(shardbench_add_python_test name file)
  cmake_parse_arguments(ARG "" "TIMEOUT;PROCESSORS" "LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 1)
  endif()
  shardbench_add_guarded_test(${name} TIMEOUT ${ARG_TIMEOUT}
                              COMMAND ${SHARDBENCH_PYTHON} -m pytest -q -rs -p no:cacheprovider ${file})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" PROCESSORS ${ARG_PROCESSORS}
    ENVIRONMENT "SHARDBENCH_BIN=${CMAKE_BINARY_DIR}/bin;SHARDBENCH_SIM_BIN=${PROJECT_SOURCE_DIR}/build/sim/bin;SHARDBENCH_MPIEXEC=${MPIEXEC_EXECUTABLE};OMP_NUM_THREADS=1;PYTHONDONTWRITEBYTECODE=1")
  if(ARG_PROCESSORS GREATER 1)
    shardbench_lock_cores(${name})
  endif()
endfunction()
