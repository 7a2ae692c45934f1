# shardbench_add_mpi_program(NAME SOURCES...): one executable, or a module for the simulator, with the main that is among its
# sources.
function(shardbench_add_mpi_program name)
  if(SHARDBENCH_SIMULATION)
    add_library(${name} MODULE ${PROJECT_SOURCE_DIR}/src/program.cpp ${ARGN})
    set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
    # smpirun looks for a main of its own making.
    target_link_libraries(${name} PRIVATE shardbench_smpi)
  else()
    add_executable(${name} ${PROJECT_SOURCE_DIR}/src/program.cpp ${ARGN})
    install(TARGETS ${name} RUNTIME)
  endif()
  target_link_libraries(${name} PRIVATE shardbench_train shardbench_mpi shardbench_options)
endfunction()
