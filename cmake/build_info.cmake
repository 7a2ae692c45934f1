# Writes build_info.cpp; run at every build, so that the commit in a trace is the commit that was built.
# Rewrites the file only when something changed.
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse HEAD
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
set(dirty false)
if(failed)
  set(commit unknown)
else()
  execute_process(COMMAND git -C ${SOURCE_DIR} status --porcelain --untracked-files=no
                  OUTPUT_VARIABLE changes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(changes)
    set(dirty true)
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "src/build_info.hpp"

namespace shardbench {

BuildInfo build_info() {
  return {.version = "@VERSION@", .git_commit = "@commit@", .git_dirty = @dirty@, .build_type = "@BUILD_TYPE@"};
}

}  // namespace shardbench
]])
