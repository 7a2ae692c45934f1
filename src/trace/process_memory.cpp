#include "src/trace/process_memory.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace shardbench {
namespace {

/// The number behind `key` in a "Key:   123 kB" file.
Bytes kilobytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream rest(line.substr(key.size()));
    rest.imbue(std::locale::classic());
    std::int64_t value = 0;
    rest >> value;
    return Bytes(value * 1024);
  }
  return {};
}

}  // namespace

ProcessMemory read_process_memory() {
  return {.rss = kilobytes("/proc/self/status", "VmRSS:"),
          .hwm = kilobytes("/proc/self/status", "VmHWM:"),
          .pss = kilobytes("/proc/self/smaps_rollup", "Pss:")};
}

Bytes available_memory() {
  const Bytes available = kilobytes("/proc/meminfo", "MemAvailable:");
  // Control groups, version 2, as a container sees its own. "max" is no number.
  std::int64_t limit = 0;
  std::int64_t used = 0;
  std::ifstream("/sys/fs/cgroup/memory.max") >> limit;
  std::ifstream("/sys/fs/cgroup/memory.current") >> used;
  return limit > 0 ? std::min(available, Bytes(std::max<std::int64_t>(limit - used, 0))) : available;
}

}  // namespace shardbench
