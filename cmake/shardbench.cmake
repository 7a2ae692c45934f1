# shardbench_add_scenario(NAME): one executable (or simulated module) from src/scenarios/NAME.cpp.
function(shardbench_add_scenario name)
  if(SHARDBENCH_SIMULATION)
    add_library(${name} MODULE ${PROJECT_SOURCE_DIR}/src/main.cpp ${PROJECT_SOURCE_DIR}/src/program.cpp
                scenarios/${name}.cpp)
    set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
    # smpirun looks for a main of its own making.
    target_link_libraries(${name} PRIVATE shardbench_smpi)
  else()
    add_executable(${name} ${PROJECT_SOURCE_DIR}/src/main.cpp ${PROJECT_SOURCE_DIR}/src/program.cpp
                   scenarios/${name}.cpp)
    install(TARGETS ${name} RUNTIME)
  endif()
  target_link_libraries(${name} PRIVATE shardbench_train shardbench_mpi shardbench_options)
endfunction()
