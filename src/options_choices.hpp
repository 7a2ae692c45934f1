// Options whose value is one of a few names, and those that the scenarios and `collectives` share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/comm/world.hpp"

namespace shardbench {

/// Which program reads the options: one on real ranks, one on real ranks that has --backend nccl, or one in
/// the simulator, whose defaults differ.
enum class Build { real, accelerated, simulated };

/// Pairs of a choice's name and its value, in the order that --help shows and that `all` runs.
template <class T>
using Choices = std::vector<std::pair<std::string, T>>;

inline const Choices<Algorithm> algorithm_choices = {{"auto", Algorithm::automatic},
                                                     {"direct", Algorithm::direct},
                                                     {"ring", Algorithm::ring},
                                                     {"doubling", Algorithm::doubling},
                                                     {"hierarchical", Algorithm::hierarchical},
                                                     {"native", Algorithm::native},
                                                     {"nccl", Algorithm::nccl},
                                                     {"coarse", Algorithm::coarse}};
inline const Choices<Progress> progress_choices = {{"none", Progress::none},
                                                   {"poll", Progress::poll},
                                                   {"thread", Progress::thread},
                                                   {"stream", Progress::stream}};

inline constexpr const char* stall_timeout_help =
    "seconds without any progress after which a rank ends the job and says where it stood; 0 = never";

template <class T>
std::string name_in(const Choices<T>& choices, T value) {
  for (const auto& [name, candidate] : choices)
    if (candidate == value) return name;
  return "";
}

template <class T>
std::string list_of(const Choices<T>& choices, const std::string& separator = "|") {
  std::string text;
  for (const auto& [name, value] : choices) text += (text.empty() ? "" : separator) + name;
  return text;
}

}  // namespace shardbench
