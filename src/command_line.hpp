// What every command line of the project does with a name that it does not know.
#pragma once

#include <string>
#include <vector>

namespace shardbench {

/// The candidate that `name` begins, else the one with the smallest edit distance (the first of equals);
/// empty without candidates.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace shardbench
