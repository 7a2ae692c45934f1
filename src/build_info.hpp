// Where this binary comes from; build_info.cpp is generated at every build.
#pragma once

#include <string_view>

namespace shardbench {

struct BuildInfo {
  std::string_view version;
  std::string_view git_commit;  ///< "unknown" outside a repository
  bool git_dirty;
  std::string_view build_type;
};
BuildInfo build_info();

}  // namespace shardbench
